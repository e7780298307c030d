"""Counts the bytes between daemons, workers and the server of the CAS and the action cache."""

from __future__ import annotations

from collections import defaultdict

DAEMON, WORKER = "daemon", "worker"
BUCKET_S = 60.0


class Traffic:
    """Bytes to the server (`up`) and from the server (`down`), by peer and by minute.

    A transfer is booked twice, by the sender when it starts and by the receiver when it ends, so that a test can compare
    both books.
    """

    def __init__(self) -> None:
        self.sent = {"up": 0, "down": 0}
        self.by_peer: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.by_minute: dict[str, defaultdict[int, int]] = {"up": defaultdict(int), "down": defaultdict(int)}

    def begin(self, direction: str, size: int) -> None:
        self.sent[direction] += size

    def end(self, direction: str, peer: str, size: int, time: float) -> None:
        self.by_peer[direction, peer] += size
        self.by_minute[direction][int(time // BUCKET_S)] += size

    def at_once(self, direction: str, peer: str, size: int, time: float) -> None:
        """Records a transfer whose duration is included in a measured time."""
        if size:
            self.sent[direction] += size
            self.end(direction, peer, size, time)

    def received(self, direction: str) -> int:
        return sum(size for (way, _), size in self.by_peer.items() if way == direction)

    def peak(self, direction: str) -> float:
        """Returns the bytes per second of the busiest minute."""
        return max(self.by_minute[direction].values(), default=0) / BUCKET_S
