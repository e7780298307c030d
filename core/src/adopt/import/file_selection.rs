//! Collects the patterns and types of a hook, and converts them to the rules for the files of a step.

use super::path_pattern::{PathPattern, UnsupportedPattern};
use crate::decision::file_matcher::{FileMatcher, FileRuleError};
use crate::model::plan::FileRules;

/// The files that a hook checks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct FileSelection {
    /// Groups of patterns; a path must match at least one pattern of each group.
    include: Vec<Vec<PathPattern>>,
    /// Patterns of a spec that no path may match.
    exclude: Vec<String>,
    /// Types that the file must all have.
    types: Vec<String>,
    /// Types of which the file must have one, unless the list is empty.
    types_or: Vec<String>,
    /// Types of which the file must have none.
    exclude_types: Vec<String>,
}

/// A list of types in a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TypeList {
    /// The file must have all of them.
    All,
    /// The file must have one of them.
    Any,
    /// The file must have none of them.
    None,
}

impl FileSelection {
    /// Restricts the selection to paths that match one of `patterns`.
    pub(super) fn include_any(&mut self, patterns: Vec<PathPattern>) {
        if !patterns.is_empty() && !patterns.iter().any(PathPattern::matches_everything) {
            self.include.push(patterns);
        }
    }

    /// Removes paths that match a pattern.
    pub(super) fn exclude(&mut self, pattern: &PathPattern) {
        if !pattern.matches_nothing() {
            self.exclude.push(pattern.to_spec_pattern());
        }
    }

    /// Removes one path, which is a valid glob.
    pub(super) fn exclude_path(&mut self, path: &str) {
        self.exclude.push(path.to_owned());
    }

    /// Adds types to a list.
    ///
    /// # Errors
    /// A type is unknown.
    pub(super) fn add_types(&mut self, list: TypeList, types: &[&str]) -> Result<(), FileRuleError> {
        let types: Vec<String> = types.iter().map(|tag| (*tag).to_owned()).collect();
        FileMatcher::new(&FileRules { types: types.clone(), ..FileRules::default() })?;
        match list {
            // Every type but that of links implies that it is a file.
            TypeList::All => self.types.extend(types.into_iter().filter(|tag| tag != "file")),
            TypeList::Any if types.iter().any(|tag| tag == "file") => {}
            TypeList::Any => self.types_or.extend(types),
            TypeList::None => self.exclude_types.extend(types.into_iter().filter(|tag| tag != "symlink")),
        }
        Ok(())
    }

    /// Restricts the selection to symbolic links, regardless of the types so far.
    pub(super) fn select_only_links(&mut self) {
        self.types = vec!["symlink".to_owned()];
        self.types_or.clear();
    }

    /// Returns the rules of a step.
    ///
    /// # Errors
    /// The patterns of several groups cannot be combined.
    pub(super) fn to_rules(&self) -> Result<FileRules, UnsupportedPattern> {
        let include = match self.include.split_first() {
            None => Vec::new(),
            Some((first, rest)) => rest.iter().try_fold(first.clone(), |patterns, group| combine(&patterns, group))?,
        };
        Ok(FileRules {
            include: include.iter().map(PathPattern::to_spec_pattern).collect(),
            exclude: self.exclude.clone(),
            types: self.types.clone(),
            types_or: self.types_or.clone(),
            exclude_types: self.exclude_types.clone(),
            base: None,
            parallel: 1,
            per_file: false,
        })
    }
}

/// Returns patterns for the paths that match a pattern of each group.
fn combine(one: &[PathPattern], other: &[PathPattern]) -> Result<Vec<PathPattern>, UnsupportedPattern> {
    one.iter().flat_map(|first| other.iter().map(move |second| first.and(second))).collect()
}

/// Returns whether the rules choose every file.
pub(super) fn chooses_everything(rules: &FileRules) -> bool {
    let FileRules { include, exclude, types, types_or, exclude_types, base: _, parallel: _, per_file: _ } = rules;
    [include, exclude, types, types_or, exclude_types].iter().all(|list| list.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn combines_patterns_and_types() {
        let pattern = |text| PathPattern::from_python_regex(text).expect("valid");
        let mut selection = FileSelection::default();
        assert!(chooses_everything(&selection.to_rules().expect("rules")));
        selection.include_any(vec![pattern("")]);
        selection.include_any(vec![pattern("^src/")]);
        selection.exclude(&pattern("^$"));
        selection.exclude(&pattern("x"));
        selection.add_types(TypeList::All, &["file", "text"]).expect("known");
        selection.add_types(TypeList::Any, &["file", "python"]).expect("known");
        selection.add_types(TypeList::None, &["symlink", "binary"]).expect("known");
        let rules = selection.to_rules().expect("rules");
        assert_eq!((rules.include, rules.exclude), (vec!["regex:^src/".to_owned()], vec!["regex:x".to_owned()]));
        assert_eq!(
            (rules.types, rules.types_or, rules.exclude_types),
            (vec!["text".into()], vec![], vec!["binary".into()])
        );
        selection.include_any(vec![pattern("a$"), pattern("b$")]);
        assert_eq!(selection.to_rules().expect("rules").include.len(), 2);
        assert!(selection.add_types(TypeList::All, &["pythn"]).is_err());
    }
}
