//! Restricts a step that has no mount namespace by Landlock alone, with a rule for each path that the step may use.
//! It can neither read nor write any other path.

use std::path::{Path, PathBuf};

use proctor_core::model::enforcement::{Control, Enforcement};

use super::attempt_dirs::AttemptPaths;
use crate::helper::landlock::{FileRights, LandlockResult, LandlockRuleset, device_rights, read_rights, write_rights};
use crate::helper::setup_failure::{LANDLOCK, SetupFailure, refuse, refused};
use crate::helper::tree_copy::has_git_in_tree;
use crate::policy::ToolKind;
use crate::setup::DEVICES;
use crate::wire::{HostDirSandboxRequest, SandboxRequest};

/// Directories of the system: programs, libraries, settings, and the kernel's file systems.
const SYSTEM_DIRS: [&str; 13] =
    ["/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/usr", "/etc", "/opt", "/nix", "/gnu", "/proc", "/sys"];

/// Enforces the ruleset on this process. If Landlock is absent, records the controls that depend on it as missing
/// before returning the refusal.
pub(super) fn enforce(
    request: &HostDirSandboxRequest,
    paths: &AttemptPaths,
    enforcement: &mut Enforcement,
) -> Result<(), SetupFailure> {
    let control = Control::Landlock;
    let wall =
        LandlockRuleset::from_rules(&build_rules(request, paths), &paths.tree).and_then(LandlockRuleset::enforce);
    match wall.map_err(refuse(control, "apply the Landlock ruleset"))? {
        LandlockResult::Enforced { mechanism } => {
            record_controls(&request.sandbox, has_truncation_right(&mechanism), enforcement);
            record_absent_git(request, enforcement);
            enforcement.record_enforced(control, mechanism);
            Ok(())
        }
        LandlockResult::Unavailable { reason } => {
            for control in LANDLOCK_CONTROLS {
                enforcement.record_not_enforced(control, format!("file modes only: {reason}"));
            }
            record_absent_git(request, enforcement);
            Err(refused(control, reason, LANDLOCK))
        }
    }
}

/// The controls that depend on the ruleset, to the extent that Landlock can enforce them.
const LANDLOCK_CONTROLS: [Control; 4] =
    [Control::ReadOnlyRoot, Control::HiddenPaths, Control::PrivateDev, Control::GitReadOnly];

/// Returns whether Landlock prevents the truncation of files, which needs ABI 3 (Linux 6.2).
fn has_truncation_right(mechanism: &str) -> bool {
    mechanism.contains("truncating")
}

/// Records the controls that the ruleset enforces. Landlock covers contents and names only: the owner of a file can
/// change its mode, owner and times anywhere, and every user can find out whether a path exists.
fn record_controls(request: &SandboxRequest, is_whole: bool, enforcement: &mut Enforcement) {
    let user = request.user;
    // The step owns the copy of a git directory.
    let owns_nothing =
        |control| user.is_mapped() && !(control == Control::GitReadOnly && has_git_in_tree(&request.frame));
    let kept = "Landlock: only the copy, its home and its scratch directory can be written";
    for control in [Control::ReadOnlyRoot, Control::GitReadOnly] {
        match (is_whole, owns_nothing(control)) {
            (true, true) => enforcement.record_enforced(control, kept),
            (true, false) => enforcement.record_not_enforced(
                control,
                format!("{kept}; modes and times of all files of user {} can be changed", user.uid()),
            ),
            (false, _) => {
                enforcement.record_not_enforced(control, "this kernel's Landlock does not prevent truncation of files");
            }
        }
    }
    let hidden = "Landlock: files of a hidden directory can be neither read nor listed; the existence of a path is \
                  visible, and a socket with a path can be connected to";
    enforcement.record_not_enforced(Control::HiddenPaths, hidden);
    enforcement
        .record_enforced(Control::PrivateDev, format!("Landlock: in /dev, only {} can be opened", DEVICES.join(", ")));
}

fn record_absent_git(request: &HostDirSandboxRequest, enforcement: &mut Enforcement) {
    let git = &request.sandbox.frame.git;
    if git.worktree_git.is_none() && git.common.is_none() {
        enforcement.record_not_requested(Control::GitReadOnly, "the tree is not a git repository");
    }
}

fn build_rules(request: &HostDirSandboxRequest, paths: &AttemptPaths) -> Vec<(PathBuf, FileRights)> {
    let frame = &request.sandbox.frame;
    let hidden: Vec<PathBuf> = request.hidden.iter().map(|path| resolve_path(path)).collect();
    let tools = frame.tools.iter().filter(|tool| tool.kind != ToolKind::Masked).map(|tool| resolve_path(&tool.source));
    let mut read = Vec::new();
    for dir in SYSTEM_DIRS.into_iter().map(PathBuf::from).chain(tools) {
        collect_readable(&dir, &hidden, &mut read);
    }
    read.extend(request.resolver.clone());
    read.extend(frame.git.common.clone());
    read.extend(frame.git.nested.iter().map(|nested| nested.objects.clone()));
    read.push(paths.git.clone());
    let mut rules: Vec<(PathBuf, FileRights)> = read.into_iter().map(|path| (path, read_rights())).collect();
    rules.extend(DEVICES.iter().map(|name| (Path::new("/dev").join(name), read_rights() | device_rights())));
    let caches = paths.caches.iter().map(|(_, place)| place);
    let writable = [&paths.tree, &paths.home, &paths.tmp].into_iter().chain(caches);
    rules.extend(writable.map(|path| (path.clone(), read_rights() | write_rights())));
    rules
}

fn resolve_path(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// Collects the readable parts of `dir`: all of it, or the entries next to hidden directories. A rule applies to
/// everything below its directory, and exceptions are not possible.
fn collect_readable(dir: &Path, hidden: &[PathBuf], into: &mut Vec<PathBuf>) {
    if hidden.iter().any(|path| path == dir) || dir.is_symlink() {
        return;
    }
    if !hidden.iter().any(|path| path.starts_with(dir)) {
        into.push(dir.to_owned());
        return;
    }
    // A directory that this process cannot list is unreadable for the step too.
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        collect_readable(&entry.path(), hidden, into);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_entries_next_to_hidden_directory() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path();
        for below in ["a/b/secret", "a/c", "d"] {
            std::fs::create_dir_all(root.join(below)).expect("made");
        }
        std::os::unix::fs::symlink(root.join("a/b/secret"), root.join("a/link")).expect("made");
        std::fs::create_dir_all(root.join("a/b/open")).expect("made");
        let mut shown = Vec::new();
        collect_readable(root, &[root.join("a/b/secret")], &mut shown);
        shown.sort();
        assert_eq!(shown, ["a/b/open", "a/c", "d"].map(|below| root.join(below)));
    }
}
