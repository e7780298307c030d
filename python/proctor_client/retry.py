"""Decides whether a refused request is sent again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from .transport import Request, Response

# Longest pause that the daemon may request, in seconds. The client reports a refusal with a longer one.
MAX_PAUSE = 60.0
RETRYABLE_STATUS = (429, 503)


@dataclass(frozen=True)
class RetryPolicy:
    """The number of times that a client sends a request again that the daemon has refused."""

    retries: int = 0

    def pause(self, request: Request, response: Response, sent: int) -> Optional[float]:
        """Returns the seconds to wait before the next attempt, or `None` if the answer counts.

        `sent` is the number of times that the request was sent.
        """
        if response.status not in RETRYABLE_STATUS or not request.may_retry or sent > self.retries:
            return None
        pause = response.retry_after()
        return pause if pause is not None and pause <= MAX_PAUSE else None
