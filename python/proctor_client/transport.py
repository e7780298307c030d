"""Sends requests to a daemon over its Unix socket: HTTP/1.1, one connection for each request.

The daemon closes the connection after its answer. The transports read the whole answer, and the parser of the standard
library parses it and reports an incomplete body.
"""

from __future__ import annotations

import asyncio
import http.client
import io
import json
import os
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Optional, cast

from .errors import (
    AnswerTimeoutError,
    ConnectionFailedError,
    DaemonNotFoundError,
    DaemonNotTrustedError,
    InvalidAnswerError,
    ProblemError,
)
from .socket_path import SocketCandidate
from .wire_types import Problem

# Size limit of an answer, in bytes.
MAX_ANSWER = 64 << 20
READ_BYTES = 64 << 10
# Errors of a client that still sends its request after the daemon has refused it. The answer is readable.
REFUSED_EARLY = (BrokenPipeError, ConnectionResetError)


@dataclass(frozen=True)
class Request:
    """A request, and the time in seconds within which its whole answer must arrive."""

    method: str
    path: str
    timeout: float
    body: Optional[Any] = field(default=None, repr=False)
    headers: dict[str, str] = field(default_factory=dict)
    # True if the request may be sent again after the daemon has refused it with 429 or 503.
    may_retry: bool = True

    def to_bytes(self) -> bytes:
        headers = {"Host": "localhost", "Connection": "close", "Accept": "*/*", **self.headers}
        body = b""
        if self.body is not None:
            body = json.dumps(self.body, ensure_ascii=False, allow_nan=False).encode("utf-8")
            headers["Content-Type"] = "application/json"
            headers["Content-Length"] = str(len(body))
        lines = [f"{self.method} {self.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        if any("\r" in line or "\n" in line for line in lines):
            raise ValueError("a header contains a line break")
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


@dataclass(frozen=True)
class Response:
    """A complete answer."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise InvalidAnswerError(f"the answer of the daemon is not JSON: {error}") from error

    def retry_after(self) -> Optional[float]:
        """Returns `Retry-After` in seconds. The daemon sends numbers, no dates."""
        value = self.headers.get("Retry-After", "")
        return float(value) if value.isascii() and value.isdigit() else None

    def checked(self) -> Response:
        """Returns the answer, or raises the problem that it describes."""
        if 200 <= self.status < 300:
            return self
        if self.headers.get_content_type() == "application/problem+json":
            problem = self.json()
            required = ("type", "title", "status", "detail", "exit_code")
            if isinstance(problem, dict) and all(name in problem for name in required):
                raise ProblemError(cast(Problem, problem), self.retry_after())
        raise InvalidAnswerError(f"the answer of the daemon has the status {self.status}, and describes no problem")


class _ReceivedBytes:
    """Received bytes, in the form from which the standard library reads an answer."""

    def __init__(self, received: bytes) -> None:
        self.received = received

    def makefile(self, _mode: str) -> io.BytesIO:
        return io.BytesIO(self.received)


def parse_response(received: bytes, method: str) -> Response:
    """Parses the bytes that arrived before the daemon closed the connection."""
    if not received:
        raise ConnectionFailedError("the daemon closed the connection without an answer")
    parser = http.client.HTTPResponse(cast(socket.socket, _ReceivedBytes(received)), method=method)
    try:
        parser.begin()
        return Response(parser.status, parser.headers, parser.read())
    except http.client.IncompleteRead as error:
        raise ConnectionFailedError("the connection broke before the answer was complete") from error
    except (http.client.HTTPException, ValueError) as error:
        raise InvalidAnswerError(f"the answer of the daemon is not HTTP: {error}") from error


class BlockingTransport:
    """Sends requests and waits for the answers in the calling thread."""

    def __init__(self, candidates: Sequence[SocketCandidate]) -> None:
        self.candidates = candidates

    def exchange(self, request: Request) -> Response:
        deadline = time.monotonic() + request.timeout
        with _described_errors(request), self.connect() as stream:
            _send(stream, request.to_bytes(), deadline)
            received = bytearray()
            while True:
                _set_timeout(stream, deadline)
                part = stream.recv(READ_BYTES)
                if not part:
                    break
                received += part
                _check_size(len(received))
        return parse_response(bytes(received), request.method)

    def connect(self) -> socket.socket:
        failures: list[str] = []
        for candidate in self.candidates:
            stream = _open(candidate, failures)
            if stream is not None:
                return stream
        raise _not_found(failures)


class AsyncTransport:
    """Sends requests and waits for the answers in the event loop."""

    def __init__(self, candidates: Sequence[SocketCandidate]) -> None:
        self.blocking = BlockingTransport(candidates)

    async def exchange(self, request: Request) -> Response:
        with _described_errors(request):
            received = await asyncio.wait_for(self._receive(request), request.timeout)
        return parse_response(received, request.method)

    async def _receive(self, request: Request) -> bytes:
        loop = asyncio.get_running_loop()
        # A connection to a Unix socket is made at once, or fails.
        with self.blocking.connect() as stream:
            with suppress(*REFUSED_EARLY):
                await loop.sock_sendall(stream, request.to_bytes())
            received = bytearray()
            while part := await loop.sock_recv(stream, READ_BYTES):
                received += part
                _check_size(len(received))
            return bytes(received)


def _open(candidate: SocketCandidate, failures: list[str]) -> Optional[socket.socket]:
    """Connects to a socket and checks the owner of the daemon. Returns `None` if there is no daemon for this user."""
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        stream.setblocking(False)
        stream.connect(candidate.path)
        _check_peer(stream, candidate)
    except BlockingIOError as error:
        stream.close()
        raise ConnectionFailedError(f"the daemon at `{candidate.path}` does not answer: its queue is full") from error
    except PermissionError as error:
        stream.close()
        if candidate.is_system:
            failures.append(f"`{candidate.path}`: {_reason(error)}")
            return None
        message = f"this user may not use the daemon's socket `{candidate.path}`: {_reason(error)}"
        raise DaemonNotFoundError(message, "ask the operator to add this user to `daemon.allow_users`") from error
    except OSError as error:
        stream.close()
        failures.append(f"`{candidate.path}`: {_reason(error)}")
        return None
    except BaseException:
        stream.close()
        raise
    return stream


def _check_peer(stream: socket.socket, candidate: SocketCandidate) -> None:
    credentials = stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", credentials)
    if not candidate.is_named and uid not in (0, os.geteuid()):
        message = f"the program that listens at `{candidate.path}` belongs to user {uid}, who is not trusted"
        raise DaemonNotTrustedError(message, "to use the daemon of another user, pass the path of its socket")


def _send(stream: socket.socket, data: bytes, deadline: float) -> None:
    with suppress(*REFUSED_EARLY):
        _set_timeout(stream, deadline)
        stream.sendall(data)


def _set_timeout(stream: socket.socket, deadline: float) -> None:
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise socket.timeout
    stream.settimeout(remaining)


def _check_size(size: int) -> None:
    if size > MAX_ANSWER:
        raise InvalidAnswerError(f"the answer of the daemon has more than {MAX_ANSWER} bytes")


@contextmanager
def _described_errors(request: Request) -> Iterator[None]:
    """Turns errors of the system into exceptions of the client."""
    try:
        yield
    except (asyncio.TimeoutError, socket.timeout) as error:
        # Before Python 3.11, both are separate classes.
        message = f"the daemon did not answer `{request.method} {_route(request)}` within {request.timeout:g} s"
        raise AnswerTimeoutError(message, "pass a longer `timeout`") from error
    except OSError as error:
        raise ConnectionFailedError(f"the connection to the daemon broke: {_reason(error)}") from error


def _route(request: Request) -> str:
    return request.path.split("?", 1)[0]


def _reason(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno is not None else str(error)


def _not_found(failures: list[str]) -> DaemonNotFoundError:
    message = "no daemon listens at " + ", ".join(failures)
    return DaemonNotFoundError(message, "start one with `proctor daemon start`, or pass the path of its socket")
