//! Selects the files of the tree for a check, and generates the shell commands that list them at run time.

use super::file_types::FileType;
use super::path_pattern::PathPattern;
use super::shell_words::quote;

/// The files for a check: the tracked files that exist.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Selection {
    /// Groups of patterns; a path must match at least one pattern of each group.
    pub(super) include: Vec<Vec<PathPattern>>,
    /// Patterns that no path may match.
    pub(super) exclude: Vec<PathPattern>,
    /// The directory that contains the files and to which their names are relative; without a slash at its end.
    pub(super) base_dir: Option<String>,
    /// Required executable bit of the files; `None` accepts both.
    pub(super) executable: Option<bool>,
    /// True if only text files are selected: not empty and without a NUL.
    pub(super) is_text: bool,
    /// True if only symbolic links are selected.
    pub(super) is_symlink: bool,
    /// Scripts that are recognized by their first line because their name has no extension.
    scripts: Option<ScriptFilter>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct ScriptFilter {
    interpreters: Vec<&'static str>,
    /// Names without a dot that are selected regardless of their first line.
    names: Vec<&'static str>,
}

impl Selection {
    /// Returns whether the selection contains every file.
    pub(super) fn selects_everything(&self) -> bool {
        let Self { include: keep, exclude: drop, base_dir: below, executable, is_text: _, is_symlink: links, scripts } =
            self;
        let patterns = keep.is_empty() && drop.is_empty() && scripts.is_none();
        patterns && below.is_none() && executable.is_none() && !links
    }

    /// Restricts the selection to paths that match `pattern`.
    pub(super) fn include_pattern(&mut self, pattern: PathPattern) {
        if !pattern.matches_everything() {
            self.include.push(vec![pattern]);
        }
    }

    /// Restricts the selection to files of one of `kinds`.
    pub(super) fn include_types(&mut self, types: &[&'static FileType]) {
        let mut interpreters: Vec<_> = types.iter().flat_map(|kind| kind.interpreters).copied().collect();
        interpreters.sort_unstable();
        interpreters.dedup();
        let mut patterns = name_patterns(types);
        if !interpreters.is_empty() {
            match patterns.iter_mut().find(|pattern| !pattern.ignores_case) {
                Some(exact) => exact.ere.push_str(&format!("|{NO_EXTENSION}")),
                None => patterns.push(PathPattern { ere: NO_EXTENSION.to_owned(), ignores_case: false }),
            }
            let names = types.iter().flat_map(|kind| kind.names).copied().filter(|name| !name.contains('.')).collect();
            self.scripts = Some(ScriptFilter { interpreters, names });
        }
        self.include.push(patterns);
    }

    /// Removes files whose name belongs to one of `kinds`, and scripts of their interpreters.
    pub(super) fn exclude_types(&mut self, types: &[&'static FileType]) {
        self.exclude.extend(name_patterns(types));
        if let Some(scripts) = &mut self.scripts {
            scripts.interpreters.retain(|name| !types.iter().any(|kind| kind.interpreters.contains(name)));
        }
    }

    /// Returns the commands of a pipeline that lists the files, each name followed by a NUL; one line for each
    /// command.
    pub(super) fn pipeline_lines(&self) -> Vec<String> {
        let mut lines = vec![match self.base_dir {
            Some(_) => "git ls-files -z --full-name".to_owned(),
            None => "git ls-files -z".to_owned(),
        }];
        lines.push(self.name_filter());
        lines.push(format!("xargs -0r sh -c {} sh", quote(&self.file_filter_script())));
        if self.is_text {
            lines.push("LC_ALL=C xargs -0r sh -c 'grep -lZI \"\" -- \"$@\" || [ $? = 1 ]' sh".to_owned());
        }
        lines
    }

    /// Returns the command that filters by name alone. It also prefixes names that begin with `-` with `./`, so
    /// that no command parses them as options.
    fn name_filter(&self) -> String {
        let mut script: Vec<String> = Vec::new();
        script.extend(self.include.iter().map(|patterns| delete_unless(patterns)));
        script.extend(self.exclude.iter().map(|pattern| format!("{}d", sed_address(pattern))));
        if let Some(below) = &self.base_dir {
            let literal = below.chars().map(escape_literal).collect::<String>().replace(',', "\\,");
            script.push(format!("\\,^{literal}/,!d"));
            script.push(format!("s,^{literal}/,,"));
        }
        script.push("s,^-,./-,".to_owned());
        let words: Vec<String> = script.iter().map(|line| format!("-e {}", quote(line))).collect();
        format!("LC_ALL=C sed -zE {}", words.join(" "))
    }

    /// Returns the shell script that filters by inspecting each file. It contains no single quotes.
    fn file_filter_script(&self) -> String {
        let there = if self.is_symlink { "[ -L \"$f\" ]" } else { "[ -f \"$f\" ] && [ ! -L \"$f\" ]" };
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
const NO_EXTENSION: &str = "(^|/)[^./]+$";

/// Returns patterns for the names of `kinds`: extensions ignore case (`x.py`, `x.PY`); whole names are
/// case-sensitive (`Makefile`, `Dockerfile.dev`, `dev.Dockerfile`).
fn name_patterns(kinds: &[&'static FileType]) -> Vec<PathPattern> {
    let mut patterns = Vec::new();
    let literal = |text: &&str| text.chars().map(escape_literal).collect::<String>();
    let ends: Vec<String> = kinds.iter().flat_map(|kind| kind.extensions).map(literal).collect();
    if !ends.is_empty() {
        patterns.push(PathPattern { ere: format!("\\.({})$", ends.join("|")), ignores_case: true });
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
        patterns.push(PathPattern { ere: parts.join("|"), ignores_case: false });
    }
    patterns
}

/// Returns the sed command that drops names that match none of `patterns`.
fn delete_unless(patterns: &[PathPattern]) -> String {
    let addresses: Vec<String> = patterns.iter().map(sed_address).collect();
    format!("{}!d{}", addresses.join("!{"), "}".repeat(addresses.len().saturating_sub(1)))
}

/// Escapes a character so that an expression matches it literally.
fn escape_literal(c: char) -> String {
    if "\\^$.[|()*+?{".contains(c) { format!("\\{c}") } else { c.to_string() }
}

/// Formats the pattern as a sed address that is delimited by commas.
fn sed_address(pattern: &PathPattern) -> String {
    let flag = if pattern.ignores_case { "I" } else { "" };
    format!("\\,{},{flag}", pattern.ere.replace(',', "\\,"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renders_selection_as_shell() {
        let mut selection = Selection::default();
        selection.include_pattern(PathPattern::from_python_regex("^src/").expect("plain"));
        selection.include_pattern(PathPattern::from_python_regex("").expect("plain"));
        selection
            .include_types(&[FileType::from_tag("python").expect("known"), FileType::from_tag("pyi").expect("known")]);
        selection.exclude.push(PathPattern::from_python_regex("a{2,3},'").expect("plain"));
        selection.base_dir = Some("web,app".to_owned());
        selection.executable = Some(true);
        insta::assert_snapshot!(selection.pipeline_lines().join("\n"));
    }

    #[test]
    fn renders_name_patterns() {
        let kinds = ["dockerfile", "toml"].map(|tag| FileType::from_tag(tag).expect("known"));
        let scripts: Vec<String> = name_patterns(&kinds).iter().map(sed_address).collect();
        insta::assert_snapshot!(scripts.join("\n"));
    }
}
