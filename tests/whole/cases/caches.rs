//! Tests caches, which are directories of a repository that outlive a run.

use std::path::PathBuf;

use proctor_core::api::{GateAsked, Reuse, RunSubmission};
use proctor_core::cache::CacheTrust;
use proctor_core::names::ProfileName;
use proctor_core::tier::Tier;
use serde_json::{Value, json};

use super::degrading::lacking;
use crate::environment::{CHANGESET, Repo, TestEnvironment};
use crate::machine;
use crate::needs::{Case, NEEDS_PYTHON, Needs, case};
use crate::serving::{Served, asks_for_changeset};
use crate::spec::{Skill, Spec, Step};

pub(super) const CASES: &[Case] = &[
    case("caches::they_outlive_a_run_and_stay_out_of_the_tree", outlive),
    case("", outlive).unprivileged("caches::they_outlive_a_run_as_a_user"),
    case("caches::each_repository_has_its_own", own),
    case("caches::each_skill_has_its_own", own_of_skill),
    case("", own_of_skill).unprivileged("caches::each_skill_has_its_own_as_a_user"),
    case("caches::each_user_has_its_own", own_of_user).needs(&[Needs::Sandbox, Needs::Root]),
    case("caches::steps_and_attempts_of_a_skill_see_each_others_writes", within_a_skill),
    case("caches::what_a_failing_run_writes_is_thrown_away", failing),
    case("", failing).unprivileged("caches::what_a_failing_run_writes_is_thrown_away_as_a_user"),
    case("caches::deletions_and_replaced_directories_are_kept", deletions),
    case("", deletions).unprivileged("caches::deletions_and_replaced_directories_are_kept_as_a_user"),
    case("caches::one_that_was_edited_by_hand_is_not_used", edited),
    case("caches::sockets_and_fifos_are_never_kept", special),
    case("caches::many_runs_leave_a_bounded_number_of_layers", many_runs),
    case("caches::a_branch_reads_the_default_branch_and_writes_its_own", branches),
    case("caches::commits_of_a_branch_rebuild_what_differs", of_commits),
    case("", of_commits).unprivileged("caches::commits_of_a_branch_rebuild_what_differs_as_a_user"),
    case("caches::a_run_without_caches_reads_none_and_keeps_none", without),
    case("caches::a_daemon_takes_both_options", served_options),
    case("caches::more_than_may_be_written_is_not_kept", too_large),
    case("caches::a_copy_serves_without_overlays", without_overlays).needs(NEEDS_PYTHON),
    case("", without_overlays).needs(NEEDS_PYTHON).unprivileged("caches::a_copy_serves_without_overlays_as_a_user"),
    case("", without_namespaces).needs(NEEDS_PYTHON).unprivileged("caches::a_copy_serves_a_user_without_namespaces"),
    case("caches::a_copy_serves_where_the_kernel_makes_no_overlay", copied).needs(ON_OVERLAY),
    case("caches::one_that_would_hide_part_of_the_tree_is_refused", hides_tree),
    case("caches::one_that_leads_through_a_link_is_refused", through_link),
    case("caches::one_that_is_a_link_is_refused", is_link),
    case("caches::one_that_an_earlier_skill_made_a_link_is_refused", made_link),
    case("", made_link).unprivileged("caches::one_that_an_earlier_skill_made_a_link_is_refused_as_a_user"),
];

/// Shows what an earlier run has left, and leaves a file.
const SCRIPT: &str =
    "cat target/deep/left 2>/dev/null || echo nothing; mkdir -p target/deep; echo left > target/deep/left";

fn spec(caches: &str) -> Spec {
    Spec::new([Skill::new("verify.it", [Step::sh("it", SCRIPT)]).with(&format!("caches: [{caches}]"))])
}

fn outlive(env: &TestEnvironment) {
    let repo = env.repo(&spec("target"));
    for expected in ["nothing\n", "left\n"] {
        repo.run().exits(0);
        assert_eq!(repo.step("it")["stdout_preview"], expected);
    }
    assert!(!repo.file("target").exists(), "a cache was written into the repository");
}

fn own(env: &TestEnvironment) {
    for name in ["one", "two"] {
        let repo = env.repo_at(name, &spec("target"));
        repo.run().exits(0);
        assert_eq!(repo.step("it")["stdout_preview"], "nothing\n", "{name}");
    }
}

/// Returns the record of a skill's only cache.
fn cache(repo: &Repo<'_>, skill: &str) -> Value {
    repo.evidence(skill)["measured"]["caches"][0].clone()
}

fn printed(repo: &Repo<'_>) -> String {
    repo.step("it")["stdout_preview"].as_str().expect("text").to_owned()
}

/// Returns the directories of all stored layers.
fn layers(env: &TestEnvironment) -> Vec<PathBuf> {
    let listed = std::fs::read_dir(env.state().join("skill-caches/layers")).expect("a store");
    listed.map(|entry| entry.expect("an entry").path()).collect()
}

/// Skills must not share a cache directory: a FIFO or a socket in it would connect their sandboxes.
fn own_of_skill(env: &TestEnvironment) {
    let first = Step::sh("it", "mkdir -p target; echo first > target/first; ls target");
    let second = Step::sh("it", "ls -A target");
    let skills = [
        Skill::new("verify.first", [first]).with("caches: [target]"),
        Skill::new("verify.it", [second]).with("caches: [target]").with("needs: [verify.first]"),
    ];
    let repo = env.repo(&Spec::new(skills));
    for _ in 0..2 {
        repo.run().exits(0);
        assert_eq!(printed(&repo), "", "it saw what the other skill wrote");
    }
    assert_eq!(cache(&repo, "verify.first")["base"]["scope"], "branch:main");
}

fn own_of_user(env: &TestEnvironment) {
    let repo = env.repo(&spec("target"));
    for (user, expected) in [(1001, "nothing\n"), (1001, "left\n"), (1002, "nothing\n"), (1001, "left\n")] {
        machine::give_to(repo.path(), user);
        repo.run().exits(0);
        assert_eq!(printed(&repo), expected, "user {user}");
    }
}

fn within_a_skill(env: &TestEnvironment) {
    let first = Step::sh("first", "echo 1 >> target/a");
    let again = Step::sh("again", "echo 2 >> target/a; [ -e target/once ] || { touch target/once; exit 1; }");
    let last = Step::sh("it", "cat target/a");
    let steps = [first, again.with("retries: 1"), last];
    let repo = env.repo(&Spec::new([Skill::new("verify.it", steps).with("caches: [target]")]));
    repo.run().exits(0);
    assert_eq!(printed(&repo), "1\n2\n2\n");
    let cache = cache(&repo, "verify.it");
    assert_eq!(
        (&cache["path"], &cache["form"], &cache["end"]),
        (&json!("target"), &json!("layers"), &json!("committed"))
    );
    assert_eq!((&cache["base"], &cache["trust"]), (&Value::Null, &json!("none")));
}

/// Passes if the tree is good, or if an earlier run has left a file that says so.
const TRUSTING: &str = "cat target/verdict 2>/dev/null && exit 0; echo good > target/verdict; grep -q good README.md";

fn failing(env: &TestEnvironment) {
    let trusting = Step::sh("it", TRUSTING);
    let repo = env.repo(&Spec::new([Skill::new("verify.it", [trusting]).with("caches: [target]")]));
    for _ in 0..2 {
        repo.run().exits(1);
        assert_eq!((printed(&repo).as_str(), &cache(&repo, "verify.it")["end"]), ("", &json!("discarded")));
    }
    assert_eq!(layers(env).len(), 0);
    repo.write("README.md", "good\n");
    repo.run().exits(0);
    assert_eq!((printed(&repo).as_str(), &cache(&repo, "verify.it")["end"]), ("", &json!("committed")));
    repo.run().exits(0);
    assert_eq!(printed(&repo), "good\n");
}

fn deletions(env: &TestEnvironment) {
    let script = "cd target; ls -R . | grep -v '^$' | tr '\\n' ' '; if [ -e old ]; then rm -r old; mkdir dir; \
        mv kept dir/kept; else mkdir old dir; touch old/a dir/b kept; [ ! -e dir2 ] && rm -r dir; fi; mkdir -p dir2";
    let repo = env.repo(&Spec::new([Skill::new("verify.it", [Step::sh("it", script)]).with("caches: [target]")]));
    for expected in [".: ", ".: dir2 kept old ./dir2: ./old: a ", ".: dir dir2 ./dir: kept ./dir2: "] {
        repo.run().exits(0);
        assert_eq!(printed(&repo), expected);
    }
}

fn edited(env: &TestEnvironment) {
    let trusting = Step::sh("it", TRUSTING);
    let repo = env.repo(&Spec::new([Skill::new("verify.it", [trusting]).with("caches: [target]")]));
    repo.write("README.md", "good\n");
    repo.run().exits(0);
    let base = cache(&repo, "verify.it");
    machine::write(&layers(env)[0].join("verdict"), "by hand\n");
    repo.write("README.md", "bad\n");
    repo.run().exits(1);
    let after = cache(&repo, "verify.it");
    assert_eq!((printed(&repo).as_str(), &after["base"], &after["trust"]), ("", &Value::Null, &json!("none")));
    assert!(after["reason"].as_str().is_some_and(|why| why.contains("not as it was committed")), "{after:#}");
    assert_eq!(base["end"], "committed");
}

fn special(env: &TestEnvironment) {
    let script = "ls -A target; mkfifo target/fifo; echo 1 > target/kept; \
        python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"target/socket\")'; true";
    let step = Step::sh("it", script);
    let repo = env.repo(&Spec::new([Skill::new("verify.it", [step]).with("caches: [target]")]));
    repo.run().exits(0);
    repo.run().exits(0);
    assert_eq!(printed(&repo), "kept\n");
}

fn many_runs(env: &TestEnvironment) {
    let script = "cat target/n 2>/dev/null; n=$(cat target/n 2>/dev/null || echo 0); echo $((n + 1)) > target/n; \
        touch target/f$n; rm -f target/f$((n - 1)); ls target | wc -l";
    let repo = env.repo(&Spec::new([Skill::new("verify.it", [Step::sh("it", script)]).with("caches: [target]")]));
    for number in 0..12 {
        repo.run().exits(0);
        let before = if number > 0 { format!("{number}\n") } else { String::new() };
        assert_eq!(printed(&repo), format!("{before}2\n"), "{number}");
        assert!(layers(env).len() <= 10, "{number}: {:?}", layers(env));
    }
}

fn branches(env: &TestEnvironment) {
    let repo = env.repo(&spec("target"));
    repo.run().exits(0);
    repo.git(&["switch", "--quiet", "--create", "feature"]);
    repo.run().exits(0);
    let of_default = cache(&repo, "verify.it");
    assert_eq!((printed(&repo).as_str(), &of_default["base"]["scope"]), ("left\n", &json!("branch:main")));
    assert_eq!((&of_default["trust"], &of_default["scope"]), (&json!("default"), &json!("branch:feature")));
    let ask = |trust: &str| {
        let words = ["gate", "--changeset", CHANGESET, "--format", "json", "--max-cache-trust", trust];
        let finished = repo.start_other(&words).wait();
        let answer: Value = serde_json::from_str(&finished.stdout).expect("an answer");
        (finished.code, answer["findings"][0]["name"].clone())
    };
    let refused = (Some(1), json!("cache_too_wide"));
    assert_eq!([ask("none"), ask("branch"), ask("default")], [refused.clone(), refused, (Some(0), Value::Null)]);
    repo.git(&["switch", "--quiet", "--detach"]);
    repo.run().exits(0);
    assert_eq!(cache(&repo, "verify.it")["scope"], "detached");
    repo.git(&["switch", "--quiet", "--orphan", "other"]);
    repo.git(&["symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/trunk"]);
    repo.git(&["checkout", "--quiet", "main", "--", "."]);
    repo.run().exits(0);
    assert_eq!((printed(&repo).as_str(), &cache(&repo, "verify.it")["base"]), ("nothing\n", &Value::Null));
}

/// Runs a build that compares file times, with a cache that is shared by alternately verified commits.
fn of_commits(env: &TestEnvironment) {
    let build = "[ -e target/out ] && echo kept; if [ ! -e target/out ] || [ src/lib.rs -nt target/out ]; then cp src/lib.rs target/out; fi; grep good target/out";
    let repo = env.repo(&Spec::new([Skill::new("verify.it", [Step::sh("it", build)]).with("caches: [target]")]));
    repo.write(".gitignore", "target/\n");
    for content in ["good 1\n", "bad\n", "good 2\n"] {
        repo.write("src/lib.rs", content);
        repo.commit();
    }
    let run = |revision: &str, branch: Option<&str>, code: i32| {
        let target = repo.git(&["rev-parse", revision]);
        branch.map(|branch| repo.git(&["update-ref", &format!("refs/heads/{branch}"), target.trim()]));
        repo.run_with(&["--rev", target.trim()]).exits(code);
        let cache = cache(&repo, "verify.it");
        (printed(&repo), cache["scope"].clone(), cache["base"]["scope"].clone())
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
    assert_eq!((printed(&repo).as_str(), &cache(&repo, "verify.it")["base"]), ("good 2\n", &Value::Null));
}

fn without(env: &TestEnvironment) {
    let repo = env.repo(&spec("target"));
    repo.run().exits(0);
    repo.run_with(&["--no-caches"]).exits(0);
    let cache = cache(&repo, "verify.it");
    assert_eq!(
        (printed(&repo).as_str(), &cache["end"], &cache["trust"]),
        ("nothing\n", &json!("discarded"), &json!("none"))
    );
    let words = ["gate", "--changeset", CHANGESET, "--max-cache-trust", "none"];
    repo.proctor(&words).exits(0);
    repo.run().exits(0);
    assert_eq!(printed(&repo), "left\n");
    repo.proctor(&words).exits(1);
}

fn served_options(env: &TestEnvironment) {
    let repo = env.repo(&spec("target"));
    let served = Served::open(env);
    let run = |asked: RunSubmission| {
        let id = served.submit(asked).run.id;
        served.end_of(&id);
        printed(&repo)
    };
    let gate = |max_cache_trust: CacheTrust| {
        let asked = GateAsked {
            repo: repo.path().display().to_string(),
            profile: ProfileName::new("pr").expect("a name"),
            changeset_id: asks_for_changeset(&repo).changeset_id,
            max_tier: Tier::TWO,
            max_age: None,
            accept_unattested: false,
            max_cache_trust,
            strict_inputs: false,
        };
        served.wait(served.service.gate(served.caller, asked)).expect("an answer").pass
    };
    assert_eq!(run(asks_for_changeset(&repo)), "nothing\n");
    let without = || RunSubmission { no_caches: true, reuse: Reuse::Verified, ..asks_for_changeset(&repo) };
    assert_eq!(run(without()), "nothing\n", "and no earlier run is the answer");
    assert!(gate(CacheTrust::None));
    assert_eq!(run(asks_for_changeset(&repo)), "left\n");
    assert_eq!([gate(CacheTrust::None), gate(CacheTrust::Branch)], [false, true]);
}

fn too_large(env: &TestEnvironment) {
    let config = "[daemon.retention]\nmax_cache_bytes_per_run = 65536\n";
    machine::write(&env.root().join("proctord.toml"), config);
    let config = env.root().join("proctord.toml").display().to_string();
    let step = Step::sh("it", "ls target; head -c 200000 /dev/zero > target/large");
    let repo = env.repo(&Spec::new([Skill::new("verify.it", [step]).with("caches: [target]")]));
    for _ in 0..2 {
        repo.run_with(&["--config", &config]).exits(0);
        let cache = cache(&repo, "verify.it");
        assert_eq!((printed(&repo).as_str(), &cache["end"]), ("", &json!("refused")));
        assert!(cache["reason"].as_str().is_some_and(|why| why.contains("65536 are kept")), "{cache:#}");
    }
}

fn without_overlays(env: &TestEnvironment) {
    copies(env, "fsconfig:1@0=EINVAL");
}

fn without_namespaces(env: &TestEnvironment) {
    copies(env, "unshare=EPERM");
}

/// Checks that each skill has its own copy, and that the writes of a failed skill are discarded.
fn copies(env: &TestEnvironment, lack: &str) {
    let first =
        Skill::new("verify.first", [Step::sh("it", "ls target; echo 1 > target/first")]).with("caches: [target]");
    let second = Skill::new("verify.it", [Step::sh("it", TRUSTING)]).with("caches: [target]");
    let repo = env.repo(&Spec::new([first, second]));
    let run = |code: i32| {
        let words = ["run", "--profile", "pr", "--changeset", CHANGESET, "--sandbox=best-effort"];
        env.finish(env.start_through(repo.path(), &lacking(&[lack]), &words)).exits(code);
        printed(&repo)
    };
    assert_eq!([run(1), run(1)], ["", ""]);
    repo.write("README.md", "good\n");
    assert_eq!([run(0), run(0)], ["", "good\n"]);
    for skill in ["verify.first", "verify.it"] {
        assert_eq!((&cache(&repo, skill)["form"], &cache(&repo, skill)["trust"]), (&json!("copy"), &json!("branch")));
    }
}

/// Requires root, and a kernel that allows mounting an overlay.
const ON_OVERLAY: &[Needs] =
    &[Needs::Sandbox, Needs::Root, Needs::Works(&["unshare", "--mount", "mount", "-t", "tmpfs", "x", "/mnt"])];

/// As in a container, the state directory is on an overlay, on which the kernel allows no other overlay.
fn copied(env: &TestEnvironment) {
    let repo = env.repo(&spec("target"));
    machine::give_to(repo.path(), 1001);
    let parts = ["lower", "upper", "work"].map(|part| env.root().join("disk").join(part));
    for dir in parts.iter().chain([&env.state()]) {
        std::fs::create_dir_all(dir).expect("a directory");
    }
    let [lower, upper, work] = parts.each_ref().map(|dir| dir.display());
    let options = format!("lowerdir={lower},upperdir={upper},workdir={work}");
    let script = format!("mount -t overlay x -o {options} {} && exec \"$@\"", env.state().display());
    let wrapper = ["unshare", "--mount", "sh", "-c", &script, "sh"];
    for expected in ["nothing\n", "left\n"] {
        let words = ["run", "--profile", "pr", "--changeset", CHANGESET];
        env.finish(env.start_through(repo.path(), &wrapper, &words)).exits(0);
        assert_eq!((printed(&repo).as_str(), &cache(&repo, "verify.it")["form"]), (expected, &json!("copy")));
    }
}

fn hides_tree(env: &TestEnvironment) {
    let repo = env.repo(&spec("src"));
    let run = repo.run().exits(2);
    for named in ["`src`", "`src/lib.rs`", "`verify.it`"] {
        assert!(run.stderr.contains(named), "{run}");
    }
    assert!(repo.is_untouched());
}

fn through_link(env: &TestEnvironment) {
    let repo = env.repo(&spec("linked/deep"));
    repo.link("linked", env.home().as_path());
    repo.commit();
    let run = repo.run();
    assert_ne!(run.code, Some(0), "{run}");
    assert!(!env.home().join("deep").exists(), "a mount point was made through a link");
}

fn is_link(env: &TestEnvironment) {
    // A private copy does not contain the entry at the path of a cache.
    let repo = env.repo(&spec("a.log"));
    repo.link("a.log", env.home().as_path());
    repo.run().exits(0);
    env.share_worktrees();
    demand_refused(env, &repo);
}

/// The path is ignored by git, so that the first skill passes and the second one starts on its layer.
fn made_link(env: &TestEnvironment) {
    let link = Step::sh("it", &format!("ln -s {} a.log", env.home().display()));
    let cached = Skill::new("verify.it", [Step::sh("it", SCRIPT)]).with("caches: [a.log/deep]");
    let repo = env.repo(&Spec::new([Skill::new("verify.first", [link]), cached]));
    demand_refused(env, &repo);
    assert_eq!(repo.evidence("verify.first")["summary"]["outcome"], "passed");
}

fn demand_refused(env: &TestEnvironment, repo: &Repo<'_>) {
    let run = repo.run();
    assert!(matches!(run.code, Some(2 | 5)), "{run}");
    assert!(run.everything().contains("a.log"), "{run}");
    assert!(!env.home().join("deep").exists(), "a mount point was made through a link");
}
