//! Revisions, and the trees of commits written apart from the work tree.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use proctor_snapshot::protocol::{CheckedOut, RepoPath};
use proctor_snapshot::{GitError, Snapshot};
use tempfile::TempDir;

use crate::repository::{Repo, helper, run_program};
use crate::{Case, Need};

pub(crate) const CASES: &[Case] = &[
    ("checkout::a_revision_is_what_git_says_it_is", Need::Nothing, revisions),
    ("checkout::what_is_no_commit_is_refused_by_name", Need::Nothing, no_commits),
    ("checkout::a_name_of_two_things_is_ambiguous", Need::Nothing, ambiguous),
    ("checkout::a_range_is_oldest_first_and_bounded", Need::Nothing, ranges),
    ("checkout::a_checkout_is_the_commits_tree", Need::Nothing, same_tree),
    ("checkout::git_works_in_a_checkout", Need::Nothing, git_works),
    ("checkout::refs_are_brought_up_to_date", Need::Nothing, refreshed),
    ("checkout::blobs_are_written_as_they_are", Need::Nothing, raw_blobs),
    ("checkout::trees_that_lead_elsewhere_are_refused", Need::Nothing, hostile_names),
    ("checkout::names_that_are_git_to_some_system_are_refused", Need::Nothing, git_names),
    ("checkout::a_tree_bomb_is_refused", Need::Nothing, bomb),
    ("checkout::a_hundred_thousand_levels_are_refused", Need::Python, deep),
    ("checkout::a_huge_file_is_refused_before_it_is_read", Need::Python, huge),
    ("checkout::a_name_that_stands_twice_is_refused", Need::Nothing, twice),
    ("checkout::an_object_that_is_not_what_its_mode_says_is_refused", Need::Nothing, wrong_kind),
    ("checkout::a_directory_that_is_not_empty_is_refused", Need::Nothing, not_empty),
    ("checkout::a_commit_is_the_same_without_one", Need::Nothing, told_without_checkout),
    ("checkout::submodules_are_empty_unless_asked_for", Need::Nothing, submodules),
    ("checkout::a_submodule_that_is_not_here_is_named", Need::Nothing, missing_submodule),
    ("checkout::a_linked_worktree_has_checkouts_too", Need::Nothing, linked_worktree),
];

/// A directory for a checkout.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(TempDir::new().expect("a temporary directory"))
    }

    fn dir(&self) -> PathBuf {
        self.0.path().canonicalize().expect("it is there")
    }

    fn tree(&self) -> PathBuf {
        self.dir().join("tree")
    }

    fn git(&self, args: &[&str]) -> String {
        let output = run_program(&self.tree(), "git", args);
        assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }
}

fn check_out(repo: &Repo, commit: &str) -> (Place, CheckedOut) {
    let place = Place::new();
    let checked_out = helper().check_out(&repo.top, commit, &place.dir(), false).unwrap_or_else(|e| panic!("{e}"));
    (place, checked_out)
}

fn refusal(repo: &Repo, commit: &str) -> String {
    let place = Place::new();
    let error = helper().check_out(&repo.top, commit, &place.dir(), false).expect_err("it is refused");
    assert!(!place.dir().join("../escaped").exists());
    error.to_string()
}

fn resolve(repo: &Repo, revision: &str) -> Result<Vec<String>, GitError> {
    let commits = helper().resolve(&repo.top, revision, 10)?;
    Ok(commits.into_iter().map(|commit| commit.id).collect())
}

fn three_commits() -> Repo {
    let repo = Repo::small();
    repo.git(&["tag", "-am", "a tag", "v1"]);
    repo.write("a", "1").commit().write("a", "2").commit();
    repo.git(&["branch", "other", "HEAD~1"]);
    repo
}

fn revisions() {
    let repo = three_commits();
    let short = repo.git(&["rev-parse", "--short", "HEAD~1"]);
    for revision in
        ["HEAD", "@", "main", "HEAD~1", "@~1", "v1", "v1^{}", "other", "main@{0}", "refs/heads/other", &short]
    {
        let expected = repo.git(&["rev-parse", &format!("{revision}^{{commit}}")]);
        assert_eq!(resolve(&repo, revision).expect(revision), [expected], "{revision}");
    }
    // A branch that is called like an id of something that is not there.
    let id = "1234567890123456789012345678901234567890";
    repo.git(&["update-ref", &format!("refs/heads/{id}"), "HEAD"]);
    assert!(resolve(&repo, id).is_err());
}

fn no_commits() {
    let repo = three_commits();
    for revision in ["nothing", "HEAD~9", "v1..nothing", "HEAD:a", "main^{tree}", "deadbeef", ":/never said"] {
        let error = resolve(&repo, revision).expect_err(revision);
        assert!(matches!(error, GitError::Revision { .. }), "{revision}: {error}");
        assert!(error.to_string().contains("\nhint: "), "{error}");
    }
    for odd in ["", "--all", "-h", "a\nb", "HEAD..--x", "\u{1b}[31m"] {
        let error = resolve(&repo, odd).expect_err(odd).to_string();
        assert!(error.contains("it is no revision") && !error.contains('\u{1b}'), "{error}");
    }
    assert!(resolve(&Repo::empty(), "HEAD").is_err());
}

fn ambiguous() {
    let repo = three_commits();
    repo.git(&["tag", "other", "HEAD"]);
    for revision in ["other", "other~1", "main..other"] {
        let error = resolve(&repo, revision).expect_err(revision).to_string();
        assert!(error.contains("ambiguous") && error.contains("refs/tags/other"), "{error}");
    }
    repo.git(&["tag", "main", "HEAD"]);
    assert_eq!(resolve(&repo, "main").expect("both are one commit").len(), 1);
}

fn ranges() {
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
    assert!(empty.contains("holds no commit"), "{empty}");
    let many = helper().resolve(&repo.top, "v1..main", 1).expect_err("too many").to_string();
    assert!(many.contains("more than 1 commits"), "{many}");
}

fn odd_tree() -> Repo {
    let repo = Repo::small();
    repo.write("run.sh", "#!/bin/sh\n").write("a b/c\nd", "odd").write(b"\xff\xfe/x", "not text").write("empty", "");
    fs::set_permissions(repo.at("run.sh"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("a mode");
    std::os::unix::fs::symlink("../outside", repo.at("link")).expect("a link");
    std::os::unix::fs::symlink("src", repo.at("dirlink")).expect("a link");
    repo.write("src-a", "sorts between").write("src.b", "and here").write("src0", "after");
    repo.commit();
    repo
}

fn same_tree() {
    let repo = odd_tree();
    let commit = repo.git(&["rev-parse", "HEAD"]);
    let clean = repo.snapshot();
    // What is not committed is not in it.
    repo.write("README.md", "edited").write("new", "untracked").git(&["rm", "-q", "--cached", "run.sh"]);
    let before = fs::read(repo.at(".git/index")).expect("reads");
    let (place, checked_out) = check_out(&repo, &commit);
    assert_eq!(checked_out.tree, repo.git(&["rev-parse", "HEAD^{tree}"]));
    let snapshot = Snapshot::take(&place.tree(), &helper()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(snapshot.id, clean.id);
    assert_eq!(snapshot.git.tree, Ok(checked_out.tree));
    assert_eq!(snapshot.git.head_commit.as_deref(), Some(&*commit));
    assert_eq!(snapshot.git.branch, None);
    assert_eq!(fs::read(repo.at(".git/index")).expect("reads"), before);
    assert!(!repo.at(".git/worktrees").exists());
}

/// What a commit is said to be without a checkout is what its checkout is.
fn told_without_checkout() {
    let repo = odd_tree();
    repo.write("changes/1/verify/a.json", "{}").write("spec/verification.yaml", "version: 1\n");
    repo.git(&["add", "--all", "--force"]);
    repo.git(&["commit", "-q", "-m", "artifacts"]);
    let commit = repo.git(&["rev-parse", "HEAD"]);
    let (place, _) = check_out(&repo, &commit);
    let told = helper().content(&repo.top, &(&commit).into()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(told.snapshot, Some(Snapshot::take(&place.tree(), &helper()).expect("a tree").id));
    assert_eq!(told.spec.as_deref(), Some("version: 1\n"));
    let paths = ["README.md", "run.sh", "absent", "spec"].map(|path| RepoPath(path.as_bytes().to_vec()));
    let files = helper().files_of(&repo.top, &(&commit).into(), paths.to_vec()).expect("they are told");
    let told: Vec<Option<bool>> = files.iter().map(|file| file.as_ref().map(|file| file.executable)).collect();
    assert_eq!(told, [Some(false), Some(true), None, None]);
}

fn git_works() {
    let repo = three_commits();
    let (place, _) = check_out(&repo, &repo.git(&["rev-parse", "HEAD~1"]));
    assert_eq!(place.git(&["status", "--porcelain"]), "");
    assert_eq!(place.git(&["diff", "HEAD"]), "");
    assert_eq!(place.git(&["write-tree"]), repo.git(&["rev-parse", "HEAD~1^{tree}"]));
    assert_eq!(place.git(&["describe"]), repo.git(&["describe", "HEAD~1"]));
    assert_eq!(place.git(&["log", "--format=%H"]), repo.git(&["log", "--format=%H", "HEAD~1"]));
    assert_eq!(place.git(&["rev-parse", "main"]), repo.git(&["rev-parse", "main"]));
    assert!(!place.git(&["ls-files", "--debug"]).contains("mtime: 0:0"));
    place.git(&["fsck", "--strict"]);
}

fn refreshed() {
    let repo = three_commits();
    let commit = repo.git(&["rev-parse", "HEAD"]);
    let (place, _) = check_out(&repo, &commit);
    repo.git(&["tag", "v9"]);
    assert!(!place.git(&["tag"]).contains("v9"));
    helper().refresh(&repo.top, &commit, &place.dir()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(place.git(&["describe", "--tags"]), "v9");
    assert_eq!(place.git(&["status", "--porcelain"]), "");
}

fn raw_blobs() {
    let repo = Repo::small();
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n";
    repo.write(".gitattributes", "*.bat eol=crlf\n*.id ident\n*.bin filter=lfs\n");
    repo.write("a.bat", "x\ny\n").write("a.id", "$Id$\n").write("a.bin", pointer).commit();
    let marker = repo.room.path().join("ran");
    for what in ["smudge", "clean", "process"] {
        repo.git(&["config", &format!("filter.lfs.{what}"), &format!("touch {}", marker.display())]);
    }
    let (place, checked_out) = check_out(&repo, &repo.git(&["rev-parse", "HEAD"]));
    assert_eq!(checked_out.lfs_pointers, 1);
    for (file, content) in [("a.bat", "x\ny\n"), ("a.id", "$Id$\n"), ("a.bin", pointer)] {
        assert_eq!(fs::read_to_string(place.tree().join(file)).expect("reads"), content, "{file}");
    }
    assert!(!marker.exists(), "a filter of the repository ran");
    assert_eq!(place.git(&["status", "--porcelain"]), "");
}

/// Writes an object as it is; its id.
fn object(repo: &Repo, kind: &str, content: &[u8]) -> String {
    let file = repo.room.path().join("object");
    crate::repository::put(&file, content);
    repo.git(&["hash-object", "-t", kind, "-w", "--literally", file.to_str().expect("text")])
}

fn raw_id(id: &str) -> Vec<u8> {
    (0..20).map(|at| u8::from_str_radix(&id[2 * at..2 * at + 2], 16).expect("hex")).collect()
}

fn tree(repo: &Repo, entries: &[(&str, &[u8], &str)]) -> String {
    let mut content = Vec::new();
    for (mode, name, id) in entries {
        content.extend_from_slice(mode.as_bytes());
        content.push(b' ');
        content.extend_from_slice(name);
        content.push(0);
        content.extend(raw_id(id));
    }
    object(repo, "tree", &content)
}

fn commit_of(repo: &Repo, tree: &str) -> String {
    let who = "a <a@example.org> 1700000000 +0000";
    object(repo, "commit", format!("tree {tree}\nauthor {who}\ncommitter {who}\n\nx\n").as_bytes())
}

fn hostile_names() {
    let repo = Repo::small();
    let blob = object(&repo, "blob", b"x");
    for name in ["..", ".", "../escaped", "a/b", "/etc/x", "a/../../escaped"] {
        let inner = tree(&repo, &[("100644", b"x", &blob)]);
        for entries in [[("100644", name.as_bytes(), blob.as_str())], [("40000", name.as_bytes(), inner.as_str())]] {
            let commit = commit_of(&repo, &tree(&repo, &entries));
            let refusal = refusal(&repo, &commit);
            assert!(refusal.contains("not checked out"), "{name}: {refusal}");
        }
    }
    for mode in ["100666", "20000", "10000", "0"] {
        let refused = refusal(&repo, &commit_of(&repo, &tree(&repo, &[(mode, b"x", &blob)])));
        assert!(refused.contains("has the mode") || refused.contains("cannot"), "{mode}: {refused}");
    }
    // A link, and a file behind it.
    let link = object(&repo, "blob", b"/tmp");
    let inner = tree(&repo, &[("100644", b"escaped", &blob)]);
    let both = tree(&repo, &[("120000", b"a", &link), ("40000", b"a", &inner)]);
    assert!(refusal(&repo, &commit_of(&repo, &both)).contains("stands there twice"));
    let nul = object(&repo, "blob", b"a\0b");
    assert!(refusal(&repo, &commit_of(&repo, &tree(&repo, &[("120000", b"a", &nul)]))).contains("NUL"));
    let empty = object(&repo, "blob", b"");
    assert!(refusal(&repo, &commit_of(&repo, &tree(&repo, &[("120000", b"a", &empty)]))).contains("0 bytes"));
}

fn git_names() {
    let repo = Repo::small();
    let blob = object(&repo, "blob", b"x");
    let hooks = tree(&repo, &[("100755", b"post-checkout", &blob)]);
    for name in [".git", ".GIT", "git~1", ".git ", ".g\u{200c}it"] {
        let commit = commit_of(&repo, &tree(&repo, &[("40000", name.as_bytes(), &hooks)]));
        assert!(refusal(&repo, &commit).contains("is called `.git`"), "{name}");
        let deeper = tree(&repo, &[("40000", b"d", &tree(&repo, &[("100644", name.as_bytes(), &blob)]))]);
        assert!(refusal(&repo, &commit_of(&repo, &deeper)).contains("is called `.git`"), "{name}");
    }
}

fn bomb() {
    let repo = Repo::small();
    let blob = object(&repo, "blob", b"bomb");
    let mut here = tree(&repo, &[("100644", b"a", &blob), ("100644", b"b", &blob)]);
    for _ in 0..40 {
        here = tree(&repo, &[("40000", b"a", &here), ("40000", b"b", &here)]);
    }
    let refusal = refusal(&repo, &commit_of(&repo, &here));
    assert!(refusal.contains("one entry too many"), "{refusal}");
}

fn deep() {
    let repo = Repo::small();
    let blob = object(&repo, "blob", b"deep");
    let id = tree(&repo, &[("100644", b"a", &blob)]);
    // Objects of one chain, made by one program: a hundred thousand starts of git would take minutes.
    let script = "import hashlib,os,sys,zlib\nid=bytes.fromhex(sys.argv[1])\n\
        for n in range(100000):\n body=b'40000 d\\0'+id\n raw=b'tree %d\\0'%len(body)+body\n h=hashlib.sha1(raw)\n id=h.digest()\n\
        \x20if n<400 or n>99600:\n  x=h.hexdigest()\n  os.makedirs('.git/objects/'+x[:2],exist_ok=True)\n  open('.git/objects/'+x[:2]+'/'+x[2:],'wb').write(zlib.compress(raw))\nprint(id.hex())";
    let made = run_program(&repo.top, "python3", &["-c", script, &id]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let top = String::from_utf8_lossy(&made.stdout).trim().to_owned();
    let refusal = refusal(&repo, &commit_of(&repo, &top));
    assert!(refusal.contains("more than 256 directories deep"), "{refusal}");
}

/// An object whose head says that it has so many bytes, and that has none of them.
fn claims(repo: &Repo, id: &str, bytes: u64) -> String {
    let script = "import os,sys,zlib\nid=sys.argv[1]\nos.makedirs('.git/objects/'+id[:2],exist_ok=True)\n\
        open('.git/objects/'+id[:2]+'/'+id[2:],'wb').write(zlib.compress(b'blob '+sys.argv[2].encode()+b'\\0x'))";
    let made = run_program(&repo.top, "python3", &["-c", script, id, &bytes.to_string()]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    id.to_owned()
}

fn huge() {
    let repo = Repo::small();
    let one = claims(&repo, "1234567890123456789012345678901234567890", 600 << 20);
    let refused = refusal(&repo, &commit_of(&repo, &tree(&repo, &[("100644", b"huge", &one)])));
    assert!(refused.contains("`huge` has 629145600 bytes"), "{refused}");
    let many = claims(&repo, "2234567890123456789012345678901234567890", 500 << 20);
    let names: Vec<String> = (10..40).map(|number| number.to_string()).collect();
    let entries: Vec<(&str, &[u8], &str)> =
        names.iter().map(|name| ("100644", name.as_bytes(), many.as_str())).collect();
    let refused = refusal(&repo, &commit_of(&repo, &tree(&repo, &entries)));
    assert!(refused.contains("is too much"), "{refused}");
    // One that says less than it has.
    let short = claims(&repo, "3234567890123456789012345678901234567890", 100);
    let refused = refusal(&repo, &commit_of(&repo, &tree(&repo, &[("100644", b"short", &short)])));
    assert!(refused.contains("`short`"), "{refused}");
}

fn twice() {
    let repo = Repo::small();
    let (one, two) = (object(&repo, "blob", b"1"), object(&repo, "blob", b"2"));
    let commit = commit_of(&repo, &tree(&repo, &[("100644", b"a", &one), ("100644", b"a", &two)]));
    assert!(refusal(&repo, &commit).contains("`a` stands there twice"));
}

fn wrong_kind() {
    let repo = Repo::small();
    let (blob, inner) = (object(&repo, "blob", b"1"), repo.git(&["rev-parse", "HEAD^{tree}"]));
    let missing = "1234567890123456789012345678901234567890";
    for (mode, id) in [("100644", inner.as_str()), ("40000", &blob), ("100644", missing), ("40000", missing)] {
        let refused = refusal(&repo, &commit_of(&repo, &tree(&repo, &[(mode, b"odd", id)])));
        assert!(refused.contains("`odd`"), "{mode} {id}: {refused}");
    }
}

fn not_empty() {
    let repo = Repo::small();
    let place = Place::new();
    crate::repository::put(&place.dir().join("x"), b"");
    let commit = repo.git(&["rev-parse", "HEAD"]);
    let error = helper().check_out(&repo.top, &commit, &place.dir(), false).expect_err("refused").to_string();
    assert!(error.contains("not empty"), "{error}");
    let link = place.dir().join("link");
    std::os::unix::fs::symlink(repo.room.path(), &link).expect("a link");
    assert!(helper().check_out(&repo.top, &commit, &link, false).is_err());
}

fn with_submodule() -> (Repo, Repo) {
    let (inner, outer) = (odd_tree(), Repo::small());
    inner.write("more", "x").commit();
    outer.git(&["submodule", "--quiet", "add", inner.top.to_str().expect("text"), "sub"]);
    outer.commit();
    (inner, outer)
}

fn submodules() {
    let (inner, outer) = with_submodule();
    let commit = outer.git(&["rev-parse", "HEAD"]);
    let (place, _) = check_out(&outer, &commit);
    assert_eq!(fs::read_dir(place.tree().join("sub")).expect("a directory").count(), 0);
    assert_eq!(place.git(&["status", "--porcelain"]), "");
    let place = Place::new();
    let checked_out = helper().check_out(&outer.top, &commit, &place.dir(), true).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(checked_out.tree, outer.git(&["rev-parse", "HEAD^{tree}"]));
    assert_eq!(place.git(&["status", "--porcelain"]), "");
    assert_eq!(place.git(&["-C", "sub", "rev-parse", "HEAD"]), inner.git(&["rev-parse", "HEAD"]));
    assert_eq!(place.git(&["-C", "sub", "log", "--format=%H"]).lines().count(), 1);
    place.git(&["-C", "sub", "fsck", "--strict"]);
    let whole = Snapshot::take(&place.tree(), &helper()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(whole.id, outer.snapshot().id);
}

fn missing_submodule() {
    let (_, outer) = with_submodule();
    let commit = outer.git(&["rev-parse", "HEAD"]);
    fs::remove_dir_all(outer.at(".git/modules")).expect("removes");
    fs::remove_dir_all(outer.at("sub")).expect("removes");
    let place = Place::new();
    let error = helper().check_out(&outer.top, &commit, &place.dir(), true).expect_err("refused").to_string();
    assert!(error.contains("submodule `sub`") && error.contains("git submodule update"), "{error}");
}

fn linked_worktree() {
    let repo = three_commits();
    let linked = repo.room.path().canonicalize().expect("it is there").join("linked");
    repo.git(&["worktree", "add", "-q", linked.to_str().expect("text"), "other"]);
    let place = Place::new();
    let id = &helper().resolve(&linked, "HEAD", 1).unwrap_or_else(|e| panic!("{e}"))[0].id;
    let checked_out = helper().check_out(&linked, id, &place.dir(), false).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(checked_out.objects, Path::new(&repo.top).join(".git/objects"));
    assert_eq!(place.git(&["rev-parse", "HEAD"]), repo.git(&["rev-parse", "other"]));
    assert!(place.tree().as_os_str().as_bytes().ends_with(b"/tree"));
}
