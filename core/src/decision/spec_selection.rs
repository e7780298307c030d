//! Decides which specs of a commit a hook verifies, if the repository has several.

use std::collections::BTreeSet;

use crate::model::drift::is_evidence_path;
use crate::model::plan::RelPath;
use crate::spec;

/// A spec of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommittedSpec {
    /// The directory that contains `spec/`.
    pub directory: RelPath,
    /// The spec and the files that it includes; `None` if they are not known.
    pub files: Option<BTreeSet<Vec<u8>>>,
}

/// The differences between a commit and the commit from which its changes count.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommitChanges {
    /// The paths that exist in only one of the two trees, or differ.
    pub paths: Vec<Vec<u8>>,
    /// The directories that have a spec in the earlier tree.
    pub earlier_specs: BTreeSet<RelPath>,
}

/// Returns the directory to which a path belongs as a spec: empty for the top, or `None` if the path is no spec that a tree
/// covers.
pub fn spec_directory(path: &[u8]) -> Option<&[u8]> {
    let directory = match path.strip_suffix(spec::PATH.as_bytes())? {
        b"" => b"",
        above => above.strip_suffix(b"/")?,
    };
    let is_covered = !is_evidence_path(path) && directory.split(|byte| *byte == b'/').all(|name| name != b".git");
    is_covered.then_some(directory)
}

/// Returns for each spec whether the changes can affect its result. Without `changes`, all specs count as affected.
///
/// A changed file affects the specs of all directories that contain it, and the specs that include it. A file that no
/// subdirectory with a spec contains affects every spec, because the specs may share it: a lock file at the top, for
/// example. Only subdirectories that had their spec before count for this, so that a new spec cannot claim files.
pub fn affected_specs(specs: &[CommittedSpec], changes: Option<&CommitChanges>) -> Vec<bool> {
    let Some(changes) = changes else { return vec![true; specs.len()] };
    let owners: Vec<&RelPath> = specs
        .iter()
        .map(|spec| &spec.directory)
        .filter(|directory| !directory.is_repository() && changes.earlier_specs.contains(directory))
        .collect();
    let is_owned = |path: &Vec<u8>| owners.iter().any(|directory| is_below(path, directory));
    let is_any_shared = !changes.paths.iter().all(is_owned);
    let is_affected = |spec: &CommittedSpec| {
        let is_part = |path: &Vec<u8>| {
            is_below(path, &spec.directory) || spec.files.as_ref().is_none_or(|files| files.contains(path))
        };
        is_any_shared || changes.paths.iter().any(is_part)
    };
    specs.iter().map(is_affected).collect()
}

fn is_below(path: &[u8], directory: &RelPath) -> bool {
    directory.is_repository()
        || path.strip_prefix(directory.as_str().as_bytes()).is_some_and(|rest| rest.starts_with(b"/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(path: &str) -> RelPath {
        RelPath::new(path).expect("a path")
    }

    fn spec(path: &str, included: &[&str]) -> CommittedSpec {
        let own = format!("{path}/{}", spec::PATH);
        let files = included.iter().copied().chain([own.as_str()]).map(|file| file.as_bytes().to_vec()).collect();
        CommittedSpec { directory: directory(path), files: Some(files) }
    }

    fn changes(paths: &[&str], earlier: &[&str]) -> CommitChanges {
        CommitChanges {
            paths: paths.iter().map(|path| path.as_bytes().to_vec()).collect(),
            earlier_specs: earlier.iter().map(|path| directory(path)).collect(),
        }
    }

    #[test]
    fn recognizes_specs_by_their_paths() {
        let found = |path: &'static str| spec_directory(path.as_bytes());
        assert_eq!(found("spec/verification.yaml"), Some(&b""[..]));
        assert_eq!(found("svc/a/spec/verification.yaml"), Some(&b"svc/a"[..]));
        for other in [
            "myspec/verification.yaml",
            "spec/verification.yaml/x",
            "spec/verification.yml",
            "changes/9/verify/spec/verification.yaml",
            "a/.git/spec/verification.yaml",
        ] {
            assert_eq!(found(other), None, "{other}");
        }
    }

    #[test]
    fn change_affects_the_specs_above_it() {
        let specs = [spec("svc/a", &[]), spec("svc/a/deep", &[]), spec("svc/b", &[])];
        let earlier = ["svc/a", "svc/a/deep", "svc/b"];
        let affected = |paths: &[&str]| affected_specs(&specs, Some(&changes(paths, &earlier)));
        assert_eq!(affected(&["svc/a/x"]), [true, false, false]);
        assert_eq!(affected(&["svc/a/deep/x"]), [true, true, false]);
        assert_eq!(affected(&["svc/b/x", "svc/a/deep/y"]), [true, true, true]);
        assert_eq!(affected(&[]), [false, false, false]);
        assert_eq!(affected_specs(&specs, None), [true, true, true]);
    }

    #[test]
    fn file_outside_of_the_subdirectories_affects_every_spec() {
        let specs = [spec(".", &[]), spec("svc/a", &[]), spec("svc/b", &[])];
        let affected = |paths: &[&str]| affected_specs(&specs, Some(&changes(paths, &[".", "svc/a", "svc/b"])));
        assert_eq!(affected(&["pnpm-lock.yaml"]), [true, true, true]);
        assert_eq!(affected(&["svc/ab/x"]), [true, true, true]);
        assert_eq!(affected(&["svc/a/x"]), [true, true, false]);
    }

    #[test]
    fn new_spec_does_not_claim_files() {
        let specs = [spec("lib", &[]), spec("svc/a", &[])];
        let paths = ["lib/x", "lib/spec/verification.yaml"];
        assert_eq!(affected_specs(&specs, Some(&changes(&paths, &["svc/a"]))), [true, true]);
        assert_eq!(affected_specs(&specs, Some(&changes(&["lib/x"], &["lib", "svc/a"]))), [true, false]);
    }

    #[test]
    fn included_file_affects_the_specs_that_include_it() {
        let unknown = CommittedSpec { directory: directory("svc/c"), files: None };
        let specs = [spec("svc/a", &["svc/b/checks.yaml"]), spec("svc/b", &[]), spec("svc/d", &[]), unknown];
        let changes = changes(&["svc/b/checks.yaml"], &["svc/a", "svc/b", "svc/c", "svc/d"]);
        assert_eq!(affected_specs(&specs, Some(&changes)), [true, true, false, true]);
    }
}
