"""The operations of the daemon, independent of the transport.

Each operation is a generator: it yields requests, receives their answers, and returns the result. `Client` and
`AsyncClient` drive the same generators.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Generator, Mapping
from typing import Literal, Optional, TypeVar, Union, cast
from urllib.parse import quote, urlencode

from .errors import RunNotFinishedError
from .options import RunOptions, SqlTarget
from .socket_path import StrPath
from .transport import Request, Response
from .wire_types import (
    Health,
    Judgement,
    LoggedEvent,
    RunSubmission,
    RunWithEvents,
    SqlAskAnswer,
    SqlAskBounds,
    SqlAskRequest,
    SqlLimits,
    SqlRequest,
    SqlRunAnswer,
    SqlRunRequest,
    SqlSchemaAnswer,
    SqlSchemaRequest,
    SubmittedRun,
)

T = TypeVar("T")
Operation = Generator[Request, Response, T]
EventCallback = Callable[[LoggedEvent], None]
Unit = Literal["steps", "checks"]
Stream = Literal["stdout", "stderr"]

# Time limit of a request that needs no work, in seconds.
QUICK_TIMEOUT = 30.0
# Longest time that one request waits for a run, in seconds. The daemon accepts at most 55.
MAX_WAIT = 45.0
# Time limits of a judgement, in seconds: its default, and what the daemon and the client need in addition, for the
# queue and for the first start of a server.
JUDGEMENT_TIME = 5.0
JUDGEMENT_MARGIN = 60.0
# A statement is judged, and then run with the same limits.
RUN_PARTS = 2
# Time limit of a question, in seconds: the longest that an operator can configure, and the margin.
ASK_TIMEOUT = 3600 + JUDGEMENT_MARGIN


def health(timeout: Optional[float]) -> Operation[Health]:
    response = yield Request("GET", "/healthz", timeout or QUICK_TIMEOUT)
    return cast(Health, response.checked().json())


def submit_run(
    repo: StrPath, profile: str, changeset: Optional[str], options: RunOptions, timeout: Optional[float] = None
) -> Operation[SubmittedRun]:
    body: RunSubmission = {"repo": os.path.abspath(repo), "profile": profile}
    body["reuse"], body["skills"] = options.reuse, options.skills
    if changeset is not None:
        body["changeset_id"] = changeset
    if options.rev is not None:
        body["rev"] = options.rev
    if options.env is not None:
        body["env"] = dict(options.env)
    headers = {"Idempotency-Key": options.idempotency_key or uuid.uuid4().hex}
    response = yield Request("POST", "/v1/runs", timeout or QUICK_TIMEOUT, body, headers)
    return cast(SubmittedRun, response.checked().json())


def get_run(
    run_id: str, wait: float = 0, after: Optional[int] = None, timeout: Optional[float] = None
) -> Operation[RunWithEvents]:
    query: dict[str, Union[str, int]] = {}
    if wait > 0:
        query["wait"] = f"{int(wait * 1000)}ms"
    if after is not None:
        query["after"] = after
    path = f"/v1/runs/{quote(run_id, safe='')}"
    response = yield Request("GET", path + query_text(query), (timeout or QUICK_TIMEOUT) + wait)
    return cast(RunWithEvents, response.checked().json())


def wait_for_run(run_id: str, timeout: Optional[float], on_event: Optional[EventCallback]) -> Operation[RunWithEvents]:
    deadline = None if timeout is None else time.monotonic() + timeout
    after = None if on_event is None else 0
    while True:
        remaining = MAX_WAIT if deadline is None else max(0.0, deadline - time.monotonic())
        run = yield from get_run(run_id, min(remaining, MAX_WAIT), after)
        if on_event is not None:
            for event in run.get("events") or []:
                on_event(event)
                after = event["seq"]
        if run["state"] == "finished" and not run.get("more_events"):
            return run
        if deadline is not None and time.monotonic() >= deadline:
            message = f"the run {run_id} did not end within {timeout:g} s"
            raise RunNotFinishedError(message, "the run continues; wait for it again, or cancel it", run_id)


def run(
    repo: StrPath,
    profile: str,
    changeset: Optional[str],
    options: RunOptions,
    timeout: Optional[float],
    on_event: Optional[EventCallback],
) -> Operation[RunWithEvents]:
    submitted = yield from submit_run(repo, profile, changeset, options)
    return (yield from wait_for_run(submitted["run"]["id"], timeout, on_event))


def cancel_run(run_id: str, timeout: Optional[float]) -> Operation[None]:
    response = yield Request("DELETE", f"/v1/runs/{quote(run_id, safe='')}", timeout or QUICK_TIMEOUT)
    response.checked()


def evidence(run_id: str, file: str, timeout: Optional[float]) -> Operation[bytes]:
    path = f"/v1/runs/{quote(run_id, safe='')}/evidence/{quote(file, safe='')}"
    response = yield Request("GET", path, timeout or QUICK_TIMEOUT)
    return response.checked().body


def output(
    run_id: str,
    n: int,
    stream: Stream,
    unit: Unit,
    offset: Optional[int],
    limit: Optional[int],
    timeout: Optional[float],
) -> Operation[bytes]:
    query = {name: value for name, value in [("offset", offset), ("limit", limit)] if value is not None}
    path = f"/v1/runs/{quote(run_id, safe='')}/{unit}/{n}/{stream}"
    response = yield Request("GET", path + query_text(query), timeout or QUICK_TIMEOUT)
    return response.checked().body


def sql_request(sql: str, target: SqlTarget, question: Optional[str]) -> SqlRequest:
    request: SqlRequest = {"sql": sql, "dialect": target.dialect, "schema": target.schema_texts()}
    request["policy"], request["allow"] = target.policy, target.allowed_names()
    if target.database is not None:
        request["database"] = os.path.abspath(target.database)
    if question is not None:
        request["question"] = question
    if target.limits is not None:
        request["limits"] = target.limits
    if target.stages is not None:
        request["stages"] = list(target.stages)
    if target.batch is not None:
        request["batch"] = target.batch
    if target.reject_at is not None:
        request["reject_at"] = target.reject_at
    return request


def sql_verify(sql: str, target: SqlTarget, question: Optional[str], timeout: Optional[float]) -> Operation[Judgement]:
    request = sql_request(sql, target, question)
    response = yield Request("POST", "/v1/sql/verify", timeout or judgement_timeout(target), request)
    return cast(Judgement, response.checked().json())


def sql_run(
    sql: str, target: SqlTarget, question: Optional[str], commit: bool, timeout: Optional[float]
) -> Operation[SqlRunAnswer]:
    body: SqlRunRequest = {"request": sql_request(sql, target, question), "commit": commit}
    # A second attempt must not repeat an effect.
    request = Request(
        "POST", "/v1/sql/run", timeout or RUN_PARTS * judgement_timeout(target), body, may_retry=not commit
    )
    response = yield request
    return cast(SqlRunAnswer, response.checked().json())


def sql_schema(target: SqlTarget, samples: int, timeout: Optional[float]) -> Operation[SqlSchemaAnswer]:
    body: SqlSchemaRequest = {"dialect": target.dialect, "schema": target.schema_texts(), "samples": samples}
    body["allow"] = target.allowed_names()
    if target.database is not None:
        body["database"] = os.path.abspath(target.database)
    if target.limits is not None:
        body["limits"] = target.limits
    response = yield Request("POST", "/v1/sql/schema", timeout or judgement_timeout(target), body)
    return cast(SqlSchemaAnswer, response.checked().json())


def sql_ask(
    question: str,
    target: SqlTarget,
    samples: int,
    provider: Optional[str],
    bounds: Optional[SqlAskBounds],
    timeout: Optional[float],
) -> Operation[SqlAskAnswer]:
    if target.stages is not None or target.batch is not None:
        raise ValueError("a question has no `stages` and no `batch`")
    body: SqlAskRequest = {"question": question, "dialect": target.dialect, "schema": target.schema_texts()}
    body["policy"], body["allow"], body["samples"] = target.policy, target.allowed_names(), samples
    if target.database is not None:
        body["database"] = os.path.abspath(target.database)
    if target.limits is not None:
        body["limits"] = target.limits
    if target.reject_at is not None:
        body["reject_at"] = target.reject_at
    if provider is not None:
        body["provider"] = provider
    if bounds is not None:
        body["bounds"] = bounds
    response = yield Request("POST", "/v1/sql/ask", timeout or ASK_TIMEOUT, body)
    return cast(SqlAskAnswer, response.checked().json())


def judgement_timeout(target: SqlTarget) -> float:
    """Returns the time within which the daemon answers, with a margin."""
    limits: SqlLimits = target.limits or {}
    return limits.get("time_ms", JUDGEMENT_TIME * 1000) / 1000 + JUDGEMENT_MARGIN


def query_text(query: Mapping[str, Union[str, int]]) -> str:
    return "?" + urlencode(query) if query else ""
