"""The exceptions of the client. Each has a `message`, and a `hint` if the client knows how to fix the problem."""

from __future__ import annotations

from typing import Optional

from .wire_types import Problem


class ProctorError(Exception):
    """A request has no answer, or the answer is a problem."""

    def __init__(self, message: str, hint: Optional[str] = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\nhint: {self.hint}"


class DaemonNotFoundError(ProctorError):
    """No daemon listens at any of the sockets that belong to this user."""


class DaemonNotTrustedError(ProctorError):
    """The process that listens at the socket belongs to a user who is not trusted to run a daemon."""


class ConfigError(ProctorError):
    """The operator's config, which may name the socket, cannot be read."""


class ConnectionFailedError(ProctorError):
    """The connection broke before the answer was complete. The daemon may have executed the request."""


class AnswerTimeoutError(ProctorError, TimeoutError):
    """The answer did not arrive in time. The daemon may have executed the request."""


class InvalidAnswerError(ProctorError):
    """The answer does not conform to the interface."""


class RunNotFinishedError(ProctorError, TimeoutError):
    """A run did not end in the given time. It continues; `run_id` identifies it."""

    def __init__(self, message: str, hint: Optional[str], run_id: str) -> None:
        super().__init__(message, hint)
        self.run_id = run_id


class ProblemError(ProctorError):
    """The daemon refused a request, and the answer is a problem (RFC 9457).

    `problem` is the whole document, with the diagnostics of an invalid spec.
    """

    def __init__(self, problem: Problem, retry_after: Optional[float]) -> None:
        super().__init__(problem["detail"], problem.get("hint"))
        self.problem = problem
        self.status: int = problem["status"]
        self.type: str = problem["type"]
        self.title: str = problem["title"]
        self.detail: str = problem["detail"]
        self.code: Optional[str] = problem.get("code")
        self.exit_code: int = problem["exit_code"]
        # Seconds after which the same request may succeed, if the daemon can estimate the time.
        self.retry_after = retry_after
