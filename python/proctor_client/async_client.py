"""The client for `asyncio`."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Optional, TypeVar, cast

from . import calls
from .calls import EventCallback, Operation, Stream, Unit
from .options import RunOptions, SqlTarget
from .retry import RetryPolicy
from .socket_path import StrPath, socket_candidates
from .transport import AsyncTransport, Request, Response
from .wire_types import (
    Health,
    Judgement,
    RunWithEvents,
    SqlAskAnswer,
    SqlAskBounds,
    SqlRunAnswer,
    SqlSchemaAnswer,
    SubmittedRun,
)

T = TypeVar("T")


class AsyncClient:
    """A client of the daemon for `asyncio`. Tasks may share it: each request has its own connection.

    `socket` is the path of the daemon's socket. By default, the client finds it like `proctor`. With `retries`, a
    request that the daemon refuses with 429 or 503 and `Retry-After` is sent again, up to that many times. Each method
    takes the time limit of its request in seconds; the default is sufficient for a busy daemon. Cancelling a task ends
    its wait, but not the run that it requested.
    """

    def __init__(self, socket: Optional[StrPath] = None, *, retries: int = 0) -> None:
        self.socket = socket
        self.retries = retries
        self._retry = RetryPolicy(retries)
        self._transport = AsyncTransport(socket_candidates(socket))

    def __repr__(self) -> str:
        paths = [candidate.path for candidate in self._transport.blocking.candidates]
        return f"{type(self).__name__}({', '.join(map(repr, paths))})"

    async def health(self, *, timeout: Optional[float] = None) -> Health:
        """Returns the version, the state and the number of runs of the daemon."""
        return await self.perform(calls.health(timeout))

    async def run(
        self,
        repo: StrPath,
        profile: str,
        changeset: Optional[str] = None,
        *,
        options: RunOptions = RunOptions(),
        timeout: Optional[float] = None,
        on_event: Optional[EventCallback] = None,
    ) -> RunWithEvents:
        """Requests a run and waits until it has ended. Only the verdict `passed` means that the tree is verified.

        `on_event` is called with each event of the run. After `timeout` seconds, the client raises
        `RunNotFinishedError`, and the run continues.
        """
        return await self.perform(calls.run(repo, profile, changeset, options, timeout, on_event))

    async def submit_run(
        self,
        repo: StrPath,
        profile: str,
        changeset: Optional[str] = None,
        *,
        options: RunOptions = RunOptions(),
        timeout: Optional[float] = None,
    ) -> SubmittedRun:
        """Requests a run, and returns without waiting for it."""
        return await self.perform(calls.submit_run(repo, profile, changeset, options, timeout))

    async def get_run(
        self, run_id: str, *, wait: float = 0, after: Optional[int] = None, timeout: Optional[float] = None
    ) -> RunWithEvents:
        """Returns a run. With `wait`, waits up to that many seconds (at most 55) for its end.

        With `after`, waits only for an event with a greater number, and returns the events after that number.
        """
        return await self.perform(calls.get_run(run_id, wait, after, timeout))

    async def wait_for_run(
        self, run_id: str, *, timeout: Optional[float] = None, on_event: Optional[EventCallback] = None
    ) -> RunWithEvents:
        """Waits until a run has ended; see `run`."""
        return await self.perform(calls.wait_for_run(run_id, timeout, on_event))

    async def cancel_run(self, run_id: str, *, timeout: Optional[float] = None) -> None:
        """Cancels a run for all its callers. This has no effect on a run that has ended."""
        await self.perform(calls.cancel_run(run_id, timeout))

    async def evidence(self, run_id: str, file: str, *, timeout: Optional[float] = None) -> dict[str, Any]:
        """Returns a document of the evidence, by a key of `evidence` of the run or by its file name."""
        return cast("dict[str, Any]", json.loads(await self.evidence_bytes(run_id, file, timeout=timeout)))

    async def evidence_bytes(self, run_id: str, file: str, *, timeout: Optional[float] = None) -> bytes:
        """Returns the bytes of a document of the evidence. Their sha256 is in `evidence` of the run."""
        return await self.perform(calls.evidence(run_id, file, timeout))

    async def output(
        self,
        run_id: str,
        n: int,
        stream: Stream = "stdout",
        *,
        unit: Unit = "steps",
        offset: Optional[int] = None,
        limit: Optional[int] = None,
        timeout: Optional[float] = None,
    ) -> bytes:
        """Returns the output of a step, or of a toolchain check with `unit="checks"`. It is untrusted text."""
        return await self.perform(calls.output(run_id, n, stream, unit, offset, limit, timeout))

    async def sql_verify(
        self,
        sql: str,
        target: SqlTarget,
        *,
        question: Optional[str] = None,
        timeout: Optional[float] = None,
    ) -> Judgement:
        """Judges a statement. Only the verdict `ok` means that it may be shown or run."""
        return await self.perform(calls.sql_verify(sql, target, question, timeout))

    async def sql_run(
        self,
        sql: str,
        target: SqlTarget,
        *,
        question: Optional[str] = None,
        commit: bool = False,
        timeout: Optional[float] = None,
    ) -> SqlRunAnswer:
        """Judges a statement and, if the verdict is `ok`, runs it. The rows are untrusted data.

        Without `commit`, the effects of a write are rolled back.
        """
        return await self.perform(calls.sql_run(sql, target, question, commit, timeout))

    async def sql_schema(
        self, target: SqlTarget, *, samples: int = 0, timeout: Optional[float] = None
    ) -> SqlSchemaAnswer:
        """Describes the tables of a database. Names, comments and sample values are untrusted data.

        `samples` is the number of sample values of each column, at most 10; personal data is masked.
        """
        return await self.perform(calls.sql_schema(target, samples, timeout))

    async def sql_ask(
        self,
        question: str,
        target: SqlTarget,
        *,
        samples: int = 0,
        provider: Optional[str] = None,
        bounds: Optional[SqlAskBounds] = None,
        timeout: Optional[float] = None,
    ) -> SqlAskAnswer:
        """Answers a question with a statement that a model wrote, that was judged `ok`, and that ran.

        Only the verdict `answered` is an answer. `provider` is the name of a provider in the operator's config.
        """
        return await self.perform(calls.sql_ask(question, target, samples, provider, bounds, timeout))

    async def perform(self, operation: Operation[T]) -> T:
        """Performs an operation of `proctor_client.calls`."""
        try:
            request = next(operation)
            while True:
                request = operation.send(await self._exchange(request))
        except StopIteration as finished:
            return cast(T, finished.value)

    async def _exchange(self, request: Request) -> Response:
        sent = 0
        while True:
            response = await self._transport.exchange(request)
            sent += 1
            pause = self._retry.pause(request, response, sent)
            if pause is None:
                return response
            await asyncio.sleep(pause)
