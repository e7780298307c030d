//! Tests caches, which are directories of a repository that outlive a run.

use std::path::PathBuf;

use proctor_core::api::{GateQuery, Reuse, RunSubmission};
use proctor_core::model::cache::CacheTrust;
use proctor_core::model::names::ProfileName;
use proctor_core::model::tier::Tier;
use serde_json::{Value, json};

use super::missing_controls::wrapper_without;
use crate::environment::{CHANGESET, Repo, TestEnvironment};
use crate::in_process_service::{InProcessService, changeset_submission};
use crate::machine;
use crate::needs::{CaseDefinition, NEEDS_PYTHON, Needs, case};
use crate::test_spec::{TestSkill, TestSpec, TestStep};

pub(super) const CASES: &[CaseDefinition] = &[
    case("caches::cache_outlives_a_run_and_stays_out_of_the_tree", cache_outlives_run),
    case("", cache_outlives_run).unprivileged("caches::cache_outlives_a_run_as_a_user"),
    case("caches::each_repository_has_its_own_cache", cache_per_repository),
    case("caches::each_skill_has_its_own_cache", cache_per_skill),
    case("", cache_per_skill).unprivileged("caches::each_skill_has_its_own_cache_as_a_user").long(),
    case("caches::each_user_has_its_own_cache", cache_per_user).needs(&[Needs::Sandbox, Needs::Root]),
    case("caches::steps_and_attempts_of_a_skill_share_its_cache", shared_within_skill),
    case("caches::writes_of_a_failed_run_are_discarded", failed_run_discards_writes),
    case("", failed_run_discards_writes).unprivileged("caches::writes_of_a_failed_run_are_discarded_as_a_user").long(),
    case("caches::deletions_and_replaced_directories_are_kept", keeps_deletions),
    case("", keeps_deletions).unprivileged("caches::deletions_and_replaced_directories_are_kept_as_a_user").long(),
    case("caches::edited_layer_is_not_used", edited_layer_is_not_used),
    case("caches::sockets_and_fifos_are_never_kept", special_files_not_kept),
    case("caches::many_runs_store_a_bounded_number_of_layers", layer_count_is_bounded),
    case("caches::branch_reads_the_default_branchs_cache_and_writes_its_own", cache_per_branch),
    case("caches::commits_of_a_branch_rebuild_changed_files", caches_of_commits),
    case("", caches_of_commits).unprivileged("caches::commits_of_a_branch_rebuild_changed_files_as_a_user").long(),
    case("caches::run_without_caches_neither_reads_nor_stores_one", run_without_caches),
    case("caches::daemon_accepts_both_cache_options", daemon_accepts_cache_options),
    case("caches::cache_over_the_size_limit_is_not_stored", too_large_cache_refused),
    case("caches::copy_replaces_layers_without_overlays", copies_without_overlays).needs(NEEDS_PYTHON),
    case("", copies_without_overlays)
        .needs(NEEDS_PYTHON)
        .unprivileged("caches::copy_replaces_layers_without_overlays_as_a_user")
        .long(),
    case("", copies_without_namespaces)
        .needs(NEEDS_PYTHON)
        .unprivileged("caches::copy_replaces_layers_for_a_user_without_namespaces"),
    case("caches::copy_replaces_layers_if_the_state_directory_is_on_an_overlay", state_directory_on_overlay)
        .needs(NEEDS_OVERLAY_MOUNT),
    case("caches::cache_that_would_hide_part_of_the_tree_is_refused", refuses_cache_over_tree),
    case("caches::cache_path_through_a_link_is_refused", refuses_path_through_link),
    case("caches::cache_path_that_is_a_link_is_refused", refuses_link),
    case("caches::cache_path_replaced_by_a_link_in_an_earlier_skill_is_refused", refuses_link_of_earlier_skill),
    case("", refuses_link_of_earlier_skill)
        .unprivileged("caches::cache_path_replaced_by_a_link_in_an_earlier_skill_is_refused_as_a_user")
        .long(),
];

/// Shows what an earlier run has left, and leaves a file.
const SHOW_AND_LEAVE_FILE: &str =
    "cat target/deep/left 2>/dev/null || echo nothing; mkdir -p target/deep; echo left > target/deep/left";

fn caching_spec(caches: &str) -> TestSpec {
    TestSpec::new([TestSkill::new("verify.it", [TestStep::sh("it", SHOW_AND_LEAVE_FILE)])
        .with_field(&format!("caches: [{caches}]"))])
}

fn cache_outlives_run(env: &TestEnvironment) {
    let repo = env.repo(&caching_spec("target"));
    for expected in ["nothing\n", "left\n"] {
        repo.run().exits(0);
        assert_eq!(repo.step("it")["stdout_preview"], expected);
    }
    assert!(!repo.file("target").exists(), "a cache was written into the repository");
}

fn cache_per_repository(env: &TestEnvironment) {
    for name in ["one", "two"] {
        let repo = env.repo_at(name, &caching_spec("target"));
        repo.run().exits(0);
        assert_eq!(repo.step("it")["stdout_preview"], "nothing\n", "{name}");
    }
}

/// Returns the record of a skill's only cache.
fn cache_record(repo: &Repo<'_>, skill: &str) -> Value {
    repo.evidence(skill)["measured"]["caches"][0].clone()
}

fn step_stdout(repo: &Repo<'_>) -> String {
    repo.step("it")["stdout_preview"].as_str().expect("text").to_owned()
}

/// Returns the directories of all stored layers.
fn stored_layers(env: &TestEnvironment) -> Vec<PathBuf> {
    let listed = std::fs::read_dir(env.state_dir().join("skill-caches/layers")).expect("a store");
    listed.map(|entry| entry.expect("an entry").path()).collect()
}

/// Skills must not share a cache directory: a FIFO or a socket in it would connect their sandboxes.
fn cache_per_skill(env: &TestEnvironment) {
    let first = TestStep::sh("it", "mkdir -p target; echo first > target/first; ls target");
    let second = TestStep::sh("it", "ls -A target");
    let skills = [
        TestSkill::new("verify.first", [first]).with_field("caches: [target]"),
        TestSkill::new("verify.it", [second]).with_field("caches: [target]").with_field("needs: [verify.first]"),
    ];
    let repo = env.repo(&TestSpec::new(skills));
    for _ in 0..2 {
        repo.run().exits(0);
        assert_eq!(step_stdout(&repo), "", "it saw what the other skill wrote");
    }
    assert_eq!(cache_record(&repo, "verify.first")["base"]["scope"], "branch:main");
}

fn cache_per_user(env: &TestEnvironment) {
    let repo = env.repo(&caching_spec("target"));
    for (user, expected) in [(1001, "nothing\n"), (1001, "left\n"), (1002, "nothing\n"), (1001, "left\n")] {
        machine::change_owner(repo.path(), user);
        repo.run().exits(0);
        assert_eq!(step_stdout(&repo), expected, "user {user}");
    }
}

fn shared_within_skill(env: &TestEnvironment) {
    let first = TestStep::sh("first", "echo 1 >> target/a");
    let retried = TestStep::sh("again", "echo 2 >> target/a; [ -e target/once ] || { touch target/once; exit 1; }");
    let last = TestStep::sh("it", "cat target/a");
    let steps = [first, retried.with_field("retries: 1"), last];
    let repo = env.repo(&TestSpec::new([TestSkill::new("verify.it", steps).with_field("caches: [target]")]));
    repo.run().exits(0);
    assert_eq!(step_stdout(&repo), "1\n2\n2\n");
    let cache = cache_record(&repo, "verify.it");
    assert_eq!(
        (&cache["path"], &cache["form"], &cache["end"]),
        (&json!("target"), &json!("layers"), &json!("committed"))
    );
    assert_eq!((&cache["base"], &cache["trust"]), (&Value::Null, &json!("none")));
}

/// Passes if the tree is good, or if an earlier run has left a file that says so.
const TRUSTING_SCRIPT: &str =
    "cat target/verdict 2>/dev/null && exit 0; echo good > target/verdict; grep -q good README.md";

fn failed_run_discards_writes(env: &TestEnvironment) {
    let trusting = TestStep::sh("it", TRUSTING_SCRIPT);
    let repo = env.repo(&TestSpec::new([TestSkill::new("verify.it", [trusting]).with_field("caches: [target]")]));
    for _ in 0..2 {
        repo.run().exits(1);
        assert_eq!((step_stdout(&repo).as_str(), &cache_record(&repo, "verify.it")["end"]), ("", &json!("discarded")));
    }
    assert_eq!(stored_layers(env).len(), 0);
    repo.write("README.md", "good\n");
    repo.run().exits(0);
    assert_eq!((step_stdout(&repo).as_str(), &cache_record(&repo, "verify.it")["end"]), ("", &json!("committed")));
    repo.run().exits(0);
    assert_eq!(step_stdout(&repo), "good\n");
}

fn keeps_deletions(env: &TestEnvironment) {
    let script = "cd target; ls -R . | grep -v '^$' | tr '\\n' ' '; if [ -e old ]; then rm -r old; mkdir dir; \
        mv kept dir/kept; else mkdir old dir; touch old/a dir/b kept; [ ! -e dir2 ] && rm -r dir; fi; mkdir -p dir2";
    let repo = env.repo(&TestSpec::new([
        TestSkill::new("verify.it", [TestStep::sh("it", script)]).with_field("caches: [target]")
    ]));
    for expected in [".: ", ".: dir2 kept old ./dir2: ./old: a ", ".: dir dir2 ./dir: kept ./dir2: "] {
        repo.run().exits(0);
        assert_eq!(step_stdout(&repo), expected);
    }
}

fn edited_layer_is_not_used(env: &TestEnvironment) {
    let trusting = TestStep::sh("it", TRUSTING_SCRIPT);
    let repo = env.repo(&TestSpec::new([TestSkill::new("verify.it", [trusting]).with_field("caches: [target]")]));
    repo.write("README.md", "good\n");
    repo.run().exits(0);
    let base = cache_record(&repo, "verify.it");
    machine::write(&stored_layers(env)[0].join("verdict"), "by hand\n");
    repo.write("README.md", "bad\n");
    repo.run().exits(1);
    let after = cache_record(&repo, "verify.it");
    assert_eq!((step_stdout(&repo).as_str(), &after["base"], &after["trust"]), ("", &Value::Null, &json!("none")));
    assert!(
        after["reason"].as_str().is_some_and(|why| why.contains("differs from the committed content")),
        "{after:#}"
    );
    assert_eq!(base["end"], "committed");
}

fn special_files_not_kept(env: &TestEnvironment) {
    let script = "ls -A target; mkfifo target/fifo; echo 1 > target/kept; \
        python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"target/socket\")'; true";
    let step = TestStep::sh("it", script);
    let repo = env.repo(&TestSpec::new([TestSkill::new("verify.it", [step]).with_field("caches: [target]")]));
    repo.run().exits(0);
    repo.run().exits(0);
    assert_eq!(step_stdout(&repo), "kept\n");
}

fn layer_count_is_bounded(env: &TestEnvironment) {
    let script = "cat target/n 2>/dev/null; n=$(cat target/n 2>/dev/null || echo 0); echo $((n + 1)) > target/n; \
        touch target/f$n; rm -f target/f$((n - 1)); ls target | wc -l";
    let repo = env.repo(&TestSpec::new([
        TestSkill::new("verify.it", [TestStep::sh("it", script)]).with_field("caches: [target]")
    ]));
    for number in 0..12 {
        repo.run().exits(0);
        let before = if number > 0 { format!("{number}\n") } else { String::new() };
        assert_eq!(step_stdout(&repo), format!("{before}2\n"), "{number}");
        assert!(stored_layers(env).len() <= 10, "{number}: {:?}", stored_layers(env));
    }
}

fn cache_per_branch(env: &TestEnvironment) {
    let repo = env.repo(&caching_spec("target"));
    repo.run().exits(0);
    repo.git(&["switch", "--quiet", "--create", "feature"]);
    repo.run().exits(0);
    let feature_record = cache_record(&repo, "verify.it");
    assert_eq!((step_stdout(&repo).as_str(), &feature_record["base"]["scope"]), ("left\n", &json!("branch:main")));
    assert_eq!((&feature_record["trust"], &feature_record["scope"]), (&json!("default"), &json!("branch:feature")));
    let ask_gate = |trust: &str| {
        let words = ["gate", "--changeset", CHANGESET, "--format", "json", "--max-cache-trust", trust];
        let finished = repo.start_proctor(&words).wait();
        let answer: Value = serde_json::from_str(&finished.stdout).expect("an answer");
        (finished.code, answer["findings"][0]["name"].clone())
    };
    let refused = (Some(1), json!("cache_too_wide"));
    assert_eq!(
        [ask_gate("none"), ask_gate("branch"), ask_gate("default")],
        [refused.clone(), refused, (Some(0), Value::Null)]
    );
    repo.git(&["switch", "--quiet", "--detach"]);
    repo.run().exits(0);
    assert_eq!(cache_record(&repo, "verify.it")["scope"], "detached");
    repo.git(&["switch", "--quiet", "--orphan", "other"]);
    repo.git(&["symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/trunk"]);
    repo.git(&["checkout", "--quiet", "main", "--", "."]);
    repo.run().exits(0);
    assert_eq!((step_stdout(&repo).as_str(), &cache_record(&repo, "verify.it")["base"]), ("nothing\n", &Value::Null));
}

/// Runs a build that compares file times, with a cache that is shared by alternately verified commits.
fn caches_of_commits(env: &TestEnvironment) {
    let build = "[ -e target/out ] && echo kept; if [ ! -e target/out ] || [ src/lib.rs -nt target/out ]; then cp src/lib.rs target/out; fi; grep good target/out";
    let repo = env.repo(&TestSpec::new([
        TestSkill::new("verify.it", [TestStep::sh("it", build)]).with_field("caches: [target]")
    ]));
    repo.write(".gitignore", "target/\n");
    for content in ["good 1\n", "bad\n", "good 2\n"] {
        repo.write("src/lib.rs", content);
        repo.commit();
    }
    let run = |revision: &str, branch: Option<&str>, code: i32| {
        let target = repo.git(&["rev-parse", revision]);
        branch.map(|branch| repo.git(&["update-ref", &format!("refs/heads/{branch}"), target.trim()]));
        repo.run_with(&["--rev", target.trim()]).exits(code);
        let cache = cache_record(&repo, "verify.it");
        (step_stdout(&repo), cache["scope"].clone(), cache["base"]["scope"].clone())
    };
    let (first, second, third) = ("HEAD~2", "HEAD~1", "HEAD");
    assert_eq!(run(third, None, 0), ("good 2\n".into(), json!("commits-of-branch:main"), Value::Null));
    // In a copy that held the newer commit in between, changed files get new times.
    let bad = repo.git(&["rev-parse", second]);
    let scope = format!("commit:{}", bad.trim());
    assert_eq!(run(second, None, 1), ("kept\n".into(), json!(scope), json!("commits-of-branch:main")));
    let side = json!("commits-of-branch:side");
    assert_eq!(run(first, Some("side"), 0), ("kept\ngood 1\n".into(), side.clone(), json!("commits-of-branch:main")));
    assert_eq!(run(second, Some("side"), 1), ("kept\n".into(), side.clone(), side.clone()));
    assert_eq!(run(first, Some("side"), 0), ("kept\ngood 1\n".into(), side.clone(), side));
    assert_eq!(
        run(third, None, 0),
        ("kept\ngood 2\n".into(), json!("commits-of-branch:main"), json!("commits-of-branch:main"))
    );
    // The worktree does not use the caches of commits.
    repo.run().exits(0);
    assert_eq!((step_stdout(&repo).as_str(), &cache_record(&repo, "verify.it")["base"]), ("good 2\n", &Value::Null));
}

fn run_without_caches(env: &TestEnvironment) {
    let repo = env.repo(&caching_spec("target"));
    repo.run().exits(0);
    repo.run_with(&["--no-caches"]).exits(0);
    let cache = cache_record(&repo, "verify.it");
    assert_eq!(
        (step_stdout(&repo).as_str(), &cache["end"], &cache["trust"]),
        ("nothing\n", &json!("discarded"), &json!("none"))
    );
    let words = ["gate", "--changeset", CHANGESET, "--max-cache-trust", "none"];
    repo.proctor(&words).exits(0);
    repo.run().exits(0);
    assert_eq!(step_stdout(&repo), "left\n");
    repo.proctor(&words).exits(1);
}

fn daemon_accepts_cache_options(env: &TestEnvironment) {
    let repo = env.repo(&caching_spec("target"));
    let served = InProcessService::open(env);
    let run = |submission: RunSubmission| {
        let id = served.submit(submission).run.id;
        served.wait_for_end(&id);
        step_stdout(&repo)
    };
    let gate = |max_cache_trust: CacheTrust| {
        let request = GateQuery {
            repo: repo.path().display().to_string(),
            profile: ProfileName::new("pr").expect("a name"),
            changeset_id: changeset_submission(&repo).changeset_id,
            max_tier: Tier::TWO,
            max_age: None,
            accept_unattested: false,
            max_cache_trust,
            strict_inputs: false,
            this_machine: false,
        };
        served.block_on(served.service.gate(served.caller, request)).expect("an answer").pass
    };
    assert_eq!(run(changeset_submission(&repo)), "nothing\n");
    let without_caches = || RunSubmission { no_caches: true, reuse: Reuse::Verified, ..changeset_submission(&repo) };
    assert_eq!(run(without_caches()), "nothing\n", "and no earlier run is the answer");
    assert!(gate(CacheTrust::None));
    assert_eq!(run(changeset_submission(&repo)), "left\n");
    assert_eq!([gate(CacheTrust::None), gate(CacheTrust::Branch)], [false, true]);
}

fn too_large_cache_refused(env: &TestEnvironment) {
    let config = "[daemon.retention]\nmax_cache_bytes_per_run = 65536\n";
    machine::write(&env.root().join("proctord.toml"), config);
    let config = env.root().join("proctord.toml").display().to_string();
    let step = TestStep::sh("it", "ls target; head -c 200000 /dev/zero > target/large");
    let repo = env.repo(&TestSpec::new([TestSkill::new("verify.it", [step]).with_field("caches: [target]")]));
    for _ in 0..2 {
        repo.run_with(&["--config", &config]).exits(0);
        let cache = cache_record(&repo, "verify.it");
        assert_eq!((step_stdout(&repo).as_str(), &cache["end"]), ("", &json!("refused")));
        assert!(cache["reason"].as_str().is_some_and(|why| why.contains("65536 are stored")), "{cache:#}");
    }
}

fn copies_without_overlays(env: &TestEnvironment) {
    assert_copies_are_separate(env, "fsconfig:1@0=EINVAL");
}

fn copies_without_namespaces(env: &TestEnvironment) {
    assert_copies_are_separate(env, "unshare=EPERM");
}

/// Checks that each skill has its own copy, and that the writes of a failed skill are discarded.
fn assert_copies_are_separate(env: &TestEnvironment, lack: &str) {
    let first = TestSkill::new("verify.first", [TestStep::sh("it", "ls target; echo 1 > target/first")])
        .with_field("caches: [target]");
    let second = TestSkill::new("verify.it", [TestStep::sh("it", TRUSTING_SCRIPT)]).with_field("caches: [target]");
    let repo = env.repo(&TestSpec::new([first, second]));
    let run = |code: i32| {
        let words = ["run", "--profile", "pr", "--changeset", CHANGESET, "--sandbox=best-effort"];
        env.finish(env.start_through(repo.path(), &wrapper_without(&[lack]), &words)).exits(code);
        step_stdout(&repo)
    };
    assert_eq!([run(1), run(1)], ["", ""]);
    repo.write("README.md", "good\n");
    assert_eq!([run(0), run(0)], ["", "good\n"]);
    for skill in ["verify.first", "verify.it"] {
        assert_eq!(
            (&cache_record(&repo, skill)["form"], &cache_record(&repo, skill)["trust"]),
            (&json!("copy"), &json!("branch"))
        );
    }
}

/// Requires root, and a kernel that allows mounting an overlay.
const NEEDS_OVERLAY_MOUNT: &[Needs] =
    &[Needs::Sandbox, Needs::Root, Needs::WorkingCommand(&["unshare", "--mount", "mount", "-t", "tmpfs", "x", "/mnt"])];

/// As in a container, the state directory is on an overlay, on which the kernel allows no other overlay.
fn state_directory_on_overlay(env: &TestEnvironment) {
    let repo = env.repo(&caching_spec("target"));
    machine::change_owner(repo.path(), 1001);
    let parts = ["lower", "upper", "work"].map(|part| env.root().join("disk").join(part));
    for dir in parts.iter().chain([&env.state_dir()]) {
        std::fs::create_dir_all(dir).expect("a directory");
    }
    let [lower, upper, work] = parts.each_ref().map(|dir| dir.display());
    let options = format!("lowerdir={lower},upperdir={upper},workdir={work}");
    let script = format!("mount -t overlay x -o {options} {} && exec \"$@\"", env.state_dir().display());
    let wrapper = ["unshare", "--mount", "sh", "-c", &script, "sh"];
    for expected in ["nothing\n", "left\n"] {
        let words = ["run", "--profile", "pr", "--changeset", CHANGESET];
        env.finish(env.start_through(repo.path(), &wrapper, &words)).exits(0);
        assert_eq!(
            (step_stdout(&repo).as_str(), &cache_record(&repo, "verify.it")["form"]),
            (expected, &json!("copy"))
        );
    }
}

fn refuses_cache_over_tree(env: &TestEnvironment) {
    let repo = env.repo(&caching_spec("src"));
    let run = repo.run().exits(2);
    for named in ["`src`", "`src/lib.rs`", "`verify.it`"] {
        assert!(run.stderr.contains(named), "{run}");
    }
    assert!(repo.has_no_documents());
}

fn refuses_path_through_link(env: &TestEnvironment) {
    let repo = env.repo(&caching_spec("linked/deep"));
    repo.link("linked", env.home_dir().as_path());
    repo.commit();
    let run = repo.run();
    assert_ne!(run.code, Some(0), "{run}");
    assert!(!env.home_dir().join("deep").exists(), "a mount point was made through a link");
}

fn refuses_link(env: &TestEnvironment) {
    // A private copy does not contain the entry at the path of a cache.
    let repo = env.repo(&caching_spec("a.log"));
    repo.link("a.log", env.home_dir().as_path());
    repo.run().exits(0);
    env.use_shared_worktrees();
    assert_link_refused(env, &repo);
}

/// The path is ignored by git, so that the first skill passes and the second one starts on its layer.
fn refuses_link_of_earlier_skill(env: &TestEnvironment) {
    let link = TestStep::sh("it", &format!("ln -s {} a.log", env.home_dir().display()));
    let cached =
        TestSkill::new("verify.it", [TestStep::sh("it", SHOW_AND_LEAVE_FILE)]).with_field("caches: [a.log/deep]");
    let repo = env.repo(&TestSpec::new([TestSkill::new("verify.first", [link]), cached]));
    assert_link_refused(env, &repo);
    assert_eq!(repo.evidence("verify.first")["summary"]["outcome"], "passed");
}

fn assert_link_refused(env: &TestEnvironment, repo: &Repo<'_>) {
    let run = repo.run();
    assert!(matches!(run.code, Some(2 | 5)), "{run}");
    assert!(run.all_output().contains("a.log"), "{run}");
    assert!(!env.home_dir().join("deep").exists(), "a mount point was made through a link");
}
