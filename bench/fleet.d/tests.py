#!/usr/bin/env python3
"""Tests of the simulation in this directory: conservation laws, known formulas, and the model of results.

usage: bench/fleet.d/tests.py
"""

from __future__ import annotations

import json
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import reapi  # noqa: E402
import report  # noqa: E402
from fleet import LOCAL, SHARED, Fleet  # noqa: E402
from parameters import ASSUMPTIONS, DAY, HOUR, MEASURED_FILE, Measured, MissingFigure, Parameters  # noqa: E402
from queueing import ServerPool, Simulator, erlang_c_wait, percentile  # noqa: E402
from results import LocalResults, SharedResults  # noqa: E402
from traffic import DAEMON, WORKER  # noqa: E402
from workload import Developer, FileChoice, Repository, activities, day_of, times_of_day  # noqa: E402

MEASURED = Measured.load(MEASURED_FILE)


def small(**changes: object) -> Parameters:
    size = {"developers": 60, "daemons": 3, "repositories": 3, "workers": 2, "mode": "hybrid", **changes}
    return Parameters.base(MEASURED, **size)


def markov_queue(servers: int, arrivals_per_s: float, service_s: float, jobs: int) -> tuple[ServerPool, float]:
    """Simulates M/M/c, and returns its pool and the sum of all service times."""
    simulator, rng = Simulator(), random.Random(7)
    pool = ServerPool(simulator, servers, bucket_s=100.0)
    served = 0.0

    def start(server: int) -> None:
        nonlocal served
        duration = rng.expovariate(1 / service_s)
        served += duration
        simulator.after(duration, lambda: pool.release(server))

    time = 0.0
    for _ in range(jobs):
        time += rng.expovariate(arrivals_per_s)
        simulator.at(time, lambda: pool.request(start))
    simulator.run()
    return pool, served


class QueueingCase(unittest.TestCase):
    def test_erlang_c_equals_the_formula_of_one_server(self) -> None:
        # M/M/1: rho / (mu - lambda).
        self.assertAlmostEqual(erlang_c_wait(0.8, 1.0, 1), 0.8 / 0.2)
        self.assertEqual(erlang_c_wait(2.0, 1.0, 2), float("inf"))

    def test_mean_wait_agrees_with_erlang_c(self) -> None:
        for servers, arrivals in [(1, 0.7), (5, 4.0), (20, 17.0)]:
            pool, _ = markov_queue(servers, arrivals, 1.0, 120_000)
            expected = erlang_c_wait(arrivals, 1.0, servers)
            mean = sum(pool.waits) / len(pool.waits)
            self.assertAlmostEqual(mean / expected, 1, delta=0.1, msg=f"{servers} servers: {mean} instead of {expected}")

    def test_littles_law_holds_for_the_queue(self) -> None:
        pool, served = markov_queue(3, 2.7, 1.0, 20_000)
        self.assertAlmostEqual(pool.waiting_s, sum(pool.waits), places=4)
        self.assertAlmostEqual(pool.busy_s, served, places=4)
        self.assertAlmostEqual(sum(pool.busy_by_bucket), pool.busy_s, places=4)
        self.assertEqual((pool.accepted, pool.released, pool.free), (20_000, 20_000, 3))

    def test_jobs_start_in_the_order_of_their_arrival(self) -> None:
        simulator, started = Simulator(), []
        pool = ServerPool(simulator, 1)

        def job(name: str) -> None:
            pool.request(lambda server: (started.append((name, simulator.now)), simulator.after(2, lambda: pool.release(server))))

        for time, name in [(0, "a"), (1, "b"), (1.5, "c")]:
            simulator.at(time, lambda name=name: job(name))
        simulator.run()
        self.assertEqual(started, [("a", 0), ("b", 2), ("c", 4)])

    def test_refuses_an_event_in_the_past(self) -> None:
        simulator = Simulator()
        simulator.at(5, lambda: simulator.at(4, lambda: None))
        self.assertRaises(ValueError, simulator.run)

    def test_percentiles(self) -> None:
        values = [float(n) for n in range(1, 101)]
        self.assertEqual([percentile(values, share) for share in (0.5, 0.95, 0.99, 1)], [50, 95, 99, 100])
        self.assertEqual(percentile([], 0.5), 0)


class ResultsCase(unittest.TestCase):
    def test_a_daemon_keeps_the_most_recently_used_results(self) -> None:
        results, step = LocalResults(2), (0, 0, 0)
        results.store(step, 1)
        results.store(step, 2)
        self.assertTrue(results.has(step, 1))
        results.store(step, 3)
        self.assertEqual([results.has(step, key) for key in (1, 2, 3)], [True, False, True])
        self.assertFalse(results.has((0, 0, 9), 1), "another layout")

    def test_a_shared_result_is_visible_after_the_lag(self) -> None:
        results, step = SharedResults(10), (0, 0, 0)
        results.store(step, 1, 100)
        self.assertEqual([results.has(step, 1, now) for now in (109.9, 110)], [False, True])
        results.store(step, 1, 200)
        self.assertTrue(results.has(step, 1, 110), "a second store does not hide the first one")


class WorkloadCase(unittest.TestCase):
    def setUp(self) -> None:
        self.parameters = small()
        self.repository = Repository(0, self.parameters)

    def saved(self, number: int, saves: int) -> Developer:
        developer = Developer(number, self.repository, 0, self.parameters)
        choice = FileChoice(2000, self.parameters.values)
        for _ in range(saves):
            developer.save(choice, self.parameters.values)
        return developer

    def test_equal_contents_have_equal_keys(self) -> None:
        author, reader = self.saved(1, 20), Developer(2, self.repository, 0, self.parameters)
        self.assertNotEqual(author.keys, reader.keys)
        self.repository.merge(author.changes)
        reader.synchronise()
        self.assertEqual(author.keys, reader.keys)

    def test_keys_follow_from_the_contents_alone(self) -> None:
        developer, other = self.saved(1, 30), self.saved(2, 30)
        self.repository.merge(other.changes)
        developer.synchronise()
        contents = {**self.repository.contents, **developer.changes}
        expected = []
        for step in self.repository.steps:
            key = 0
            for file, content in contents.items():
                key ^= content if self.repository.module(file) in step.modules else 0
            expected.append(key)
        self.assertEqual(developer.keys, expected)

    def test_a_restored_content_has_the_earlier_key(self) -> None:
        values = {**self.parameters.values, "revert_share": 1.0, "files_per_save": 1.0}
        developer = self.saved(1, 0)
        before, choice = list(developer.keys), FileChoice(2000, values)
        developer.save(choice, values)
        self.assertNotEqual(developer.keys, before)
        developer.save(choice, values)
        self.assertEqual(developer.keys, before)

    def test_requests_have_the_shape_of_the_day(self) -> None:
        times = times_of_day(random.Random(3), 5000 / 50, 0)
        for seed in range(49):
            times += times_of_day(random.Random(seed), 5000 / 50, 0)
        self.assertAlmostEqual(len(times) / 5000, 1, delta=0.05)
        self.assertFalse([time for time in times if time < 7 * HOUR or time >= 20 * HOUR])
        noon = sum(12 * HOUR <= time < 13 * HOUR for time in times)
        eleven = sum(11 * HOUR <= time < 12 * HOUR for time in times)
        self.assertAlmostEqual(noon / eleven, 4 / 8, delta=0.1)

    def test_activities_have_the_same_mean_for_every_seed(self) -> None:
        for seed, count in [(1, 10), (2, 1000)]:
            factors = activities(count, random.Random(seed))
            self.assertAlmostEqual(sum(factors) / count, 1)
            self.assertGreater(max(factors), 2)

    def test_sites_share_the_day(self) -> None:
        parameters = self.parameters.with_value("time_zones", 3)
        developer = Developer(1, self.repository, 0, parameters)
        hours = {int(time // HOUR) for time, _ in day_of(developer, parameters)}
        self.assertTrue(hours <= set(range(15, 24)) | set(range(0, 4)), hours)


class FleetCase(unittest.TestCase):
    def check_conservation(self, fleet: Fleet) -> None:
        m, values = MEASURED, fleet.values
        answers = fleet.answers
        self.assertEqual(sum(answers.values()), fleet.requested_steps)
        self.assertEqual(sum(fleet.places.values()), fleet.requested_steps - answers[LOCAL] - answers[SHARED])
        for pool in [fleet.cluster, *(d.cores for d in fleet.daemons), *(d.runs for d in fleet.daemons)]:
            self.assertEqual((pool.accepted, pool.free, pool.queue_length), (pool.released, pool.servers, 0))
            self.assertAlmostEqual(pool.waiting_s, sum(pool.waits), places=3)
        self.assertEqual(sum(d.runs.accepted for d in fleet.daemons), sum(map(len, fleet.latencies.values())))
        # Every byte that was sent has arrived, and the bytes follow from the counts.
        for direction in ("up", "down"):
            self.assertEqual(fleet.traffic.sent[direction], fleet.traffic.received(direction))
            self.assertEqual(sum(fleet.traffic.by_minute[direction].values()), fleet.traffic.received(direction))
        remote = fleet.places["cluster"]
        outputs = int(values["output_bytes"])
        self.assertEqual(fleet.traffic.by_peer["up", WORKER], remote * outputs)
        down = fleet.lookups * m.lookup_down + fleet.stores * m.store_down + fleet.uploads * m.find_missing_down
        self.assertEqual(fleet.traffic.by_peer["down", DAEMON], down + remote * (outputs + m.action_result_down))
        up = fleet.lookups * m.lookup_up + fleet.stores * m.store_up + fleet.uploads * m.find_missing_up + remote * m.action_up
        files = fleet.sent_files * int(values["file_bytes"])
        rest = fleet.traffic.by_peer["up", DAEMON] - up - files
        self.assertEqual(rest % m.change_directories, 0)
        self.assertLessEqual(rest // m.change_directories, fleet.uploads)

    def test_conservation_in_every_mode(self) -> None:
        for mode in ("hybrid", "remote", "local"):
            with self.subTest(mode=mode):
                fleet = Fleet(small(mode=mode)).run()
                self.assertGreater(fleet.requested_steps, 10_000)
                self.check_conservation(fleet)
                self.assertEqual(fleet.places["cluster"] == 0, mode == "local")
                self.assertEqual(fleet.places["daemon"] == 0, mode == "remote")

    def test_conservation_when_saturated(self) -> None:
        fleet = Fleet(small(workers=1, slots_per_worker=2, mode="remote")).run()
        self.check_conservation(fleet)
        summary = report.summarise(fleet)
        self.assertTrue(summary.is_saturated())
        self.assertAlmostEqual(summary.utilisation_busiest_hour, 1, places=2)
        self.assertGreater(summary.ends_at_s, DAY)

    def test_the_cluster_is_busy_with_actions_alone(self) -> None:
        fleet = Fleet(small(mode="remote")).run()
        overhead = MEASURED.execute_overhead_s + fleet.values["cluster_overhead_s"]
        fetched = fleet.traffic.by_peer["down", WORKER] / fleet.values["bandwidth"]
        expected = fleet.core_s + fleet.places["cluster"] * overhead + fetched
        self.assertAlmostEqual(fleet.cluster.busy_s / expected, 1, places=6)

    def test_the_same_seed_gives_the_same_figures(self) -> None:
        summaries = [report.summarise(Fleet(small(seed=seed)).run()) for seed in (5, 5, 6)]
        self.assertEqual(summaries[0], summaries[1])
        self.assertNotEqual(summaries[0], summaries[2])

    def test_nothing_is_shared_without_writers(self) -> None:
        parameters = small().with_value("trusted_daemons", 0).with_value("syncs_per_day", 0).with_value("common_layout", 0)
        fleet = Fleet(parameters).run()
        self.assertEqual(fleet.stores, 0)
        with_writers = Fleet(small()).run()
        self.assertLess(fleet.answers[SHARED], with_writers.answers[SHARED] / 3)

    def test_the_kinds_of_reuse(self) -> None:
        shared, local, off = (Fleet(small(reuse=reuse)).run() for reuse in ("shared", "local", "off"))
        for fleet in (local, off):
            self.check_conservation(fleet)
            self.assertEqual((fleet.answers[SHARED], fleet.lookups, fleet.stores), (0, 0, 0))
        self.assertEqual(off.answers[LOCAL], 0)
        self.assertLess(shared.core_s, local.core_s)
        self.assertLess(local.core_s, off.core_s)

    def test_every_usable_result_can_be_checked(self) -> None:
        fleet = Fleet(small(recheck_share=1.0)).run()
        self.check_conservation(fleet)
        self.assertEqual((fleet.answers[LOCAL], fleet.answers[SHARED]), (0, 0))


class InputsCase(unittest.TestCase):
    def test_every_measured_figure_has_a_source_and_a_date(self) -> None:
        for name, entry in json.loads(MEASURED_FILE.read_text())["figures"].items():
            self.assertEqual(sorted(entry), ["date", "source", "value"], name)
            self.assertRegex(entry["date"], r"^\d{4}-\d\d-\d\d$", name)

    def test_a_missing_figure_is_named(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "measured.json"
            path.write_text('{"figures": {}}')
            self.assertRaisesRegex(MissingFigure, "no figure `local_run_s`", Measured.load, path)

    def test_the_program_refuses_missing_figures(self) -> None:
        program = pathlib.Path(__file__).resolve().parent.parent / "fleet"
        done = subprocess.run([sys.executable, program, "--measured", "/nonexistent"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("hint: run `bench/fleet measure`", done.stderr)

    def test_ranges_contain_their_base(self) -> None:
        for assumption in ASSUMPTIONS:
            self.assertTrue(assumption.low <= assumption.base <= assumption.high, assumption.name)

    def test_an_unknown_assumption_is_refused(self) -> None:
        self.assertRaises(KeyError, small().with_value, "saves", 1)


class ApiCase(unittest.TestCase):
    def test_messages_can_be_read_back(self) -> None:
        message = reapi.field(1, "name") + reapi.number(2, 300)
        self.assertEqual(list(reapi.fields(message)), [(1, b"name"), (2, 300)])

    def test_a_tree_has_the_digests_of_the_api(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            top = pathlib.Path(directory)
            (top / "b").mkdir()
            (top / "a").write_text("x")
            (top / ".git").mkdir()
            root, directories, files = reapi.merkle_tree(top)
        self.assertEqual(files, {reapi.digest_of(b"x"): b"x"})
        empty = reapi.digest_of(b"")
        self.assertEqual(directories[empty], b"")
        file = reapi.field(1, reapi.field(1, "a") + reapi.field(2, reapi.digest_message(reapi.digest_of(b"x"))))
        child = reapi.field(2, reapi.field(1, "b") + reapi.field(2, reapi.digest_message(empty)))
        self.assertEqual(directories[root], file + child)


if __name__ == "__main__":
    unittest.main()
