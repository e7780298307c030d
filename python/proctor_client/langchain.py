"""Proctor's tools for LangChain agents.

`proctor_tools` returns the tools. The application chooses the database, the policy and the lists of names; a model
chooses only statements and questions. No tool keeps the effects of a write.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Optional, TypeVar, Union

from langchain_core.tools import BaseTool, StructuredTool, ToolException
from pydantic import BaseModel, ConfigDict, Field

from . import calls
from .async_client import AsyncClient
from .calls import Operation
from .client import Client
from .errors import ProctorError, RunNotFinishedError
from .options import RunOptions, SqlTarget
from .socket_path import StrPath
from .tool_texts import (
    MAX_SHOWN_STEPS,
    ask_text,
    error_text,
    is_unsuccessful,
    judgement_text,
    rows_text,
    run_text,
    schema_text,
)
from .wire_types import Dialect, RunWithEvents, SqlLimits, SqlPolicy, StepView

__all__ = ["proctor_tools"]

# The text for the model, and the answer of the daemon for the application.
ToolAnswer = tuple[str, Any]
ArgumentsT = TypeVar("ArgumentsT", bound=BaseModel)

# Seconds that a call waits for a run, and bytes of an output that it reads.
MAX_RUN_WAIT = 55
READ_OUTPUT = 4096

MAX_SQL = 100_000
MAX_QUESTION = 4_000


class Arguments(BaseModel):
    """The arguments of a tool. Unknown arguments are refused."""

    model_config = ConfigDict(extra="forbid")


class VerifyArguments(Arguments):
    profile: str = Field(default="pr", max_length=100, description="The profile of the checks to run.")
    changeset: Optional[str] = Field(
        default=None, max_length=100, description="The changeset that receives the evidence, if there is one."
    )
    wait_s: int = Field(default=45, ge=0, le=MAX_RUN_WAIT, description="Seconds to wait for the end of the run.")


class RepositoryArguments(VerifyArguments):
    repo: str = Field(max_length=4096, pattern="^/", description="Absolute path of the root of the repository.")


class SqlArguments(Arguments):
    sql: str = Field(min_length=1, max_length=MAX_SQL, description="The SQL statement.")
    question: Optional[str] = Field(
        default=None, max_length=MAX_QUESTION, description="The question that the statement should answer."
    )


class QuestionArguments(Arguments):
    question: str = Field(min_length=1, max_length=MAX_QUESTION, description="The question, in words.")


def proctor_tools(
    client: Union[Client, AsyncClient],
    *,
    repo: Optional[StrPath] = None,
    db: Optional[StrPath] = None,
    schema: Union[str, Sequence[str]] = (),
    dialect: Dialect = "sqlite",
    policy: SqlPolicy = "read",
    tables: Sequence[str] = (),
    columns: Sequence[str] = (),
    functions: Sequence[str] = (),
    limits: Optional[SqlLimits] = None,
    reject_at: Optional[int] = None,
    samples: int = 0,
    provider: Optional[str] = None,
    include: Optional[Sequence[str]] = None,
) -> list[BaseTool]:
    """Returns the tools, which work with `invoke` and `ainvoke`.

    `db` is a database file, and `schema` has the statements that create a schema. `samples` is the number of sample
    values of each column that a model sees. Without `repo`, the model names the repository that `proctor_verify`
    verifies. `include` selects tools by their names.
    """
    target = SqlTarget(
        dialect=dialect,
        database=db,
        schema=schema,
        policy=policy,
        tables=tables,
        columns=columns,
        functions=functions,
        limits=limits,
        reject_at=reject_at,
    )
    target.allowed_names()
    tools = [
        _verify_tool(client, repo),
        _sql_verify_tool(client, target),
        _sql_run_tool(client, target),
        _sql_schema_tool(client, target, samples),
        _sql_ask_tool(client, target, samples, provider),
    ]
    if include is None:
        return tools
    unknown = set(include) - {tool.name for tool in tools}
    if unknown:
        raise ValueError(f"there is no tool {', '.join(sorted(unknown))}")
    return [tool for tool in tools if tool.name in include]


def _verify_tool(client: Union[Client, AsyncClient], repo: Optional[StrPath]) -> BaseTool:
    def operation(arguments: VerifyArguments) -> Operation[ToolAnswer]:
        named = arguments.repo if isinstance(arguments, RepositoryArguments) else None
        return _verify(repo if repo is not None else named or "", arguments)

    description = (
        "Verifies a repository: runs the checks of its spec in a sandbox. Only an answer that begins with `PASSED:` "
        "means that the current tree is verified. A run that takes longer than the call continues; call the tool again."
    )
    schema = RepositoryArguments if repo is None else VerifyArguments
    return _tool(client, "proctor_verify", description, schema, operation, "INCONCLUSIVE (not verified)")


def _verify(repo: StrPath, arguments: VerifyArguments) -> Operation[ToolAnswer]:
    submitted = yield from calls.submit_run(repo, arguments.profile, arguments.changeset, RunOptions())
    run_id = submitted["run"]["id"]
    try:
        run = yield from calls.wait_for_run(run_id, arguments.wait_s, None)
    except RunNotFinishedError:
        run = yield from calls.get_run(run_id)
    outputs = yield from _outputs(run)
    return run_text(run, outputs), run


def _outputs(run: RunWithEvents) -> Operation[list[tuple[StepView, str, bytes]]]:
    """Reads the ends of the outputs of the first steps that did not pass."""
    found: list[tuple[StepView, str, bytes]] = []
    unpassed = [step for step in run["steps"] if is_unsuccessful(step)]
    for step in unpassed[:MAX_SHOWN_STEPS]:
        streams: list[tuple[calls.Stream, Any]] = [("stderr", step["stderr"]), ("stdout", step["stdout"])]
        for stream, view in streams:
            size = view["kept_bytes"] if view is not None else 0
            if size > 0:
                offset = max(0, size - READ_OUTPUT)
                data = yield from calls.output(run["id"], step["n"], stream, "steps", offset, READ_OUTPUT, None)
                found.append((step, stream, data))
    return found


def _sql_verify_tool(client: Union[Client, AsyncClient], target: SqlTarget) -> BaseTool:
    def operation(arguments: SqlArguments) -> Operation[ToolAnswer]:
        judgement = yield from calls.sql_verify(arguments.sql, target, arguments.question, None)
        return judgement_text(judgement), judgement

    description = (
        f"Judges an SQL statement in the dialect {target.dialect} under the policy {target.policy}: whether its names "
        "exist, what it does, and whether it answers the question. It returns no rows. Only an answer that begins with "
        "OK means that the statement may be shown or run."
    )
    return _tool(client, "sql_verify", description, SqlArguments, operation, "NOT JUDGED")


def _sql_run_tool(client: Union[Client, AsyncClient], target: SqlTarget) -> BaseTool:
    def operation(arguments: SqlArguments) -> Operation[ToolAnswer]:
        answer = yield from calls.sql_run(arguments.sql, target, arguments.question, False, None)
        return rows_text(answer), answer

    description = (
        f"Judges an SQL statement in the dialect {target.dialect} under the policy {target.policy}, and runs it if the "
        "verdict is ok. Only an answer that begins with OK has the result. Writes are always rolled back."
    )
    return _tool(client, "sql_run", description, SqlArguments, operation, "NOT RUN")


def _sql_schema_tool(client: Union[Client, AsyncClient], target: SqlTarget, samples: int) -> BaseTool:
    def operation(_arguments: Arguments) -> Operation[ToolAnswer]:
        answer = yield from calls.sql_schema(target, samples, None)
        return schema_text(answer), answer

    description = "Describes the tables, columns, keys and comments of the database."
    return _tool(client, "sql_schema", description, Arguments, operation, "NO SCHEMA")


def _sql_ask_tool(
    client: Union[Client, AsyncClient], target: SqlTarget, samples: int, provider: Optional[str]
) -> BaseTool:
    def operation(arguments: QuestionArguments) -> Operation[ToolAnswer]:
        answer = yield from calls.sql_ask(arguments.question, target, samples, provider, None, None)
        return ask_text(answer), answer

    description = (
        "Answers a question to the database: a model writes a statement, which is judged, corrected and run. Only an "
        "answer that begins with ANSWERED has the rows."
    )
    return _tool(client, "sql_ask", description, QuestionArguments, operation, "NOT ANSWERED")


def _tool(
    client: Union[Client, AsyncClient],
    name: str,
    description: str,
    schema: type[ArgumentsT],
    operation: Callable[[ArgumentsT], Operation[ToolAnswer]],
    failure: str,
) -> BaseTool:
    """Returns a tool that performs an operation. `failure` begins the answer if there is no result."""
    blocking = client if isinstance(client, Client) else Client(client.socket, retries=client.retries)
    asynchronous = client if isinstance(client, AsyncClient) else AsyncClient(client.socket, retries=client.retries)

    def call(**arguments: Any) -> ToolAnswer:
        try:
            return blocking.perform(operation(schema(**arguments)))
        except ProctorError as error:
            raise ToolException(error_text(failure, error)) from error

    async def call_async(**arguments: Any) -> ToolAnswer:
        try:
            return await asynchronous.perform(operation(schema(**arguments)))
        except ProctorError as error:
            raise ToolException(error_text(failure, error)) from error

    coroutine: Callable[..., Awaitable[ToolAnswer]] = call_async
    return StructuredTool.from_function(
        func=call,
        coroutine=coroutine,
        name=name,
        description=description,
        args_schema=schema,
        response_format="content_and_artifact",
        handle_tool_error=True,
        handle_validation_error=True,
    )
