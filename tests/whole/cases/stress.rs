//! Runs over a worktree that another process changes continuously: each record names the tree that the step saw, with
//! the outcome that this tree requires. The step computes the identity of its tree itself, as specified in
//! `docs/snapshot.md`, and passes or fails depending on the last digit.
//!
//! `PROCTOR_HOSTILE_RUNS` sets the number of runs, and `PROCTOR_HOSTILE_SEED` the order of the writer's operations.

use std::time::Duration;

use serde_json::{Value, json};

use super::local_attacks::{AttackFixture, NEEDS_SYSTEM_DAEMON, NEEDS_USER_DAEMON};
use crate::environment::{Repo, TestEnvironment};
use crate::needs::{CaseDefinition, case};
use crate::test_level::campaign_size;
use crate::test_spec::TestSpec;

pub(super) const CASES: &[CaseDefinition] = &[
    case("stress::system_daemon_records_are_correct_during_writes", records_are_correct_during_writes)
        .needs(NEEDS_SYSTEM_DAEMON),
    case("", records_are_correct_during_writes)
        .needs(NEEDS_USER_DAEMON)
        .unprivileged("stress::user_daemon_records_are_correct_during_writes"),
];

/// Number of runs in `make test` and in `make test-long`, unless `PROCTOR_HOSTILE_RUNS` sets it.
const DEFAULT_RUNS: [u64; 2] = [5, 10];
/// Time limit for a run on a busy machine.
const RUN_TIMEOUT: Duration = Duration::from_secs(20);

/// Number of runs by outcome.
#[derive(Debug, Default)]
struct OutcomeCounts {
    passed: u64,
    failed: u64,
    inconclusive: u64,
    /// Number of inconclusive runs that left a record.
    recorded: u64,
}

#[expect(clippy::disallowed_methods, reason = "the campaign is as long as its caller wants it")]
fn number_from_env(variable: &str, default: u64) -> u64 {
    let value = std::env::var(variable).ok();
    value.map_or(default, |text| text.parse().unwrap_or_else(|error| panic!("{variable}: {error}")))
}

fn records_are_correct_during_writes(env: &TestEnvironment) {
    let (runs, seed) = (
        number_from_env("PROCTOR_HOSTILE_RUNS", campaign_size(DEFAULT_RUNS[0], DEFAULT_RUNS[1])),
        number_from_env("PROCTOR_HOSTILE_SEED", 1),
    );
    let stage = AttackFixture::new(env).patient(RUN_TIMEOUT * u32::try_from(runs).expect("a number of runs"));
    let repo = stage.create_repo("stress", &TestSpec::from_script("exec python3 identity.py"));
    repo.write("identity.py", include_str!("../identity.py"));
    repo.write("churn/a/x", "tracked\n");
    stage.give_to_caller("stress");
    let mut writer = stage.start_attacker("writer", &repo);
    writer.run_next_part(&Value::Null);
    writer.run_next_part(&json!(seed));
    let mut counts = OutcomeCounts::default();
    let mut earlier = String::new();
    for _ in 0..runs {
        let run = env.finish(stage.start_run(&repo));
        let record = last_record(&repo).filter(|record| record.run_id != earlier);
        match run.code {
            Some(0) => counts.passed += 1,
            Some(1) => counts.failed += 1,
            Some(5) => counts.inconclusive += 1,
            _ => panic!("seed {seed}, {counts:?}: {run}"),
        }
        let Some(record) = record else {
            assert_eq!(run.code, Some(5), "seed {seed}, {counts:?}: a verdict without a record\n{run}");
            continue;
        };
        assert_eq!(
            record.computed_snapshot, record.snapshot,
            "seed {seed}, {counts:?}: the step saw another tree\n{run}"
        );
        let expected_code =
            record.snapshot.chars().last().and_then(|digit| digit.to_digit(16)).expect("a hex digit") % 2;
        match run.code {
            Some(5) => counts.recorded += 1,
            code => assert_eq!(code, i32::try_from(expected_code).ok(), "seed {seed}, {counts:?}: {run}"),
        }
        earlier = record.run_id;
    }
    let writer_report = writer.run_next_part(&Value::Null);
    let statistic = |name: &str| writer_report[name].as_f64().expect("a number");
    let rate = statistic("operations") / statistic("seconds");
    println!(
        "{runs} runs, seed {seed}, {rate:.0} operations a second in {} bursts: {counts:?}",
        writer_report["bursts"]
    );
    assert!(counts.passed + counts.failed > 0, "no run had an outcome: {counts:?}");
    stage.daemon.stop().exits(0);
}

/// The record of the last run.
struct StressRecord {
    run_id: String,
    snapshot: String,
    /// The identity that the step computed.
    computed_snapshot: String,
}

fn last_record(repo: &Repo<'_>) -> Option<StressRecord> {
    if !repo.changeset().join("05-status.json").exists() {
        return None;
    }
    let last = repo.last_run();
    let text = |value: &Value| value.as_str().expect("text").trim().to_owned();
    Some(StressRecord {
        run_id: text(&last["run_id"]),
        snapshot: text(&last["snapshot"]),
        computed_snapshot: text(&repo.step("it")["stdout_preview"]),
    })
}
