"""A typed client of the Proctor daemon, over its Unix socket.

`Client` waits for each answer, `AsyncClient` is for `asyncio`. Both have the same methods. Answers are dictionaries
whose types are in `proctor_client.wire_types`.
"""

from .async_client import AsyncClient
from .client import Client
from .errors import (
    AnswerTimeoutError,
    ConfigError,
    ConnectionFailedError,
    DaemonNotFoundError,
    DaemonNotTrustedError,
    InvalidAnswerError,
    ProblemError,
    ProctorError,
    RunNotFinishedError,
)
from .options import RunOptions, SqlTarget
from .socket_path import socket_candidates

__version__ = "0.1.0"

__all__ = [
    "AnswerTimeoutError",
    "AsyncClient",
    "Client",
    "ConfigError",
    "ConnectionFailedError",
    "DaemonNotFoundError",
    "DaemonNotTrustedError",
    "InvalidAnswerError",
    "ProblemError",
    "ProctorError",
    "RunNotFinishedError",
    "RunOptions",
    "SqlTarget",
    "socket_candidates",
]
