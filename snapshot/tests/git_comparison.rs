//! Compares snapshots of generated repositories with git: the tree id equals that of `git add -u` and `git
//! write-tree`, and the covered paths are those of `git ls-files`.

pub(crate) mod repository_generator;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;

use proctor_core::model::drift::display_path;
use proctor_snapshot::{Snapshot, SnapshotError};

use crate::git_program::UnsandboxedGit;
use crate::repository::{FixtureRepo, git_output, git_word, git_write_tree, helper};
use crate::{Requirement, SnapshotTestCase, campaign_size};
use repository_generator::{GeneratedRepository, generate};

/// Number of repositories in each case, in `make test` and in `make test-long`.
const REPOSITORIES: [u64; 2] = [3, 7];

pub(crate) const CASES: &[SnapshotTestCase] = &[
    ("git comparison: generated repositories match git 1", Requirement::Nothing, || {
        generated_repositories_match_git(1);
    }),
    ("git comparison: generated repositories match git 2", Requirement::Nothing, || {
        generated_repositories_match_git(2);
    }),
    ("git comparison: generated repositories match git 3", Requirement::Nothing, || {
        generated_repositories_match_git(3);
    }),
    ("git comparison: generated repositories match git 4", Requirement::Nothing, || {
        generated_repositories_match_git(4);
    }),
    ("git comparison: generated repositories match git 5", Requirement::Nothing, || {
        generated_repositories_match_git(5);
    }),
    ("git comparison: generated repositories match git 6", Requirement::Nothing, || {
        generated_repositories_match_git(6);
    }),
    ("git comparison: generated repositories match git 7", Requirement::Nothing, || {
        generated_repositories_match_git(7);
    }),
    ("git comparison: generated repositories match git 8", Requirement::Nothing, || {
        generated_repositories_match_git(8);
    }),
    (
        "git comparison: supports nested repository of other format",
        Requirement::GitWithSha256,
        supports_nested_repository_of_other_format,
    ),
    ("git comparison: supports linked SHA-256 worktree", Requirement::GitWithSha256, supports_linked_sha256_worktree),
    ("git comparison: reports unreachable attributes file", Requirement::Nothing, reports_unreachable_attributes_file),
];

fn generated_repositories_match_git(case: u64) {
    for number in 0..campaign_size(REPOSITORIES[0], REPOSITORIES[1]) {
        let seed = case * 1_000 + number;
        compare_with_git(generate(seed));
    }
}

fn supports_nested_repository_of_other_format() {
    let repo = FixtureRepo::small();
    repo.git(&["init", "-q", "--object-format=sha256", "vendored"]);
    repo.write("vendored/in.txt", "x\n").write("vendored/a.log", "is not ignored there\n");
    repo.git(&["-C", "vendored", "add", "in.txt"]);
    repo.git(&["-C", "vendored", "commit", "-qm", "x"]);
    let snapshot = take(&repo).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(snapshot.entries.paths().collect::<BTreeSet<_>>(), covered_by_git(&repo.top, b""));
    assert_eq!((snapshot.git.tree, snapshot.git.dirty), (Ok(repo.worktree_tree()), Some(true)));
    // If the repository replaces a file, git would add a truncated commit id.
    fs::remove_file(repo.at("README.md")).expect("removes");
    fs::rename(repo.at("vendored"), repo.at("README.md")).expect("moves");
    let snapshot = take(&repo).unwrap_or_else(|error| panic!("{error}"));
    assert!(snapshot.git.tree.as_ref().is_err_and(|why| why.to_string().contains("format")), "{:?}", snapshot.git.tree);
    assert!(snapshot.entries.contains(b"README.md") && snapshot.entries.contains(b"README.md/in.txt"));
}

fn supports_linked_sha256_worktree() {
    let repo = FixtureRepo::with_options(&["--object-format=sha256"]);
    repo.write("a", "1\n").write(".gitignore", "*.log\n").commit();
    let place = repo.dir.path().canonicalize().expect("path exists").join("linked");
    repo.git(&["worktree", "add", "-q", "-b", "side", &place.display().to_string()]);
    crate::repository::write_file(&place.join("a"), b"2\n");
    crate::repository::write_file(&place.join("x.log"), b"");
    let helper = helper().with_program(Arc::new(UnsandboxedGit));
    let snapshot = Snapshot::take(&place, &helper).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((snapshot.git.branch.as_deref(), snapshot.git.dirty), (Some("side"), Some(true)));
    assert_eq!(snapshot.git.tree, Ok(git_write_tree(&place).expect("writes a tree")));
    assert_eq!(snapshot.entries.paths().collect::<BTreeSet<_>>(), covered_by_git(&place, b""));
    let query = proctor_git::helper::IgnoreQuery::new(helper, &place);
    assert_eq!(query.are_ignored(&[b"new.log", b"new", b"d/.git/x.log"]).expect("answers"), [true, false, false]);
}

fn reports_unreachable_attributes_file() {
    let repo = FixtureRepo::small();
    let attributes = repo.dir.path().join("attributes");
    crate::repository::write_file(&attributes, b"*.md text\n");
    repo.git(&["config", "core.attributesFile", &attributes.display().to_string()]);
    repo.write("README.md", "now\r\n");
    assert_eq!(take(&repo).expect("reads").git.tree, Ok(repo.worktree_tree()));
    fs::remove_file(attributes).expect("removes");
    let tree = take(&repo).expect("reads").git.tree;
    assert!(tree.as_ref().is_err_and(|why| why.to_string().contains("core.attributesFile")), "{tree:?}");
}

/// Takes a snapshot, with the `git` program for formats that libgit2 cannot read.
fn take(repo: &FixtureRepo) -> Result<Snapshot, SnapshotError> {
    Snapshot::take(&repo.top, &helper().with_program(Arc::new(UnsandboxedGit)))
}

/// Compares the snapshot of a generated repository with the results of git.
#[track_caller]
fn compare_with_git(generated: GeneratedRepository) {
    let GeneratedRepository { seed, repo, log } = generated;
    let context = || format!("seed {seed} in {}\n{}", repo.top.display(), log.join("\n"));
    let snapshot = take(&repo).unwrap_or_else(|error| panic!("{error}\n{}", context()));
    match repo.try_worktree_tree() {
        Ok(tree) => assert_eq!(snapshot.git.tree, Ok(tree), "{}", context()),
        Err(why) => assert!(snapshot.git.tree.is_err(), "git refuses: {why}; {:?}\n{}", snapshot.git.tree, context()),
    }
    assert_eq!(snapshot.git.dirty, is_dirty_by_git(&repo.top), "{}", context());
    let expected = covered_by_git(&repo.top, b"");
    let found: BTreeSet<Vec<u8>> = snapshot.entries.paths().collect();
    let shown = |paths: Vec<&Vec<u8>>| paths.into_iter().map(|path| display_path(path)).collect::<Vec<_>>();
    let (more, less) = (found.difference(&expected), expected.difference(&found));
    let (more, less) = (shown(more.collect()), shown(less.collect()));
    // Git lists only untracked files that it can add, so special files are excluded.
    let more: Vec<_> = more.into_iter().filter(|path| !repo.is_special(path)).collect();
    assert!(more.is_empty() && less.is_empty(), "unexpected paths {more:?}, missing paths {less:?}\n{}", context());
}

/// Checks whether git reports a difference from HEAD, in the repository at `top` or in a repository inside it.
fn is_dirty_by_git(top: &Path) -> Option<bool> {
    let list = |args: &[&str]| -> Vec<Vec<u8>> {
        git_output(top, args).split(|b| *b == 0).filter(|path| !path.is_empty()).map(<[u8]>::to_vec).collect()
    };
    let empty = git_word(top, &["hash-object", "-t", "tree", "/dev/null"]);
    let head = Some(git_word(top, &["rev-parse", "-q", "--verify", "HEAD^{tree}"])).filter(|tree| !tree.is_empty());
    let tree = git_write_tree(top);
    let known = list(&["ls-tree", "-r", "-z", "--full-tree", "--name-only", "HEAD"]);
    let untracked = list(&["ls-files", "-o", "--exclude-standard", "-z"]).iter().any(|path| !known.contains(path));
    let differs = match &tree {
        Ok(tree) => *tree != head.unwrap_or(empty),
        Err(why) => why.contains("can only add regular files"),
    };
    if untracked || differs {
        return Some(true);
    }
    let inner = list(&["ls-files", "--stage", "-z"]).into_iter().filter_map(|line| {
        let path = line.strip_prefix(b"160000 ")?.split(|b| *b == b'\t').nth(1)?;
        Some(top.join(OsStr::from_bytes(path))).filter(|place| place.join(".git").exists())
    });
    let inner: Vec<Option<bool>> = inner.map(|place| is_dirty_by_git(&place)).collect();
    if inner.contains(&Some(true)) {
        return Some(true);
    }
    (tree.is_ok() && inner.iter().all(Option::is_some)).then_some(false)
}

/// Returns the files that git lists in the repository at `at` and in those inside it, if they exist.
pub(crate) fn covered_by_git(top: &Path, at: &[u8]) -> BTreeSet<Vec<u8>> {
    let here = top.join(OsStr::from_bytes(at));
    let list = |args: &[&str]| -> Vec<Vec<u8>> {
        let output = git_output(&here, args);
        output.split(|b| *b == 0).filter(|path| !path.is_empty()).map(<[u8]>::to_vec).collect()
    };
    let join = |path: &[u8]| if at.is_empty() { path.to_vec() } else { [at, b"/", path].concat() };
    let mut covered = BTreeSet::new();
    let (mut files, mut repositories) = (list(&["ls-files", "-z"]), Vec::new());
    files.extend(list(&["ls-tree", "-r", "-z", "--full-tree", "--name-only", "HEAD"]));
    for path in list(&["ls-files", "-o", "--exclude-standard", "-z"]) {
        match path.strip_suffix(b"/") {
            Some(repository) => repositories.push(repository.to_vec()),
            None => files.push(path),
        }
    }
    for path in files {
        let place = here.join(OsStr::from_bytes(&path));
        let linked = place.ancestors().skip(1).take_while(|above| *above != here).any(Path::is_symlink);
        match place.symlink_metadata() {
            _ if linked => {}
            Ok(found) if found.is_dir() && place.join(".git").exists() => repositories.push(path),
            Ok(found) if found.is_dir() => {}
            Ok(_) => drop(covered.insert(join(&path))),
            Err(_) => {}
        }
    }
    for repository in repositories {
        covered.insert(join(&repository));
        covered.extend(covered_by_git(top, &join(&repository)));
    }
    covered
}
