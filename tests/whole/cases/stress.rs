//! Runs over a worktree that another process changes continuously: each record names the tree that the step saw, with
//! the outcome that this tree requires. The step computes the identity of its tree itself, as specified in
//! `docs/snapshot.md`, and passes or fails depending on the last digit.
//!
//! `PROCTOR_HOSTILE_RUNS` sets the number of runs, and `PROCTOR_HOSTILE_SEED` the order of the writer's operations.

use std::time::Duration;

use serde_json::{Value, json};

use super::hostile::{NEEDS, SYSTEM, Stage};
use crate::environment::{Repo, TestEnvironment};
use crate::needs::{Case, case};
use crate::spec::Spec;

pub(super) const CASES: &[Case] = &[
    case("stress::records_of_the_system_are_true_while_a_process_writes", records).needs(SYSTEM),
    case("", records).needs(NEEDS).unprivileged("stress::records_of_a_user_are_true_while_a_process_writes"),
];

/// Number of runs, unless `PROCTOR_HOSTILE_RUNS` sets it.
const RUNS: u64 = 10;
/// Time limit for a run on a busy machine.
const LONGEST: Duration = Duration::from_secs(20);

/// Number of runs by outcome.
#[derive(Debug, Default)]
struct Count {
    passed: u64,
    failed: u64,
    inconclusive: u64,
    /// Number of inconclusive runs that left a record.
    recorded: u64,
}

#[expect(clippy::disallowed_methods, reason = "the campaign is as long as its caller wants it")]
fn number(variable: &str, default: u64) -> u64 {
    let asked = std::env::var(variable).ok();
    asked.map_or(default, |asked| asked.parse().unwrap_or_else(|error| panic!("{variable}: {error}")))
}

fn records(env: &TestEnvironment) {
    let (runs, seed) = (number("PROCTOR_HOSTILE_RUNS", RUNS), number("PROCTOR_HOSTILE_SEED", 1));
    let stage = Stage::new(env).patient(LONGEST * u32::try_from(runs).expect("a number of runs"));
    let repo = stage.repo("stress", &Spec::of_script("exec python3 identity.py"));
    repo.write("identity.py", include_str!("../identity.py"));
    repo.write("churn/a/x", "tracked\n");
    stage.give("stress");
    let mut writer = stage.attacker("writer", &repo);
    writer.next(&Value::Null);
    writer.next(&json!(seed));
    let mut count = Count::default();
    let mut earlier = String::new();
    for _ in 0..runs {
        let run = env.finish(stage.run(&repo));
        let record = record(&repo).filter(|record| record.run_id != earlier);
        match run.code {
            Some(0) => count.passed += 1,
            Some(1) => count.failed += 1,
            Some(5) => count.inconclusive += 1,
            _ => panic!("seed {seed}, {count:?}: {run}"),
        }
        let Some(record) = record else {
            assert_eq!(run.code, Some(5), "seed {seed}, {count:?}: a verdict without a record\n{run}");
            continue;
        };
        assert_eq!(record.seen, record.snapshot, "seed {seed}, {count:?}: the step saw another tree\n{run}");
        let demanded = record.snapshot.chars().last().and_then(|digit| digit.to_digit(16)).expect("a hex digit") % 2;
        match run.code {
            Some(5) => count.recorded += 1,
            code => assert_eq!(code, i32::try_from(demanded).ok(), "seed {seed}, {count:?}: {run}"),
        }
        earlier = record.run_id;
    }
    let wrote = writer.next(&Value::Null);
    let figure = |name: &str| wrote[name].as_f64().expect("a number");
    let rate = figure("operations") / figure("seconds");
    println!("{runs} runs, seed {seed}, {rate:.0} operations a second in {} bursts: {count:?}", wrote["bursts"]);
    assert!(count.passed + count.failed > 0, "no run had an outcome: {count:?}");
    stage.daemon.end().exits(0);
}

/// The record of the last run.
struct Record {
    run_id: String,
    snapshot: String,
    /// The identity that the step computed.
    seen: String,
}

fn record(repo: &Repo<'_>) -> Option<Record> {
    if !repo.changeset().join("05-status.json").exists() {
        return None;
    }
    let last = repo.last_run();
    let text = |value: &Value| value.as_str().expect("text").trim().to_owned();
    Some(Record {
        run_id: text(&last["run_id"]),
        snapshot: text(&last["snapshot"]),
        seen: text(&repo.step("it")["stdout_preview"]),
    })
}
