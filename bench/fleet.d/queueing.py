"""A discrete-event simulator, a pool of servers with one FIFO queue, and the Erlang-C formula that its tests compare with."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable

Action = Callable[[], None]
# Absorbs the rounding of a product such as 0.95 * 100.
ROUNDING = 1e-9


class Simulator:
    """A clock and the events that are due, in the order of their times. Events of one time run in the order of insertion."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Action]] = []
        self._count = 0

    def at(self, time: float, action: Action) -> None:
        if time < self.now:
            raise ValueError(f"an event at {time} is before the present time {self.now}")
        self._count += 1
        heapq.heappush(self._events, (time, self._count, action))

    def after(self, delay: float, action: Action) -> None:
        self.at(self.now + delay, action)

    def run(self) -> None:
        """Runs all events, and those that they add."""
        events = self._events
        while events:
            self.now, _, action = heapq.heappop(events)
            action()


class ServerPool:
    """Servers with one FIFO queue. A job gets the server that has been free for the longest time."""

    def __init__(self, simulator: Simulator, servers: int, bucket_s: float = math.inf) -> None:
        self._simulator = simulator
        self._free = deque(range(servers))
        self._waiting: deque[tuple[float, Callable[[int], None]]] = deque()
        self.servers = servers
        self.waits: list[float] = []
        self.accepted = 0
        self.released = 0
        self._bucket_s = bucket_s
        # Integrals over the time: server seconds and waiting job seconds, in total and for each bucket of the time.
        self.busy_s = 0.0
        self.waiting_s = 0.0
        self.busy_by_bucket = [0.0]
        self._changed_at = 0.0

    @property
    def queue_length(self) -> int:
        return len(self._waiting)

    @property
    def free(self) -> int:
        return len(self._free)

    def request(self, start: Callable[[int], None]) -> None:
        """Calls `start` with the number of a server as soon as the server is free. The job must release it."""
        self._integrate()
        self.accepted += 1
        if self._free:
            self.waits.append(0.0)
            start(self._free.popleft())
        else:
            self._waiting.append((self._simulator.now, start))

    def release(self, server: int) -> None:
        self._integrate()
        self.released += 1
        if self._waiting:
            arrived, start = self._waiting.popleft()
            self.waits.append(self._simulator.now - arrived)
            start(server)
        else:
            self._free.append(server)

    def _integrate(self) -> None:
        begin, end = self._changed_at, self._simulator.now
        busy = self.servers - len(self._free)
        self.busy_s += busy * (end - begin)
        self.waiting_s += len(self._waiting) * (end - begin)
        self._changed_at = end
        while begin < end:
            # The last bucket is the present one.
            until = min(end, len(self.busy_by_bucket) * self._bucket_s)
            self.busy_by_bucket[-1] += busy * (until - begin)
            if until < end:
                self.busy_by_bucket.append(0.0)
            begin = until


def erlang_c_wait(arrivals_per_s: float, service_s: float, servers: int) -> float:
    """Returns the mean wait of M/M/c in seconds: Poisson arrivals, exponential service times, one FIFO queue."""
    offered = arrivals_per_s * service_s
    if offered >= servers:
        return float("inf")
    blocking = 1.0
    for count in range(1, servers + 1):
        blocking = offered * blocking / (count + offered * blocking)
    waiting = blocking / (1 - offered / servers * (1 - blocking))
    return waiting * service_s / (servers - offered)


def percentile(values: list[float], share: float) -> float:
    """Returns the smallest value that is not exceeded by `share` of the values; 0 without values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered) - ROUNDING) - 1)]
