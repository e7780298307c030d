//! Compares the recorded tree with git's own result, including repository formats that only git can read.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use serde_json::Value;

use crate::environment::{Repo, TestEnvironment};
use crate::machine;
use crate::needs::{CaseDefinition, Needs, case};
use crate::test_spec::{TestSpec, TestStep};

const NEEDS_GIT_AND_SANDBOX: &[Needs] = &[Needs::Sandbox, Needs::Program("git")];

pub(super) const CASES: &[CaseDefinition] = &[
    case("repository_formats::repository_with_sha256_objects_is_verified", sha256_repository)
        .with_sha256()
        .daemon_sample(),
    case("repository_formats::repository_with_sha256_objects_is_verified", sha256_repository)
        .with_sha256()
        .unprivileged("repository_formats::repository_with_sha256_objects_is_verified_as_a_user")
        .long(),
    case("repository_formats::repository_with_reftables_is_verified", reftable_repository).with_reftables(),
    case("repository_formats::split_index_is_read", split_index_repository).needs(NEEDS_GIT_AND_SANDBOX),
    case("repository_formats::sparse_index_is_read", sparse_index_repository).needs(NEEDS_GIT_AND_SANDBOX),
    case("repository_formats::partial_clone_is_read_without_fetching", partial_clone_fetches_nothing)
        .needs(NEEDS_GIT_AND_SANDBOX),
    case("repository_formats::recorded_tree_is_that_of_the_worktrees_content", tree_of_worktree_content)
        .needs(NEEDS_GIT_AND_SANDBOX),
    case("repository_formats::filter_runs_only_in_a_sandbox", filter_runs_in_sandbox)
        .needs(NEEDS_GIT_AND_SANDBOX)
        .daemon_sample(),
    case("repository_formats::git_files_are_read_only_in_every_mode", git_is_read_only_in_every_mode)
        .needs(NEEDS_GIT_AND_SANDBOX),
    case("repository_formats::git_files_are_read_only_in_every_mode", git_is_read_only_in_every_mode)
        .needs(NEEDS_GIT_AND_SANDBOX)
        .unprivileged("repository_formats::git_files_are_read_only_in_every_mode_as_a_user")
        .long(),
    case("repository_formats::git_files_are_read_only_from_a_linked_worktree", git_is_read_only_from_linked_worktree)
        .needs(NEEDS_GIT_AND_SANDBOX),
    case("repository_formats::missing_filter_leaves_the_tree_unknown", missing_filter_leaves_tree_unknown)
        .needs(NEEDS_GIT_AND_SANDBOX),
];

/// Returns the tree that `git add -u` and `git write-tree` produce from the worktree, with a copy of the index.
fn tree_computed_by_git(repo: &Repo<'_>, env: &TestEnvironment) -> String {
    let script = format!(
        "!d='{}' && cp -p \"$(git rev-parse --git-path index)\" \"$d/index\" && export GIT_INDEX_FILE=\"$d/index\" && git add --sparse -u && git write-tree",
        env.root().join("home").display()
    );
    let tree = repo.git(&["-c", &format!("alias.standing={script}"), "standing"]).trim().to_owned();
    std::fs::remove_file(env.root().join("home/index")).expect("it was just made");
    tree
}

fn recorded_git_facts(repo: &Repo<'_>) -> Value {
    repo.evidence("verify.it")["repo_git"].clone()
}

/// Runs the profile, and asserts that the recorded facts agree with git.
#[track_caller]
fn assert_facts_agree_with_git(repo: &Repo<'_>, env: &TestEnvironment, dirty: bool) {
    repo.run().exits(0);
    let git = recorded_git_facts(repo);
    assert_eq!(git["head_commit"], repo.git(&["rev-parse", "HEAD"]).trim(), "{git}");
    assert_eq!((&git["tree"], &git["dirty"]), (&tree_computed_by_git(repo, env).into(), &dirty.into()), "{git}");
}

fn sha256_repository(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("mkdir -p target && echo x > target/out && cat README.md"));
    assert_facts_agree_with_git(&repo, env, false);
    let git = recorded_git_facts(&repo);
    let digits = |value: &Value| value.as_str().map_or(0, str::len);
    assert_eq!((digits(&git["head_commit"]), digits(&git["tree"]), &git["branch"]), (64, 64, &"main".into()));
    repo.write("README.md", "edited\n");
    assert_facts_agree_with_git(&repo, env, true);
    repo.write(
        "spec/verification.yaml",
        TestSpec::from_script("echo x >> src/lib.rs; echo y > new; echo z > a.log").to_yaml(env.marker()),
    );
    repo.run().exits(3).prints(&["src/lib.rs", "new"]);
    let drift = repo.step("it")["drift"]["changes"].as_array().map(Vec::len);
    assert_eq!(drift, Some(2), "what is ignored is no drift");
}

fn reftable_repository(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("git log -1 --format=%H"));
    assert_facts_agree_with_git(&repo, env, false);
    assert_eq!(recorded_git_facts(&repo)["branch"], "main");
}

fn split_index_repository(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    repo.git(&["update-index", "--split-index"]);
    assert_facts_agree_with_git(&repo, env, false);
    repo.write("src/lib.rs", "pub fn two() {}\n");
    assert_facts_agree_with_git(&repo, env, true);
}

fn sparse_index_repository(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("[ -e src/lib.rs ] && [ ! -e away/deep/file ]"));
    repo.write("away/deep/file", "x\n");
    repo.commit();
    repo.git(&["sparse-checkout", "set", "--cone", "--sparse-index", "src", "spec", "changes"]);
    assert!(!repo.file("away").exists());
    assert_facts_agree_with_git(&repo, env, false);
    assert_eq!(recorded_git_facts(&repo)["tree"], repo.git(&["rev-parse", "HEAD^{tree}"]).trim());
}

fn partial_clone_fetches_nothing(env: &TestEnvironment) {
    let origin = env.repo_at("origin", &TestSpec::from_script("true"));
    origin.write("old", "gone\n");
    origin.commit();
    origin.git(&["rm", "--quiet", "old"]);
    origin.commit();
    origin.git(&["config", "uploadpack.allowFilter", "true"]);
    let url = format!("file://{}", origin.path().display());
    env.git(env.root(), &["clone", "--quiet", "--filter=blob:none", &url, "repo"]);
    let repo = Repo::at(env, env.root().join("repo"));
    repo.git(&["config", "core.repositoryFormatVersion", "1"]);
    repo.git(&["config", "extensions.partialClone", "origin"]);
    // A fetch would run this program.
    let witness = env.root().join("sibling/fetched");
    repo.git(&["config", "remote.origin.uploadpack", &format!("touch '{}';", witness.display())]);
    assert_facts_agree_with_git(&repo, env, false);
    assert!(!witness.exists());
}

fn tree_of_worktree_content(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    assert_facts_agree_with_git(&repo, env, false);
    let clean = recorded_git_facts(&repo)["tree"].clone();
    repo.git(&["update-index", "--assume-unchanged", "README.md"]);
    repo.write("README.md", "hidden from git\n");
    repo.run().exits(0);
    let git = recorded_git_facts(&repo);
    assert!(git["tree"] != clean && git["dirty"] == true, "{git}");
    repo.git(&["update-index", "--no-assume-unchanged", "README.md"]);
    assert_eq!(git["tree"], tree_computed_by_git(&repo, env));
    repo.git(&["checkout", "--quiet", "README.md"]);
    repo.write("untracked", "x\n");
    repo.run().exits(0);
    let git = recorded_git_facts(&repo);
    assert_eq!((&git["tree"], &git["dirty"]), (&clean, &true.into()), "an untracked file is in no tree");
}

/// Tries to write to all of git's files, and prints the successful attempts.
const GIT_WRITE_ATTEMPTS: &str = r#"
for d in "$(git rev-parse --absolute-git-dir)" "$(git rev-parse --path-format=absolute --git-common-dir)"; do
  for f in HEAD index config config.worktree packed-refs refs/heads/main refs/heads/evil refs/x hooks/post-commit \
           info/exclude info/attributes info/sparse-checkout objects/x objects/info/alternates logs/HEAD FETCH_HEAD modules/x; do
    mkdir -p "$d/${f%/*}" 2>/dev/null
    { echo x >> "$d/$f"; } 2>/dev/null && echo "wrote $d/$f"
    mv "$d/$f" "$d/moved" 2>/dev/null && echo "moved $d/$f"
    rm -rf "$d/$f" 2>/dev/null; ln -sf /dev/null "$d/$f" 2>/dev/null && echo "linked $d/$f"
    chmod 777 "$d/$f" 2>/dev/null && echo "chmod $d/$f"
  done
  mount -o remount,rw "$d" 2>/dev/null && echo "remounted $d"
done
{ git commit --allow-empty -qm x || git add README.md || git update-index --assume-unchanged README.md || git config a.b c ||
  git update-ref refs/heads/evil HEAD || git symbolic-ref HEAD refs/heads/evil || git stash || git gc -q || git reset -q --soft HEAD~0; } \
  >/dev/null 2>&1 && echo "git wrote"
exit 0
"#;

/// Returns all files below `places` with mode and content.
fn read_all_files(places: &[PathBuf]) -> Vec<(PathBuf, u32, Vec<u8>)> {
    let files = places.iter().flat_map(|place| machine::walk(place));
    let read = |path: PathBuf| {
        let mode = path.symlink_metadata().expect("it is there").permissions().mode();
        let bytes = std::fs::read(&path).unwrap_or_default();
        (path, mode, bytes)
    };
    files.map(read).collect()
}

fn spec_writing_to_git() -> TestSpec {
    let step = |mode: &str| TestStep::sh(mode, GIT_WRITE_ATTEMPTS).with_field(&format!("read_only: {mode}"));
    TestSpec::from_steps(["off", "tracked", "strict"].map(step))
}

#[track_caller]
fn assert_git_unchanged(repo: &Repo<'_>, git_dirs: &[PathBuf]) {
    let before = read_all_files(git_dirs);
    repo.run().exits(0);
    for mode in ["off", "tracked", "strict"] {
        assert_eq!(repo.step(mode)["stdout_preview"], "", "{mode}");
        assert_eq!(repo.step(mode)["drift"]["changes"], serde_json::json!([]), "{mode}");
    }
    assert!(read_all_files(git_dirs) == before, "something of git changed");
}

fn git_is_read_only_in_every_mode(env: &TestEnvironment) {
    let repo = env.repo(&spec_writing_to_git());
    assert_git_unchanged(&repo, &[repo.file(".git")]);
}

fn git_is_read_only_from_linked_worktree(env: &TestEnvironment) {
    let main = env.repo_at("main", &spec_writing_to_git());
    let worktree = env.root().join("linked");
    main.git(&["worktree", "add", "--quiet", "-b", "side", worktree.to_str().expect("UTF-8")]);
    let linked = Repo::at(env, worktree);
    assert_git_unchanged(&linked, &[main.file(".git"), linked.file(".git")]);
}

/// Creates a repository with a clean filter for `*.up`, and edits such a file.
fn repo_with_filter<'e>(env: &'e TestEnvironment, program: &str) -> Repo<'e> {
    let repo = env.repo(&TestSpec::from_script("cat a.up"));
    repo.write(".gitattributes", "*.up filter=own\n");
    repo.write("a.up", "first\n");
    repo.git(&["config", "filter.own.clean", "tr a-z A-Z"]);
    repo.commit();
    repo.git(&["config", "filter.own.clean", program]);
    repo.git(&["config", "filter.own.required", "true"]);
    repo.write("a.up", "second\n");
    repo
}

fn filter_runs_in_sandbox(env: &TestEnvironment) {
    let witness = env.root().join("sibling/ran");
    let attempts = [
        format!("echo ran > '{}'", witness.display()),
        "echo ran > .git/hooks/post-checkout".to_owned(),
        "echo ran > README.md".to_owned(),
        format!("cat '{}'", env.root().join("sibling/secret.txt").display()),
        format!("cat '{}'", env.home_dir().join("secret.txt").display()),
    ];
    let script = attempts.map(|attempt| format!("({attempt}) 2>/dev/null\n")).concat();
    let repo = repo_with_filter(env, "sh tools/filter.sh");
    repo.write("tools/filter.sh", format!("#!/bin/sh\n{script}tr a-z A-Z\n"));
    repo.run().exits(0);
    let git = recorded_git_facts(&repo);
    // Outside the sandbox, the malicious program must not run, so git uses a harmless filter.
    repo.git(&["config", "filter.own.clean", "tr a-z A-Z"]);
    assert_eq!(git["tree"], tree_computed_by_git(&repo, env), "{git}");
    assert!(!witness.exists() && !repo.file(".git/hooks/post-checkout").exists());
    assert!(repo.read("README.md").starts_with("# A repository"));
    let text = repo.evidence("verify.it").to_string();
    assert!(!text.contains("A SECRET") && !text.contains("a secret"), "{text}");
}

fn missing_filter_leaves_tree_unknown(env: &TestEnvironment) {
    let repo = repo_with_filter(env, "/no/such/program");
    repo.run().exits(0);
    let git = recorded_git_facts(&repo);
    assert!(git["tree"].is_null(), "{git}");
    let why = git["no_tree"].as_str().unwrap_or_default();
    assert!(why.contains("a.up") && why.contains("git"), "{git}");
}
