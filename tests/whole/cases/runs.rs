//! Tests how the daemon's service handles requests for runs: they are queued, combined, completed, and reported.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use proctor_core::api::{ChangesAsked, How, ProblemType, RunState, RunSubmission};
use proctor_core::event::RunEvent;
use proctor_core::spec::Operator;
use proctor_core::tier::Tier;
use proctor_core::verdict::{Doubt, Verdict};
use proctor_daemon::caller::Caller;
use proctor_daemon::service::{OutputOf, RunFilter, Stdio, Unit};

use super::reuse::verified;
use crate::environment::{CHANGESET, TestEnvironment, waiting_step};
use crate::machine;
use crate::needs::{Case, Needs, case};
use crate::serving::{Served, asks, asks_for_changeset, is_of};
use crate::spec::{Skill, Spec, Step};

pub(super) const CASES: &[Case] = &[
    case("runs::one_goes_from_its_request_to_its_end", whole_way),
    case("runs::one_that_fails_says_what_failed", failing),
    case("runs::one_that_cannot_be_is_refused_at_once", refused),
    case("runs::one_is_cancelled_in_every_state_and_ends_once", cancelled),
    case("runs::the_same_that_waits_is_joined", joined_waiting),
    case("runs::the_same_under_way_is_joined_on_the_same_tree_only", joined_under_way),
    case("runs::a_key_gets_one_run_and_another_request_none", idempotent),
    case("runs::one_key_that_many_send_at_once_gets_one_run", one_key_at_once),
    case("runs::what_steps_take_from_the_caller_makes_another_run", other_environment),
    case("runs::other_toolchains_than_a_run_found_make_another_run", other_toolchains),
    case("runs::a_caller_sees_its_own_only", others),
    case("runs::another_users_repository_and_history_are_not_read", foreign_history)
        .needs(&[Needs::Sandbox, Needs::Root]),
    case("runs::too_many_are_turned_away", turned_away),
    case("runs::a_changeset_has_one_writer", one_writer),
    case("runs::what_changes_the_worktree_runs_alone", alone),
    case("runs::tools_that_were_replaced_are_others", other_tools),
    case("runs::another_selected_version_or_interpreter_makes_another_run", other_versions),
    case("runs::a_program_of_the_tree_is_known_by_its_content", own_program),
    case("runs::a_commit_is_verified_beside_the_worktree", commits),
    case("runs::a_spec_that_is_edited_while_a_run_waits_is_not_run", edited_meanwhile),
    case("runs::a_patch_is_kept", patch),
    case("runs::a_changeset_is_approved_by_a_file", approval),
    case("runs::a_drain_lets_one_end_and_the_waiting_ones_not_begin", drained),
    case("runs::a_drain_cancels_what_takes_too_long", drained_late),
    case("runs::they_are_remembered_by_the_next_service", remembered),
];

/// Id of the user `nobody`, who has an account.
const NOBODY: u32 = 65_534;
const ONE_AT_A_TIME: &str = "[daemon]\nmax_runs = 1\n";

fn whole_way(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("echo out; echo err >&2"));
    let served = Served::open(env);
    let submitted = served.submit(asks_for_changeset(&repo));
    assert_eq!(submitted.how, How::Queued);
    assert!(is_of(&submitted.run.asked, repo.path()));
    let id = submitted.run.id;
    let run = served.end_of(&id);
    assert_eq!((run.verdict, run.exit_code), (Some(Verdict::Passed), Some(0)), "{run:#?}");
    assert_eq!(run.evidence_dir.as_deref(), repo.changeset().to_str());
    assert_eq!(repo.last_run()["run_id"], id.as_str());
    let output = |stream| served.wait(served.service.output(served.caller, &id, of_step(0, stream), 0, 100));
    assert_eq!(output(Stdio::Stdout).expect("kept").0.bytes, b"out\n");
    assert_eq!(output(Stdio::Stderr).expect("kept").1, 4);
    let listed = served.wait(served.service.list(served.caller, RunFilter::default())).expect("a list");
    assert_eq!(listed.runs, [run.summary()]);
    let after = served.wait(served.service.watch(served.caller, &id, Some(run.seq - 1), Duration::ZERO));
    let after = after.expect("the run");
    assert_eq!(after.events.map(|events| events.len()), Some(1));
    assert!(!after.more_events);
}

fn of_step(n: u32, stream: Stdio) -> OutputOf {
    OutputOf { unit: Unit::Step, n, stream }
}

fn failing(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("exit 3"));
    let served = Served::open(env);
    let run = served.end_of(&served.submit(asks(&repo)).run.id);
    assert_eq!((run.verdict, run.exit_code), (Some(Verdict::Failed), Some(1)));
    assert!(run.reason.contains("verify.it/it exited with code 3"), "{}", run.reason);
}

fn refused(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let served = Served::open(env);
    let refused = |asked: RunSubmission| served.try_submit(asked, None).expect_err("it cannot be").kind;
    let relative = RunSubmission { repo: "repo".into(), ..asks(&repo) };
    assert_eq!(refused(relative), ProblemType::InvalidRequest);
    let absent = RunSubmission { repo: "/proc/absent".into(), ..asks(&repo) };
    assert_eq!(refused(absent), ProblemType::Unprocessable);
    let file = RunSubmission { repo: repo.file("README.md").display().to_string(), ..asks(&repo) };
    assert_eq!(refused(file), ProblemType::Unprocessable);
    let around = RunSubmission { repo: env.root().display().to_string(), ..asks(&repo) };
    assert_eq!(refused(around), ProblemType::Unprocessable);
    let rev = RunSubmission { rev: Some("no-such".into()), ..asks(&repo) };
    assert_eq!(refused(rev), ProblemType::Unprocessable);
    repo.write("spec/verification.yaml", "version: 1\nprofiles: 3\n");
    let problem = served.try_submit(asks(&repo), None).expect_err("no spec");
    assert_eq!((problem.kind, problem.exit_code), (ProblemType::InvalidSpec, 2));
    assert!(problem.spec.is_some_and(|spec| !spec.diagnostics.is_empty()));
    let listed = served.wait(served.service.list(served.caller, RunFilter::default())).expect("a list");
    assert_eq!(listed.runs, [], "what was refused is no run");
}

fn cancelled(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([waiting_step(env, "it")]));
    let served = Served::under(env, ONE_AT_A_TIME);
    let running = served.submit(asks(&repo)).run.id;
    served.wait_for_step(&running, 0);
    let waiting = served.submit(RunSubmission { max_tier: Tier::ONE, ..asks(&repo) }).run.id;
    assert_eq!(served.view(&waiting).state, RunState::Queued);
    served.cancel(&waiting);
    let run = served.end_of(&waiting);
    assert_eq!((run.verdict, run.exit_code), (Some(Verdict::Inconclusive), Some(130)));
    assert_eq!((run.cancelled_by.as_deref(), run.started_at), (Some("the case"), None));
    assert_eq!(run.doubts[0].doubt, Doubt::Interrupted);
    served.cancel(&running);
    let run = served.end_of(&running);
    assert_eq!((run.verdict, run.exit_code), (Some(Verdict::Inconclusive), Some(130)), "{run:#?}");
    assert_eq!(run.cancelled_by.as_deref(), Some("the case"));
    served.cancel(&running);
    assert_eq!(served.view(&running), run, "what has ended stays as it is");
}

fn joined_waiting(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([waiting_step(env, "it")]));
    let served = Served::under(env, ONE_AT_A_TIME);
    let first = served.submit(RunSubmission { fail_fast: true, ..asks(&repo) }).run.id;
    let step = served.wait_for_step(&first, 0);
    let second = served.submit(asks(&repo)).run.id;
    let third = served.submit(asks(&repo));
    assert_eq!((third.how, &third.run.id), (How::Joined, &second));
    assert_ne!(first, second);
    machine::signal(step, rustix::process::Signal::USR1);
    assert_eq!(served.end_of(&first).verdict, Some(Verdict::Passed));
    let step = served.wait_for_step(&second, step);
    machine::signal(step, rustix::process::Signal::USR1);
    assert_eq!(served.end_of(&second).verdict, Some(Verdict::Passed));
}

fn joined_under_way(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([waiting_step(env, "it")]));
    let served = Served::open(env);
    let first = served.submit(asks(&repo)).run.id;
    let step = served.wait_for_step(&first, 0);
    let same = served.submit(asks(&repo));
    assert_eq!((same.how, &same.run.id), (How::Joined, &first));
    repo.write("README.md", "another tree\n");
    let other = served.submit(asks(&repo));
    assert_eq!(other.how, How::Queued, "the tree is another one now");
    machine::signal(step, rustix::process::Signal::USR1);
    let run = served.end_of(&first);
    assert_eq!(run.verdict, Some(Verdict::Passed), "its steps see the tree as it was: {run:#?}");
    let step = served.wait_for_step(&other.run.id, step);
    machine::signal(step, rustix::process::Signal::USR1);
    let run = served.end_of(&other.run.id);
    assert_eq!(run.verdict, Some(Verdict::Passed));
}

fn idempotent(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let served = Served::open(env);
    let submit = |asked| served.try_submit(asked, Some("a key"));
    let first = submit(asks(&repo)).expect("a run");
    let again = submit(asks(&repo)).expect("the same");
    assert_eq!((again.how, &again.run.id), (How::Repeated, &first.run.id));
    served.end_of(&first.run.id);
    let later = submit(asks(&repo)).expect("the same");
    assert_eq!((later.how, &later.run.id), (How::Repeated, &first.run.id));
    let other = submit(RunSubmission { fail_fast: true, ..asks(&repo) }).expect_err("another request");
    assert_eq!(other.kind, ProblemType::Conflict);
    served.try_submit(asks(&repo), Some("")).expect_err("no key");
}

fn one_key_at_once(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let served = Served::open(env);
    let submit = |_| served.service.submit(served.caller, asks(&repo), Some("a key".to_owned()));
    let answers = served.wait(futures_util::future::join_all((0..20).map(submit)));
    let answers: Vec<_> = answers.into_iter().map(|answer| answer.expect("a run")).collect();
    assert!(answers.iter().all(|answer| answer.run.id == answers[0].run.id));
    assert_eq!(answers.iter().filter(|answer| answer.how == How::Queued).count(), 1);
    served.end_of(&answers[0].run.id);
}

fn other_environment(env: &TestEnvironment) {
    let step = Step::sh("it", "test \"$WORD\" = right").with("env_allowlist: [WORD]");
    let repo = env.repo(&Spec::of_steps([step]));
    let served = Served::open(env);
    let with = |word: &str| {
        let env = [("WORD", word), ("OTHER", "x")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        verified(RunSubmission { env: Some(env.into()), ..asks(&repo) })
    };
    let first = served.submit(with("right")).run.id;
    assert_eq!(served.end_of(&first).verdict, Some(Verdict::Passed));
    assert_eq!(served.submit(with("right")).how, How::Verified);
    let other = served.submit(with("wrong"));
    assert_eq!(other.how, How::Queued, "what passed had another word");
    assert_eq!(served.end_of(&other.run.id).verdict, Some(Verdict::Failed));
    assert_eq!(served.submit(verified(asks(&repo))).how, How::Queued, "and none is another one too");
    let log = std::fs::read(env.state().join(format!("history/events/{first}.jsonl"))).expect("a log");
    assert!(!String::from_utf8_lossy(&log).contains("OTHER"), "an environment is never kept");
}

/// Replaces a program atomically, as an installer does.
fn put(path: &Path, says: &str) {
    let new = path.with_extension("new");
    machine::write(&new, format!("#!/bin/sh\n# {says}\nexit 0\n"));
    std::fs::set_permissions(&new, Permissions::from_mode(0o755)).expect("a mode");
    std::fs::rename(new, path).expect("a file of the test");
}

fn own_program(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([Step::argv("it", &["./check"]), Step::argv("that", &["target/check"])]));
    let (own, ignored) = (repo.file("check"), repo.file("target/check"));
    put(&own, "one");
    put(&ignored, "one");
    let served = Served::open(env);
    let runs = |why: &str| {
        let submitted = served.submit(verified(asks(&repo)));
        assert_eq!(submitted.how, How::Queued, "{why}");
        assert_eq!(served.end_of(&submitted.run.id).verdict, Some(Verdict::Passed));
    };
    let is_verified = |why: &str| assert_eq!(served.submit(verified(asks(&repo))).how, How::Verified, "{why}");
    runs("the first");
    is_verified("nothing since");
    put(&own, "two");
    runs("it was edited");
    put(&own, "one");
    put(&ignored, "one");
    is_verified("both are what they were");
    put(&ignored, "two");
    runs("what git ignores is a program too");
    is_verified("nothing since");
}

fn other_tools(env: &TestEnvironment) {
    let (tools, home_bin) = (env.root().join("tools"), env.home().join(".local/bin"));
    std::fs::create_dir_all(&home_bin).expect("a directory");
    put(&tools.join("checker"), "one");
    put(&home_bin.join("helper"), "one");
    // The program in `PATH` may be only a version selector, which does not change when the selected version changes.
    let version = env.home().join(".rustup/toolchains/stable/bin");
    machine::write(&version.join("compiler"), "one");
    let path = tools.join("checker").display().to_string();
    let repo = env.repo(&Spec::of_steps([Step::argv("it", &[&path]), Step::argv("that", &["helper"])]));
    let config = format!("tool_mounts = [{:?}]\n", tools.display().to_string());
    let served = Served::under(env, &config);
    let runs = |why: &str| {
        let submitted = served.submit(verified(asks(&repo)));
        assert_eq!(submitted.how, How::Queued, "{why}");
        assert_eq!(served.end_of(&submitted.run.id).verdict, Some(Verdict::Passed));
        assert_eq!(served.submit(verified(asks(&repo))).how, How::Verified, "{why}, and nothing since");
    };
    runs("the first");
    put(&tools.join("checker"), "two");
    runs("the operator's tool was replaced");
    put(&home_bin.join("helper"), "two");
    runs("one that is found by its name was replaced");
    put(&version.join("compiler"), "two");
    runs("a version of a toolchain was replaced in place");
    machine::write(&home_bin.join("other"), "");
    assert_eq!(served.submit(verified(asks(&repo))).how, How::Verified, "what no step names is no matter");
    let elsewhere = env.root().join("elsewhere");
    std::fs::create_dir(&elsewhere).expect("a directory");
    let more = format!("tool_mounts = [{:?}, {:?}]\n", tools.display().to_string(), elsewhere.display().to_string());
    let masks = format!("{more}tool_masks = [{:?}]\n", tools.join("secret").display().to_string());
    machine::write(&tools.join("secret"), "");
    for config in [more, masks] {
        served.service.reload(Operator::parse(&config).expect("a config"));
        runs("the operator shows something else");
    }
}

/// A version manager selects another version of a tool, and the interpreter of a script is replaced.
fn other_versions(env: &TestEnvironment) {
    let home = env.home();
    let (selected, interpreter) = (home.join(".pyenv/version"), home.join(".local/bin/interpreter"));
    machine::write(&selected, "3.11");
    std::fs::create_dir_all(home.join(".local/bin")).expect("a directory");
    put(&interpreter, "one");
    let repo = env.repo(&Spec::of_steps([Step::argv("it", &["./check"])]));
    repo.write(".gitignore", ".python-version\n");
    put(&repo.file("check"), "one");
    machine::write(&repo.file("check"), "#!/usr/bin/env interpreter\n");
    repo.commit();
    let served = Served::open(env);
    let runs = |why: &str| {
        let submitted = served.submit(verified(asks(&repo)));
        assert_eq!(submitted.how, How::Queued, "{why}");
        assert_eq!(served.end_of(&submitted.run.id).verdict, Some(Verdict::Passed), "{why}");
        assert_eq!(served.submit(verified(asks(&repo))).how, How::Verified, "{why}, and nothing since");
    };
    runs("the first");
    machine::write(&selected, "3.12");
    runs("pyenv selects another version");
    put(&interpreter, "two");
    runs("the interpreter that `env` looks up was replaced");
    repo.write(".python-version", "3.11");
    runs("an ignored file of the tree selects a version");
}

fn other_toolchains(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let [home, other_home] = [env.home(), env.root().join("other")].map(|home| home.display().to_string());
    std::fs::create_dir(&other_home).expect("a second home");
    let with = |name: &str, value: &str| {
        let mut env = BTreeMap::from([("PATH", "/usr/bin:/bin"), ("HOME", home.as_str())]);
        env.insert(name, value);
        let env = env.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        verified(RunSubmission { env: Some(env), ..asks(&repo) })
    };
    let served = Served::open(env);
    let first = served.submit(with("OTHER", "x")).run.id;
    assert_eq!(served.end_of(&first).verdict, Some(Verdict::Passed));
    assert_eq!(served.submit(with("OTHER", "y")).run.id, first, "no step takes that");
    drop(served);
    let next = Served::open(env);
    let same = next.submit(with("OTHER", "x"));
    assert_eq!((same.how, same.run.id), (How::Verified, first.clone()), "it is recorded");
    let path = "/opt/x/bin:/usr/bin:/bin";
    for (name, value) in [("PATH", path), ("CARGO_HOME", "/c"), ("RUSTUP_HOME", "/r"), ("HOME", &other_home)] {
        let other = next.submit(with(name, value));
        assert_eq!(other.how, How::Queued, "{name} is another one");
        assert_eq!(next.end_of(&other.run.id).verdict, Some(Verdict::Passed), "{name}");
    }
}

fn others(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let served = Served::open(env);
    let id = served.submit(asks(&repo)).run.id;
    served.end_of(&id);
    let other = Caller { uid: served.caller.uid + 1 };
    let refusals = served.wait(async {
        [
            served.service.run(other, &id).await.err(),
            served.service.watch(other, &id, None, Duration::ZERO).await.err(),
            served.service.events(other, &id, 0).await.err(),
            served.service.cancel(other, &id, "another").await.err(),
            served.service.output(other, &id, of_step(0, Stdio::Stdout), 0, 1).await.err(),
            served.service.patch(other, &id).await.err(),
        ]
    });
    for refusal in refusals {
        assert_eq!(refusal.expect("it is not theirs").kind, ProblemType::NotFound);
    }
    let listed = served.wait(served.service.list(other, RunFilter::default())).expect("a list");
    assert_eq!(listed.runs, []);
}

fn foreign_history(env: &TestEnvironment) {
    let theirs = env.repo(&Spec::of_script("true"));
    let other = Caller { uid: NOBODY };
    let lure = env.root().join("lure");
    machine::write(&lure.join("spec/verification.yaml"), Spec::of_script("git log").text(env.marker()));
    machine::write(&lure.join(".git"), format!("gitdir: {}/.git\n", theirs.path().display()));
    machine::give_to(&lure, NOBODY);
    let served = Served::open(env);
    let ask = |asked: RunSubmission| served.wait(served.service.submit(other, asked, None));
    let refused = ask(asks(&theirs)).expect_err("it is root's");
    assert!(refused.detail.contains("no repository of yours"), "{refused:#?}");
    let lured = RunSubmission { repo: lure.display().to_string(), ..asks(&theirs) };
    let id = ask(lured).expect("it is theirs by its own directory").run.id;
    let run = served.end_of(&id);
    assert_eq!(run.verdict, Some(Verdict::Inconclusive));
    let problem = run.problem.expect("it was refused");
    assert!(problem.detail.contains("owned by another user"), "{problem:#?}");
}

fn turned_away(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([waiting_step(env, "it")]));
    let served = Served::under(env, "[daemon]\nmax_runs = 1\nmax_queued = 1\n");
    let running = served.submit(asks(&repo)).run.id;
    served.wait_for_step(&running, 0);
    let waiting = served.submit(RunSubmission { fail_fast: true, ..asks(&repo) }).run.id;
    let problem = served.try_submit(RunSubmission { max_tier: Tier::ONE, ..asks(&repo) }, None).expect_err("no room");
    assert_eq!((problem.kind, problem.status), (ProblemType::TooManyRequests, 429));
    assert!(problem.hint.is_some());
    served.cancel(&waiting);
    served.end_of(&waiting);
    served.cancel(&running);
    served.end_of(&running);
}

fn one_writer(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([waiting_step(env, "it")]));
    let served = Served::under(env, "[daemon]\nmax_runs = 4\n");
    let first = served.submit(asks_for_changeset(&repo)).run.id;
    let step = served.wait_for_step(&first, 0);
    let second = served.submit(RunSubmission { fail_fast: true, ..asks_for_changeset(&repo) }).run.id;
    let beside = served.submit(asks(&repo)).run.id;
    let other = served.wait_for_step(&beside, step);
    assert_eq!(served.view(&second).state, RunState::Queued, "it waits for the first");
    served.cancel(&beside);
    served.end_of(&beside);
    assert!(machine::process_called(&format!("{}-main", env.marker()), other).is_some());
    machine::signal(step, rustix::process::Signal::USR1);
    assert_eq!(served.end_of(&first).verdict, Some(Verdict::Passed));
    let step = served.wait_for_step(&second, step);
    machine::signal(step, rustix::process::Signal::USR1);
    assert_eq!(served.end_of(&second).verdict, Some(Verdict::Passed));
}

fn alone(env: &TestEnvironment) {
    let format = waiting_step(env, "it").with("read_only: off");
    let repo = env.repo(&Spec::of_steps([format]));
    let served = Served::under(env, "[daemon]\nmax_runs = 4\n");
    let first = served.submit(asks(&repo)).run.id;
    let step = served.wait_for_step(&first, 0);
    let reader = served.submit(RunSubmission { changes: ChangesAsked::Patch, ..asks(&repo) }).run.id;
    assert_eq!(served.view(&reader).state, RunState::Queued, "the tree may change under it");
    machine::signal(step, rustix::process::Signal::USR1);
    assert_eq!(served.end_of(&first).verdict, Some(Verdict::Passed));
    let step = served.wait_for_step(&reader, step);
    machine::signal(step, rustix::process::Signal::USR1);
    assert_eq!(served.end_of(&reader).verdict, Some(Verdict::Passed));
}

fn commits(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("grep -q first README.md"));
    repo.write("README.md", "edited, and not committed\n");
    let served = Served::open(env);
    let of = |rev: &str| RunSubmission { rev: Some(rev.to_owned()), ..asks(&repo) };
    let run = served.end_of(&served.submit(of("HEAD")).run.id);
    assert_eq!((run.verdict, run.asked.rev.as_deref()), (Some(Verdict::Passed), Some("HEAD")));
    assert_eq!(served.end_of(&served.submit(asks(&repo)).run.id).verdict, Some(Verdict::Failed));
    repo.commit();
    let range = served.try_submit(of("HEAD~1..HEAD~1"), None).expect_err("no commit");
    assert_eq!(range.kind, ProblemType::Unprocessable);
}

fn edited_meanwhile(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([waiting_step(env, "it")]));
    let served = Served::under(env, ONE_AT_A_TIME);
    let running = served.submit(asks(&repo)).run.id;
    served.wait_for_step(&running, 0);
    let waiting = served.submit(RunSubmission { fail_fast: true, ..asks(&repo) }).run.id;
    repo.write("spec/verification.yaml", Spec::of_script("true").text(env.marker()));
    served.cancel(&running);
    served.end_of(&running);
    let run = served.end_of(&waiting);
    assert_eq!((run.verdict, run.exit_code), (Some(Verdict::Inconclusive), Some(5)));
    assert!(run.problem.is_some_and(|problem| problem.detail.contains("was edited")), "{}", run.reason);
    assert!(served.log_of(&waiting).iter().any(|event| matches!(event.event, RunEvent::RunRefused { .. })));
}

fn patch(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([Step::sh("it", "echo more >> README.md").with("read_only: off")]));
    let served = Served::open(env);
    let id = served.submit(RunSubmission { changes: ChangesAsked::Patch, ..asks(&repo) }).run.id;
    assert_eq!(served.end_of(&id).verdict, Some(Verdict::Passed));
    let patch = served.wait(served.service.patch(served.caller, &id)).expect("a patch");
    assert!(String::from_utf8_lossy(&patch).contains("+more"));
    assert!(!repo.read("README.md").contains("more"), "nothing was applied");
    let id = served.submit(asks(&repo)).run.id;
    served.end_of(&id);
    let none = served.wait(served.service.patch(served.caller, &id)).expect_err("none was asked for");
    assert_eq!(none.kind, ProblemType::NotFound);
}

fn approval(env: &TestEnvironment) {
    let repo = env.repo(&Spec::new([Skill::new("verify.it", [Step::sh("it", "true")]).tier(2)]));
    let served = Served::under(env, "[daemon]\napprove_tier2 = true\n");
    let problem = served.try_submit(asks_for_changeset(&repo), None).expect_err("not approved");
    assert_eq!(problem.kind, ProblemType::Unprocessable);
    assert!(problem.hint.is_some_and(|hint| hint.contains("APPROVED")));
    let commit = RunSubmission { rev: Some("HEAD".into()), ..asks_for_changeset(&repo) };
    let run = served.end_of(&served.submit(commit).run.id);
    assert_eq!(run.verdict, Some(Verdict::Inconclusive), "a commit's plan is held to tier 1: {run:#?}");
    repo.link(&format!("changes/{CHANGESET}/APPROVED"), &repo.file("README.md"));
    served.try_submit(asks_for_changeset(&repo), None).expect_err("a link approves nothing");
    std::fs::remove_file(repo.changeset().join("APPROVED")).expect("removed");
    repo.write(&format!("changes/{CHANGESET}/APPROVED"), "by a person\n");
    let run = served.end_of(&served.submit(asks_for_changeset(&repo)).run.id);
    assert_eq!(run.verdict, Some(Verdict::Passed), "{run:#?}");
}

fn drained(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([waiting_step(env, "it")]));
    let served = Served::under(env, ONE_AT_A_TIME);
    let running = served.submit(asks(&repo)).run.id;
    let step = served.wait_for_step(&running, 0);
    let waiting = served.submit(RunSubmission { fail_fast: true, ..asks(&repo) }).run.id;
    served.wait(async {
        let drain = served.service.drain(Duration::from_secs(60));
        let release = async {
            let seen = served.service.see(served.caller, &waiting, None, Duration::from_secs(50)).await;
            assert_eq!(seen.expect("the run").shown.view.exit_code, Some(130), "it does not begin any more");
            let asked = served.service.submit(served.caller, asks(&repo), None).await;
            assert_eq!(asked.expect_err("no new requests are accepted").kind, ProblemType::Unavailable);
            machine::signal(step, rustix::process::Signal::USR1);
        };
        tokio::join!(drain, release);
    });
    assert_eq!(served.end_of(&running).verdict, Some(Verdict::Passed));
    served.end_of(&waiting);
}

fn drained_late(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([waiting_step(env, "it")]));
    let served = Served::open(env);
    let running = served.submit(asks(&repo)).run.id;
    served.wait_for_step(&running, 0);
    served.wait(served.service.drain(Duration::ZERO));
    let run = served.end_of(&running);
    assert_eq!((run.verdict, run.exit_code), (Some(Verdict::Inconclusive), Some(130)));
    assert_eq!(run.cancelled_by.as_deref(), Some("the daemon is shutting down"));
}

fn remembered(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let served = Served::open(env);
    let run = served.end_of(&served.submit(verified(asks(&repo))).run.id);
    served.wait(served.service.drain(Duration::ZERO));
    drop(served);
    let served = Served::open(env);
    assert_eq!(served.end_of(&run.id), run);
    let again = served.submit(verified(asks(&repo)));
    assert_eq!((again.how, again.run.id), (How::Verified, run.id));
}
