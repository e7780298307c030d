"""The inputs of the simulation: measured figures with source and date, and assumptions with their ranges."""

from __future__ import annotations

import dataclasses
import json
import pathlib

MEASURED_FILE = pathlib.Path(__file__).with_name("measured.json")
HOUR = 3600.0
DAY = 24 * HOUR


class MissingFigure(Exception):
    """A measured figure that the file does not contain."""


@dataclasses.dataclass(frozen=True)
class Measured:
    """Figures of our own programs and of a server of the API. Times are in seconds, sizes in bytes."""

    local_run_s: float
    shared_step_s: float
    lookup_up: int
    lookup_down: int
    store_up: int
    store_down: int
    record: int
    path_set: int
    tree_files: int
    find_missing_up: int
    find_missing_down: int
    find_missing_s: float
    change_directories: int
    action_up: int
    action_result_down: int
    execute_overhead_s: float

    @classmethod
    def load(cls, path: pathlib.Path) -> Measured:
        figures = json.loads(path.read_text())["figures"]
        missing = [field.name for field in dataclasses.fields(cls) if field.name not in figures]
        if missing:
            raise MissingFigure(f"`{path}` has no figure `{missing[0]}`")
        return cls(**{field.name: figures[field.name]["value"] for field in dataclasses.fields(cls)})


@dataclasses.dataclass(frozen=True)
class Assumption:
    """An input that we did not measure, with the range that the sensitivity covers."""

    name: str
    low: float
    base: float
    high: float
    meaning: str


# The fleet of the task. Its sizes have no range.
DEVELOPERS = 1000
DAEMONS = 20
REPOSITORIES = 40

ASSUMPTIONS = [
    Assumption("saves_per_day", 15, 40, 80, "saves of a developer that request a verification, a day"),
    Assumption("pushes_per_day", 2, 4, 8, "pushes of a developer, a day"),
    Assumption("merged_share", 0.2, 0.5, 0.8, "share of the passed pushes that reach the main branch"),
    Assumption("syncs_per_day", 1, 3, 8, "times that a developer takes over the main branch, a day"),
    Assumption("files_per_save", 1, 1.5, 4, "changed files of a save, mean"),
    Assumption("skew", 0.4, 0.9, 1.3, "exponent of the Zipf distribution of changed modules and files"),
    Assumption("home_share", 0.4, 0.7, 0.9, "share of the changes in the developer's own module"),
    Assumption("read_share", 0.05, 0.2, 0.6, "share of foreign modules that a test shard reads"),
    Assumption("revert_share", 0, 0.05, 0.15, "share of the saves that restore an earlier content"),
    Assumption("step_scale", 0.33, 1, 3, "factor of the CPU time of every step"),
    Assumption("failed_share", 0.01, 0.05, 0.2, "share of the executions that fail, and are not stored"),
    Assumption("shareable_share", 0.3, 0.8, 1, "share of the steps without `per_file` whose results may be shared"),
    Assumption("common_layout", 0, 1, 1, "share of the developers with the same paths, user and image"),
    Assumption("own_daemon_share", 0, 0, 1, "share of the pushes that the developer's own daemon verifies, not any daemon"),
    Assumption("trusted_daemons", 0.1, 1, 1, "share of the daemons that may write shared results"),
    Assumption("shared_lag_s", 0, 1, 60, "time until a stored result is visible to other daemons"),
    Assumption("cluster_overhead_s", 0.05, 0.3, 2, "scheduling and network of an action, beyond the measured overhead"),
    Assumption("file_bytes", 2_000, 8_000, 40_000, "size of a file of a repository, mean"),
    Assumption("output_bytes", 2_000, 20_000, 1_000_000, "outputs of an action"),
    Assumption("bandwidth", 30e6, 120e6, 1.2e9, "bytes per second between a daemon or worker and the CAS"),
    Assumption("time_zones", 1, 1, 3, "sites, eight hours apart, with the same number of developers"),
    Assumption("price", 0.02, 0.04, 0.08, "price of a core for an hour"),
]


@dataclasses.dataclass(frozen=True)
class Parameters:
    """One set of inputs of the simulation."""

    measured: Measured
    values: dict[str, float]
    seed: int = 1
    developers: int = DEVELOPERS
    daemons: int = DAEMONS
    repositories: int = REPOSITORIES
    mode: str = "hybrid"
    # `shared`, `local` (each daemon uses only its own results) or `off` (every step is executed).
    reuse: str = "shared"
    workers: int = 25
    slots_per_worker: int = 8
    # Cores of a daemon for steps. In the mode `remote`, they are idle; in the mode `local`, there is no cluster.
    daemon_cores: int = 8
    # Runs at a time, `daemon.max_runs`. A run that waits for the cluster needs no core.
    max_runs: int = 64
    # Proctor's own values: `reuse.recheck_percent`, and the results of a step that a daemon keeps.
    recheck_share: float = 0.02
    results_per_step: int = 16

    @classmethod
    def base(cls, measured: Measured, **changes: object) -> Parameters:
        return cls(measured, {a.name: a.base for a in ASSUMPTIONS}, **changes)  # type: ignore[arg-type]

    def changed(self, **changes: object) -> Parameters:
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    def with_value(self, name: str, value: float) -> Parameters:
        if name not in self.values:
            raise KeyError(f"`{name}` is not an assumption")
        return dataclasses.replace(self, values={**self.values, name: value})

    @property
    def slots(self) -> int:
        return 0 if self.mode == "local" else self.workers * self.slots_per_worker
