//! Selects the files of the tree for a check, and generates the shell commands that list them at run time.

use super::pattern::Pattern;
use super::shell::quote;
use super::types::FileType;

/// The files for a check: the tracked files that exist.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Selection {
    /// Groups of patterns; a path must match at least one pattern of each group.
    pub(super) keep: Vec<Vec<Pattern>>,
    /// Patterns that no path may match.
    pub(super) drop: Vec<Pattern>,
    /// The directory that contains the files and to which their names are relative; without a slash at its end.
    pub(super) below: Option<String>,
    /// Required executable bit of the files; `None` accepts both.
    pub(super) executable: Option<bool>,
    /// True if only text files are selected: not empty and without a NUL.
    pub(super) is_text: bool,
    /// True if only symbolic links are selected.
    pub(super) links: bool,
    /// Scripts that are recognized by their first line because their name has no extension.
    scripts: Option<Scripts>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Scripts {
    interpreters: Vec<&'static str>,
    /// Names without a dot that are selected regardless of their first line.
    names: Vec<&'static str>,
}

impl Selection {
    /// Returns whether it selects every file.
    pub(super) fn is_everything(&self) -> bool {
        let Self { keep, drop, below, executable, is_text: _, links, scripts } = self;
        let patterns = keep.is_empty() && drop.is_empty() && scripts.is_none();
        patterns && below.is_none() && executable.is_none() && !links
    }

    /// Restricts the selection to paths that match `pattern`.
    pub(super) fn keep(&mut self, pattern: Pattern) {
        if !pattern.is_everything() {
            self.keep.push(vec![pattern]);
        }
    }

    /// Restricts the selection to files of one of `kinds`.
    pub(super) fn keep_kinds(&mut self, kinds: &[&'static FileType]) {
        let mut interpreters: Vec<_> = kinds.iter().flat_map(|kind| kind.interpreters).copied().collect();
        interpreters.sort_unstable();
        interpreters.dedup();
        let mut patterns = named(kinds);
        if !interpreters.is_empty() {
            match patterns.iter_mut().find(|pattern| !pattern.ignores_case) {
                Some(exact) => exact.ere.push_str(&format!("|{NO_END}")),
                None => patterns.push(Pattern { ere: NO_END.to_owned(), ignores_case: false }),
            }
            let names = kinds.iter().flat_map(|kind| kind.names).copied().filter(|name| !name.contains('.')).collect();
            self.scripts = Some(Scripts { interpreters, names });
        }
        self.keep.push(patterns);
    }

    /// Removes files whose name belongs to one of `kinds`, and scripts of their interpreters.
    pub(super) fn drop_kinds(&mut self, kinds: &[&'static FileType]) {
        self.drop.extend(named(kinds));
        if let Some(scripts) = &mut self.scripts {
            scripts.interpreters.retain(|name| !kinds.iter().any(|kind| kind.interpreters.contains(name)));
        }
    }

    /// Returns the commands of a pipeline that lists the files, each name followed by a NUL; one line for each
    /// command.
    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines = vec![match self.below {
            Some(_) => "git ls-files -z --full-name".to_owned(),
            None => "git ls-files -z".to_owned(),
        }];
        lines.push(self.sieve());
        lines.push(format!("xargs -0r sh -c {} sh", quote(&self.look())));
        if self.is_text {
            lines.push("LC_ALL=C xargs -0r sh -c 'grep -lZI \"\" -- \"$@\" || [ $? = 1 ]' sh".to_owned());
        }
        lines
    }

    /// Returns the command that filters by name alone. It also prefixes names that begin with `-` with `./`, so
    /// that no command parses them as options.
    fn sieve(&self) -> String {
        let mut script: Vec<String> = Vec::new();
        script.extend(self.keep.iter().map(|patterns| unless(patterns)));
        script.extend(self.drop.iter().map(|pattern| format!("{}d", address(pattern))));
        if let Some(below) = &self.below {
            let literal = below.chars().map(literally).collect::<String>().replace(',', "\\,");
            script.push(format!("\\,^{literal}/,!d"));
            script.push(format!("s,^{literal}/,,"));
        }
        script.push("s,^-,./-,".to_owned());
        let words: Vec<String> = script.iter().map(|line| format!("-e {}", quote(line))).collect();
        format!("LC_ALL=C sed -zE {}", words.join(" "))
    }

    /// Returns the shell script that filters by inspecting each file. It contains no single quotes.
    fn look(&self) -> String {
        let there = if self.links { "[ -L \"$f\" ]" } else { "[ -f \"$f\" ] && [ ! -L \"$f\" ]" };
        let mode = match self.executable {
            Some(true) => " && [ -x \"$f\" ]",
            Some(false) => " && [ ! -x \"$f\" ]",
            None => "",
        };
        let Some(scripts) = &self.scripts else {
            return format!("for f do if {there}{mode}; then printf \"%s\\0\" \"$f\"; fi; done");
        };
        let by: Vec<String> = scripts.interpreters.iter().map(|name| format!("{name} | {name}.*")).collect();
        let names: String = scripts.names.iter().map(|name| format!(" | {name}")).collect();
        format!(
            "kind() {{\n  case ${{1##*/}} in *.*{names}) return 0 ;; esac\n  [ -x \"$1\" ] || return 1\n  l=; IFS= read -r l \
             <\"$1\" || :\n  case $l in \"#!\"*) ;; *) return 1 ;; esac\n  set -f; set -- ${{l#??}}\n  [ \"${{1##*/}}\" = env ] \
             && shift; [ \"$1\" = -S ] && shift\n  case ${{1##*/}} in {}) ;; *) return 1 ;; esac\n}}\nfor f do if \
             {there}{mode} && kind \"$f\"; then printf \"%s\\0\" \"$f\"; fi; done",
            by.join(" | ")
        )
    }
}

/// Matches a name without a dot.
const NO_END: &str = "(^|/)[^./]+$";

/// Returns patterns for the names of `kinds`: extensions ignore case (`x.py`, `x.PY`); whole names are
/// case-sensitive (`Makefile`, `Dockerfile.dev`, `dev.Dockerfile`).
fn named(kinds: &[&'static FileType]) -> Vec<Pattern> {
    let mut patterns = Vec::new();
    let literal = |text: &&str| text.chars().map(literally).collect::<String>();
    let ends: Vec<String> = kinds.iter().flat_map(|kind| kind.extensions).map(literal).collect();
    if !ends.is_empty() {
        patterns.push(Pattern { ere: format!("\\.({})$", ends.join("|")), ignores_case: true });
    }
    let (whole, part): (Vec<&&str>, Vec<&&str>) =
        kinds.iter().flat_map(|kind| kind.names).partition(|name| name.contains('.'));
    let mut parts = Vec::new();
    if !whole.is_empty() {
        let whole: Vec<String> = whole.into_iter().map(literal).collect();
        parts.push(format!("(^|/)({})$", whole.join("|")));
    }
    if !part.is_empty() {
        let part: Vec<String> = part.into_iter().map(literal).collect();
        parts.push(format!("(^|/|\\.)({})(\\.[^/]*)?$", part.join("|")));
    }
    if !parts.is_empty() {
        patterns.push(Pattern { ere: parts.join("|"), ignores_case: false });
    }
    patterns
}

/// Returns the sed command that drops names that match none of `patterns`.
fn unless(patterns: &[Pattern]) -> String {
    let addresses: Vec<String> = patterns.iter().map(address).collect();
    format!("{}!d{}", addresses.join("!{"), "}".repeat(addresses.len().saturating_sub(1)))
}

/// Escapes a character so that an expression matches it literally.
fn literally(c: char) -> String {
    if "\\^$.[|()*+?{".contains(c) { format!("\\{c}") } else { c.to_string() }
}

/// Formats the pattern as a sed address that is delimited by commas.
fn address(pattern: &Pattern) -> String {
    let flag = if pattern.ignores_case { "I" } else { "" };
    format!("\\,{},{flag}", pattern.ere.replace(',', "\\,"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selection_is_shell() {
        let mut selection = Selection::default();
        selection.keep(Pattern::python("^src/").expect("plain"));
        selection.keep(Pattern::python("").expect("plain"));
        selection.keep_kinds(&[FileType::of("python").expect("known"), FileType::of("pyi").expect("known")]);
        selection.drop.push(Pattern::python("a{2,3},'").expect("plain"));
        selection.below = Some("web,app".to_owned());
        selection.executable = Some(true);
        insta::assert_snapshot!(selection.lines().join("\n"));
    }

    #[test]
    fn names_of_kinds() {
        let kinds = ["dockerfile", "toml"].map(|tag| FileType::of(tag).expect("known"));
        let scripts: Vec<String> = named(&kinds).iter().map(address).collect();
        insta::assert_snapshot!(scripts.join("\n"));
    }
}
