//! Generated repositories, with git as the oracle: the tree id is the one that `git add -u` and `git
//! write-tree` make, and what is covered is what `git ls-files` lists.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use proctor_core::drift::display_path;
use proctor_snapshot::{Snapshot, SnapshotError};

use crate::git_program::PlainGit;
use crate::repository::{Repo, chmod, fifo, git_can, git_output, helper, tree_by_git, word};
use crate::{Case, Need};

/// How many repositories each case makes.
const REPOSITORIES: u64 = 7;

pub(crate) const CASES: &[Case] = &[
    ("oracle: generated repositories 1", Need::Nothing, || generated(1)),
    ("oracle: generated repositories 2", Need::Nothing, || generated(2)),
    ("oracle: generated repositories 3", Need::Nothing, || generated(3)),
    ("oracle: generated repositories 4", Need::Nothing, || generated(4)),
    ("oracle: generated repositories 5", Need::Nothing, || generated(5)),
    ("oracle: generated repositories 6", Need::Nothing, || generated(6)),
    ("oracle: generated repositories 7", Need::Nothing, || generated(7)),
    ("oracle: generated repositories 8", Need::Nothing, || generated(8)),
    ("oracle: a repository of another format inside", Need::GitWithSha256, another_format_inside),
    ("oracle: a linked worktree that only git reads", Need::GitWithSha256, linked_worktree),
    ("oracle: attributes from a file that cannot be seen", Need::Nothing, unseen_attributes),
];

fn generated(case: u64) {
    for number in 0..REPOSITORIES {
        let seed = case * 1_000 + number;
        Generator::new(seed).check();
    }
}

fn another_format_inside() {
    let repo = Repo::small();
    repo.git(&["init", "-q", "--object-format=sha256", "vendored"]);
    repo.write("vendored/in.txt", "x\n").write("vendored/a.log", "is not ignored there\n");
    repo.git(&["-C", "vendored", "add", "in.txt"]);
    repo.git(&["-C", "vendored", "commit", "-qm", "x"]);
    let snapshot = take(&repo).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(snapshot.entries.paths().collect::<BTreeSet<_>>(), covered_by_git(&repo.top, b""));
    assert_eq!((snapshot.git.tree, snapshot.git.dirty), (Ok(repo.tree_as_it_stands()), Some(true)));
    // In place of a file, git would add the first half of its commit's id.
    fs::remove_file(repo.at("README.md")).expect("removes");
    fs::rename(repo.at("vendored"), repo.at("README.md")).expect("moves");
    let snapshot = take(&repo).unwrap_or_else(|error| panic!("{error}"));
    assert!(snapshot.git.tree.as_ref().is_err_and(|why| why.contains("format")), "{:?}", snapshot.git.tree);
    assert!(snapshot.entries.contains(b"README.md") && snapshot.entries.contains(b"README.md/in.txt"));
}

fn linked_worktree() {
    let repo = Repo::with_options(&["--object-format=sha256"]);
    repo.write("a", "1\n").write(".gitignore", "*.log\n").commit();
    let place = repo.room.path().canonicalize().expect("it is there").join("linked");
    repo.git(&["worktree", "add", "-q", "-b", "side", &place.display().to_string()]);
    crate::repository::put(&place.join("a"), b"2\n");
    crate::repository::put(&place.join("x.log"), b"");
    let helper = helper().with_program(Arc::new(PlainGit));
    let snapshot = Snapshot::take(&place, &helper).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((snapshot.git.branch.as_deref(), snapshot.git.dirty), (Some("side"), Some(true)));
    assert_eq!(snapshot.git.tree, tree_by_git(&place));
    assert_eq!(snapshot.entries.paths().collect::<BTreeSet<_>>(), covered_by_git(&place, b""));
    let asked = proctor_snapshot::IgnoreQuery::new(helper, &place);
    assert_eq!(asked.ignored(&[b"new.log", b"new", b"d/.git/x.log"]).expect("answers"), [true, false, false]);
}

fn unseen_attributes() {
    let repo = Repo::small();
    let attributes = repo.room.path().join("attributes");
    crate::repository::put(&attributes, b"*.md text\n");
    repo.git(&["config", "core.attributesFile", &attributes.display().to_string()]);
    repo.write("README.md", "now\r\n");
    assert_eq!(take(&repo).expect("reads").git.tree, Ok(repo.tree_as_it_stands()));
    fs::remove_file(attributes).expect("removes");
    let tree = take(&repo).expect("reads").git.tree;
    assert!(tree.as_ref().is_err_and(|why| why.contains("core.attributesFile")), "{tree:?}");
}

/// Takes a snapshot, with git at hand for what libgit2 cannot tell.
fn take(repo: &Repo) -> Result<Snapshot, SnapshotError> {
    Snapshot::take(&repo.top, &helper().with_program(Arc::new(PlainGit)))
}

/// A stream of choices that is the same for the same seed (xorshift64*, Vigna 2016).
struct Choices(u64);

impl Choices {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next()).expect("31 bits") % bound
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    fn of<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// Names of files; what attributes and ignore rules say of them is below.
const NAMES: &[&[u8]] = &[
    b"a",
    b"b.txt",
    b"c.txt",
    b"dir/d.txt",
    b"dir/e.bin",
    b"dir/sub/f.txt",
    b"dir-x",
    b"dir.y/g",
    b"sp ace.txt",
    b"new\nline.txt",
    b"tab\tand\"quote",
    b"caf\xe9.txt",
    b"\xff\xfe/\xfd.txt",
    b"*.txt",
    b"[x]",
    b"-dash.txt",
    b"!bang.txt",
    b"#hash",
    b"\\back",
    b"i.lfs",
    b"dir/j.LFS",
    b"k.up",
    b"dir/sub/l.up",
    b"m.utf16",
    b"n.ident",
    b"o.crlf",
    b"p.eol",
    b"q.nottext",
    b"r.both",
    b"deep/er/and/deeper/s",
    b" lead",
    b"trail ",
    b"t~",
    b"u.log",
    b"v.keep",
    b"w.sh",
    b"changes/7/note.txt",
];

/// Lines of attributes.
const ATTRIBUTES: &[&str] = &[
    "* text=auto",
    "*.txt text",
    "*.txt text eol=crlf",
    "*.crlf eol=crlf",
    "*.eol eol=lf",
    "*.nottext -text",
    "*.bin binary",
    "*.ident ident",
    "*.lfs filter=lfs diff=lfs merge=lfs -text",
    "*.up filter=upper",
    "*.utf16 working-tree-encoding=UTF-16LE text",
    "*.both filter=upper ident text",
    "[attr]loud filter=upper",
    "*.sh loud",
    "dir/* text",
    "/deep/** -text",
    "\"new\\nline.txt\" text",
    "# nothing",
    "*.none filter=missing",
];

/// Lines of ignore rules.
const IGNORES: &[&str] = &[
    "*.log",
    "*~",
    "/ignored/",
    "build",
    "!v.keep",
    "*.keep",
    "dir/sub/*",
    "!dir/sub/f.txt",
    "new*",
    "deep/er",
    "\\#hash",
    "# x",
    "trail\\ ",
];

const CONTENTS: &[&[u8]] = &[
    b"",
    b"one\n",
    b"one\r\n",
    b"one\r\ntwo\n",
    b"one\r\ntwo\r\n",
    b"cr\ronly\r",
    b"$Id$\n",
    b"$Id: something $\n",
    b"x $Id: a $ $Id: b$\r\n",
    b"\0bin\r\nary\r\n",
    b"no newline",
    b"lower case words\n",
    b"\r\n",
    b"almost\r",
    b"\xef\xbb\xbfbom\r\n",
];

struct Generator {
    seed: u64,
    choose: Choices,
    repo: Repo,
    files: BTreeSet<Vec<u8>>,
    log: Vec<String>,
    /// Whether everything that git is to know is there.
    editing: bool,
}

impl Generator {
    fn new(seed: u64) -> Self {
        let mut choose = Choices(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        (0..8).for_each(|_| {
            choose.next();
        });
        let options: Vec<&str> = ["--object-format=sha256", "--ref-format=reftable"]
            .into_iter()
            .filter(|option| choose.one_in(5) && git_can(&["init", "-q", option, "."]))
            .collect();
        let repo = Repo::with_options(&options);
        Self { seed, choose, repo, files: BTreeSet::new(), editing: false, log: vec![format!("{options:?}")] }
    }

    fn note(&mut self, what: impl Into<String>) {
        self.log.push(what.into());
    }

    fn check(mut self) {
        self.configure();
        self.fill();
        if !self.choose.one_in(12) {
            self.repo.git(&["-c", "core.safecrlf=false", "add", "-A"]);
            self.repo.git(&["commit", "-qm", "x"]);
        }
        self.stage();
        self.age();
        self.editing = true;
        self.edit();
        self.compare();
    }

    fn configure(&mut self) {
        let lfs = "{ printf 'version https://git-lfs.github.com/spec/v1\\noid sha256:'; sha256sum | cut -c1-64; }";
        for (key, value) in
            [("filter.upper.clean", "tr a-z A-Z"), ("filter.lfs.clean", lfs), ("filter.lfs.required", "true")]
        {
            self.repo.git(&["config", key, value]);
        }
        for (key, values) in [
            ("core.autocrlf", &["", "", "", "true", "input", "false"][..]),
            ("core.eol", &["", "", "lf", "crlf"]),
            ("core.safecrlf", &["", "", "true", "warn"]),
            ("core.fileMode", &["", "", "", "false"]),
            ("core.symlinks", &["", "", "", "", "", "false"]),
            ("core.trustctime", &["", "", "", "false"]),
            ("core.checkStat", &["", "", "", "minimal"]),
            ("index.version", &["", "", "4"]),
            ("core.untrackedCache", &["", "", "", "true"]),
            ("status.showUntrackedFiles", &["", "no"]),
        ] {
            let value = self.choose.of(values);
            if !value.is_empty() {
                self.repo.git(&["config", key, value]);
                self.note(format!("{key} = {value}"));
            }
        }
    }

    /// Some lines of a list, as a file.
    fn lines(&mut self, from: &[&str]) -> String {
        let count = self.choose.below(6);
        (0..count).map(|_| format!("{}\n", self.choose.of(from))).collect()
    }

    fn fill(&mut self) {
        for (path, from) in [
            (".gitattributes", ATTRIBUTES),
            ("dir/.gitattributes", ATTRIBUTES),
            (".git/info/attributes", ATTRIBUTES),
            (".gitignore", IGNORES),
            ("dir/.gitignore", IGNORES),
            (".git/info/exclude", IGNORES),
        ] {
            if self.choose.one_in(2) {
                let text = self.lines(from);
                self.note(format!("{path}: {text:?}"));
                self.repo.write(path, text);
            }
        }
        for _ in 0..12 {
            let name = self.choose.of(NAMES);
            self.put(name);
        }
        if self.choose.one_in(2) {
            symlink("a", self.repo.at("link")).expect("links");
            symlink("/nowhere\r\n", self.repo.at("dangling")).expect("links");
        }
        fs::create_dir_all(self.repo.at("empty/dir")).expect("makes");
        if self.choose.one_in(3) {
            self.nested("sub");
            self.nested("module");
            self.repo.git(&["-C", "module", "commit", "-q", "--allow-empty", "-m", "more"]);
        }
    }

    /// Writes one file, unless something stands in the way.
    fn put(&mut self, name: &[u8]) {
        let content = match self.choose.of(CONTENTS) {
            // A mark of the byte order is what git refuses in this encoding.
            text if name.ends_with(b".utf16") && (self.editing || !text.starts_with(b"\xef\xbb\xbf")) => {
                String::from_utf8_lossy(text).encode_utf16().flat_map(u16::to_le_bytes).collect()
            }
            _ if name.ends_with(b".utf16") => Vec::new(),
            text => text.to_vec(),
        };
        let place = self.repo.at(name);
        if place.is_dir() || place.ancestors().skip(1).any(|above| above.is_file() || above.is_symlink()) {
            return;
        }
        // A new file: a rewrite would go through a link.
        let _ = fs::remove_file(&place);
        self.repo.write(name, &content);
        if self.editing {
            date(&place);
        }
        if self.choose.one_in(4) {
            chmod(&place, 0o755);
        }
        self.note(format!("put {} {:?}", display_path(name), display_path(&content)));
        self.files.insert(name.to_vec());
    }

    /// A repository inside the tree, of the same format.
    fn nested(&mut self, at: &str) {
        let format = self.repo.git(&["rev-parse", "--show-object-format"]);
        self.repo.git(&["init", "-q", &format!("--object-format={format}"), at]);
        self.repo.write(format!("{at}/inner.txt"), "in\r\n").write(format!("{at}/.gitignore"), "*.log\n");
        if self.editing && self.choose.one_in(3) {
            return self.note(format!("unborn repository {at}"));
        }
        self.repo.git(&["-C", at, "add", "-A"]);
        self.repo.git(&["-C", at, "commit", "-qm", "inner"]);
        self.note(format!("repository {at}"));
    }

    fn some_file(&mut self) -> Option<Vec<u8>> {
        let index = self.choose.below(self.files.len().max(1));
        self.files.iter().nth(index).cloned()
    }

    /// What an index can hold beside what was committed.
    fn stage(&mut self) {
        for _ in 0..self.choose.below(5) {
            let Some(name) = self.some_file() else { continue };
            let path = String::from_utf8(name.clone());
            let literal = path.as_ref().map(|path| format!(":(literal){path}"));
            let (Ok(path), Ok(literal)) = (&path, &literal) else { continue };
            let tracked = self.repo.git_tries(&["ls-files", "--error-unmatch", "--", literal]);
            match self.choose.below(7) {
                0 => {
                    self.put(&name);
                    self.repo.git_tries(&["-c", "core.safecrlf=false", "add", "-f", "--", literal]);
                }
                1 if tracked => drop(self.repo.git_tries(&["rm", "-q", "--sparse", "--cached", "-f", "--", literal])),
                2 if tracked => drop(self.repo.git_tries(&["update-index", "--assume-unchanged", "--", path])),
                3 if tracked => drop(self.repo.git_tries(&["update-index", "--skip-worktree", "--", path])),
                4 if !tracked => drop(self.repo.git_tries(&["add", "-f", "-N", "--", literal])),
                5 if tracked => self.conflict(path),
                _ => continue,
            }
            self.note(format!("staged {path:?}"));
        }
        if self.choose.one_in(6) && self.repo.git_tries(&["rev-parse", "-q", "--verify", "HEAD"]) {
            self.repo.git_tries(&["sparse-checkout", "set", "--no-cone", "/*", "!/deep", "!/dir/sub"]);
            self.note("sparse");
        }
        for (command, what) in [
            (&["pack-refs", "--all"][..], "packed refs"),
            (&["checkout", "-q", "--detach"], "detached"),
            (&["update-index", "--split-index"], "split index"),
            (&["repack", "-q", "-a", "-d"], "packed objects"),
        ] {
            if self.choose.one_in(6) && self.repo.git_tries(command) {
                self.note(what);
            }
        }
        if self.choose.one_in(8) {
            let lent = self.repo.room.path().join("lent");
            fs::rename(self.repo.at(".git/objects"), &lent).expect("moves");
            self.repo.write(".git/objects/info/alternates", format!("{}\n", lent.display()));
            self.note("alternates");
        }
    }

    fn conflict(&mut self, path: &str) {
        let blob = self.repo.git(&["hash-object", "-w", "--no-filters", "/dev/null"]);
        let zero = "0".repeat(blob.len());
        let mut info = format!("0 {zero}\t{path}\0");
        for stage in [1, 2, 3] {
            if !self.choose.one_in(3) {
                info += &format!("{} {blob} {stage}\t{path}\0", self.choose.of(&["100644", "100755"]));
            }
        }
        let file = self.repo.room.path().join("info");
        crate::repository::put(&file, info.as_bytes());
        self.repo.git(&["-c", &format!("alias.feed=!git update-index -z --index-info < '{}'", file.display()), "feed"]);
        self.note(format!("conflict {path:?}"));
    }

    /// Makes everything older than the index, so that git trusts what is as it was.
    fn age(&mut self) {
        let (past, future) = (now() - Duration::from_secs(100), now() + Duration::from_secs(10));
        for name in &self.files {
            let place = self.repo.at(name);
            if place.is_file() && !place.is_symlink() {
                let file = fs::File::options().read(true).open(&place).expect("opens");
                file.set_modified(past).expect("sets");
            }
        }
        self.repo.git_tries(&["update-index", "-q", "--refresh"]);
        if let Ok(file) = fs::File::options().write(true).open(self.repo.at(".git/index")) {
            file.set_modified(future).expect("sets");
        }
    }

    /// What somebody does to the work tree.
    fn edit(&mut self) {
        for _ in 0..self.choose.below(9) {
            let Some(name) = self.some_file() else { continue };
            let place = self.repo.at(&name);
            let shown = display_path(&name);
            if !place.is_file() || place.is_symlink() {
                continue;
            }
            match self.choose.below(9) {
                0 => fs::remove_file(&place).expect("removes"),
                1 => {
                    fs::remove_file(&place).expect("removes");
                    symlink("elsewhere", &place).expect("links");
                }
                2 => {
                    fs::remove_file(&place).expect("removes");
                    fs::create_dir(&place).expect("makes");
                    crate::repository::put(&place.join("inside"), b"x\r\n");
                }
                3 => chmod(&place, if self.choose.one_in(2) { 0o755 } else { 0o644 }),
                4 => date(&place),
                _ => self.put(&name),
            }
            self.note(format!("edited {shown}"));
        }
        for name in ["untracked.txt", "dir/untracked.log", "ignored/x", "build/y", "un\nused"] {
            if self.choose.one_in(3) && !self.repo.at(name).parent().is_some_and(Path::is_file) {
                self.repo.write(name, "u\r\n");
                self.note(format!("untracked {name:?}"));
            }
        }
        match self.choose.below(8) {
            0 => {
                let text = self.lines(ATTRIBUTES);
                self.note(format!("attributes now {text:?}"));
                self.repo.write(".gitattributes", text);
                date(&self.repo.at(".gitattributes"));
            }
            1 => {
                self.note("attributes gone");
                let _ = fs::remove_file(self.repo.at(".gitattributes"));
            }
            2 if self.repo.at("sub/.git").is_dir() => {
                self.note("submodule moved");
                self.repo.write("sub/inner.txt", "moved\n").git(&["-C", "sub", "add", "-A"]);
                self.repo.git(&["-C", "sub", "commit", "-qm", "moved"]);
            }
            3 if self.repo.at("sub/.git").is_dir() => {
                self.note("submodule edited");
                self.repo.write("sub/inner.txt", "edited\n").write("sub/new", "x").write("sub/x.log", "x");
            }
            4 if self.repo.at("sub").is_dir() => {
                self.note("submodule gone");
                fs::remove_dir_all(self.repo.at("sub")).expect("removes");
            }
            5 => self.nested("vendored"),
            6 if self.choose.one_in(2) => {
                self.note("a special file");
                if let Some(name) = self.some_file().filter(|name| self.repo.at(name).is_file()) {
                    fs::remove_file(self.repo.at(&name)).expect("removes");
                    fifo(&self.repo.at(&name));
                }
            }
            _ => {}
        }
    }

    #[track_caller]
    fn compare(self) {
        let Self { seed, repo, log, .. } = self;
        let told = || format!("seed {seed} in {}\n{}", repo.top.display(), log.join("\n"));
        let snapshot = take(&repo).unwrap_or_else(|error| panic!("{error}\n{}", told()));
        match repo.tree_by_git() {
            Ok(tree) => assert_eq!(snapshot.git.tree, Ok(tree), "{}", told()),
            Err(why) => assert!(snapshot.git.tree.is_err(), "git refuses: {why}; {:?}\n{}", snapshot.git.tree, told()),
        }
        assert_eq!(snapshot.git.dirty, is_dirty_by_git(&repo.top), "{}", told());
        let expected = covered_by_git(&repo.top, b"");
        let found: BTreeSet<Vec<u8>> = snapshot.entries.paths().collect();
        let shown = |paths: Vec<&Vec<u8>>| paths.into_iter().map(|path| display_path(path)).collect::<Vec<_>>();
        let (more, less) = (found.difference(&expected), expected.difference(&found));
        let (more, less) = (shown(more.collect()), shown(less.collect()));
        // What git lists as untracked it can add: special files are none of it.
        let more: Vec<_> = more.into_iter().filter(|path| !repo.is_special(path)).collect();
        assert!(more.is_empty() && less.is_empty(), "too many {more:?}, too few {less:?}\n{}", told());
    }
}

/// Gives a file that was edited a time of its own: git does not see an edit of the same size within the
/// second in which the file was added, where it may not look at the change time.
fn date(place: &Path) {
    let file = fs::File::options().read(true).open(place).expect("opens");
    file.set_modified(now() + Duration::from_secs(5)).expect("sets");
}

#[expect(clippy::disallowed_methods, reason = "files of a test are given times around now")]
fn now() -> SystemTime {
    SystemTime::now()
}

/// Whether git finds anything that is not as in HEAD, in the repository at `top` or in one inside it.
fn is_dirty_by_git(top: &Path) -> Option<bool> {
    let list = |args: &[&str]| -> Vec<Vec<u8>> {
        git_output(top, args).split(|b| *b == 0).filter(|path| !path.is_empty()).map(<[u8]>::to_vec).collect()
    };
    let empty = word(top, &["hash-object", "-t", "tree", "/dev/null"]);
    let head = Some(word(top, &["rev-parse", "-q", "--verify", "HEAD^{tree}"])).filter(|tree| !tree.is_empty());
    let tree = tree_by_git(top);
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

/// What git lists of the repository at `at`, and of the repositories inside it, as far as it is there.
fn covered_by_git(top: &Path, at: &[u8]) -> BTreeSet<Vec<u8>> {
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
