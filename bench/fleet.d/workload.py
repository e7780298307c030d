"""The work of developers: repositories, steps with their read sets, changes, and the times of saves and pushes.

The content of a file is a random number. The key of a step is the exclusive or of the contents of all files that the step
reads, so that two worktrees with the same content of these files have the same key, as with Proctor's fingerprints.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
import statistics
from collections.abc import Iterator

from parameters import DAY, HOUR, Parameters

MODULES = 10
# The module that every step reads.
CORE = 0
# A module that only `docs` and the checks of all files read.
DOCS = MODULES - 1
SHARDS = 6
# Spread of the number of requests of developers (sigma of a lognormal distribution).
ACTIVITY_SPREAD = 0.6
PER_FILE = ("format", "lint")
# Relative number of requests in each hour of the developer's day.
DAY_SHAPE = [0] * 7 + [1, 4, 8, 9, 8, 4, 6, 8, 9, 8, 5, 2, 1] + [0] * 4


@dataclasses.dataclass(frozen=True)
class Step:
    name: str
    core_s: float
    modules: frozenset[int]
    is_quick: bool
    is_shareable: bool


class Repository:
    """The main branch of a repository and its steps."""

    def __init__(self, number: int, parameters: Parameters) -> None:
        rng = random.Random(f"{parameters.seed}/repository/{number}")
        values = parameters.values
        every = frozenset(range(MODULES))
        code = every - {DOCS}

        def some(own: int, share: float) -> frozenset[int]:
            return frozenset(m for m in code if m in (CORE, own) or rng.random() < share)

        # Name, CPU seconds, modules that it reads, whether saves request it. The first two have `per_file`: an execution
        # checks only the changed files, and its result is not shared.
        kinds = [("format", 0.3, every, True), ("lint", 0.6, code, True), ("types", 15.0, code, True)]
        kinds += [(f"unit{n}", 20.0, some(1 + n, values["read_share"]), True) for n in range(SHARDS)]
        kinds += [("build", 60.0, code, False), ("docs", 5.0, frozenset({DOCS}), False)]
        kinds += [(f"integration{n}", 120.0, some(1 + n, 0.5), False) for n in range(3)]
        draws = random.Random(f"{parameters.seed}/shareable/{number}")
        self.number = number
        self.steps = [
            Step(name, core_s * values["step_scale"], modules, quick, draws.random() < values["shareable_share"] and name not in PER_FILE)
            for name, core_s, modules, quick in kinds
        ]
        self.all_steps = range(len(self.steps))
        self.quick_steps = [n for n, step in enumerate(self.steps) if step.is_quick]
        self.readers = [[n for n, step in enumerate(self.steps) if module in step.modules] for module in range(MODULES)]
        self.keys = [0] * len(self.steps)
        self.contents: dict[int, int] = {}
        # The number of file versions that the main branch has received; a worker fetches those that it has not seen.
        self.versions = 0

    def module(self, file: int) -> int:
        return file % MODULES

    def merge(self, changes: dict[int, int]) -> None:
        for file, content in changes.items():
            difference = self.contents.get(file, 0) ^ content
            self.contents[file] = content
            for step in self.readers[self.module(file)]:
                self.keys[step] ^= difference
        self.versions += len(changes)


class Developer:
    """A worktree: the main branch as of the last synchronisation, and the files that the developer has changed."""

    def __init__(self, number: int, repository: Repository, daemon: int, parameters: Parameters) -> None:
        self.number = number
        self.repository = repository
        self.daemon = daemon
        # Proctor's identity of a step contains the path of the repository and the user.
        self.layout = 0 if random.Random(f"{parameters.seed}/layout/{number}").random() < parameters.values["common_layout"] else number + 1
        self.activity = 1.0
        self.home = 1 + number % (MODULES - 2)
        self.rng = random.Random(f"{parameters.seed}/developer/{number}")
        self.changes: dict[int, int] = {}
        self.earlier: dict[int, int] = {}
        self.keys = list(repository.keys)

    def synchronise(self) -> None:
        self.keys = list(self.repository.keys)
        for file, content in self.changes.items():
            self._replace(file, self.repository.contents.get(file, 0), content)

    def save(self, choice: FileChoice, values: dict[str, float]) -> None:
        """Changes the content of some files, or restores the earlier content of one."""
        rng = self.rng
        if self.earlier and rng.random() < values["revert_share"]:
            file = rng.choice(list(self.earlier))
            self._write(file, self.earlier.pop(file))
            return
        more = values["files_per_save"] - 1
        count = 1 + (int(math.log(1 - rng.random()) / math.log(more / (1 + more))) if more > 0 else 0)
        for _ in range(count):
            self._write(choice.file(rng, self.home), rng.getrandbits(64))

    def merged(self) -> None:
        self.changes, self.earlier = {}, {}
        self.synchronise()

    def _write(self, file: int, content: int) -> None:
        before = self.changes.get(file, self.repository.contents.get(file, 0))
        self.earlier[file] = before
        self.changes[file] = content
        self._replace(file, before, content)

    def _replace(self, file: int, before: int, after: int) -> None:
        difference = before ^ after
        for step in self.repository.readers[self.repository.module(file)]:
            self.keys[step] ^= difference


class FileChoice:
    """The distribution of changed files: the developer's module or one by its rank, and in it a file by its rank."""

    def __init__(self, files: int, values: dict[str, float]) -> None:
        self._home_share = values["home_share"]
        self._per_module = files // MODULES
        self._modules = cumulative_zipf(MODULES, values["skew"])
        self._files = cumulative_zipf(self._per_module, values["skew"])

    def file(self, rng: random.Random, home: int) -> int:
        module = home
        if rng.random() >= self._home_share:
            module = rng.choices(range(MODULES), cum_weights=self._modules)[0]
        return rng.choices(range(self._per_module), cum_weights=self._files)[0] * MODULES + module


def cumulative_zipf(count: int, exponent: float) -> list[float]:
    return list(itertools.accumulate(1 / rank**exponent for rank in range(1, count + 1)))


def activities(count: int, rng: random.Random) -> list[float]:
    """Returns a factor for the requests of each developer: the quantiles of a lognormal distribution, in random order.

    Quantiles instead of random values: their sum does not depend on the seed, so that fleets of different size compare.
    """
    normal = statistics.NormalDist()
    factors = [math.exp(ACTIVITY_SPREAD * normal.inv_cdf((rank + 0.5) / count)) for rank in range(count)]
    mean = sum(factors) / count
    rng.shuffle(factors)
    return [factor / mean for factor in factors]


def times_of_day(rng: random.Random, mean: float, offset_s: float) -> list[float]:
    """Returns the times of a Poisson process with the shape of the day, whose expected number is `mean`."""
    count, threshold = 0, math.exp(-mean)
    product = rng.random()
    while product > threshold:
        count += 1
        product *= rng.random()
    hours = rng.choices(range(24), DAY_SHAPE, k=count)
    return [((hour + rng.random()) * HOUR + offset_s) % DAY for hour in hours]


def day_of(developer: Developer, parameters: Parameters) -> Iterator[tuple[float, str]]:
    """Yields the times and kinds of all actions of a developer in a day: `save`, `push` and `sync`."""
    values = parameters.values
    offset = developer.number % int(values["time_zones"]) * 8 * HOUR
    for kind, mean in [("save", values["saves_per_day"]), ("push", values["pushes_per_day"]), ("sync", values["syncs_per_day"])]:
        rng = random.Random(f"{parameters.seed}/{kind}/{developer.number}")
        for time in times_of_day(rng, mean * developer.activity, offset):
            yield time, kind
