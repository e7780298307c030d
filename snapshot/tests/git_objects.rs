//! Tests the objects of a commit for a git directory without a history. The `git` program reads them.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use proctor_git::object::object_id::ObjectId;
use proctor_git::object::object_pack::ObjectPack;
use proctor_git::protocol::{CommitObjects, WantedObjects};

use crate::git_program::UnsandboxedGit;
use crate::repository::{FixtureRepo, helper, write_file};
use crate::{Requirement, SnapshotTestCase};

pub(super) const CASES: &[SnapshotTestCase] = &[
    ("git_objects::git_reads_commit_without_history", Requirement::Nothing, git_reads_commit),
    ("git_objects::git_reads_commit_with_sha256_ids", Requirement::GitWithSha256, git_reads_sha256_commit),
    ("git_objects::borrowed_and_shallow_objects_are_found", Requirement::Nothing, finds_borrowed_objects),
    ("git_objects::objects_of_reftable_repositories_are_found", Requirement::GitWithReftable, finds_reftable_objects),
    ("git_objects::staged_blobs_are_added_and_missing_ones_omitted", Requirement::Nothing, adds_staged_blobs),
    ("git_objects::missing_trees_are_an_error", Requirement::Nothing, missing_trees),
];

fn ids(printed: &str) -> Vec<ObjectId> {
    let words = printed.lines().filter_map(|line| line.split(' ').next());
    words.map(|id| ObjectId::from_hex(id.as_bytes()).unwrap_or_else(|| panic!("{id}"))).collect()
}

fn wanted(repo: &FixtureRepo) -> WantedObjects {
    let commit = ids(&repo.git(&["rev-parse", "HEAD"]))[0];
    let tags = ids(&repo.git(&["for-each-ref", "--format=%(objectname)", "refs/tags"]));
    let blobs = ids(&repo.git(&["ls-files", "--format=%(objectname)"]));
    WantedObjects { commit, tags, blobs }
}

fn read(repo: &FixtureRepo) -> CommitObjects {
    let helper = helper().with_program(Arc::new(UnsandboxedGit));
    let found = helper.objects(&repo.top, &wanted(repo)).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(found.exceeded, None);
    found
}

/// Returns the ids of the objects, after git has verified the packs.
fn found_ids(repo: &FixtureRepo, found: &CommitObjects) -> BTreeSet<ObjectId> {
    let format = repo.git(&["rev-parse", "--show-object-format"]);
    let place = FixtureRepo::with_options(&["--bare", &format!("--object-format={format}")]);
    write_packs(&place.top, found);
    for pack in &found.packs {
        place.git(&["verify-pack", &format!("objects/pack/pack-{}.idx", pack.checksum)]);
    }
    let listed = ids(&place.git(&["cat-file", "--batch-all-objects", "--unordered", "--batch-check=%(objectname)"]));
    let ids: BTreeSet<ObjectId> = listed.iter().copied().collect();
    assert_eq!(ids.len(), listed.len(), "an object occurs twice");
    ids
}

fn write_packs(git: &Path, found: &CommitObjects) {
    for (path, content) in found.packs.iter().cloned().flat_map(ObjectPack::into_files) {
        write_file(&git.join("objects").join(path), &content);
    }
}

/// Three commits, directories with equal content, and a tag of each kind.
fn fill(repo: &FixtureRepo) {
    repo.write("a/same", "1").write("b/same", "1").write("old", "only in the first commit").commit();
    repo.git(&["tag", "-am", "another commit", "first"]);
    repo.git(&["branch", "other"]);
    std::fs::remove_file(repo.at("old")).expect("removed");
    repo.write("empty", "").write("large", vec![7; 300_000]).commit();
    repo.git(&["tag", "light"]);
    repo.git(&["tag", "-am", "HEAD", "v1"]);
    repo.git(&["tag", "-am", "a tag of a tag", "v2", "v1"]);
}

/// Makes a repository of the objects.
fn repository_from(repo: &FixtureRepo, found: &CommitObjects, options: &[&str]) -> FixtureRepo {
    let copy = FixtureRepo::with_options(options);
    let git = copy.top.join(".git");
    write_packs(&git, found);
    let head = repo.git(&["rev-parse", "HEAD"]);
    write_file(&git.join("HEAD"), format!("{head}\n").as_bytes());
    write_file(&git.join("shallow"), format!("{head}\n").as_bytes());
    let refs = repo.git(&["for-each-ref", "--format=%(objectname) %(refname)"]);
    write_file(&git.join("packed-refs"), format!("{refs}\n").as_bytes());
    copy.git(&["read-tree", "HEAD"]);
    copy
}

fn require_same_answers(repo: &FixtureRepo, options: &[&str], expected_tags: &[&str]) {
    let found = read(repo);
    assert!(found.has_parents);
    let tags: Vec<ObjectId> = expected_tags.iter().map(|tag| ids(&repo.git(&["rev-parse", tag]))[0]).collect();
    assert_eq!(found.tags, tags);
    let mut expected: BTreeSet<ObjectId> =
        ids(&repo.git(&["rev-list", "--objects", "--no-walk", "HEAD"])).into_iter().collect();
    expected.extend(tags);
    assert_eq!(found_ids(repo, &found), expected);
    let copy = repository_from(repo, &found, options);
    for question in [
        &["ls-tree", "-r", "-t", "-l", "HEAD"][..],
        &["log", "-1", "--format=%H %T %s"],
        &["rev-parse", "HEAD^{tree}"],
        &["describe", "--always", "HEAD"],
        &["cat-file", "blob", "HEAD:a/same"],
        &["cat-file", "blob", "HEAD:empty"],
    ] {
        assert_eq!(copy.git(question), repo.git(question), "{question:?}");
    }
    // Hashes every object.
    copy.git(&["update-ref", "-d", "refs/heads/other"]);
    copy.git(&["update-ref", "-d", "refs/tags/first"]);
    copy.git(&["fsck", "--full", "--strict"]);
}

fn git_reads_commit() {
    let repo = FixtureRepo::empty();
    fill(&repo);
    require_same_answers(&repo, &[], &["v1", "v2"]);
    // The repository may store its objects in any way.
    let loose = read(&repo);
    repo.git(&["repack", "-adq"]);
    assert_eq!(read(&repo), loose);
    repo.git(&["checkout", "-q", "--detach", "HEAD~1"]);
    assert!(!read(&repo).has_parents);
}

fn git_reads_sha256_commit() {
    let options = ["--object-format=sha256"];
    let repo = FixtureRepo::with_options(&options);
    fill(&repo);
    require_same_answers(&repo, &options, &["v1", "v2"]);
}

fn finds_borrowed_objects() {
    let repo = FixtureRepo::empty();
    fill(&repo);
    let expected = read(&repo);
    let source = format!("file://{}", repo.top.display());
    for options in [&["--shared"][..], &["--depth=1", "--no-local"]] {
        let clone = FixtureRepo::empty();
        std::fs::remove_dir_all(&clone.top).expect("removed");
        repo.git(&[&["clone", "-q"], options, &[&source, clone.top.to_str().expect("text")]].concat());
        let found = read(&clone);
        let (found, expected) = (found_ids(&clone, &found), found_ids(&repo, &expected));
        assert!(found.is_subset(&expected) && found.len() > 4, "{options:?}");
    }
    let linked = FixtureRepo { dir: tempfile::tempdir().expect("a directory"), top: repo.dir.path().join("linked") };
    repo.git(&["worktree", "add", "-q", "--detach", linked.top.to_str().expect("text")]);
    let linked = FixtureRepo { top: linked.top.canonicalize().expect("exists"), ..linked };
    assert_eq!(read(&linked), expected);
}

fn finds_reftable_objects() {
    let repo = FixtureRepo::with_options(&["--ref-format=reftable"]);
    fill(&repo);
    assert!(found_ids(&repo, &read(&repo)).len() > 4);
}

fn adds_staged_blobs() {
    let repo = FixtureRepo::empty();
    fill(&repo);
    let before = found_ids(&repo, &read(&repo));
    repo.write("a/same", "2").git(&["add", "a/same"]);
    let staged = ids(&repo.git(&["rev-parse", ":a/same"]))[0];
    let after = found_ids(&repo, &read(&repo));
    assert_eq!(after.difference(&before).copied().collect::<Vec<_>>(), [staged]);
    remove_object(&repo, &staged.to_string());
    assert_eq!(found_ids(&repo, &read(&repo)), before);
}

fn missing_trees() {
    let repo = FixtureRepo::empty();
    fill(&repo);
    let wanted = wanted(&repo);
    remove_object(&repo, &repo.git(&["rev-parse", "HEAD:a"]));
    let problem = helper().objects(&repo.top, &wanted).expect_err("a tree is missing").to_string();
    assert!(problem.contains("is missing"), "{problem}");
}

fn remove_object(repo: &FixtureRepo, id: &str) {
    let path = Path::new(".git/objects").join(&id[..2]).join(&id[2..]);
    std::fs::remove_file(repo.top.join(path)).expect("removed");
}
