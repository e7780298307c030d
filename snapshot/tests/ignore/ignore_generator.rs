//! Generates repositories with ignore rules from a seed: names that the rules mention, and lines that are valid
//! rules, nearly valid ones, or random combinations of pieces.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use proctor_core::model::drift::display_path;

use crate::git_comparison::repository_generator::RandomChoices;
use crate::repository::{FixtureRepo, write_file};

/// Parts of paths.
const PARTS: &[&[u8]] = &[
    b"a", b"b", b"ab", b"A", b"k.log", b"K.LOG", b"x.py", b"keep", b"build", b".venv", b"a.b", b" lead", b"trail ",
    b"tab\t", b"ff\x0c", b"vt\x0b", b"cr\r", b"#h", b"!n", b"\\b", b"[x]", b"*", b"caf\xe9", b"\xff", b"a b", b"-",
    b"$d", b"\t", b"x\\",
];

/// Pieces of lines.
const PIECES: &[&[u8]] = &[
    b"a",
    b"b",
    b"k",
    b"log",
    b".",
    b".log",
    b"keep",
    b"build",
    b"*",
    b"*",
    b"**",
    b"/",
    b"/",
    b"**/",
    b"/**",
    b"?",
    b"[ab]",
    b"[!a]",
    b"[^a]",
    b"[a-c]",
    b"[A-C]",
    b"[]a]",
    b"[a",
    b"]",
    b"[[:alpha:]]",
    b"[[:space:]]",
    b"[[:upper:]]",
    b"[[:punct:]x]",
    b"[[:none:]]",
    b"[a\\]b]",
    b"[\\a-c]",
    b"[a/b]",
    b"[!-~]",
    b"\\",
    b"\\*",
    b"\\a",
    b"\\A",
    b"\\ ",
    b" ",
    b"  ",
    b"\t",
    b"\x0b",
    b"\x0c",
    b"\r",
    b"!",
    b"#",
    b"$",
    b"\xe9",
    b"\xff",
    b"\xef\xbb\xbf",
    b"A",
    b"K",
    b"-",
    b"\0",
];

/// Whitespace at the end of a line.
const ENDS: &[&[u8]] =
    &[b"", b"", b"", b"", b"", b"", b" ", b"  ", b"\\ ", b"\t", b" \t", b"\t ", b"\x0b", b"\x0c", b"\r", b"\\"];

/// A repository that was generated from a seed.
pub(super) struct GeneratedRules {
    pub(super) repo: FixtureRepo,
    /// The operations on it, in human-readable form.
    pub(super) log: Vec<String>,
    /// Paths for queries, existing or not; a directory ends with a slash.
    pub(super) queried: BTreeSet<Vec<u8>>,
    /// True if git releases agree on every rule, and libgit2 neither hangs nor crashes on the rules.
    pub(super) libgit2_is_comparable: bool,
}

/// Generates the repository of a seed.
pub(super) fn generate(seed: u64) -> GeneratedRules {
    let repo = FixtureRepo::empty();
    let mut generator = RulesGenerator {
        choices: RandomChoices::new(seed),
        generated: GeneratedRules {
            repo,
            log: vec![format!("seed {seed}")],
            queried: BTreeSet::new(),
            libgit2_is_comparable: true,
        },
        paths: vec![b"a".to_vec()],
        directories: BTreeSet::from([Vec::new()]),
    };
    generator.create_files();
    generator.configure();
    generator.write_rules();
    generator.add_missing_paths();
    generator.generated
}

struct RulesGenerator {
    choices: RandomChoices,
    generated: GeneratedRules,
    paths: Vec<Vec<u8>>,
    directories: BTreeSet<Vec<u8>>,
}

impl RulesGenerator {
    fn log(&mut self, what: impl Into<String>) {
        self.generated.log.push(what.into());
    }

    fn at(&self, path: &[u8]) -> PathBuf {
        self.generated.repo.at(path)
    }

    /// Returns a new random path.
    fn random_path(&mut self) -> Vec<u8> {
        let depth = 1 + self.choices.below(4);
        (0..depth).map(|_| self.choices.pick(PARTS)).collect::<Vec<_>>().join(&b"/"[..])
    }

    /// Creates files, links and repositories, some of them tracked.
    fn create_files(&mut self) {
        for _ in 0..8 + self.choices.below(12) {
            let path = self.random_path();
            self.generated.queried.insert(path.clone());
            let parent = self.at(&path).parent().expect("below the top").to_owned();
            if fs::create_dir_all(&parent).is_err() || self.at(&path).symlink_metadata().is_ok() {
                continue;
            }
            let above = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| path[..at].to_vec());
            self.directories.extend(above);
            match self.choices.below(10) {
                0 => symlink("..", self.at(&path)).expect("links"),
                1 => symlink("/dev/null", self.at(&path)).expect("links"),
                2 => symlink("nowhere", self.at(&path)).expect("links"),
                3 if self.choices.one_in(2) => self.create_repository(&path),
                _ => write_file(&self.at(&path), b"x"),
            }
            self.log(display_path(&path));
            self.paths.push(path);
        }
        if self.choices.one_in(2) {
            let tracked = self.choices.pick(&self.paths.clone().iter().map(Vec::as_slice).collect::<Vec<_>>()).to_vec();
            let shown = String::from_utf8(tracked).ok();
            if let Some(shown) =
                shown.filter(|path| self.generated.repo.try_git(&["--literal-pathspecs", "add", "-f", "--", path]))
            {
                self.log(format!("tracked {shown:?}"));
            }
        }
    }

    fn create_repository(&mut self, path: &[u8]) {
        let place = self.at(path);
        fs::create_dir(&place).expect("makes");
        self.generated.repo.git(&["init", "-q", &place.display().to_string().replace('\u{fffd}', "?")]);
        if !place.join(".git").exists() {
            // The name is not valid UTF-8.
            return;
        }
        write_file(&place.join("k.log"), b"x");
        write_file(&place.join("a"), b"x");
        self.log(format!("a repository at {}", display_path(path)));
        if self.choices.one_in(2) {
            let rules = self.random_rules();
            write_file(&place.join(".git/info/exclude"), &rules);
        }
        self.directories.insert(path.to_vec());
    }

    fn configure(&mut self) {
        if self.choices.one_in(4) {
            self.generated.repo.git(&["config", "core.ignoreCase", "true"]);
            self.log("core.ignoreCase");
        }
    }

    /// Generates one line without its line end.
    fn random_line(&mut self) -> Vec<u8> {
        let mut line = Vec::new();
        if self.choices.one_in(3) {
            line.push(b'!');
        }
        match self.choices.below(3) {
            0 => (0..1 + self.choices.below(5)).for_each(|_| line.extend_from_slice(self.choices.pick(PIECES))),
            1 => {
                let path = self.choices.pick(&self.paths.iter().map(Vec::as_slice).collect::<Vec<_>>()).to_vec();
                let cut = path.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
                let (above, name) = path.split_at(cut);
                let first = path.split(|byte| *byte == b'/').next().unwrap_or_default();
                let dot = name.iter().rposition(|byte| *byte == b'.').unwrap_or(0);
                line.extend(match self.choices.below(12) {
                    0 => name.to_vec(),
                    1 => path.clone(),
                    2 => [b"/", path.as_slice()].concat(),
                    3 => [path.as_slice(), b"/"].concat(),
                    4 => [first, b"/"].concat(),
                    5 => [first, b"/**"].concat(),
                    6 => [b"**/", name].concat(),
                    7 => [above, b"*"].concat(),
                    8 => [b"*", &name[dot..]].concat(),
                    9 => [&name[..name.len().min(1)], b"**/", name].concat(),
                    10 => [first, b"/**/", name].concat(),
                    _ => first.to_vec(),
                });
            }
            _ => line.extend_from_slice(self.choices.pick(&[
                &b"*"[..],
                b"*.log",
                b"/*",
                b"*/",
                b"**",
                b"k.log",
                b"K.log",
                b"keep",
                b"*.py",
                b"a/**",
                b"a/*",
                b"/a",
                b"a",
                b"**/a/",
            ])),
        }
        line.extend_from_slice(self.choices.pick(ENDS));
        line
    }

    /// Generates the text of an ignore file.
    fn random_rules(&mut self) -> Vec<u8> {
        let mut text = Vec::new();
        if self.choices.one_in(10) {
            text.extend_from_slice(b"\xef\xbb\xbf");
        }
        let end: &[u8] = if self.choices.one_in(6) { b"\r\n" } else { b"\n" };
        for _ in 0..1 + self.choices.below(5) {
            if self.choices.one_in(10) {
                text.extend_from_slice(b"# a comment\n\n");
            }
            text.extend(self.random_line());
            text.extend_from_slice(end);
        }
        if self.choices.one_in(4) {
            text.truncate(text.len() - end.len());
        }
        let stars = |window: &[u8]| !b"/\n!".contains(&window[0]) && window[1..] == *b"**";
        // libgit2 hangs on some lines and crashes on others.
        let is_read = |line: &[u8]| {
            let first = line.iter().find(|byte| !b"!/ \t\r\\\xef\xbb\xbf".contains(byte)).copied();
            first.map_or(!line.starts_with(b"!"), |byte| byte != b'\x0b' && byte != b'\x0c')
        };
        self.generated.libgit2_is_comparable &=
            !text.windows(3).any(stars) && text.split(|byte| b"\n\0".contains(byte)).all(is_read);
        text
    }

    fn write_rules(&mut self) {
        let directories: Vec<Vec<u8>> = self.directories.iter().cloned().collect();
        for directory in directories {
            if !directory.is_empty() && !self.choices.one_in(3) {
                continue;
            }
            let file = match directory.as_slice() {
                b"" => b".gitignore".to_vec(),
                _ => [directory.as_slice(), b"/.gitignore"].concat(),
            };
            let text = self.random_rules();
            if self.at(&file).parent().is_some_and(|parent| parent.symlink_metadata().is_ok_and(|found| found.is_dir()))
            {
                write_file(&self.at(&file), &text);
                self.log(format!("{}: {}", display_path(&file), display_path(&text)));
                if self.choices.one_in(12) {
                    self.skip_worktree(&file);
                }
            }
        }
        if self.choices.one_in(3) {
            let text = self.random_rules();
            write_file(&self.at(b".git/info/exclude"), &text);
            self.log(format!("info/exclude: {}", display_path(&text)));
        }
        if self.choices.one_in(3) {
            let (text, place) = (self.random_rules(), self.generated.repo.dir.path().join("excludes"));
            write_file(&place, &text);
            self.generated.repo.git(&["config", "core.excludesFile", &place.display().to_string()]);
            self.log(format!("core.excludesFile: {}", display_path(&text)));
        }
    }

    /// Removes an ignore file from the work tree but keeps it in the index, as a sparse checkout does.
    fn skip_worktree(&mut self, file: &[u8]) {
        let Ok(name) = String::from_utf8(file.to_vec()) else { return };
        let repo = &self.generated.repo;
        if repo.try_git(&["--literal-pathspecs", "add", "-f", "--", &name])
            && repo.try_git(&["update-index", "--skip-worktree", "--", &name])
        {
            fs::remove_file(self.at(file)).expect("removes");
            self.log("the file exists only in the index");
        }
    }

    /// Adds paths for queries that do not exist.
    fn add_missing_paths(&mut self) {
        for _ in 0..12 {
            let mut path = self.random_path();
            if self.choices.one_in(3) {
                let below =
                    self.directories.iter().filter(|path| !path.is_empty()).map(Vec::as_slice).collect::<Vec<_>>();
                if !below.is_empty() {
                    path = [self.choices.pick(&below), b"/", path.as_slice()].concat();
                }
            }
            if self.choices.one_in(4) {
                path.push(b'/');
            }
            self.generated.queried.insert(path);
        }
    }
}
