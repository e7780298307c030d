//! Tests forbidden and permitted changes by a step.

use serde_json::Value;

use crate::environment::{Repo, TestEnvironment};
use crate::needs::{CaseDefinition, NEEDS_GIT, case};
use crate::test_spec::{TestSkill, TestSpec, TestStep};

pub(super) const CASES: &[CaseDefinition] = &[
    case("drift::an_edited_file_is_shown_with_its_diff", edited_file_is_drift).daemon_sample(),
    case("drift::new_file_is_drift_unless_it_is_ignored", new_file_is_drift),
    case("drift::strict_covers_ignored_paths", strict_covers_ignored).daemon_sample(),
    case("drift::strict_excludes_caches", strict_excludes_caches),
    case("drift::a_deleted_file_is_drift", deleted_file_is_drift),
    case("drift::a_mode_change_is_drift", mode_change_is_drift),
    case("drift::file_replaced_by_a_link_is_drift", type_change_is_drift),
    case("drift::replaced_directory_lists_its_deleted_files", replaced_directory_lists_files),
    case("drift::same_size_and_mtime_do_not_hide_an_edit", same_size_edit_is_drift),
    case("drift::touching_or_rewriting_the_same_bytes_is_not_drift", rewriting_is_not_drift),
    case("drift::an_edit_that_a_later_step_undoes_is_still_drift", undone_edit_is_drift),
    case("drift::failing_step_with_drift_is_reported_as_drift", drift_outranks_failure),
    case("drift::a_new_ignore_rule_hides_nothing", new_ignore_rule_hides_nothing),
    case("drift::off_applies_changes_after_a_pass", off_applies_after_pass).daemon_sample(),
    case("drift::off_applies_nothing_after_a_failure", off_discards_after_failure),
    case("drift::off_never_applies_changes_of_git_files", off_excludes_git),
    case("drift::git_cannot_be_written", git_is_read_only).needs(NEEDS_GIT),
    case("drift::evidence_cannot_be_forged_by_a_step", evidence_cannot_be_forged),
    case("drift::off_never_applies_forged_evidence", off_excludes_forged_evidence),
    case("drift::names_with_control_characters_are_escaped", control_characters_are_escaped).daemon_sample(),
    case("drift::a_huge_diff_is_bounded", huge_diff_is_bounded).daemon_sample(),
    case("drift::uncommitted_work_is_not_drift_and_is_kept", uncommitted_work_is_not_drift),
    case("drift::large_ignored_output_hides_no_drift", large_ignored_output_hides_nothing),
    case("drift::strict_compares_large_ignored_output_of_earlier_steps", strict_compares_large_ignored_output),
];

/// Returns the drift of a step as pairs of path and kind.
fn drift_changes(repo: &Repo<'_>, step: &str) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().expect("a string").to_owned();
    let step = repo.step(step);
    let changes = step["drift"]["changes"].as_array().expect("a list").iter();
    changes.map(|change| (text(&change["path"]), text(&change["kind"]))).collect()
}

fn path_and_kind(path: &str, kind: &str) -> (String, String) {
    (path.to_owned(), kind.to_owned())
}

pub(crate) fn edited_file_is_drift(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("echo an added line >> README.md"));
    let before = repo.read("README.md");
    let run = repo.run().exits(3).prints(&["README.md", "+an added line"]);
    assert!(run.stdout.contains("verify.it"), "{run}");
    let evidence = repo.evidence("verify.it");
    assert_eq!((&evidence["tier"], &evidence["declared_tier"]), (&3.into(), &1.into()));
    assert_eq!(evidence["tier_reasons"], env.tier_reasons(&["drift"]));
    assert_eq!(evidence["tracked_drift"]["changed_files"], serde_json::json!(["README.md"]));
    assert_ne!(evidence["repo_snapshot_before"], evidence["repo_snapshot_after"]);
    let diff = evidence["steps"][0]["drift"]["changes"][0]["diff"]["text"].as_str().expect("a diff");
    assert!(diff.contains("\n+an added line") && diff.contains("a/README.md"), "{diff}");
    assert_eq!(repo.read("README.md"), before, "the real file was written");
    assert_eq!((&repo.last_run()["tier"], &repo.last_run()["outcome"]), (&3.into(), &"failed".into()));
}

fn new_file_is_drift(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script(
        "mkdir -p target && echo x > target/out && echo x > a.log && echo y > src/new.rs",
    ));
    repo.run().exits(3).prints(&["src/new.rs"]);
    assert_eq!(drift_changes(&repo, "it"), [path_and_kind("src/new.rs", "created")]);
    let repo = env.repo_at(
        "ignored_only",
        &TestSpec::from_script("mkdir -p target/debug && echo x > target/debug/out && echo x > a.log"),
    );
    repo.run().exits(0);
    assert!(!repo.file("target").exists() && !repo.file("a.log").exists(), "a layer reached the worktree");
}

fn strict_covers_ignored(env: &TestEnvironment) {
    let step = TestStep::sh("it", "mkdir -p target && echo x > target/out").with_field("read_only: strict");
    let repo = env.repo(&TestSpec::from_steps([step]));
    repo.run().exits(3).prints(&["target/out"]);
    assert!(drift_changes(&repo, "it").contains(&path_and_kind("target/out", "created")));
    assert_eq!(repo.evidence("verify.it")["tracked_drift"]["mode"], "strict");
}

fn strict_excludes_caches(env: &TestEnvironment) {
    let step = TestStep::sh("it", "mkdir -p target && echo x > target/out").with_field("read_only: strict");
    let repo = env.repo(&TestSpec::new([TestSkill::new("verify.it", [step]).with_field("caches: [target]")]));
    repo.run().exits(0);
}

fn deleted_file_is_drift(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("rm README.md"));
    repo.run().exits(3);
    assert_eq!(drift_changes(&repo, "it"), [path_and_kind("README.md", "deleted")]);
    assert!(repo.file("README.md").exists());
}

fn mode_change_is_drift(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("chmod +x README.md"));
    repo.run().exits(3);
    assert_eq!(drift_changes(&repo, "it"), [path_and_kind("README.md", "mode_changed")]);
}

fn type_change_is_drift(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("rm README.md && ln -s src/lib.rs README.md"));
    repo.run().exits(3);
    assert_eq!(drift_changes(&repo, "it"), [path_and_kind("README.md", "type_changed")]);
}

fn replaced_directory_lists_files(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("rm -r src && mkdir src && echo new > src/other.rs"));
    repo.run().exits(3);
    assert_eq!(
        drift_changes(&repo, "it"),
        [path_and_kind("src/lib.rs", "deleted"), path_and_kind("src/other.rs", "created")]
    );
}

fn same_size_edit_is_drift(env: &TestEnvironment) {
    let script = "cp -p README.md /tmp/ref && sed -i s/first/FIRST/ README.md && touch -r /tmp/ref README.md";
    let repo = env.repo(&TestSpec::from_script(script));
    repo.run().exits(3);
    assert_eq!(drift_changes(&repo, "it"), [path_and_kind("README.md", "modified")]);
}

pub(crate) fn rewriting_is_not_drift(env: &TestEnvironment) {
    let script = "touch README.md; cat src/lib.rs > /tmp/c; cat /tmp/c > src/lib.rs; cp README.md r2; mv r2 README.md; \
                  mkdir d; rmdir d; mv src s; mv s src || { mkdir src; cp s/lib.rs src/; rm -r s; }";
    let repo = env.repo(&TestSpec::from_script(script));
    repo.run().exits(0);
    let evidence = repo.evidence("verify.it");
    assert_eq!(evidence["repo_snapshot_before"], evidence["repo_snapshot_after"]);
    assert_eq!(evidence["tracked_drift"]["changed_files"], serde_json::json!([]));
}

fn undone_edit_is_drift(env: &TestEnvironment) {
    let edit = TestStep::sh("edit", "cp README.md /tmp/x; echo y >> README.md");
    let undo = TestStep::sh("undo", "sed -i '$d' README.md");
    let repo = env.repo(&TestSpec::from_steps([edit, undo]));
    repo.run().exits(3);
    assert_eq!(drift_changes(&repo, "edit"), [path_and_kind("README.md", "modified")]);
    assert_eq!(repo.step("undo")["outcome"], "skipped");
}

fn drift_outranks_failure(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("echo x >> README.md; exit 9"));
    repo.run().exits(3);
    let step = repo.step("it");
    assert_eq!((&step["outcome"], &step["exit_code"]), (&"drifted".into(), &9.into()));
}

fn new_ignore_rule_hides_nothing(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("echo '*' > src/.gitignore; echo x > src/new.rs"));
    repo.run().exits(3);
    assert_eq!(
        drift_changes(&repo, "it"),
        [path_and_kind("src/.gitignore", "created"), path_and_kind("src/new.rs", "created")]
    );
}

fn off_applies_after_pass(env: &TestEnvironment) {
    let script = "echo formatted > src/lib.rs; echo new > src/new.rs; rm README.md; mkdir -p target; echo t > target/t; printf '#!/bin/sh\\n' > run.sh; chmod +x run.sh";
    let repo = env.repo(&TestSpec::from_steps([TestStep::sh("it", script).with_field("read_only: off")]));
    repo.run().exits(0);
    assert_eq!(repo.read("src/lib.rs"), "formatted\n");
    assert_eq!(repo.read("src/new.rs"), "new\n");
    assert!(!repo.file("README.md").exists());
    let mode = std::os::unix::fs::PermissionsExt::mode(&repo.file("run.sh").metadata().expect("applied").permissions());
    assert_eq!(mode & 0o111, 0o111, "{mode:o}");
    let applied = repo.step("it")["drift"]["applied"].clone();
    for path in ["README.md", "run.sh", "src/lib.rs", "src/new.rs"] {
        assert!(applied.as_array().is_some_and(|all| all.contains(&path.into())), "{path} not in {applied}");
    }
}

fn off_discards_after_failure(env: &TestEnvironment) {
    let script = "echo broken > src/lib.rs; exit 1";
    let repo = env.repo(&TestSpec::from_steps([TestStep::sh("it", script).with_field("read_only: off")]));
    repo.run().exits(1);
    assert_eq!(repo.changes_seen_by_git(), [""; 0]);
    assert_eq!(repo.step("it")["drift"]["applied"], serde_json::json!([]));
}

fn off_excludes_git(env: &TestEnvironment) {
    let script = "echo evil > .git/hooks/post-checkout; echo x >> .git/config; mv .git .git2; mkdir -p .git; echo y > .git/z; echo ok > src/lib.rs";
    let repo = env.repo(&TestSpec::from_steps([TestStep::sh("it", script).with_field("read_only: off")]));
    let config = repo.read(".git/config");
    repo.run();
    assert_eq!(repo.read(".git/config"), config);
    assert!(!repo.file(".git/hooks/post-checkout").exists() && !repo.file(".git/z").exists());
}

pub(crate) fn git_is_read_only(env: &TestEnvironment) {
    let script = "git rev-parse HEAD && git status --porcelain || exit 90; \
                  echo evil > .git/hooks/pre-commit && exit 91; git config a.b c && exit 92; \
                  git commit --allow-empty -qm x && exit 93; git update-index --assume-unchanged README.md && exit 94; \
                  rm -rf .git; git branch evil && exit 95; mv .git elsewhere && exit 96; exit 0";
    let repo = env.repo(&TestSpec::from_script(script));
    let head = repo.git(&["rev-parse", "HEAD"]);
    repo.run().exits(0);
    assert!(repo.step("it")["stdout_preview"].as_str().is_some_and(|text| text == head), "git is not usable inside");
    assert!(!repo.file(".git/hooks/pre-commit").exists());
    assert_eq!(repo.git(&["branch", "--list"]).trim(), "* main");
}

fn evidence_cannot_be_forged(env: &TestEnvironment) {
    let script = "cd changes/009_x; mkdir -p verify; echo '{\"forged\":1}' > verify/x.json; \
                  echo '{\"forged\":1}' > verify/verify.it.json; echo '{\"state\":\"done\"}' > 05-status.json; ls verify";
    let repo = env.repo(&TestSpec::from_script(script));
    repo.write("changes/009_x/05-status.json", "{\"state\":\"proposed\"}");
    repo.commit();
    repo.run().exits(0);
    assert!(!repo.changeset().join("verify/x.json").exists(), "a step wrote evidence");
    assert!(!repo.read("changes/009_x/verify/verify.it.json").contains("forged\":1}\n"));
    assert_eq!(crate::documents::read_json(&repo.changeset().join("05-status.json"))["state"], "proposed");
    assert_eq!(drift_changes(&repo, "it"), Vec::new());
}

fn off_excludes_forged_evidence(env: &TestEnvironment) {
    let script = "cd changes/009_x; mkdir -p verify; echo '{}' > verify/x.json; echo '{\"state\":\"done\"}' > 05-status.json; echo ok > note.md; mkdir -p ../other/verify; echo x > ../other/verify/x";
    let repo = env.repo(&TestSpec::from_steps([TestStep::sh("it", script).with_field("read_only: off")]));
    repo.run().exits(0);
    assert_eq!(repo.read("changes/009_x/note.md"), "ok\n");
    assert!(!repo.file("changes/other/verify").exists(), "an empty directory for evidence was applied");
    assert!(!repo.changeset().join("verify/x.json").exists(), "a step wrote evidence");
    assert_eq!(crate::documents::read_json(&repo.changeset().join("05-status.json"))["state"], "pending_validation");
}

fn control_characters_are_escaped(env: &TestEnvironment) {
    let script = r#"printf x > "$(printf 'src/a\033[2Jb')"; printf x > "$(printf 'src/n\nl')"; printf x > "$(printf 'src/\377')""#;
    let repo = env.repo(&TestSpec::from_script(script));
    let run = repo.run().exits(3);
    assert!(!run.all_output().contains('\u{1b}'), "{run:?}");
    let paths: Vec<String> = drift_changes(&repo, "it").into_iter().map(|(path, _)| path).collect();
    for path in ["src/a\\x1b[2Jb", "src/n\\x0al", "src/\\xff"] {
        assert!(paths.iter().any(|found| found == path), "{path} not in {paths:?}");
    }
}

fn huge_diff_is_bounded(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script(
        "seq 1 400000 > src/lib.rs; for i in $(seq 1 40); do seq 1 3000 > src/new$i; done",
    ));
    repo.run().exits(3);
    let step = repo.step("it");
    let texts = step["drift"]["changes"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|change| change["diff"]["text"].as_str());
    let sizes: Vec<usize> = texts.map(str::len).collect();
    assert!(sizes.iter().all(|size| *size <= proctor_core::model::drift::MAX_FILE_DIFF), "{sizes:?}");
    assert!(sizes.iter().sum::<usize>() <= proctor_core::model::drift::MAX_STEP_DIFF, "{sizes:?}");
    assert_eq!(step["drift"]["changes"].as_array().map(Vec::len), Some(41));
}

fn uncommitted_work_is_not_drift(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("grep -q mine README.md && [ -f src/draft.rs ]"));
    repo.write("README.md", "mine\n");
    repo.write("src/draft.rs", "draft\n");
    repo.run().exits(0);
    assert_eq!((repo.read("README.md").as_str(), repo.read("src/draft.rs").as_str()), ("mine\n", "draft\n"));
}

/// A build with so many files that Proctor does not read them.
const LARGE_BUILD_SCRIPT: &str = "mkdir -p target/deep; for n in $(seq 1 600); do echo $n > target/deep/$n; done";

fn large_ignored_output_hides_nothing(env: &TestEnvironment) {
    let build = TestStep::sh("build", LARGE_BUILD_SCRIPT);
    let test = TestStep::sh("test", "[ $(ls target/deep | wc -l) = 600 ] && rm -r target/deep && echo x > src/new.rs");
    let repo = env.repo(&TestSpec::from_steps([build, test]));
    repo.run().exits(3);
    assert_eq!((repo.step("build")["outcome"].as_str(), drift_changes(&repo, "build")), (Some("passed"), vec![]));
    assert_eq!(drift_changes(&repo, "test"), [path_and_kind("src/new.rs", "created")]);
    let spec_with_copy =
        TestSpec::from_script(&format!("{LARGE_BUILD_SCRIPT}; cp -r target/deep kept; echo x > target/kept.rs"));
    let repo = env.repo_at("beside", &spec_with_copy);
    repo.write("target/kept.rs", "tracked though ignored\n");
    repo.git(&["add", "--force", "target/kept.rs"]);
    repo.run().exits(3);
    let found = drift_changes(&repo, "it");
    assert!(
        found.contains(&path_and_kind("target/kept.rs", "modified"))
            && found.contains(&path_and_kind("kept/600", "created"))
    );
    assert_eq!(found.len(), 601);
}

fn strict_compares_large_ignored_output(env: &TestEnvironment) {
    let check = "echo x > target/deep/5; rm target/deep/6; echo 7 > target/deep/7";
    let steps =
        [TestStep::sh("build", LARGE_BUILD_SCRIPT), TestStep::sh("check", check).with_field("read_only: strict")];
    let repo = env.repo(&TestSpec::from_steps(steps));
    repo.run().exits(3);
    assert_eq!(
        drift_changes(&repo, "check"),
        [path_and_kind("target/deep/5", "modified"), path_and_kind("target/deep/6", "deleted")]
    );
}
