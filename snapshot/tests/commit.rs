//! Tests revisions, and private copies of the trees of commits.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use proctor_git::error::GitError;
use proctor_git::files::repo_path::RepoPath;
use proctor_git::object::object_id::ObjectId;
use proctor_git::protocol::{CommitRef, CommitTree, CommittedLeaf, StagedIndex};
use proctor_snapshot::{
    CommitSource, CommitUpdate, MIRROR_TREE, Mirror, MirrorError, Snapshot, SnapshotError, TreeLocation,
};
use tempfile::TempDir;

use crate::repository::{FixtureRepo, helper, run_program};
use crate::{Requirement, SnapshotTestCase};

pub(crate) const CASES: &[SnapshotTestCase] = &[
    ("commit: resolves revisions as git does", Requirement::Nothing, resolves_revisions_as_git_does),
    ("commit: rejects revisions without commit", Requirement::Nothing, rejects_revisions_without_commit),
    ("commit: rejects ambiguous names", Requirement::Nothing, rejects_ambiguous_names),
    ("commit: lists ranges oldest first within limit", Requirement::Nothing, lists_ranges_oldest_first_within_limit),
    ("commit: copy equals commit tree", Requirement::Nothing, copy_equals_commit_tree),
    ("commit: git works in copy", Requirement::Nothing, git_works_in_copy),
    ("commit: updates refs", Requirement::Nothing, updates_refs),
    ("commit: copies raw blobs", Requirement::Nothing, copies_raw_blobs),
    ("commit: rejects names that leave tree", Requirement::Nothing, rejects_names_that_leave_tree),
    ("commit: rejects git directory names", Requirement::Nothing, rejects_git_dir_names),
    ("commit: rejects tree bomb", Requirement::Nothing, rejects_tree_bomb),
    ("commit: rejects deep tree", Requirement::Python, rejects_deep_tree),
    ("commit: rejects huge file before reading", Requirement::Python, rejects_huge_file_before_reading),
    ("commit: rejects duplicate name", Requirement::Nothing, rejects_duplicate_name),
    ("commit: rejects object of wrong kind", Requirement::Nothing, rejects_object_of_wrong_kind),
    ("commit: reads content without copy", Requirement::Nothing, reads_content_without_copy),
    ("commit: rewrites only differing files", Requirement::Nothing, rewrites_only_differing_files),
    ("commit: rejects forged trees", Requirement::Nothing, rejects_forged_trees),
    ("commit: copies trees in old form", Requirement::Nothing, copies_trees_in_old_form),
    ("commit: copies staged content on branch", Requirement::Nothing, copies_staged_content_on_branch),
    ("commit: includes submodules only on request", Requirement::Nothing, includes_submodules_only_on_request),
    ("commit: reports missing submodule", Requirement::Nothing, reports_missing_submodule),
    ("commit: supports linked worktree", Requirement::Nothing, supports_linked_worktree),
];

/// A directory for a private copy.
struct PrivateCopy(TempDir);

impl PrivateCopy {
    fn new() -> Self {
        Self(TempDir::new().expect("a temporary directory"))
    }

    fn dir(&self) -> PathBuf {
        self.0.path().canonicalize().expect("path exists")
    }

    fn tree(&self) -> PathBuf {
        self.dir().join(MIRROR_TREE)
    }

    fn git(&self, args: &[&str]) -> String {
        let output = run_program(&self.tree(), "git", args);
        assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    fn mirror(&self) -> Mirror {
        let directory = fs::File::open(self.dir()).expect("opens");
        Mirror::open(directory.into(), None).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Updates the copy to a commit.
    fn update_to(&self, repo: &Path, commit: &CommitRef, submodules: bool) -> Result<CopiedCommit, MirrorError> {
        let failed = |error: GitError| MirrorError::from(SnapshotError::from(error));
        let tree = helper().tree(repo, commit, submodules).map_err(failed)?;
        let history = helper().history(repo, &[]).map_err(failed)?;
        let source = CommitSource { repo, helper: &helper(), commit, tree: &tree, submodules };
        let mut mirror = self.mirror();
        let update = mirror.update_to_commit(&source)?;
        let place = TreeLocation { tree: &self.tree(), seen_at: repo, seen_as: None };
        mirror.write_git_dirs_of_commit(place, &source, &source.head_line(&history), &history)?;
        mirror.verify_all()?;
        let snapshot = mirror.snapshot_of_commit(&self.tree(), &source);
        Ok(CopiedCommit { update, snapshot, objects: history.objects })
    }
}

/// The content of a copy.
struct CopiedCommit {
    update: CommitUpdate,
    snapshot: Snapshot,
    objects: PathBuf,
}

fn copy_commit(repo: &FixtureRepo, commit: &str) -> (PrivateCopy, CopiedCommit) {
    let place = PrivateCopy::new();
    let copied = place.update_to(&repo.top, &commit.into(), false).unwrap_or_else(|error| panic!("{error}"));
    (place, copied)
}

fn refusal(repo: &FixtureRepo, commit: &str) -> String {
    let place = PrivateCopy::new();
    let refused = place.update_to(&repo.top, &commit.into(), false).err().expect("must be refused");
    assert!(!place.dir().join("../escaped").exists());
    refused.to_string()
}

fn resolve(repo: &FixtureRepo, revision: &str) -> Result<Vec<String>, GitError> {
    let commits = helper().resolve(&repo.top, revision, 10)?;
    Ok(commits.into_iter().map(|commit| commit.id).collect())
}

fn three_commits() -> FixtureRepo {
    let repo = FixtureRepo::small();
    repo.git(&["tag", "-am", "a tag", "v1"]);
    repo.write("a", "1").commit().write("a", "2").commit();
    repo.git(&["branch", "other", "HEAD~1"]);
    repo
}

fn resolves_revisions_as_git_does() {
    let repo = three_commits();
    let short = repo.git(&["rev-parse", "--short", "HEAD~1"]);
    for revision in
        ["HEAD", "@", "main", "HEAD~1", "@~1", "v1", "v1^{}", "other", "main@{0}", "refs/heads/other", &short]
    {
        let expected = repo.git(&["rev-parse", &format!("{revision}^{{commit}}")]);
        assert_eq!(resolve(&repo, revision).expect(revision), [expected], "{revision}");
    }
    // A branch with the name of an object id that does not exist.
    let id = "1234567890123456789012345678901234567890";
    repo.git(&["update-ref", &format!("refs/heads/{id}"), "HEAD"]);
    assert!(resolve(&repo, id).is_err());
}

fn rejects_revisions_without_commit() {
    let repo = three_commits();
    for revision in ["nothing", "HEAD~9", "v1..nothing", "HEAD:a", "main^{tree}", "deadbeef", ":/never said"] {
        let error = resolve(&repo, revision).expect_err(revision);
        assert!(matches!(error, GitError::Revision { .. }), "{revision}: {error}");
        assert!(error.to_string().contains("\nhint: "), "{error}");
    }
    for odd in ["", "--all", "-h", "a\nb", "HEAD..--x", "\u{1b}[31m"] {
        let error = resolve(&repo, odd).expect_err(odd).to_string();
        assert!(error.contains("it is not a revision") && !error.contains('\u{1b}'), "{error}");
    }
    assert!(resolve(&FixtureRepo::empty(), "HEAD").is_err());
}

fn rejects_ambiguous_names() {
    let repo = three_commits();
    repo.git(&["tag", "other", "HEAD"]);
    for revision in ["other", "other~1", "main..other"] {
        let error = resolve(&repo, revision).expect_err(revision).to_string();
        assert!(error.contains("ambiguous") && error.contains("refs/tags/other"), "{error}");
    }
    repo.git(&["tag", "main", "HEAD"]);
    assert_eq!(resolve(&repo, "main").expect("both names resolve to the same commit").len(), 1);
}

fn lists_ranges_oldest_first_within_limit() {
    let repo = three_commits();
    repo.git(&["checkout", "-q", "other"]);
    repo.write("b", "1").commit();
    for range in ["v1..main", "main..other", "main...other", "v1..", "other...main"] {
        let listed = repo.git(&["rev-list", "--topo-order", "--reverse", range]);
        let mut expected: Vec<&str> = listed.lines().collect();
        let mut found = resolve(&repo, range).expect(range);
        if range.contains("...") {
            expected.sort_unstable();
            found.sort_unstable();
        }
        assert_eq!(found, expected, "{range}");
    }
    let empty = resolve(&repo, "main..main").expect_err("empty").to_string();
    assert!(empty.contains("contains no commit"), "{empty}");
    let many = helper().resolve(&repo.top, "v1..main", 1).expect_err("range exceeds the limit").to_string();
    assert!(many.contains("more than 1 commits"), "{many}");
}

fn odd_tree() -> FixtureRepo {
    let repo = FixtureRepo::small();
    repo.write("run.sh", "#!/bin/sh\n").write("a b/c\nd", "odd").write(b"\xff\xfe/x", "not text").write("empty", "");
    fs::set_permissions(repo.at("run.sh"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("a mode");
    std::os::unix::fs::symlink("../outside", repo.at("link")).expect("a link");
    std::os::unix::fs::symlink("src", repo.at("dirlink")).expect("a link");
    repo.write("src-a", "sorts between").write("src.b", "and here").write("src0", "after");
    repo.commit();
    repo
}

fn copy_equals_commit_tree() {
    let repo = odd_tree();
    let commit = repo.git(&["rev-parse", "HEAD"]);
    let clean = repo.snapshot();
    // Uncommitted changes are not part of the copy.
    repo.write("README.md", "edited").write("new", "untracked").git(&["rm", "-q", "--cached", "run.sh"]);
    let before = fs::read(repo.at(".git/index")).expect("reads");
    let (place, copied) = copy_commit(&repo, &commit);
    assert_eq!(copied.snapshot.git.tree, Ok(repo.git(&["rev-parse", "HEAD^{tree}"])));
    let snapshot = Snapshot::take(&place.tree(), &helper()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((&snapshot.id, &copied.snapshot.id), (&clean.id, &clean.id));
    assert_eq!(snapshot.git.tree, copied.snapshot.git.tree);
    assert_eq!(snapshot.git.head_commit.as_deref(), Some(&*commit));
    assert_eq!(snapshot.git.branch, None);
    assert_eq!(fs::read(repo.at(".git/index")).expect("reads"), before);
    assert!(!repo.at(".git/worktrees").exists());
}

/// The identity that is reported for a commit without a copy equals that of its copy.
fn reads_content_without_copy() {
    let repo = odd_tree();
    repo.write("changes/1/verify/a.json", "{}").write("spec/verification.yaml", "version: 1\n");
    repo.git(&["add", "--all", "--force"]);
    repo.git(&["commit", "-q", "-m", "artifacts"]);
    let commit = repo.git(&["rev-parse", "HEAD"]);
    let (place, copied) = copy_commit(&repo, &commit);
    assert!(!place.tree().join("changes").exists(), "copy must not contain evidence");
    assert_eq!(place.git(&["status", "--porcelain"]), "");
    let paths = ["spec/verification.yaml", "absent", "spec", "run.sh/x", "absent/x", ""];
    let paths = paths.map(|path| RepoPath(path.as_bytes().to_vec()));
    let content = |identity| helper().content(&repo.top, &(&commit).into(), paths.to_vec(), identity);
    let described = content(true).unwrap_or_else(|error| panic!("{error}"));
    let texts = content(false).expect("texts");
    assert_eq!((texts.snapshot, &texts.texts), (None, &described.texts), "the identity was not requested");
    assert_eq!(described.tree, None, "the tree contains evidence, which its identity does not cover");
    repo.git(&["rm", "-r", "-q", "changes"]);
    repo.git(&["commit", "-q", "-m", "no artifacts"]);
    let later = repo.git(&["rev-parse", "HEAD"]);
    let later = helper().content(&repo.top, &(&later).into(), Vec::new(), false).expect("content");
    assert_eq!(later.tree, Some(repo.git(&["rev-parse", "HEAD^{tree}"])));
    assert_eq!(described.snapshot.as_ref(), Some(&copied.snapshot.id));
    assert_eq!(described.snapshot, Some(Snapshot::take(&place.tree(), &helper()).expect("a tree").id));
    assert_eq!(described.texts, [Some("version: 1\n".to_owned()), None, None, None, None, None]);
    let paths = ["README.md", "run.sh", "absent", "spec"].map(|path| RepoPath(path.as_bytes().to_vec()));
    let files = helper().files(&repo.top, &(&commit).into(), paths.to_vec()).expect("reads files of the commit");
    let described: Vec<Option<bool>> = files.iter().map(|file| file.as_ref().map(|file| file.executable)).collect();
    assert_eq!(described, [Some(false), Some(true), None, None]);
}

fn git_works_in_copy() {
    let repo = three_commits();
    let (place, _) = copy_commit(&repo, &repo.git(&["rev-parse", "HEAD~1"]));
    assert_eq!(place.git(&["status", "--porcelain"]), "");
    assert_eq!(place.git(&["diff", "HEAD"]), "");
    assert_eq!(place.git(&["write-tree"]), repo.git(&["rev-parse", "HEAD~1^{tree}"]));
    assert_eq!(place.git(&["describe"]), repo.git(&["describe", "HEAD~1"]));
    assert_eq!(place.git(&["log", "--format=%H"]), repo.git(&["log", "--format=%H", "HEAD~1"]));
    assert_eq!(place.git(&["rev-parse", "main"]), repo.git(&["rev-parse", "main"]));
    assert!(!place.git(&["ls-files", "--debug"]).contains("mtime: 0:0"));
    place.git(&["fsck", "--strict"]);
}

fn updates_refs() {
    let repo = three_commits();
    let commit = repo.git(&["rev-parse", "HEAD"]);
    let (place, _) = copy_commit(&repo, &commit);
    repo.git(&["tag", "v9"]);
    assert!(!place.git(&["tag"]).contains("v9"));
    place.update_to(&repo.top, &commit.as_str().into(), false).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(place.git(&["describe", "--tags"]), "v9");
    assert_eq!(place.git(&["status", "--porcelain"]), "");
}

fn copies_raw_blobs() {
    let repo = FixtureRepo::small();
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n";
    repo.write(".gitattributes", "*.bat eol=crlf\n*.id ident\n*.bin filter=lfs\n");
    repo.write("a.bat", "x\ny\n").write("a.id", "$Id$\n").write("a.bin", pointer).commit();
    let marker = repo.dir.path().join("ran");
    for what in ["smudge", "clean", "process"] {
        repo.git(&["config", &format!("filter.lfs.{what}"), &format!("touch {}", marker.display())]);
    }
    let (place, copied) = copy_commit(&repo, &repo.git(&["rev-parse", "HEAD"]));
    assert_eq!(copied.update.lfs_pointers, 1);
    let again = place.update_to(&repo.top, &repo.git(&["rev-parse", "HEAD"]).as_str().into(), false);
    assert_eq!(again.expect("updates").update, CommitUpdate { written: 0, bytes: 0, lfs_pointers: 1 });
    for (file, content) in [("a.bat", "x\ny\n"), ("a.id", "$Id$\n"), ("a.bin", pointer)] {
        assert_eq!(fs::read_to_string(place.tree().join(file)).expect("reads"), content, "{file}");
    }
    assert!(!marker.exists(), "a filter of the repository ran");
    assert_eq!(place.git(&["status", "--porcelain"]), "");
}

/// Writes an object without validation and returns its id.
fn write_object(repo: &FixtureRepo, kind: &str, content: &[u8]) -> String {
    let file = repo.dir.path().join("object");
    crate::repository::write_file(&file, content);
    repo.git(&["hash-object", "-t", kind, "-w", "--literally", file.to_str().expect("text")])
}

fn raw_id(id: &str) -> Vec<u8> {
    (0..20).map(|at| u8::from_str_radix(&id[2 * at..2 * at + 2], 16).expect("hex")).collect()
}

fn write_tree(repo: &FixtureRepo, entries: &[(&str, &[u8], &str)]) -> String {
    let mut content = Vec::new();
    for (mode, name, id) in entries {
        content.extend_from_slice(mode.as_bytes());
        content.push(b' ');
        content.extend_from_slice(name);
        content.push(0);
        content.extend(raw_id(id));
    }
    write_object(repo, "tree", &content)
}

fn write_commit(repo: &FixtureRepo, tree: &str) -> String {
    let who = "a <a@example.org> 1700000000 +0000";
    write_object(repo, "commit", format!("tree {tree}\nauthor {who}\ncommitter {who}\n\nx\n").as_bytes())
}

fn rejects_names_that_leave_tree() {
    let repo = FixtureRepo::small();
    let blob = write_object(&repo, "blob", b"x");
    for name in ["..", ".", "../escaped", "a/b", "/etc/x", "a/../../escaped"] {
        let inner = write_tree(&repo, &[("100644", b"x", &blob)]);
        for entries in [[("100644", name.as_bytes(), blob.as_str())], [("40000", name.as_bytes(), inner.as_str())]] {
            let commit = write_commit(&repo, &write_tree(&repo, &entries));
            let refusal = refusal(&repo, &commit);
            assert!(refusal.contains("not checked out"), "{name}: {refusal}");
        }
    }
    for mode in ["100666", "20000", "10000", "0"] {
        let refused = refusal(&repo, &write_commit(&repo, &write_tree(&repo, &[(mode, b"x", &blob)])));
        assert!(refused.contains("has the mode") || refused.contains("cannot"), "{mode}: {refused}");
    }
    // A link, and a file below a directory of the same name.
    let link = write_object(&repo, "blob", b"/tmp");
    let inner = write_tree(&repo, &[("100644", b"escaped", &blob)]);
    let both = write_tree(&repo, &[("120000", b"a", &link), ("40000", b"a", &inner)]);
    assert!(refusal(&repo, &write_commit(&repo, &both)).contains("occurs twice in its directory"));
    let nul = write_object(&repo, "blob", b"a\0b");
    assert!(refusal(&repo, &write_commit(&repo, &write_tree(&repo, &[("120000", b"a", &nul)]))).contains("NUL"));
    let empty = write_object(&repo, "blob", b"");
    assert!(refusal(&repo, &write_commit(&repo, &write_tree(&repo, &[("120000", b"a", &empty)]))).contains("0 bytes"));
}

fn rejects_git_dir_names() {
    let repo = FixtureRepo::small();
    let blob = write_object(&repo, "blob", b"x");
    let hooks = write_tree(&repo, &[("100755", b"post-checkout", &blob)]);
    for name in [".git", ".GIT", "git~1", ".git ", ".g\u{200c}it"] {
        let commit = write_commit(&repo, &write_tree(&repo, &[("40000", name.as_bytes(), &hooks)]));
        assert!(refusal(&repo, &commit).contains("is named `.git`"), "{name}");
        let deeper = write_tree(&repo, &[("40000", b"d", &write_tree(&repo, &[("100644", name.as_bytes(), &blob)]))]);
        assert!(refusal(&repo, &write_commit(&repo, &deeper)).contains("is named `.git`"), "{name}");
    }
}

fn rejects_tree_bomb() {
    let repo = FixtureRepo::small();
    let blob = write_object(&repo, "blob", b"bomb");
    let mut here = write_tree(&repo, &[("100644", b"a", &blob), ("100644", b"b", &blob)]);
    for _ in 0..40 {
        here = write_tree(&repo, &[("40000", b"a", &here), ("40000", b"b", &here)]);
    }
    let refusal = refusal(&repo, &write_commit(&repo, &here));
    assert!(refusal.contains("one entry too many"), "{refusal}");
}

fn rejects_deep_tree() {
    let repo = FixtureRepo::small();
    let blob = write_object(&repo, "blob", b"deep");
    let id = write_tree(&repo, &[("100644", b"a", &blob)]);
    // One program writes all objects of the chain, since a hundred thousand calls of git would take minutes.
    let script = "import hashlib,os,sys,zlib\nid=bytes.fromhex(sys.argv[1])\n\
        for n in range(100000):\n body=b'40000 d\\0'+id\n raw=b'tree %d\\0'%len(body)+body\n h=hashlib.sha1(raw)\n id=h.digest()\n\
        \x20if n<400 or n>99600:\n  x=h.hexdigest()\n  os.makedirs('.git/objects/'+x[:2],exist_ok=True)\n  open('.git/objects/'+x[:2]+'/'+x[2:],'wb').write(zlib.compress(raw))\nprint(id.hex())";
    let made = run_program(&repo.top, "python3", &["-c", script, &id]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let top = String::from_utf8_lossy(&made.stdout).trim().to_owned();
    let refusal = refusal(&repo, &write_commit(&repo, &top));
    assert!(refusal.contains("more than 256 directories deep"), "{refusal}");
}

/// Writes an object whose header claims a number of bytes that it does not contain.
fn write_object_with_claimed_size(repo: &FixtureRepo, id: &str, bytes: u64) -> String {
    let script = "import os,sys,zlib\nid=sys.argv[1]\nos.makedirs('.git/objects/'+id[:2],exist_ok=True)\n\
        open('.git/objects/'+id[:2]+'/'+id[2:],'wb').write(zlib.compress(b'blob '+sys.argv[2].encode()+b'\\0x'))";
    let made = run_program(&repo.top, "python3", &["-c", script, id, &bytes.to_string()]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    id.to_owned()
}

fn rejects_huge_file_before_reading() {
    let repo = FixtureRepo::small();
    let one = write_object_with_claimed_size(&repo, "1234567890123456789012345678901234567890", 600 << 20);
    let refused = refusal(&repo, &write_commit(&repo, &write_tree(&repo, &[("100644", b"huge", &one)])));
    assert!(refused.contains("`huge` has 629145600 bytes"), "{refused}");
    let many = write_object_with_claimed_size(&repo, "2234567890123456789012345678901234567890", 500 << 20);
    let names: Vec<String> = (10..40).map(|number| number.to_string()).collect();
    let entries: Vec<(&str, &[u8], &str)> =
        names.iter().map(|name| ("100644", name.as_bytes(), many.as_str())).collect();
    let refused = refusal(&repo, &write_commit(&repo, &write_tree(&repo, &entries)));
    assert!(refused.contains("exceeds the total size"), "{refused}");
    // An object whose header claims fewer bytes than it contains.
    let short = write_object_with_claimed_size(&repo, "3234567890123456789012345678901234567890", 100);
    let refused = refusal(&repo, &write_commit(&repo, &write_tree(&repo, &[("100644", b"short", &short)])));
    assert!(refused.contains("`short`"), "{refused}");
}

fn rejects_duplicate_name() {
    let repo = FixtureRepo::small();
    let (one, two) = (write_object(&repo, "blob", b"1"), write_object(&repo, "blob", b"2"));
    let commit = write_commit(&repo, &write_tree(&repo, &[("100644", b"a", &one), ("100644", b"a", &two)]));
    assert!(refusal(&repo, &commit).contains("`a` occurs twice in its directory"));
}

fn rejects_object_of_wrong_kind() {
    let repo = FixtureRepo::small();
    let (blob, inner) = (write_object(&repo, "blob", b"1"), repo.git(&["rev-parse", "HEAD^{tree}"]));
    let missing = "1234567890123456789012345678901234567890";
    for (mode, id) in [("100644", inner.as_str()), ("40000", &blob), ("100644", missing), ("40000", missing)] {
        let refused = refusal(&repo, &write_commit(&repo, &write_tree(&repo, &[(mode, b"odd", id)])));
        assert!(refused.contains("`odd`"), "{mode} {id}: {refused}");
    }
}

/// Returns the inode and the modification time of a file, which show whether it was rewritten.
fn inode_and_mtime(place: &PrivateCopy, path: &str) -> (u64, i64) {
    let found = fs::symlink_metadata(place.tree().join(path)).expect("path exists");
    (found.ino(), found.mtime())
}

fn rewrites_only_differing_files() {
    let repo = odd_tree();
    let first = repo.git(&["rev-parse", "HEAD"]);
    repo.write("README.md", "second").write("new/file", "1").git(&["rm", "-q", "run.sh", "dirlink"]);
    repo.write("dirlink/now", "a directory").commit();
    let second = repo.git(&["rev-parse", "HEAD"]);
    let (place, copied) = copy_commit(&repo, &first);
    let (readme, kept) = (inode_and_mtime(&place, "README.md"), inode_and_mtime(&place, "src-a"));
    let tree_of = |commit: &str| Ok(repo.git(&["rev-parse", &format!("{commit}^{{tree}}")]));
    let mut last = readme;
    for (commit, written) in [(&second, 3), (&first, 3), (&second, 3)] {
        let update =
            place.update_to(&repo.top, &commit.as_str().into(), false).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((update.update.written, &update.snapshot.git.tree), (written, &tree_of(commit)));
        assert_eq!(Snapshot::take(&place.tree(), &helper()).expect("a tree").id, update.snapshot.id);
        assert_eq!(place.git(&["status", "--porcelain"]), "");
        assert_eq!(inode_and_mtime(&place, "src-a"), kept);
        let now = inode_and_mtime(&place, "README.md");
        assert!(now.1 > last.1, "rewritten file must have a newer mtime, for builds that compare timestamps");
        last = now;
    }
    assert_ne!(copied.snapshot.id, Snapshot::take(&place.tree(), &helper()).expect("a tree").id);
}

fn rejects_forged_trees() {
    let (_, outer) = with_submodule();
    let commit: CommitRef = outer.git(&["rev-parse", "HEAD"]).as_str().into();
    let tree = helper().tree(&outer.top, &commit, true).unwrap_or_else(|error| panic!("{error}"));
    let other = tree.leaves.iter().find(|leaf| leaf.path == b"README.md").expect("a file").id;
    let changes: [fn(&mut CommitTree, ObjectId); 7] = [
        |tree, other| {
            tree.leaves.iter_mut().filter(|leaf| leaf.path == b"src/main.rs").for_each(|leaf| leaf.id = other);
        },
        |tree, _| tree.leaves.retain(|leaf| leaf.path != b"README.md"),
        |tree, _| tree.leaves.retain(|leaf| leaf.path != b"sub/more"),
        |tree, other| tree.leaves.push(CommittedLeaf { path: b"zzz".to_vec(), mode: 0o100_644, id: other }),
        |tree, _| tree.object.0.extend_from_slice(b"more"),
        |tree, other| tree.submodules[0].commit = other,
        |tree, _| tree.submodules.clear(),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut tree = tree.clone();
        change(&mut tree, other);
        let source =
            CommitSource { repo: &outer.top, helper: &helper(), commit: &commit, tree: &tree, submodules: true };
        let refused = PrivateCopy::new().mirror().update_to_commit(&source);
        assert!(refused.is_err(), "change {number}");
    }
}

fn copies_trees_in_old_form() {
    let repo = FixtureRepo::small();
    let blob = write_object(&repo, "blob", b"x");
    let inner = write_tree(&repo, &[("0100644", b"padded", &blob), ("100664", b"writable", &blob)]);
    let commit = write_commit(&repo, &write_tree(&repo, &[("040000", b"d", &inner), ("100644", b"e", &blob)]));
    let (place, copied) = copy_commit(&repo, &commit);
    assert_eq!(copied.snapshot.git.tree, Ok(repo.git(&["rev-parse", &format!("{commit}^{{tree}}")])));
    assert_eq!(copied.snapshot.entries.paths().collect::<Vec<_>>(), [&b"d/padded"[..], b"d/writable", b"e"]);
    assert_eq!(place.git(&["ls-files"]), "d/padded\nd/writable\ne");
}

fn copies_staged_content_on_branch() {
    let repo = three_commits();
    repo.write("a", "staged").write("new", "1").git(&["add", "-A"]);
    repo.write("a", "not staged");
    let index = StagedIndex { file: None };
    let commit = helper().staged_commit(&repo.top, &index).unwrap_or_else(|error| panic!("{error}"));
    let commit = CommitRef::from(&commit);
    let place = PrivateCopy::new();
    let copied = place.update_to(&repo.top, &commit, false).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(copied.snapshot.git.head_commit.as_ref(), Some(&commit.id));
    assert_eq!(fs::read_to_string(place.tree().join("a")).expect("reads"), "staged");
    assert_eq!(place.git(&["symbolic-ref", "HEAD"]), "refs/heads/main");
    assert_eq!(place.git(&["diff", "--cached", "--name-only"]), "a\nnew");
    assert_eq!(place.git(&["diff", "--name-only"]), "");
    assert_eq!(place.git(&["rev-parse", "HEAD"]), repo.git(&["rev-parse", "HEAD"]));
    let unborn = FixtureRepo::empty();
    unborn.write("a", "1").git(&["add", "a"]);
    let commit =
        helper().staged_commit(&unborn.top, &StagedIndex { file: None }).unwrap_or_else(|error| panic!("{error}"));
    let commit = CommitRef::from(&commit);
    let place = PrivateCopy::new();
    place.update_to(&unborn.top, &commit, false).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(place.git(&["status", "--porcelain"]), "A  a");
}

fn with_submodule() -> (FixtureRepo, FixtureRepo) {
    let (inner, outer) = (odd_tree(), FixtureRepo::small());
    inner.write("more", "x").commit();
    outer.git(&["submodule", "--quiet", "add", inner.top.to_str().expect("text"), "sub"]);
    outer.commit();
    (inner, outer)
}

fn includes_submodules_only_on_request() {
    let (inner, outer) = with_submodule();
    let commit = outer.git(&["rev-parse", "HEAD"]);
    let (place, _) = copy_commit(&outer, &commit);
    assert_eq!(fs::read_dir(place.tree().join("sub")).expect("a directory").count(), 0);
    assert_eq!(place.git(&["status", "--porcelain"]), "");
    let place = PrivateCopy::new();
    let wanted = CommitRef::from(commit.as_str());
    let copied = place.update_to(&outer.top, &wanted, true).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(copied.snapshot.git.tree, Ok(outer.git(&["rev-parse", "HEAD^{tree}"])));
    assert_eq!(place.git(&["status", "--porcelain"]), "");
    assert_eq!(place.git(&["-C", "sub", "rev-parse", "HEAD"]), inner.git(&["rev-parse", "HEAD"]));
    assert_eq!(place.git(&["-C", "sub", "log", "--format=%H"]), inner.git(&["log", "--format=%H"]));
    place.git(&["-C", "sub", "fsck", "--strict"]);
    let whole = Snapshot::take(&place.tree(), &helper()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((&whole.id, &copied.snapshot.id), (&outer.snapshot().id, &whole.id));
    // The first update is without submodules, the next one with them again.
    place.update_to(&outer.top, &wanted, false).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(fs::read_dir(place.tree().join("sub")).expect("a directory").count(), 0);
    assert_eq!(place.git(&["status", "--porcelain"]), "");
    place.update_to(&outer.top, &wanted, true).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(place.git(&["-C", "sub", "status", "--porcelain"]), "");
}

fn reports_missing_submodule() {
    let (_, outer) = with_submodule();
    let commit = outer.git(&["rev-parse", "HEAD"]);
    fs::remove_dir_all(outer.at(".git/modules")).expect("removes");
    fs::remove_dir_all(outer.at("sub")).expect("removes");
    let place = PrivateCopy::new();
    let refused = place.update_to(&outer.top, &commit.as_str().into(), true);
    let error = refused.err().expect("refused").to_string();
    assert!(error.contains("submodule `sub`") && error.contains("git submodule update"), "{error}");
}

fn supports_linked_worktree() {
    let repo = three_commits();
    let linked = repo.dir.path().canonicalize().expect("path exists").join("linked");
    repo.git(&["worktree", "add", "-q", linked.to_str().expect("text"), "other"]);
    let place = PrivateCopy::new();
    let id = &helper().resolve(&linked, "HEAD", 1).unwrap_or_else(|e| panic!("{e}"))[0].id;
    let copied = place.update_to(&linked, &id.into(), false).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(copied.objects, Path::new(&repo.top).join(".git/objects"));
    assert_eq!(place.git(&["rev-parse", "HEAD"]), repo.git(&["rev-parse", "other"]));
    assert!(place.tree().as_os_str().as_bytes().ends_with(b"/tree"));
}
