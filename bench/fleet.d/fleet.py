"""The simulated fleet: daemons that verify the changes of developers, one cluster, and one server for CAS and results."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter

from parameters import DAY, Parameters
from queueing import ServerPool, Simulator
from results import LocalResults, SharedResults
from traffic import DAEMON, WORKER, Traffic
from workload import Developer, FileChoice, Repository, activities, day_of

LOCAL, SHARED, RECHECKED, EXECUTED = "local", "shared", "rechecked", "executed"
# Spread of the CPU time of a step (sigma of a lognormal distribution whose mean is 1).
SPREAD = 0.4
# Width of the periods of which the busy slots are known.
BUCKET_S = 600.0


class Daemon:
    def __init__(self, number: int, parameters: Parameters, simulator: Simulator) -> None:
        self.runs = ServerPool(simulator, parameters.max_runs)
        self.cores = ServerPool(simulator, parameters.daemon_cores, BUCKET_S)
        self.results = LocalResults(parameters.results_per_step)
        self.writes = number < round(parameters.values["trusted_daemons"] * parameters.daemons)


@dataclasses.dataclass
class Verification:
    """A request for a run, with the state of the worktree at that time."""

    developer: Developer
    kind: str
    requested_at: float
    steps: list[int]
    keys: list[int]
    daemon: Daemon
    changed_files: int
    run_slot: int = -1
    unfinished: int = 0
    passed: bool = True
    # The changes that a push merges if it passes.
    merge: dict[int, int] | None = None


class Fleet:
    """One simulated day."""

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        self.values = parameters.values
        self.measured = parameters.measured
        self.simulator = Simulator()
        self.rng = random.Random(f"{parameters.seed}/fleet")
        self.traffic = Traffic()
        self.shared = SharedResults(self.values["shared_lag_s"])
        self.daemons = [Daemon(n, parameters, self.simulator) for n in range(parameters.daemons)]
        self.cluster = ServerPool(self.simulator, parameters.slots, BUCKET_S)
        self.repositories = [Repository(n, parameters) for n in range(parameters.repositories)]
        self.choice = FileChoice(self.measured.tree_files, self.values)
        self.developers = self._hire()
        # The versions of each repository that a worker has fetched.
        self.fetched: list[dict[int, int]] = [{} for _ in range(parameters.workers)]
        self.latencies: dict[str, list[float]] = {"save": [], "push": [], "main": []}
        self.answers: Counter[str] = Counter()
        self.places: Counter[str] = Counter()
        self.core_s = 0.0
        self.requested_steps = 0
        self.unsent_files: Counter[int] = Counter()
        self.lookups = self.uploads = self.stores = self.sent_files = 0

    def _hire(self) -> list[Developer]:
        """Distributes the developers over the repositories, with teams of different size, and over the daemons."""
        p = self.parameters
        weights = [1 / rank**0.7 for rank in range(1, p.repositories + 1)]
        rng = random.Random(f"{p.seed}/teams")
        teams = rng.choices(range(p.repositories), weights, k=p.developers)
        developers = [Developer(n, self.repositories[team], n % p.daemons, p) for n, team in enumerate(teams)]
        for developer, activity in zip(developers, activities(p.developers, random.Random(f"{p.seed}/activity"))):
            developer.activity = activity
        return developers

    def run(self) -> Fleet:
        self._store_main_branches()
        for developer in self.developers:
            for time, kind in day_of(developer, self.parameters):
                self.simulator.at(time, lambda developer=developer, kind=kind: self._act(developer, kind))
        self.simulator.run()
        return self

    def _store_main_branches(self) -> None:
        """Before the day, every main branch was verified, and every daemon has used these results."""
        for repository in self.repositories:
            for number, step in enumerate(repository.steps):
                identity = (repository.number, number, 0)
                for daemon in self.daemons:
                    daemon.results.store(identity, repository.keys[number])
                if step.is_shareable:
                    self.shared.store(identity, repository.keys[number], -DAY)

    def _act(self, developer: Developer, kind: str) -> None:
        if kind == "sync":
            developer.synchronise()
            return
        repository = developer.repository
        if kind == "save":
            before = dict(developer.changes)
            developer.save(self.choice, self.values)
            changed = sum(before.get(file) != content for file, content in developer.changes.items())
            self.unsent_files[developer.number] += changed
            self._request(developer, kind, repository.quick_steps)
            return
        merges = bool(developer.changes) and developer.rng.random() < self.values["merged_share"]
        self._request(developer, kind, repository.all_steps, dict(developer.changes) if merges else None)

    def _request(self, developer: Developer, kind: str, steps: range | list[int], merge: dict[int, int] | None = None) -> None:
        keys = developer.repository.keys if kind == "main" else developer.keys
        changed = 0 if kind == "main" else len(developer.changes)
        verification = Verification(developer, kind, self.simulator.now, list(steps), list(keys), self._daemon(developer, kind), changed, merge=merge)

        def start(slot: int) -> None:
            verification.run_slot = slot
            self.simulator.after(self.measured.local_run_s, lambda: self._look_up(verification))

        verification.daemon.runs.request(start)

    def _daemon(self, developer: Developer, kind: str) -> Daemon:
        """Saves go to the daemon of the developer; CI runs on any daemon."""
        if kind == "save" or self.rng.random() < self.values["own_daemon_share"]:
            return self.daemons[developer.daemon]
        return self.rng.choice(self.daemons)

    def _identity(self, verification: Verification, step: int) -> tuple[int, int, int]:
        # The checkout of the main branch has the common layout.
        layout = 0 if verification.kind == "main" else verification.developer.layout
        return verification.developer.repository.number, step, layout

    def _look_up(self, verification: Verification) -> None:
        """Finds the steps that must be executed: first in the daemon's results, then in those of the server."""
        daemon, reuse = verification.daemon, self.parameters.reuse
        steps = verification.developer.repository.steps
        executed, asked = [], 0
        for step in verification.steps:
            identity, key = self._identity(verification, step), verification.keys[step]
            answer = LOCAL if reuse != "off" and daemon.results.has(identity, key) else EXECUTED
            if reuse == "shared" and answer == EXECUTED and steps[step].is_shareable:
                asked += 1
                if self.shared.has(identity, key, self.simulator.now):
                    answer = SHARED
                    daemon.results.store(identity, key)
            if answer != EXECUTED and self.rng.random() < self.parameters.recheck_share:
                answer = RECHECKED
            self.answers[answer] += 1
            if answer in (RECHECKED, EXECUTED):
                executed.append(step)
        self.requested_steps += len(verification.steps)
        self.lookups += asked
        self.traffic.at_once("up", DAEMON, asked * self.measured.lookup_up, self.simulator.now)
        self.traffic.at_once("down", DAEMON, asked * self.measured.lookup_down, self.simulator.now)
        verification.unfinished = len(executed)
        self.simulator.after(asked * self.measured.shared_step_s, lambda: self._place(verification, executed))

    def _place(self, verification: Verification, executed: list[int]) -> None:
        """Executes steps on the cluster, or on the daemon: in hybrid mode if the cluster has no free slot and it has one."""
        if not executed:
            self._finish(verification)
            return
        mode, cores = self.parameters.mode, verification.daemon.cores
        # Steps that will have a slot of the cluster when their inputs are uploaded.
        remote, free = [], self.cluster.free - self.cluster.queue_length
        for step in executed:
            if mode == "local" or (mode == "hybrid" and len(remote) >= free and cores.free):
                self._execute_locally(verification, step, cores)
            else:
                remote.append(step)
        if remote:
            self._upload(verification, remote)

    def _duration(self, verification: Verification, step: int) -> float:
        seconds = verification.developer.repository.steps[step].core_s
        seconds *= self.rng.lognormvariate(-SPREAD * SPREAD / 2, SPREAD)
        self.core_s += seconds
        return seconds

    def _execute_locally(self, verification: Verification, step: int, cores: ServerPool) -> None:
        self.places["daemon"] += 1

        def end(core: int) -> None:
            cores.release(core)
            self._end_step(verification, step)

        seconds = self._duration(verification, step)
        cores.request(lambda core: self.simulator.after(seconds, lambda: end(core)))

    def _upload(self, verification: Verification, remote: list[int]) -> None:
        """Asks for missing blobs once in a run, uploads changed files and directories, and requests the actions."""
        m = self.measured
        self.uploads += 1
        size = m.find_missing_up + len(remote) * m.action_up
        # The server has the files of the main branch from the developers who merged them.
        new_files = 0 if verification.kind == "main" else self.unsent_files.pop(verification.developer.number, 0)
        if new_files:
            self.sent_files += new_files
            size += int(new_files * self.values["file_bytes"]) + m.change_directories
        self.traffic.begin("up", size)
        self.traffic.at_once("down", DAEMON, m.find_missing_down, self.simulator.now)

        def uploaded() -> None:
            self.traffic.end("up", DAEMON, size, self.simulator.now)
            for step in remote:
                self.places["cluster"] += 1
                self.cluster.request(lambda slot, step=step: self._execute_remotely(verification, step, slot))

        self.simulator.after(m.find_missing_s + size / self.values["bandwidth"], uploaded)

    def _execute_remotely(self, verification: Verification, step: int, slot: int) -> None:
        """A worker fetches what it lacks of the tree, executes the step, and uploads the outputs."""
        m, now = self.measured, self.simulator.now
        repository = verification.developer.repository
        fetched = self.fetched[slot // self.parameters.slots_per_worker]
        files = repository.versions - fetched.get(repository.number, -m.tree_files) + verification.changed_files
        fetched[repository.number] = repository.versions
        inputs = int(files * self.values["file_bytes"]) + m.change_directories
        outputs = int(self.values["output_bytes"])
        result = outputs + m.action_result_down
        self.traffic.begin("down", inputs)
        overhead = m.execute_overhead_s + self.values["cluster_overhead_s"]
        transfer = inputs / self.values["bandwidth"]
        seconds = self._duration(verification, step)

        def end() -> None:
            self.cluster.release(slot)
            self.traffic.at_once("up", WORKER, outputs, self.simulator.now)
            self.traffic.at_once("down", DAEMON, result, self.simulator.now)
            self._end_step(verification, step)

        self.traffic.end("down", WORKER, inputs, now + transfer)
        self.simulator.at(now + transfer + overhead + seconds, end)

    def _end_step(self, verification: Verification, step: int) -> None:
        if self.rng.random() < self.values["failed_share"]:
            verification.passed = False
        else:
            daemon, key = verification.daemon, verification.keys[step]
            identity = self._identity(verification, step)
            daemon.results.store(identity, key)
            if self.parameters.reuse == "shared" and daemon.writes and verification.developer.repository.steps[step].is_shareable:
                self.stores += 1
                self.shared.store(identity, key, self.simulator.now)
                self.traffic.at_once("up", DAEMON, self.measured.store_up, self.simulator.now)
                self.traffic.at_once("down", DAEMON, self.measured.store_down, self.simulator.now)
        verification.unfinished -= 1
        if not verification.unfinished:
            self._finish(verification)

    def _finish(self, verification: Verification) -> None:
        developer = verification.developer
        verification.daemon.runs.release(verification.run_slot)
        self.latencies[verification.kind].append(self.simulator.now - verification.requested_at)
        if verification.passed and verification.merge:
            developer.repository.merge(verification.merge)
            if developer.changes == verification.merge:
                developer.merged()
            # CI verifies the main branch after each merge.
            self._request(developer, "main", developer.repository.all_steps)
