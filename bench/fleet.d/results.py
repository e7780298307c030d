"""Stored results of steps: those of a daemon, and those that daemons share."""

from __future__ import annotations

from collections import OrderedDict

Identity = tuple[int, int, int]
"""The repository, the step and the layout. Proctor calls this the identity of a step."""


class LocalResults:
    """The results of one daemon: for each identity, the most recently used keys."""

    def __init__(self, per_step: int) -> None:
        self._per_step = per_step
        self._results: dict[Identity, OrderedDict[int, None]] = {}

    def has(self, identity: Identity, key: int) -> bool:
        results = self._results.get(identity)
        if results is None or key not in results:
            return False
        results.move_to_end(key)
        return True

    def store(self, identity: Identity, key: int) -> None:
        results = self._results.setdefault(identity, OrderedDict())
        results[key] = None
        results.move_to_end(key)
        if len(results) > self._per_step:
            results.popitem(last=False)


class SharedResults:
    """The results on the server. Another daemon sees a result after the lag."""

    def __init__(self, lag_s: float) -> None:
        self._lag_s = lag_s
        self._visible_at: dict[tuple[Identity, int], float] = {}

    def has(self, identity: Identity, key: int, now: float) -> bool:
        visible_at = self._visible_at.get((identity, key))
        return visible_at is not None and visible_at <= now

    def store(self, identity: Identity, key: int, now: float) -> None:
        self._visible_at.setdefault((identity, key), now + self._lag_s)
