//! Tests how the daemon's service handles requests for runs: they are queued, combined, completed, and reported.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use proctor_core::api::{ChangeDelivery, ProblemType, RunState, RunSubmission, SubmissionOutcome};
use proctor_core::decision::verdict::{InconclusiveReason, Verdict};
use proctor_core::model::event::RunEvent;
use proctor_core::model::names::IdempotencyKey;
use proctor_core::model::tier::Tier;
use proctor_core::spec::OperatorConfig;
use proctor_daemon::caller::Caller;
use proctor_daemon::history::RunFilter;
use proctor_daemon::service::{OutputId, OutputUnit, StdStream};

use super::prior_results::with_reuse;
use crate::environment::{CHANGESET, TestEnvironment, waiting_step};
use crate::in_process_service::{InProcessService, changeset_submission, is_for_repo, run_submission};
use crate::machine;
use crate::needs::{CaseDefinition, Needs, case};
use crate::test_spec::{TestSkill, TestSpec, TestStep};

pub(super) const CASES: &[CaseDefinition] = &[
    case("run_requests::run_is_reported_from_request_to_end", run_is_reported_from_request_to_end),
    case("run_requests::failed_run_names_the_failed_step", failed_run_names_failed_step),
    case("run_requests::invalid_request_is_refused_immediately", invalid_request_is_refused),
    case("run_requests::run_is_cancelled_in_every_state_and_ends_once", run_is_cancelled_in_every_state),
    case("run_requests::equal_waiting_run_is_joined", equal_waiting_run_is_joined),
    case("run_requests::equal_active_run_is_joined_only_on_the_same_tree", equal_active_run_is_joined_on_same_tree),
    case("run_requests::idempotency_key_gives_one_run_and_rejects_another_request", idempotency_key_gives_one_run),
    case("run_requests::concurrent_requests_with_one_key_get_one_run", concurrent_requests_with_one_key),
    case("run_requests::changed_environment_of_steps_starts_another_run", changed_environment_starts_another_run),
    case("run_requests::changed_toolchains_start_another_run", changed_toolchains_start_another_run),
    case("run_requests::changed_operator_settings_start_another_run", changed_settings_start_another_run),
    case("run_requests::caller_sees_only_own_runs", caller_sees_only_own_runs),
    case("run_requests::another_users_repository_and_history_are_not_read", foreign_repository_is_not_read)
        .needs(&[Needs::Sandbox, Needs::Root]),
    case("run_requests::excess_runs_are_refused", excess_runs_are_refused),
    case("run_requests::a_changeset_has_one_writer", changeset_has_one_writer),
    case("run_requests::run_that_changes_the_worktree_runs_alone", run_changing_worktree_runs_alone),
    case("run_requests::replaced_tools_start_another_run", replaced_tools_start_another_run),
    case(
        "run_requests::changed_tool_version_or_interpreter_starts_another_run",
        changed_tool_version_starts_another_run,
    ),
    case("run_requests::program_in_the_tree_is_identified_by_its_content", program_in_tree_is_identified_by_content),
    case("run_requests::a_commit_is_verified_beside_the_worktree", commit_is_verified_beside_worktree),
    case("run_requests::spec_edited_while_a_run_waits_is_not_run", edited_spec_is_not_run),
    case("run_requests::patch_is_stored", patch_is_stored),
    case("run_requests::a_changeset_is_approved_by_a_file", changeset_is_approved_by_file),
    case("run_requests::drain_finishes_the_active_run_and_starts_no_other", drain_finishes_active_run),
    case("run_requests::drain_cancels_slow_runs", drain_cancels_slow_run),
    case("run_requests::next_service_knows_earlier_runs", next_service_knows_earlier_runs),
];

/// Id of the user `nobody`, who has an account.
const NOBODY_UID: u32 = 65_534;
const ONE_RUN_CONFIG: &str = "[daemon]\nmax_runs = 1\n";

fn run_is_reported_from_request_to_end(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("echo out; echo err >&2"));
    let served = InProcessService::open(env);
    let submitted = served.submit(changeset_submission(&repo));
    assert_eq!(submitted.how, SubmissionOutcome::Queued);
    assert!(is_for_repo(&submitted.run.request, repo.path()));
    let id = submitted.run.id;
    let run = served.wait_for_end(&id);
    assert_eq!((run.verdict, run.exit_code), (Some(Verdict::Passed), Some(0)), "{run:#?}");
    assert_eq!(run.evidence_dir.as_deref(), repo.changeset().to_str());
    assert_eq!(repo.last_run()["run_id"], id.as_str());
    let output = |stream| served.block_on(served.service.output(served.caller, &id, output_of_step(0, stream), 0, 100));
    assert_eq!(output(StdStream::Stdout).expect("kept").0.bytes, b"out\n");
    assert_eq!(output(StdStream::Stderr).expect("kept").1, 4);
    let listed = served.block_on(served.service.list(served.caller, RunFilter::default())).expect("a list");
    assert_eq!(listed.runs, [run.summary()]);
    let after = served.block_on(served.service.watch(served.caller, &id, Some(run.seq - 1), Duration::ZERO));
    let after = after.expect("the run");
    assert_eq!(after.events.map(|events| events.len()), Some(1));
    assert!(!after.more_events);
}

fn output_of_step(n: u32, stream: StdStream) -> OutputId {
    OutputId { unit: OutputUnit::Step, n, stream }
}

fn failed_run_names_failed_step(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("exit 3"));
    let served = InProcessService::open(env);
    let run = served.wait_for_end(&served.submit(run_submission(&repo)).run.id);
    assert_eq!((run.verdict, run.exit_code), (Some(Verdict::Failed), Some(1)));
    assert!(run.reason.contains("verify.it/it exited with code 3"), "{}", run.reason);
}

fn invalid_request_is_refused(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let served = InProcessService::open(env);
    let refused = |submission: RunSubmission| served.try_submit(submission, None).expect_err("it cannot be").kind;
    let relative = RunSubmission { repo: "repo".into(), ..run_submission(&repo) };
    assert_eq!(refused(relative), ProblemType::InvalidRequest);
    let absent = RunSubmission { repo: "/proc/absent".into(), ..run_submission(&repo) };
    assert_eq!(refused(absent), ProblemType::Unprocessable);
    let file = RunSubmission { repo: repo.file("README.md").display().to_string(), ..run_submission(&repo) };
    assert_eq!(refused(file), ProblemType::Unprocessable);
    let parent = RunSubmission { repo: env.root().display().to_string(), ..run_submission(&repo) };
    assert_eq!(refused(parent), ProblemType::Unprocessable);
    let rev = RunSubmission { rev: Some("no-such".into()), ..run_submission(&repo) };
    assert_eq!(refused(rev), ProblemType::Unprocessable);
    repo.write("spec/verification.yaml", "version: 1\nprofiles: 3\n");
    let problem = served.try_submit(run_submission(&repo), None).expect_err("no spec");
    assert_eq!((problem.kind, problem.exit_code), (ProblemType::InvalidSpec, 2));
    assert!(problem.spec.is_some_and(|spec| !spec.diagnostics.is_empty()));
    let listed = served.block_on(served.service.list(served.caller, RunFilter::default())).expect("a list");
    assert_eq!(listed.runs, [], "what was refused is no run");
}

fn run_is_cancelled_in_every_state(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([waiting_step(env, "it")]));
    let served = InProcessService::open_with_config(env, ONE_RUN_CONFIG);
    let running = served.submit(run_submission(&repo)).run.id;
    served.wait_for_step(&running, 0);
    let waiting = served.submit(RunSubmission { max_tier: Tier::ONE, ..run_submission(&repo) }).run.id;
    assert_eq!(served.run_view(&waiting).state, RunState::Queued);
    served.cancel_run(&waiting);
    let run = served.wait_for_end(&waiting);
    assert_eq!((run.verdict, run.exit_code), (Some(Verdict::Inconclusive), Some(130)));
    assert_eq!((run.cancelled_by.as_deref(), run.started_at), (Some("the case"), None));
    assert_eq!(run.doubts[0].doubt, InconclusiveReason::Interrupted);
    served.cancel_run(&running);
    let run = served.wait_for_end(&running);
    assert_eq!((run.verdict, run.exit_code), (Some(Verdict::Inconclusive), Some(130)), "{run:#?}");
    assert_eq!(run.cancelled_by.as_deref(), Some("the case"));
    served.cancel_run(&running);
    assert_eq!(served.run_view(&running), run, "what has ended stays as it is");
}

fn equal_waiting_run_is_joined(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([waiting_step(env, "it")]));
    let served = InProcessService::open_with_config(env, ONE_RUN_CONFIG);
    let first = served.submit(RunSubmission { fail_fast: true, ..run_submission(&repo) }).run.id;
    let step = served.wait_for_step(&first, 0);
    let second = served.submit(run_submission(&repo)).run.id;
    let third = served.submit(run_submission(&repo));
    assert_eq!((third.how, &third.run.id), (SubmissionOutcome::Joined, &second));
    assert_ne!(first, second);
    machine::send_signal(step, rustix::process::Signal::USR1);
    assert_eq!(served.wait_for_end(&first).verdict, Some(Verdict::Passed));
    let step = served.wait_for_step(&second, step);
    machine::send_signal(step, rustix::process::Signal::USR1);
    assert_eq!(served.wait_for_end(&second).verdict, Some(Verdict::Passed));
}

fn equal_active_run_is_joined_on_same_tree(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([waiting_step(env, "it")]));
    let served = InProcessService::open(env);
    let first = served.submit(run_submission(&repo)).run.id;
    let step = served.wait_for_step(&first, 0);
    let same = served.submit(run_submission(&repo));
    assert_eq!((same.how, &same.run.id), (SubmissionOutcome::Joined, &first));
    repo.write("README.md", "another tree\n");
    let other = served.submit(run_submission(&repo));
    assert_eq!(other.how, SubmissionOutcome::Queued, "the tree has changed");
    machine::send_signal(step, rustix::process::Signal::USR1);
    let run = served.wait_for_end(&first);
    assert_eq!(run.verdict, Some(Verdict::Passed), "its steps see the tree as it was: {run:#?}");
    let step = served.wait_for_step(&other.run.id, step);
    machine::send_signal(step, rustix::process::Signal::USR1);
    let run = served.wait_for_end(&other.run.id);
    assert_eq!(run.verdict, Some(Verdict::Passed));
}

fn idempotency_key_gives_one_run(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let served = InProcessService::open(env);
    let submit = |submission| served.try_submit(submission, Some("a-key"));
    let first = submit(run_submission(&repo)).expect("a run");
    let again = submit(run_submission(&repo)).expect("the same");
    assert_eq!((again.how, &again.run.id), (SubmissionOutcome::Repeated, &first.run.id));
    served.wait_for_end(&first.run.id);
    let later = submit(run_submission(&repo)).expect("the same");
    assert_eq!((later.how, &later.run.id), (SubmissionOutcome::Repeated, &first.run.id));
    let other = submit(RunSubmission { fail_fast: true, ..run_submission(&repo) }).expect_err("another request");
    assert_eq!(other.kind, ProblemType::Conflict);
}

fn concurrent_requests_with_one_key(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let served = InProcessService::open(env);
    let key = IdempotencyKey::new("a-key").expect("a key");
    let submit = |_| served.service.submit(served.caller, run_submission(&repo), Some(key.clone()));
    let answers = served.block_on(futures_util::future::join_all((0..20).map(submit)));
    let answers: Vec<_> = answers.into_iter().map(|answer| answer.expect("a run")).collect();
    assert!(answers.iter().all(|answer| answer.run.id == answers[0].run.id));
    assert_eq!(answers.iter().filter(|answer| answer.how == SubmissionOutcome::Queued).count(), 1);
    served.wait_for_end(&answers[0].run.id);
}

fn changed_environment_starts_another_run(env: &TestEnvironment) {
    let step = TestStep::sh("it", "test \"$WORD\" = right").with_field("env_allowlist: [WORD]");
    let repo = env.repo(&TestSpec::from_steps([step]));
    let served = InProcessService::open(env);
    let with = |word: &str| {
        let env = [("WORD", word), ("OTHER", "x")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        with_reuse(RunSubmission { env: Some(env.into()), ..run_submission(&repo) })
    };
    let first = served.submit(with("right")).run.id;
    assert_eq!(served.wait_for_end(&first).verdict, Some(Verdict::Passed));
    assert_eq!(served.submit(with("right")).how, SubmissionOutcome::Verified);
    let other = served.submit(with("wrong"));
    assert_eq!(other.how, SubmissionOutcome::Queued, "what passed had another word");
    assert_eq!(served.wait_for_end(&other.run.id).verdict, Some(Verdict::Failed));
    assert_eq!(
        served.submit(with_reuse(run_submission(&repo))).how,
        SubmissionOutcome::Queued,
        "and a request with no variables differs, too"
    );
    let log = std::fs::read(env.state_dir().join(format!("history/events/{first}.jsonl"))).expect("a log");
    assert!(!String::from_utf8_lossy(&log).contains("OTHER"), "an environment is never kept");
}

/// Replaces a program atomically, as an installer does.
fn replace_program(path: &Path, comment: &str) {
    let new = path.with_extension("new");
    machine::write(&new, format!("#!/bin/sh\n# {comment}\nexit 0\n"));
    std::fs::set_permissions(&new, Permissions::from_mode(0o755)).expect("a mode");
    std::fs::rename(new, path).expect("a file of the test");
}

fn program_in_tree_is_identified_by_content(env: &TestEnvironment) {
    let repo = env
        .repo(&TestSpec::from_steps([TestStep::argv("it", &["./check"]), TestStep::argv("that", &["target/check"])]));
    let (own, ignored) = (repo.file("check"), repo.file("target/check"));
    replace_program(&own, "one");
    replace_program(&ignored, "one");
    let served = InProcessService::open(env);
    let runs = |why: &str| {
        let submitted = served.submit(with_reuse(run_submission(&repo)));
        assert_eq!(submitted.how, SubmissionOutcome::Queued, "{why}");
        assert_eq!(served.wait_for_end(&submitted.run.id).verdict, Some(Verdict::Passed));
    };
    let is_verified = |why: &str| {
        assert_eq!(served.submit(with_reuse(run_submission(&repo))).how, SubmissionOutcome::Verified, "{why}");
    };
    runs("the first");
    is_verified("nothing since");
    replace_program(&own, "two");
    runs("it was edited");
    replace_program(&own, "one");
    replace_program(&ignored, "one");
    is_verified("both are what they were");
    replace_program(&ignored, "two");
    runs("what git ignores is a program too");
    is_verified("nothing since");
}

/// Steps are not observed, so that the age of the new tools does not matter.
const NOT_OBSERVED: &str = "[reuse]\nenabled = false\n";

fn replaced_tools_start_another_run(env: &TestEnvironment) {
    let (tools, home_bin) = (env.root().join("tools"), env.home_dir().join(".local/bin"));
    std::fs::create_dir_all(&home_bin).expect("a directory");
    replace_program(&tools.join("checker"), "one");
    replace_program(&home_bin.join("helper"), "one");
    // The program in `PATH` may be only a version selector, which does not change when the selected version changes.
    let version = env.home_dir().join(".rustup/toolchains/stable/bin");
    machine::write(&version.join("compiler"), "one");
    let path = tools.join("checker").display().to_string();
    let repo = env.repo(&TestSpec::from_steps([TestStep::argv("it", &[&path]), TestStep::argv("that", &["helper"])]));
    let config = format!("tool_mounts = [{:?}]\n{NOT_OBSERVED}", tools.display().to_string());
    let served = InProcessService::open_with_config(env, &config);
    let runs = |why: &str| {
        let submitted = served.submit(with_reuse(run_submission(&repo)));
        assert_eq!(submitted.how, SubmissionOutcome::Queued, "{why}");
        assert_eq!(served.wait_for_end(&submitted.run.id).verdict, Some(Verdict::Passed));
        assert_eq!(
            served.submit(with_reuse(run_submission(&repo))).how,
            SubmissionOutcome::Verified,
            "{why}, and nothing since"
        );
    };
    runs("the first");
    replace_program(&tools.join("checker"), "two");
    runs("the operator's tool was replaced");
    replace_program(&home_bin.join("helper"), "two");
    runs("one that is found by its name was replaced");
    replace_program(&version.join("compiler"), "two");
    runs("a version of a toolchain was replaced in place");
    machine::write(&home_bin.join("other"), "");
    assert_eq!(
        served.submit(with_reuse(run_submission(&repo))).how,
        SubmissionOutcome::Verified,
        "what no step names is no matter"
    );
    let elsewhere = env.root().join("elsewhere");
    std::fs::create_dir(&elsewhere).expect("a directory");
    let more = format!("tool_mounts = [{:?}, {:?}]\n", tools.display().to_string(), elsewhere.display().to_string());
    let masks = format!("{more}tool_masks = [{:?}]\n", tools.join("secret").display().to_string());
    machine::write(&tools.join("secret"), "");
    for config in [more, masks] {
        served.service.reload(OperatorConfig::parse(&format!("{config}{NOT_OBSERVED}")).expect("a config"));
        runs("the operator shows something else");
    }
}

/// A version manager selects another version of a tool, and the interpreter of a script is replaced.
fn changed_tool_version_starts_another_run(env: &TestEnvironment) {
    let home = env.home_dir();
    let (selected, interpreter) = (home.join(".pyenv/version"), home.join(".local/bin/interpreter"));
    machine::write(&selected, "3.11");
    std::fs::create_dir_all(home.join(".local/bin")).expect("a directory");
    replace_program(&interpreter, "one");
    let repo = env.repo(&TestSpec::from_steps([TestStep::argv("it", &["./check"])]));
    repo.write(".gitignore", ".python-version\n");
    replace_program(&repo.file("check"), "one");
    machine::write(&repo.file("check"), "#!/usr/bin/env interpreter\n");
    repo.commit();
    let served = InProcessService::open_with_config(env, NOT_OBSERVED);
    let runs = |why: &str| {
        let submitted = served.submit(with_reuse(run_submission(&repo)));
        assert_eq!(submitted.how, SubmissionOutcome::Queued, "{why}");
        assert_eq!(served.wait_for_end(&submitted.run.id).verdict, Some(Verdict::Passed), "{why}");
        assert_eq!(
            served.submit(with_reuse(run_submission(&repo))).how,
            SubmissionOutcome::Verified,
            "{why}, and nothing since"
        );
    };
    runs("the first");
    machine::write(&selected, "3.12");
    runs("pyenv selects another version");
    replace_program(&interpreter, "two");
    runs("the interpreter that `env` looks up was replaced");
    repo.write(".python-version", "3.11");
    runs("an ignored file of the tree selects a version");
}

fn changed_toolchains_start_another_run(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let [home, other_home] = [env.home_dir(), env.root().join("other")].map(|home| home.display().to_string());
    std::fs::create_dir(&other_home).expect("a second home");
    let with = |name: &str, value: &str| {
        let mut env = BTreeMap::from([("PATH", "/usr/bin:/bin"), ("HOME", home.as_str())]);
        env.insert(name, value);
        let env = env.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        with_reuse(RunSubmission { env: Some(env), ..run_submission(&repo) })
    };
    let served = InProcessService::open(env);
    let first = served.submit(with("OTHER", "x")).run.id;
    assert_eq!(served.wait_for_end(&first).verdict, Some(Verdict::Passed));
    assert_eq!(served.submit(with("OTHER", "y")).run.id, first, "no step takes that");
    drop(served);
    let next = InProcessService::open(env);
    let same = next.submit(with("OTHER", "x"));
    assert_eq!((same.how, same.run.id), (SubmissionOutcome::Verified, first.clone()), "it is recorded");
    let path = "/opt/x/bin:/usr/bin:/bin";
    for (name, value) in [("PATH", path), ("CARGO_HOME", "/c"), ("RUSTUP_HOME", "/r"), ("HOME", &other_home)] {
        let other = next.submit(with(name, value));
        assert_eq!(other.how, SubmissionOutcome::Queued, "{name} differs");
        assert_eq!(next.wait_for_end(&other.run.id).verdict, Some(Verdict::Passed), "{name}");
    }
}

fn changed_settings_start_another_run(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([waiting_step(env, "it")]));
    let served = InProcessService::open(env);
    let submission = || RunSubmission { rev: Some("HEAD".to_owned()), ..run_submission(&repo) };
    let first = served.submit(submission()).run.id;
    served.wait_for_step(&first, 0);
    assert_eq!(served.submit(submission()).how, SubmissionOutcome::Joined);
    let settings = OperatorConfig::clone(&served.service.operator());
    served.service.reload(settings.clone());
    assert_eq!(served.submit(submission()).how, SubmissionOutcome::Joined, "the settings are equal");
    served.service.reload(OperatorConfig { max_tier: Tier::ONE, ..settings });
    let second = served.submit(submission());
    assert_eq!(second.how, SubmissionOutcome::Queued);
    for run in [&first, &second.run.id] {
        served.cancel_run(run);
        served.wait_for_end(run);
    }
}

fn caller_sees_only_own_runs(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let served = InProcessService::open(env);
    let id = served.submit(run_submission(&repo)).run.id;
    served.wait_for_end(&id);
    let other = Caller { uid: served.caller.uid + 1 };
    let refusals = served.block_on(async {
        [
            served.service.run(other, &id).await.err(),
            served.service.watch(other, &id, None, Duration::ZERO).await.err(),
            served.service.events(other, &id, 0).await.err(),
            served.service.cancel(other, &id, "another").await.err(),
            served.service.output(other, &id, output_of_step(0, StdStream::Stdout), 0, 1).await.err(),
            served.service.patch(other, &id).await.err(),
        ]
    });
    for refusal in refusals {
        assert_eq!(refusal.expect("it is not theirs").kind, ProblemType::NotFound);
    }
    let listed = served.block_on(served.service.list(other, RunFilter::default())).expect("a list");
    assert_eq!(listed.runs, []);
}

fn foreign_repository_is_not_read(env: &TestEnvironment) {
    let theirs = env.repo(&TestSpec::from_script("true"));
    let other = Caller { uid: NOBODY_UID };
    let lure = env.root().join("lure");
    machine::write(&lure.join("spec/verification.yaml"), TestSpec::from_script("git log").to_yaml(env.marker()));
    machine::write(&lure.join(".git"), format!("gitdir: {}/.git\n", theirs.path().display()));
    machine::change_owner(&lure, NOBODY_UID);
    let served = InProcessService::open(env);
    let ask = |submission: RunSubmission| served.block_on(served.service.submit(other, submission, None));
    let refused = ask(run_submission(&theirs)).expect_err("it is root's");
    assert!(refused.detail.contains("no repository of this user"), "{refused:#?}");
    let lured = RunSubmission { repo: lure.display().to_string(), ..run_submission(&theirs) };
    let id = ask(lured).expect("it is theirs by its own directory").run.id;
    let run = served.wait_for_end(&id);
    assert_eq!(run.verdict, Some(Verdict::Inconclusive));
    let problem = run.problem.expect("it was refused");
    assert!(problem.detail.contains("owned by another user"), "{problem:#?}");
}

fn excess_runs_are_refused(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([waiting_step(env, "it")]));
    let served = InProcessService::open_with_config(env, "[daemon]\nmax_runs = 1\nmax_queued = 1\n");
    let running = served.submit(run_submission(&repo)).run.id;
    served.wait_for_step(&running, 0);
    let waiting = served.submit(RunSubmission { fail_fast: true, ..run_submission(&repo) }).run.id;
    let problem =
        served.try_submit(RunSubmission { max_tier: Tier::ONE, ..run_submission(&repo) }, None).expect_err("no room");
    assert_eq!((problem.kind, problem.status), (ProblemType::TooManyRequests, 429));
    assert!(problem.hint.is_some());
    served.cancel_run(&waiting);
    served.wait_for_end(&waiting);
    served.cancel_run(&running);
    served.wait_for_end(&running);
}

fn changeset_has_one_writer(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([waiting_step(env, "it")]));
    let served = InProcessService::open_with_config(env, "[daemon]\nmax_runs = 4\n");
    let first = served.submit(changeset_submission(&repo)).run.id;
    let step = served.wait_for_step(&first, 0);
    let second = served.submit(RunSubmission { fail_fast: true, ..changeset_submission(&repo) }).run.id;
    let beside = served.submit(run_submission(&repo)).run.id;
    let other = served.wait_for_step(&beside, step);
    assert_eq!(served.run_view(&second).state, RunState::Queued, "it waits for the first");
    served.cancel_run(&beside);
    served.wait_for_end(&beside);
    assert!(machine::process_with_argument(&format!("{}-main", env.marker()), other).is_some());
    machine::send_signal(step, rustix::process::Signal::USR1);
    assert_eq!(served.wait_for_end(&first).verdict, Some(Verdict::Passed));
    let step = served.wait_for_step(&second, step);
    machine::send_signal(step, rustix::process::Signal::USR1);
    assert_eq!(served.wait_for_end(&second).verdict, Some(Verdict::Passed));
}

fn run_changing_worktree_runs_alone(env: &TestEnvironment) {
    let format = waiting_step(env, "it").with_field("read_only: off");
    let repo = env.repo(&TestSpec::from_steps([format]));
    let served = InProcessService::open_with_config(env, "[daemon]\nmax_runs = 4\n");
    let first = served.submit(run_submission(&repo)).run.id;
    let step = served.wait_for_step(&first, 0);
    let reader = served.submit(RunSubmission { changes: ChangeDelivery::Patch, ..run_submission(&repo) }).run.id;
    assert_eq!(served.run_view(&reader).state, RunState::Queued, "the tree may change under it");
    machine::send_signal(step, rustix::process::Signal::USR1);
    assert_eq!(served.wait_for_end(&first).verdict, Some(Verdict::Passed));
    let step = served.wait_for_step(&reader, step);
    machine::send_signal(step, rustix::process::Signal::USR1);
    assert_eq!(served.wait_for_end(&reader).verdict, Some(Verdict::Passed));
}

fn commit_is_verified_beside_worktree(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("grep -q first README.md"));
    repo.write("README.md", "edited, and not committed\n");
    let served = InProcessService::open(env);
    let at_revision = |rev: &str| RunSubmission { rev: Some(rev.to_owned()), ..run_submission(&repo) };
    let run = served.wait_for_end(&served.submit(at_revision("HEAD")).run.id);
    assert_eq!((run.verdict, run.request.rev.as_deref()), (Some(Verdict::Passed), Some("HEAD")));
    assert_eq!(served.wait_for_end(&served.submit(run_submission(&repo)).run.id).verdict, Some(Verdict::Failed));
    repo.commit();
    let range = served.try_submit(at_revision("HEAD~1..HEAD~1"), None).expect_err("no commit");
    assert_eq!(range.kind, ProblemType::Unprocessable);
}

fn edited_spec_is_not_run(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([waiting_step(env, "it")]));
    let served = InProcessService::open_with_config(env, ONE_RUN_CONFIG);
    let running = served.submit(run_submission(&repo)).run.id;
    served.wait_for_step(&running, 0);
    let waiting = served.submit(RunSubmission { fail_fast: true, ..run_submission(&repo) }).run.id;
    repo.write("spec/verification.yaml", TestSpec::from_script("true").to_yaml(env.marker()));
    served.cancel_run(&running);
    served.wait_for_end(&running);
    let run = served.wait_for_end(&waiting);
    assert_eq!((run.verdict, run.exit_code), (Some(Verdict::Inconclusive), Some(5)));
    assert!(run.problem.is_some_and(|problem| problem.detail.contains("was edited")), "{}", run.reason);
    assert!(served.run_log(&waiting).iter().any(|event| matches!(event.event, RunEvent::RunRefused { .. })));
}

fn patch_is_stored(env: &TestEnvironment) {
    let repo =
        env.repo(&TestSpec::from_steps([TestStep::sh("it", "echo more >> README.md").with_field("read_only: off")]));
    let served = InProcessService::open(env);
    let id = served.submit(RunSubmission { changes: ChangeDelivery::Patch, ..run_submission(&repo) }).run.id;
    assert_eq!(served.wait_for_end(&id).verdict, Some(Verdict::Passed));
    let patch = served.block_on(served.service.patch(served.caller, &id)).expect("a patch");
    assert!(String::from_utf8_lossy(&patch).contains("+more"));
    assert!(!repo.read("README.md").contains("more"), "nothing was applied");
    let id = served.submit(run_submission(&repo)).run.id;
    served.wait_for_end(&id);
    let none = served.block_on(served.service.patch(served.caller, &id)).expect_err("none was asked for");
    assert_eq!(none.kind, ProblemType::NotFound);
}

fn changeset_is_approved_by_file(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::new([TestSkill::new("verify.it", [TestStep::sh("it", "true")]).tier(2)]));
    let served = InProcessService::open_with_config(env, "[daemon]\napprove_tier2 = true\n");
    let problem = served.try_submit(changeset_submission(&repo), None).expect_err("not approved");
    assert_eq!(problem.kind, ProblemType::Unprocessable);
    assert!(problem.hint.is_some_and(|hint| hint.contains("APPROVED")));
    let commit = RunSubmission { rev: Some("HEAD".into()), ..changeset_submission(&repo) };
    let run = served.wait_for_end(&served.submit(commit).run.id);
    assert_eq!(run.verdict, Some(Verdict::Inconclusive), "a commit's plan is held to tier 1: {run:#?}");
    repo.link(&format!("changes/{CHANGESET}/APPROVED"), &repo.file("README.md"));
    served.try_submit(changeset_submission(&repo), None).expect_err("a link approves nothing");
    std::fs::remove_file(repo.changeset().join("APPROVED")).expect("removed");
    repo.write(&format!("changes/{CHANGESET}/APPROVED"), "by a person\n");
    let run = served.wait_for_end(&served.submit(changeset_submission(&repo)).run.id);
    assert_eq!(run.verdict, Some(Verdict::Passed), "{run:#?}");
}

fn drain_finishes_active_run(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([waiting_step(env, "it")]));
    let served = InProcessService::open_with_config(env, ONE_RUN_CONFIG);
    let running = served.submit(run_submission(&repo)).run.id;
    let step = served.wait_for_step(&running, 0);
    let waiting = served.submit(RunSubmission { fail_fast: true, ..run_submission(&repo) }).run.id;
    served.block_on(async {
        let drain = served.service.drain(Duration::from_secs(60));
        let release = async {
            let seen = served.service.watch_shared(served.caller, &waiting, None, Duration::from_secs(50)).await;
            assert_eq!(seen.expect("the run").run.view.exit_code, Some(130), "it does not begin any more");
            let result = served.service.submit(served.caller, run_submission(&repo), None).await;
            assert_eq!(result.expect_err("no new requests are accepted").kind, ProblemType::Unavailable);
            machine::send_signal(step, rustix::process::Signal::USR1);
        };
        tokio::join!(drain, release);
    });
    assert_eq!(served.wait_for_end(&running).verdict, Some(Verdict::Passed));
    served.wait_for_end(&waiting);
}

fn drain_cancels_slow_run(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([waiting_step(env, "it")]));
    let served = InProcessService::open(env);
    let running = served.submit(run_submission(&repo)).run.id;
    served.wait_for_step(&running, 0);
    served.block_on(served.service.drain(Duration::ZERO));
    let run = served.wait_for_end(&running);
    assert_eq!((run.verdict, run.exit_code), (Some(Verdict::Inconclusive), Some(130)));
    assert_eq!(run.cancelled_by.as_deref(), Some("the daemon is shutting down"));
}

fn next_service_knows_earlier_runs(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let served = InProcessService::open(env);
    let run = served.wait_for_end(&served.submit(with_reuse(run_submission(&repo))).run.id);
    served.block_on(served.service.drain(Duration::ZERO));
    drop(served);
    let served = InProcessService::open(env);
    assert_eq!(served.wait_for_end(&run.id), run);
    let again = served.submit(with_reuse(run_submission(&repo)));
    assert_eq!((again.how, again.run.id), (SubmissionOutcome::Verified, run.id));
}
