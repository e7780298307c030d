//! Decides which paths of a tree a step with `inputs` sees.
//!
//! The decision depends on the path and on its kind alone, and not on other files of the tree. A stored result therefore
//! still depends only on the paths that the step accessed.

use globset::{Candidate, GlobBuilder, GlobSet, GlobSetBuilder};
use serde::{Deserialize, Serialize};

use crate::model::plan::RelPath;

/// The paths of a tree that a step with `inputs` sees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputRules {
    /// The globs of the spec, relative to the repository.
    pub globs: Vec<String>,
    /// Paths whose whole content the step sees, such as caches.
    pub shown: Vec<RelPath>,
    /// A directory that is shown even if it contains no input: the work directory.
    pub workdir: RelPath,
}

/// [`InputRules`], ready for matching.
#[derive(Debug, Clone)]
pub struct InputFilter {
    files: GlobSet,
    /// Matches the directories in which an input can be.
    directories: GlobSet,
    shown: Vec<RelPath>,
    workdir: RelPath,
}

/// The name of git directories, which are shown.
const GIT_DIR: &[u8] = b".git";

impl InputFilter {
    /// Prepares the rules for matching.
    ///
    /// # Errors
    /// A pattern is not a glob.
    pub fn new(rules: &InputRules) -> Result<Self, globset::Error> {
        let (mut files, mut directories) = (GlobSetBuilder::new(), GlobSetBuilder::new());
        for glob in &rules.globs {
            let glob = glob.strip_prefix("./").unwrap_or(glob);
            add(&mut files, glob)?;
            for directory in directories_above(glob) {
                add(&mut directories, &directory)?;
            }
        }
        Ok(Self {
            files: files.build()?,
            directories: directories.build()?,
            shown: rules.shown.clone(),
            workdir: rules.workdir.clone(),
        })
    }

    /// Returns whether a path of the tree is shown, provided that the directory that contains it is shown. `path` is
    /// relative to the tree, and empty for the tree itself. A link counts as a file.
    pub fn shows(&self, path: &[u8], is_directory: bool) -> bool {
        if path.is_empty() || path.split(|byte| *byte == b'/').any(|name| name == GIT_DIR) {
            return true;
        }
        if self.shown.iter().any(|shown| is_at_or_below(path, shown.as_str().as_bytes())) {
            return true;
        }
        let candidate = Candidate::from_bytes(path);
        if !is_directory {
            return self.files.is_match_candidate(&candidate);
        }
        let leads_to = |other: &RelPath| is_at_or_below(other.as_str().as_bytes(), path);
        self.directories.is_match_candidate(&candidate) || leads_to(&self.workdir) || self.shown.iter().any(leads_to)
    }
}

fn add(set: &mut GlobSetBuilder, glob: &str) -> Result<(), globset::Error> {
    set.add(GlobBuilder::new(glob).literal_separator(true).build()?);
    Ok(())
}

fn is_at_or_below(path: &[u8], directory: &[u8]) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

/// Returns globs of the directories in which a file that matches `glob` can be.
fn directories_above(glob: &str) -> Vec<String> {
    let parts = split_glob(glob);
    let mut globs = Vec::new();
    for (index, part) in parts.iter().enumerate() {
        let above = parts[..index].join("/");
        // An alternative can contain a separator, so the depth of the directories is not known.
        if *part == "**" || part.contains('/') {
            globs.push(if above.is_empty() { "**".to_owned() } else { format!("{above}/**") });
            break;
        }
        if index + 1 < parts.len() {
            globs.push(parts[..=index].join("/"));
        }
    }
    globs
}

/// Splits a glob at its separators, except for those in alternatives and classes.
fn split_glob(glob: &str) -> Vec<&str> {
    let (mut parts, mut start, mut braces, mut in_class, mut is_escaped) = (Vec::new(), 0, 0_usize, false, false);
    for (at, character) in glob.char_indices() {
        match character {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '[' => in_class = true,
            ']' => in_class = false,
            '{' if !in_class => braces += 1,
            '}' if !in_class => braces = braces.saturating_sub(1),
            '/' if !in_class && braces == 0 => {
                parts.push(&glob[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&glob[start..]);
    parts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn filter(globs: &[&str]) -> InputFilter {
        filter_with(globs, &[], ".")
    }

    fn filter_with(globs: &[&str], shown: &[&str], workdir: &str) -> InputFilter {
        let path = |text: &str| RelPath::new(text).expect("a path");
        let globs = globs.iter().map(|glob| (*glob).to_owned()).collect();
        let shown = shown.iter().map(|text| path(text)).collect();
        InputFilter::new(&InputRules { globs, shown, workdir: path(workdir) }).expect("globs")
    }

    /// Returns those of the paths that are shown; a directory ends with `/`.
    fn shown<'a>(filter: &InputFilter, paths: &[&'a str]) -> Vec<&'a str> {
        let is_shown = |path: &&str| match path.strip_suffix('/') {
            Some(directory) => filter.shows(directory.as_bytes(), true),
            None => filter.shows(path.as_bytes(), false),
        };
        paths.iter().copied().filter(is_shown).collect()
    }

    const PATHS: [&str; 10] =
        ["", "src/", "src/a.rs", "src/deep/", "src/deep/b.rs", "docs/", "docs/a.md", "Cargo.toml", "src", ".git/"];

    #[test]
    fn shows_inputs_and_the_directories_above_them() {
        let all_of_src = ["", "src/", "src/a.rs", "src/deep/", "src/deep/b.rs", ".git/"];
        assert_eq!(shown(&filter(&["src/**"]), &PATHS), all_of_src);
        assert_eq!(shown(&filter(&["src/*.rs"]), &PATHS), ["", "src/", "src/a.rs", ".git/"]);
        assert_eq!(shown(&filter(&["./Cargo.toml"]), &PATHS), ["", "Cargo.toml", ".git/"]);
        assert_eq!(shown(&filter(&["src/deep/b.rs"]), &PATHS), ["", "src/", "src/deep/", "src/deep/b.rs", ".git/"]);
    }

    #[test]
    fn pattern_for_any_depth_shows_every_directory() {
        let expected = ["", "src/", "src/deep/", "docs/", "docs/a.md", ".git/"];
        assert_eq!(shown(&filter(&["**/*.md"]), &PATHS), expected);
    }

    #[test]
    fn star_stops_at_separators() {
        assert_eq!(shown(&filter(&["*"]), &PATHS), ["", "Cargo.toml", "src", ".git/"]);
    }

    #[test]
    fn alternatives_with_separators_show_their_directories() {
        let nested = filter(&["{src/deep,docs}/*.rs"]);
        assert_eq!(
            shown(&nested, &["src/", "src/deep/", "src/deep/b.rs", "docs/"]),
            ["src/", "src/deep/", "src/deep/b.rs", "docs/"]
        );
        assert!(!nested.shows(b"src/a.rs", false));
        assert_eq!(shown(&filter(&["src/[/x]*"]), &["src/", "src/x1", "y/"]), ["src/", "src/x1"]);
    }

    #[test]
    fn escaped_characters_are_literal() {
        let escaped = filter(&[r"a\{b/c\}/x"]);
        assert_eq!(shown(&escaped, &["a{b/", "a{b/c}/", "a{b/c}/x", "a{b/c}/y"]), ["a{b/", "a{b/c}/", "a{b/c}/x"]);
    }

    #[test]
    fn shows_caches_and_the_work_directory() {
        let filter = filter_with(&["Cargo.toml"], &["web/node_modules"], "svc/a");
        let paths =
            ["web/", "web/x.js", "web/node_modules/", "web/node_modules/m/i.js", "svc/", "svc/a/", "svc/a/x", "svc/b/"];
        let expected = ["web/", "web/node_modules/", "web/node_modules/m/i.js", "svc/", "svc/a/"];
        assert_eq!(shown(&filter, &paths), expected);
    }

    #[test]
    fn git_directories_are_shown() {
        let filter = filter(&["src/**"]);
        assert!(filter.shows(b".git/config", false) && filter.shows(b"sub/.git", true));
        assert!(!filter.shows(b".gitignore", false) && !filter.shows(b".github", true));
    }

    proptest! {
        /// A file that is shown can be reached.
        #[test]
        fn directories_above_a_shown_file_are_shown(
            glob in "([a-c*?]{1,2}|[*][*]|[{]a,b/c[}]|\\[ab\\])(/([a-c*?]{1,2}|[*][*]|[{]a/b,c[}])){0,3}",
            path in "[a-c]{1,2}(/[a-c]{1,2}){0,4}",
        ) {
            let filter = filter(&[&glob]);
            if filter.shows(path.as_bytes(), false) {
                for (at, _) in path.match_indices('/') {
                    prop_assert!(filter.shows(&path.as_bytes()[..at], true), "{} of {path} for {glob}", &path[..at]);
                }
            }
        }
    }
}
