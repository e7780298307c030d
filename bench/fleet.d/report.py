"""Summarises simulated days, and prints them as tables."""

from __future__ import annotations

import dataclasses
import itertools

from fleet import BUCKET_S, EXECUTED, LOCAL, RECHECKED, SHARED, Fleet
from parameters import ASSUMPTIONS, DAY, HOUR, Parameters
from queueing import ServerPool, percentile

QUANTILES = (0.5, 0.95, 0.99)
# A cluster is saturated if 5 % of its actions wait longer.
SATURATED_WAIT_S = 10.0


@dataclasses.dataclass(frozen=True)
class Summary:
    """The figures of one day. Times are in seconds."""

    verifications: int
    steps: int
    local_share: float
    shared_share: float
    rechecked_share: float
    executed_share: float
    on_cluster_share: float
    utilisation_day: float
    utilisation_busiest_hour: float
    busiest_hour_slots: float
    wait_s: tuple[float, ...]
    run_wait_s: tuple[float, ...]
    save_s: tuple[float, ...]
    push_s: tuple[float, ...]
    cas_up_bytes: int
    cas_down_bytes: int
    cas_up_peak: float
    cas_down_peak: float
    core_s_per_verification: float
    cost_used: float
    cost_provisioned: float
    ends_at_s: float

    def is_saturated(self) -> bool:
        return self.wait_s[1] > SATURATED_WAIT_S


def quantiles(values: list[float]) -> tuple[float, ...]:
    return tuple(round(percentile(values, share), 3) for share in QUANTILES)


def busiest_hour(pools: list[ServerPool]) -> float:
    """Returns the mean number of busy servers in the busiest hour, of all pools together."""
    sums = [sum(buckets) for buckets in itertools.zip_longest(*(pool.busy_by_bucket for pool in pools), fillvalue=0.0)]
    width = int(HOUR / BUCKET_S)
    return max(sum(sums[begin : begin + width]) for begin in range(max(1, len(sums) - width + 1))) / HOUR


def summarise(fleet: Fleet) -> Summary:
    p, traffic = fleet.parameters, fleet.traffic
    cores = [daemon.cores for daemon in fleet.daemons]
    # Without a cluster, the steps wait for the cores of their daemons.
    pools = cores if p.mode == "local" else [fleet.cluster]
    servers = sum(pool.servers for pool in pools)
    busy = busiest_hour(pools)
    verifications = sum(map(len, fleet.latencies.values()))
    share = {answer: fleet.answers[answer] / fleet.requested_steps for answer in (LOCAL, SHARED, RECHECKED, EXECUTED)}
    core_price_s = p.values["price"] / HOUR
    provisioned = (p.slots + p.daemons * p.daemon_cores) * DAY * core_price_s
    return Summary(
        verifications=verifications,
        steps=fleet.requested_steps,
        local_share=share[LOCAL],
        shared_share=share[SHARED],
        rechecked_share=share[RECHECKED],
        executed_share=share[EXECUTED],
        on_cluster_share=fleet.places["cluster"] / max(1, sum(fleet.places.values())),
        utilisation_day=sum(pool.busy_s for pool in pools) / servers / DAY,
        utilisation_busiest_hour=busy / servers,
        busiest_hour_slots=busy,
        wait_s=quantiles([wait for pool in pools for wait in pool.waits]),
        run_wait_s=quantiles([wait for daemon in fleet.daemons for wait in daemon.runs.waits]),
        save_s=quantiles(fleet.latencies["save"]),
        push_s=quantiles(fleet.latencies["push"]),
        cas_up_bytes=traffic.received("up"),
        cas_down_bytes=traffic.received("down"),
        cas_up_peak=traffic.peak("up"),
        cas_down_peak=traffic.peak("down"),
        core_s_per_verification=fleet.core_s / verifications,
        cost_used=fleet.core_s * core_price_s / verifications,
        cost_provisioned=provisioned / verifications,
        ends_at_s=fleet.simulator.now,
    )


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    cells = [[text.ljust(width) if n == 0 else text.rjust(width) for n, (text, width) in enumerate(zip(line, widths))] for line in lines]
    rule = "-+-".join("-" * width for width in widths)
    printed = [" | ".join(line) for line in cells]
    return "\n".join([printed[0], rule, *printed[1:]])


def times(values: tuple[float, ...]) -> str:
    return " / ".join(f"{value:.1f}" for value in values)


def summary_rows(summary: Summary) -> list[tuple[str, str]]:
    s = summary
    return [
        ("verifications; steps", f"{s.verifications:,}; {s.steps:,}"),
        ("steps: local hit, shared hit", f"{s.local_share:.1%}, {s.shared_share:.1%}"),
        ("steps: executed; usable, but executed as a check", f"{s.executed_share:.1%}; {s.rechecked_share:.1%}"),
        ("executed steps that the cluster executed", f"{s.on_cluster_share:.1%}"),
        ("utilisation: day, busiest hour", f"{s.utilisation_day:.0%}, {s.utilisation_busiest_hour:.0%}"),
        ("wait of an executed step, s (p50 / p95 / p99)", times(s.wait_s)),
        ("wait of a run for its daemon, s", times(s.run_wait_s)),
        ("duration of a save, s", times(s.save_s)),
        ("duration of a push, s", times(s.push_s)),
        ("CAS and action cache up, down, GB a day", f"{s.cas_up_bytes / 1e9:.1f}, {s.cas_down_bytes / 1e9:.1f}"),
        ("the same in the busiest minute, MB/s", f"{s.cas_up_peak / 1e6:.1f}, {s.cas_down_peak / 1e6:.1f}"),
        ("CPU seconds of a verification", f"{s.core_s_per_verification:.0f}"),
        ("cost of a verification: used, provisioned", f"{s.cost_used:.5f}, {s.cost_provisioned:.5f}"),
    ]


def mode_table(summaries: dict[str, Summary]) -> str:
    columns = [summary_rows(summary) for summary in summaries.values()]
    rows = [[label, *(column[n][1] for column in columns)] for n, (label, _) in enumerate(columns[0])]
    return table(["", *summaries], rows)


def slot_table(summaries: dict[int, Summary], developers: int) -> str:
    rows = []
    for slots, s in summaries.items():
        state = "saturated" if s.is_saturated() else "ok"
        per_slot = developers / slots
        rows.append([f"{slots}", f"{per_slot:.1f}", f"{s.utilisation_busiest_hour:.0%}", times(s.wait_s), times(s.save_s), times(s.push_s), state])
    return table(["slots", "developers per slot", "busiest hour", "wait of a step, s", "save, s", "push, s", ""], rows)


def runs_table(summaries: dict[str, Summary]) -> str:
    rows = [[runs, times(s.run_wait_s), times(s.save_s), times(s.push_s)] for runs, s in summaries.items()]
    return table(["runs", "wait of a run, s", "save, s", "push, s"], rows)


def sensitivity_table(base: Summary, others: dict[tuple[str, ...], Summary], cases: dict[tuple[str, str], Summary], factor: int) -> str:
    """Shows days with a part of the fleet; `factor` scales sums to the whole fleet."""

    def cells(s: Summary) -> list[str]:
        hits = f"{s.local_share:.0%} {s.shared_share:.0%} {s.executed_share:.0%}"
        slots, gigabytes = factor * s.busiest_hour_slots, factor * (s.cas_up_bytes + s.cas_down_bytes) / 1e9
        return [hits, f"{slots:.0f}", times(s.save_s), times(s.push_s), f"{gigabytes:.0f}", f"{s.cost_used:.5f}"]

    rows = [["base", "", *cells(base)], *([*name, *cells(summary)] for name, summary in others.items())]
    for assumption in ASSUMPTIONS:
        for side in ("low", "high"):
            if (assumption.name, side) in cases:
                rows.append([assumption.name, f"{getattr(assumption, side):g}", *cells(cases[assumption.name, side])])
    return table(["assumption", "value", "local shared executed", "busy slots", "save, s", "push, s", "CAS, GB", "cost, used"], rows)


def assumption_table() -> str:
    return table(
        ["assumption", "low", "base", "high", "meaning"],
        [[a.name, f"{a.low:g}", f"{a.base:g}", f"{a.high:g}", a.meaning.ljust(max(len(b.meaning) for b in ASSUMPTIONS))] for a in ASSUMPTIONS],
    )


def as_json(parameters: Parameters, summary: Summary) -> dict[str, object]:
    inputs = {
        name: getattr(parameters, name)
        for name in ("seed", "developers", "daemons", "repositories", "mode", "reuse", "workers", "slots_per_worker", "daemon_cores", "max_runs")
    }
    return {"inputs": {**inputs, "assumptions": parameters.values}, "figures": dataclasses.asdict(summary)}
