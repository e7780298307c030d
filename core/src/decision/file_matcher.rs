//! Decides which files of a tree the rules of a step choose. The types of files are those of pre-commit's library
//! `identify`.

use fancy_regex::Regex;
pub use file_identify::tags::ALL_TAGS as FILE_TYPES;
use file_identify::{Classification, FileKind, Meta, Pending, Tag, TagSet, classify};
use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

use crate::model::drift::EntryKind;
use crate::model::plan::{FileRules, REGEX_PREFIX};

/// The rules of a step, ready for matching.
#[derive(Debug)]
pub struct FileMatcher {
    include: Option<PatternSet>,
    exclude: PatternSet,
    types: TagSet,
    types_or: TagSet,
    exclude_types: TagSet,
    /// The beginning of the paths that can be chosen, which the patterns do not contain: empty, or with a `/` at the end.
    base: Vec<u8>,
}

/// A file of the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileCandidate<'a> {
    /// The path, relative to the repository.
    pub path: &'a [u8],
    /// The kind of entry.
    pub kind: EntryKind,
    /// True if the file is executable.
    pub executable: bool,
}

/// The result of matching a file by its name and mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileMatch {
    /// The rules choose the file.
    Chosen,
    /// The rules do not choose the file.
    NotChosen,
    /// The beginning of the content decides: pass it to [`FileMatcher::accepts_content`].
    NeedsContent(Pending),
}

/// The reason why a rule for files is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FileRuleError {
    /// A pattern is not a glob.
    #[error("`{pattern}` is not a glob: {problem}")]
    Glob {
        /// The pattern.
        pattern: String,
        /// The problem.
        problem: String,
    },
    /// A pattern is not a regular expression.
    #[error("`{pattern}` is not a regular expression: {problem}")]
    Regex {
        /// The pattern.
        pattern: String,
        /// The problem.
        problem: String,
    },
    /// A type is unknown.
    #[error("`{0}` is not a file type")]
    Type(String),
}

/// Number of bytes at the beginning of a file that decide its types.
pub const CONTENT_BYTES: usize = 4096;

/// Maximum number of steps of a regular expression for one path.
const BACKTRACK_LIMIT: usize = 100_000;

impl FileMatcher {
    /// Prepares the rules for matching.
    ///
    /// # Errors
    /// A pattern or a type is invalid.
    pub fn new(rules: &FileRules) -> Result<Self, FileRuleError> {
        let include = (!rules.include.is_empty()).then(|| PatternSet::new(&rules.include)).transpose()?;
        let types = if rules.types.is_empty() { TagSet::from_tag(Tag::FILE) } else { tags(&rules.types)? };
        Ok(Self {
            include,
            exclude: PatternSet::new(&rules.exclude)?,
            types,
            types_or: tags(&rules.types_or)?,
            exclude_types: tags(&rules.exclude_types)?,
            base: rules.base.as_ref().map(|base| format!("{base}/").into_bytes()).unwrap_or_default(),
        })
    }

    /// Matches a file by its path, kind and mode.
    pub fn match_file(&self, file: FileCandidate<'_>) -> FileMatch {
        let Some(below) = file.path.strip_prefix(self.base.as_slice()) else { return FileMatch::NotChosen };
        let path = String::from_utf8_lossy(below);
        let is_included = self.include.as_ref().is_none_or(|include| include.matches(&path).unwrap_or(true));
        // A file is checked rather than left out if a pattern takes too long.
        if !is_included || self.exclude.matches(&path).unwrap_or(false) {
            return FileMatch::NotChosen;
        }
        let kind = match file.kind {
            EntryKind::File => FileKind::Regular,
            EntryKind::Symlink => FileKind::Symlink,
            EntryKind::Directory | EntryKind::Gitlink | EntryKind::Special => return FileMatch::NotChosen,
        };
        let chosen = |accepted| if accepted { FileMatch::Chosen } else { FileMatch::NotChosen };
        match classify(Meta::new(kind, file.executable), file.path) {
            Classification::Done(tags) => chosen(self.accepts(tags)),
            Classification::NeedsContent(pending) if pending.needs_shebang() => FileMatch::NeedsContent(pending),
            Classification::NeedsContent(pending) => {
                let [text, binary] = [Tag::TEXT, Tag::BINARY].map(|tag| self.accepts(pending.tags().with(tag)));
                if text == binary { chosen(text) } else { FileMatch::NeedsContent(pending) }
            }
        }
    }

    /// Returns whether the rules choose a file whose content begins with `head`.
    pub fn accepts_content(&self, pending: Pending, head: &[u8]) -> bool {
        self.accepts(pending.finish_bytes(head))
    }

    fn accepts(&self, tags: TagSet) -> bool {
        let has_one = |wanted: TagSet| !(tags & wanted).is_empty();
        (self.types - tags).is_empty()
            && (self.types_or.is_empty() || has_one(self.types_or))
            && !has_one(self.exclude_types)
    }
}

fn tags(names: &[String]) -> Result<TagSet, FileRuleError> {
    TagSet::from_names(names)
        .map_err(|unknown| FileRuleError::Type(unknown.names().first().cloned().unwrap_or_default()))
}

/// Globs and regular expressions.
#[derive(Debug)]
struct PatternSet {
    globs: GlobSet,
    regexes: Vec<Regex>,
}

impl PatternSet {
    fn new(patterns: &[String]) -> Result<Self, FileRuleError> {
        let (mut globs, mut regexes) = (GlobSetBuilder::new(), Vec::new());
        for pattern in patterns {
            match pattern.strip_prefix(REGEX_PREFIX) {
                Some(regex) => regexes.push(compile_regex(regex)?),
                None => {
                    let glob = GlobBuilder::new(pattern).literal_separator(true).build();
                    globs.add(glob.map_err(|error| bad_glob(pattern, &error))?);
                }
            }
        }
        let globs = globs.build().map_err(|error| bad_glob(&patterns.join(", "), &error))?;
        Ok(Self { globs, regexes })
    }

    /// Returns whether a pattern matches; `None` if a regular expression takes too long.
    fn matches(&self, path: &str) -> Option<bool> {
        if self.globs.is_match(path) {
            return Some(true);
        }
        let mut answers = self.regexes.iter().map(|regex| regex.is_match(path).ok());
        answers.try_fold(false, |matched, answer| Some(matched || answer?))
    }
}

fn bad_glob(pattern: &str, error: &globset::Error) -> FileRuleError {
    FileRuleError::Glob { pattern: pattern.to_owned(), problem: error.kind().to_string() }
}

/// Compiles a regular expression in the syntax of Python, as configurations of pre-commit use it.
fn compile_regex(pattern: &str) -> Result<Regex, FileRuleError> {
    // In Python, `\Z` matches only at the end of the text.
    let translated = pattern.replace("\\Z", "\\z");
    let built = fancy_regex::RegexBuilder::new(&translated).backtrack_limit(BACKTRACK_LIMIT).build();
    built.map_err(|error| {
        let problem = error.to_string().lines().last().unwrap_or_default().trim().to_owned();
        FileRuleError::Regex { pattern: pattern.to_owned(), problem }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_relative_to_the_base() {
        let patterns = [("src/**", "regex:^src/"), ("*.py", "regex:^[^/]*\\.py$")];
        for (pattern, path) in
            patterns.iter().flat_map(|(glob, regex)| [glob, regex]).zip(["src/a", "src/a", "a.py", "a.py"])
        {
            let matcher = rules(|rules| {
                rules.include = vec![(*pattern).to_owned()];
                rules.base = Some(crate::model::plan::RelPath::new("svc/a").expect("a path"));
            });
            let is_chosen = |path: String| {
                let file = FileCandidate { path: path.as_bytes(), kind: EntryKind::File, executable: false };
                matcher.match_file(file) != FileMatch::NotChosen
            };
            assert!(is_chosen(format!("svc/a/{path}")), "{pattern}");
            for other in [path.to_owned(), format!("svc/ab/{path}"), format!("svc/a/x/{path}")] {
                assert!(!is_chosen(other.clone()), "{pattern} {other}");
            }
        }
    }

    fn rules(change: impl FnOnce(&mut FileRules)) -> FileMatcher {
        let mut rules = FileRules { parallel: 1, ..FileRules::default() };
        change(&mut rules);
        FileMatcher::new(&rules).expect("valid rules")
    }

    fn list(items: &[&str]) -> Vec<String> {
        items.iter().map(|item| (*item).to_owned()).collect()
    }

    fn matched(matcher: &FileMatcher, path: &str) -> bool {
        let file = FileCandidate { path: path.as_bytes(), kind: EntryKind::File, executable: false };
        matcher.match_file(file) == FileMatch::Chosen
    }

    #[test]
    fn chooses_by_glob_and_regex() {
        let matcher = rules(|rules| {
            rules.include = list(&["src/**/*.py", "regex:^docs/.*\\.rst$"]);
            rules.exclude = list(&["regex:(?x)^(src/vendor/|src/x\\.py)", "**/gen_*"]);
        });
        let chosen = ["src/a.py", "src/a/b.py", "docs/x/y.rst", "src/vendor/a.py", "src/x.py", "src/gen_a.py", "a.py"];
        let chosen: Vec<&str> = chosen.into_iter().filter(|path| matched(&matcher, path)).collect();
        assert_eq!(chosen, ["src/a.py", "src/a/b.py", "docs/x/y.rst"]);
    }

    #[test]
    fn understands_lookaround_of_python() {
        let matcher = rules(|rules| rules.include = list(&["regex:^(?!tests/).*\\.py\\Z"]));
        assert!(matched(&matcher, "a.py") && !matched(&matcher, "tests/a.py") && !matched(&matcher, "a.pyc"));
    }

    #[test]
    fn chooses_by_type() {
        let python = rules(|rules| rules.types = list(&["python"]));
        assert!(matched(&python, "a.py") && !matched(&python, "b.pyi") && !matched(&python, "c.rs"));
        let either = rules(|rules| {
            rules.types_or = list(&["python", "text"]);
            rules.exclude_types = list(&["pyi"]);
        });
        assert!(matched(&either, "a.py") && matched(&either, "p.toml") && !matched(&either, "b.pyi"));
    }

    #[test]
    fn reads_content_only_if_it_decides() {
        let script = FileCandidate { path: b"bin/tool", kind: EntryKind::File, executable: true };
        let data = FileCandidate { path: b"data", kind: EntryKind::File, executable: false };
        let python = rules(|rules| rules.types = list(&["python"]));
        let FileMatch::NeedsContent(pending) = python.match_file(script) else { panic!("a script is read") };
        assert!(python.accepts_content(pending, b"#!/usr/bin/env python3\n"));
        assert!(!python.accepts_content(pending, b"#!/bin/sh\n"));
        assert_eq!(python.match_file(data), FileMatch::NotChosen, "no content makes it python");
        let text = rules(|rules| rules.types = list(&["text"]));
        let FileMatch::NeedsContent(pending) = text.match_file(data) else { panic!("the content decides") };
        assert!(text.accepts_content(pending, b"abc\n") && !text.accepts_content(pending, b"\0\x01"));
    }

    #[test]
    fn chooses_links_only_by_their_type() {
        let link = FileCandidate { path: b"a.py", kind: EntryKind::Symlink, executable: false };
        assert_eq!(rules(|_| {}).match_file(link), FileMatch::NotChosen);
        assert_eq!(rules(|rules| rules.types = list(&["symlink"])).match_file(link), FileMatch::Chosen);
    }

    #[test]
    fn rejects_invalid_rules() {
        let error = |change: fn(&mut FileRules)| {
            let mut rules = FileRules::default();
            change(&mut rules);
            FileMatcher::new(&rules).expect_err("invalid")
        };
        assert!(matches!(error(|rules| rules.include = list(&["a["])), FileRuleError::Glob { .. }));
        assert!(matches!(error(|rules| rules.exclude = list(&["regex:("])), FileRuleError::Regex { .. }));
        assert_eq!(error(|rules| rules.types = list(&["pythn"])), FileRuleError::Type("pythn".to_owned()));
    }

    #[test]
    fn checks_file_if_pattern_takes_too_long() {
        const SLOW: &str = "^(a|aa)*\\1$";
        let path = format!("{}b", "a".repeat(60));
        assert!(compile_regex(SLOW).expect("valid").is_match(&path).is_err(), "the pattern takes too long");
        let patterns = vec![format!("{REGEX_PREFIX}{SLOW}")];
        let included = rules(|rules| rules.include = patterns.clone());
        let excluded = rules(|rules| rules.exclude = patterns.clone());
        assert!(matched(&included, &path) && matched(&excluded, &path));
    }
}
