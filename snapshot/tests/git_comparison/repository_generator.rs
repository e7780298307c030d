//! Generates repositories from a seed that use many features of git. The same seed always results in the same
//! repository.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, SystemTime};

use proctor_core::model::drift::display_path;

use crate::repository::{FixtureRepo, chmod, fifo, git_supports};

/// A pseudo-random sequence of choices (xorshift64*, Vigna 2016).
pub(crate) struct RandomChoices(u64);

impl RandomChoices {
    /// Creates the sequence of a seed.
    pub(crate) fn new(seed: u64) -> Self {
        let mut choose = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        (0..8).for_each(|_| {
            choose.next();
        });
        choose
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next()).expect("31 bits") % bound
    }

    pub(crate) fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// Names of files, which the attributes and ignore rules below mention.
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

/// A repository that was generated from a seed.
pub(super) struct GeneratedRepository {
    pub(super) seed: u64,
    pub(super) repo: FixtureRepo,
    /// The operations on it, in human-readable form.
    pub(super) log: Vec<String>,
}

/// Generates the repository of a seed.
pub(super) fn generate(seed: u64) -> GeneratedRepository {
    let mut generator = RepositoryGenerator::new(seed);
    generator.generate();
    GeneratedRepository { seed, repo: generator.repo, log: generator.log }
}

struct RepositoryGenerator {
    choices: RandomChoices,
    repo: FixtureRepo,
    files: BTreeSet<Vec<u8>>,
    log: Vec<String>,
    /// True if everything has been committed, so the work tree is being edited.
    editing: bool,
}

impl RepositoryGenerator {
    fn new(seed: u64) -> Self {
        let mut choose = RandomChoices::new(seed);
        let options: Vec<&str> = ["--object-format=sha256", "--ref-format=reftable"]
            .into_iter()
            .filter(|option| choose.one_in(5) && git_supports(&["init", "-q", option, "."]))
            .collect();
        let repo = FixtureRepo::with_options(&options);
        Self { choices: choose, repo, files: BTreeSet::new(), editing: false, log: vec![format!("{options:?}")] }
    }

    fn log_operation(&mut self, what: impl Into<String>) {
        self.log.push(what.into());
    }

    fn generate(&mut self) {
        self.configure();
        self.create_files();
        if !self.choices.one_in(12) {
            self.repo.git(&["-c", "core.safecrlf=false", "add", "-A"]);
            self.repo.git(&["commit", "-qm", "x"]);
        }
        self.change_index();
        self.age_files();
        self.editing = true;
        self.edit_worktree();
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
            let value = self.choices.pick(values);
            if !value.is_empty() {
                self.repo.git(&["config", key, value]);
                self.log_operation(format!("{key} = {value}"));
            }
        }
    }

    /// Returns random lines of a list as the text of a file.
    fn random_lines(&mut self, from: &[&str]) -> String {
        let count = self.choices.below(6);
        (0..count).map(|_| format!("{}\n", self.choices.pick(from))).collect()
    }

    fn create_files(&mut self) {
        for (path, from) in [
            (".gitattributes", ATTRIBUTES),
            ("dir/.gitattributes", ATTRIBUTES),
            (".git/info/attributes", ATTRIBUTES),
            (".gitignore", IGNORES),
            ("dir/.gitignore", IGNORES),
            (".git/info/exclude", IGNORES),
        ] {
            if self.choices.one_in(2) {
                let text = self.random_lines(from);
                self.log_operation(format!("{path}: {text:?}"));
                self.repo.write(path, text);
            }
        }
        for _ in 0..12 {
            let name = self.choices.pick(NAMES);
            self.write_random_file(name);
        }
        if self.choices.one_in(2) {
            symlink("a", self.repo.at("link")).expect("links");
            symlink("/nowhere\r\n", self.repo.at("dangling")).expect("links");
        }
        fs::create_dir_all(self.repo.at("empty/dir")).expect("makes");
        if self.choices.one_in(3) {
            self.create_nested_repository("sub");
            self.create_nested_repository("module");
            self.repo.git(&["-C", "module", "commit", "-q", "--allow-empty", "-m", "more"]);
        }
    }

    /// Writes one file, unless another entry is in the way.
    fn write_random_file(&mut self, name: &[u8]) {
        let content = match self.choices.pick(CONTENTS) {
            // Git refuses a byte order mark in this encoding.
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
        // The file is created anew, since a rewrite would follow a link.
        let _ = fs::remove_file(&place);
        self.repo.write(name, &content);
        if self.editing {
            set_distinct_mtime(&place);
        }
        if self.choices.one_in(4) {
            chmod(&place, 0o755);
        }
        self.log_operation(format!("put {} {:?}", display_path(name), display_path(&content)));
        self.files.insert(name.to_vec());
    }

    /// Creates a nested repository of the same format.
    fn create_nested_repository(&mut self, at: &str) {
        let format = self.repo.git(&["rev-parse", "--show-object-format"]);
        self.repo.git(&["init", "-q", &format!("--object-format={format}"), at]);
        self.repo.write(format!("{at}/inner.txt"), "in\r\n").write(format!("{at}/.gitignore"), "*.log\n");
        if self.editing && self.choices.one_in(3) {
            return self.log_operation(format!("unborn repository {at}"));
        }
        self.repo.git(&["-C", at, "add", "-A"]);
        self.repo.git(&["-C", at, "commit", "-qm", "inner"]);
        self.log_operation(format!("repository {at}"));
    }

    fn pick_file(&mut self) -> Option<Vec<u8>> {
        let index = self.choices.below(self.files.len().max(1));
        self.files.iter().nth(index).cloned()
    }

    /// Changes the index in ways that a commit cannot: flags, conflicts and staged content.
    fn change_index(&mut self) {
        for _ in 0..self.choices.below(5) {
            let Some(name) = self.pick_file() else { continue };
            let path = String::from_utf8(name.clone());
            let literal = path.as_ref().map(|path| format!(":(literal){path}"));
            let (Ok(path), Ok(literal)) = (&path, &literal) else { continue };
            let tracked = self.repo.try_git(&["ls-files", "--error-unmatch", "--", literal]);
            match self.choices.below(7) {
                0 => {
                    self.write_random_file(&name);
                    self.repo.try_git(&["-c", "core.safecrlf=false", "add", "-f", "--", literal]);
                }
                1 if tracked => drop(self.repo.try_git(&["rm", "-q", "--sparse", "--cached", "-f", "--", literal])),
                2 if tracked => drop(self.repo.try_git(&["update-index", "--assume-unchanged", "--", path])),
                3 if tracked => drop(self.repo.try_git(&["update-index", "--skip-worktree", "--", path])),
                4 if !tracked => drop(self.repo.try_git(&["add", "-f", "-N", "--", literal])),
                5 if tracked => self.create_conflict(path),
                _ => continue,
            }
            self.log_operation(format!("staged {path:?}"));
        }
        if self.choices.one_in(6) && self.repo.try_git(&["rev-parse", "-q", "--verify", "HEAD"]) {
            self.repo.try_git(&["sparse-checkout", "set", "--no-cone", "/*", "!/deep", "!/dir/sub"]);
            self.log_operation("sparse");
        }
        for (command, what) in [
            (&["pack-refs", "--all"][..], "packed refs"),
            (&["checkout", "-q", "--detach"], "detached"),
            (&["update-index", "--split-index"], "split index"),
            (&["repack", "-q", "-a", "-d"], "packed objects"),
        ] {
            if self.choices.one_in(6) && self.repo.try_git(command) {
                self.log_operation(what);
            }
        }
        if self.choices.one_in(8) {
            let lent = self.repo.dir.path().join("lent");
            fs::rename(self.repo.at(".git/objects"), &lent).expect("moves");
            self.repo.write(".git/objects/info/alternates", format!("{}\n", lent.display()));
            self.log_operation("alternates");
        }
    }

    fn create_conflict(&mut self, path: &str) {
        let blob = self.repo.git(&["hash-object", "-w", "--no-filters", "/dev/null"]);
        let zero = "0".repeat(blob.len());
        let mut info = format!("0 {zero}\t{path}\0");
        for stage in [1, 2, 3] {
            if !self.choices.one_in(3) {
                info += &format!("{} {blob} {stage}\t{path}\0", self.choices.pick(&["100644", "100755"]));
            }
        }
        let file = self.repo.dir.path().join("info");
        crate::repository::write_file(&file, info.as_bytes());
        self.repo.git(&["-c", &format!("alias.feed=!git update-index -z --index-info < '{}'", file.display()), "feed"]);
        self.log_operation(format!("conflict {path:?}"));
    }

    /// Makes all files older than the index, so that git trusts unchanged stat data.
    fn age_files(&mut self) {
        let (past, future) = (now() - Duration::from_secs(100), now() + Duration::from_secs(10));
        for name in &self.files {
            let place = self.repo.at(name);
            if place.is_file() && !place.is_symlink() {
                let file = fs::File::options().read(true).open(&place).expect("opens");
                file.set_modified(past).expect("sets");
            }
        }
        self.repo.try_git(&["update-index", "-q", "--refresh"]);
        if let Ok(file) = fs::File::options().write(true).open(self.repo.at(".git/index")) {
            file.set_modified(future).expect("sets");
        }
    }

    /// Makes a user's edits in the work tree.
    fn edit_worktree(&mut self) {
        for _ in 0..self.choices.below(9) {
            let Some(name) = self.pick_file() else { continue };
            let place = self.repo.at(&name);
            let shown = display_path(&name);
            if !place.is_file() || place.is_symlink() {
                continue;
            }
            match self.choices.below(9) {
                0 => fs::remove_file(&place).expect("removes"),
                1 => {
                    fs::remove_file(&place).expect("removes");
                    symlink("elsewhere", &place).expect("links");
                }
                2 => {
                    fs::remove_file(&place).expect("removes");
                    fs::create_dir(&place).expect("makes");
                    crate::repository::write_file(&place.join("inside"), b"x\r\n");
                }
                3 => chmod(&place, if self.choices.one_in(2) { 0o755 } else { 0o644 }),
                4 => set_distinct_mtime(&place),
                _ => self.write_random_file(&name),
            }
            self.log_operation(format!("edited {shown}"));
        }
        for name in ["untracked.txt", "dir/untracked.log", "ignored/x", "build/y", "un\nused"] {
            if self.choices.one_in(3) && !self.repo.at(name).parent().is_some_and(Path::is_file) {
                self.repo.write(name, "u\r\n");
                self.log_operation(format!("untracked {name:?}"));
            }
        }
        match self.choices.below(8) {
            0 => {
                let text = self.random_lines(ATTRIBUTES);
                self.log_operation(format!("attributes now {text:?}"));
                self.repo.write(".gitattributes", text);
                set_distinct_mtime(&self.repo.at(".gitattributes"));
            }
            1 => {
                self.log_operation("attributes gone");
                let _ = fs::remove_file(self.repo.at(".gitattributes"));
            }
            2 if self.repo.at("sub/.git").is_dir() => {
                self.log_operation("submodule moved");
                self.repo.write("sub/inner.txt", "moved\n").git(&["-C", "sub", "add", "-A"]);
                self.repo.git(&["-C", "sub", "commit", "-qm", "moved"]);
            }
            3 if self.repo.at("sub/.git").is_dir() => {
                self.log_operation("submodule edited");
                self.repo.write("sub/inner.txt", "edited\n").write("sub/new", "x").write("sub/x.log", "x");
            }
            4 if self.repo.at("sub").is_dir() => {
                self.log_operation("submodule gone");
                fs::remove_dir_all(self.repo.at("sub")).expect("removes");
            }
            5 => self.create_nested_repository("vendored"),
            6 if self.choices.one_in(2) => {
                self.log_operation("a special file");
                if let Some(name) = self.pick_file().filter(|name| self.repo.at(name).is_file()) {
                    fs::remove_file(self.repo.at(&name)).expect("removes");
                    fifo(&self.repo.at(&name));
                }
            }
            _ => {}
        }
    }
}

/// Gives an edited file a distinct modification time. If git must ignore the change time, it cannot detect an edit
/// of the same size within the second in which the file was added.
fn set_distinct_mtime(place: &Path) {
    let file = fs::File::options().read(true).open(place).expect("opens");
    file.set_modified(now() + Duration::from_secs(5)).expect("sets");
}

#[expect(clippy::disallowed_methods, reason = "tests set file times close to the current time")]
fn now() -> SystemTime {
    SystemTime::now()
}
