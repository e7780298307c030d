//! Tests one property with real overlays: the changes found in the layer of a script equal the changes that the
//! script makes in a plain copy of the tree.

use std::path::Path;

use proctor_core::model::drift::display_path;
use proctor_core::model::plan::ReadOnly::Tracked;
use proctor_snapshot::{Snapshot, TreeView};
use tempfile::TempDir;

use crate::apply::apply_on;
use crate::repository::{FixtureLayer, FixtureRepo, helper, run_program};
use crate::{Requirement, SnapshotTestCase};

pub(crate) const CASES: &[SnapshotTestCase] = &[
    ("overlay: layer matches plain copy", Requirement::OverlayMounts, layer_matches_plain_copy),
    ("overlay: stacked layers match plain copy", Requirement::OverlayMounts, stacked_layers_match_plain_copy),
    ("overlay: unchanged tree has no drift", Requirement::OverlayMounts, unchanged_tree_has_no_drift),
];

/// Checks whether an overlay with the sandbox's options can be mounted on this machine.
pub(crate) fn can_mount_overlay() -> bool {
    let lower = TempDir::new().expect("a temporary directory");
    rustix::process::geteuid().is_root() && FixtureLayer::from_script(&[lower.path()], "true").is_some()
}

const SCRIPTS: &[&str] = &[
    "echo new > README.md",
    "rm README.md",
    "rm -r src",
    "mv src moved",
    "rm -r src; mkdir src; echo x > src/new.rs",
    "rm -r src; echo x > src",
    "rm README.md; mkdir -p README.md/a; echo x > README.md/a/b",
    "chmod +x README.md",
    "ln -sf main.rs src/link; rm README.md; ln -s /etc/passwd README.md",
    "mkdir -p a/b/c; echo x > a/b/c/d; mkdir empty; mkfifo pipe",
    "ln README.md hard; echo more >> hard",
    "mv src/deep/one src/deep/two; rm -r src/other; mkdir src/other; cp README.md src/other/",
    "printf x > \"$(printf 'a\\nb\\377')\"",
    "echo x > target/x; echo x > a.log; rm -rf target/old; echo x > new",
    "rm -rf target; mkdir target; echo x > target/new; rm -r src/deep; mkdir src/deep",
    "echo '*' > .gitignore",
    "rm -r vendor/src; echo x >> vendor/README; rm -rf src",
    "cp -a src again; rm -r src; mv again src; echo x > src/more",
    "truncate -s 0 README.md; chmod 600 src/main.rs; touch src/deep/one",
    "chmod 000 README.md; mkdir hid; echo x > hid/x; chmod 000 hid/x",
];

const NO_CHANGES: &[&str] = &[
    "touch README.md src/main.rs; touch -d 1999-01-01 src",
    "cp README.md t; cat t > README.md; rm t",
    "mv src x; mv x src",
    "cp -a src x; rm -r src; mv x src",
    "echo x > created; rm created; mkdir d; rmdir d",
    "chmod +x README.md; chmod -x README.md; chmod 600 README.md",
    "mv vendor v; mv v vendor",
    "rm -r target; mkdir -p target/x; echo x > target/x/y; echo x > some.log",
    "mkdir -p new/empty; mkdir -p changes/a/verify; echo x > changes/a/verify/b.json",
    "ln README.md hard; rm hard; setfattr -n user.x -v y README.md || true",
    "echo x >> README.md; truncate -s -2 README.md",
];

fn build_tree() -> FixtureRepo {
    let repo = FixtureRepo::small();
    repo.write("src/deep/one", "1\n").write("src/other/two", "2\n").commit();
    repo.write("untracked", "x").write("target/old/x", "x").write("vendor/README", "x").write("vendor/src/a", "x");
    repo.git(&["init", "-q", "vendor"]);
    repo
}

/// Returns the snapshot of a copy of the tree in which the scripts were run.
fn snapshot_of_copy(repo: &FixtureRepo, scripts: &[&str]) -> Snapshot {
    let room = TempDir::new().expect("a temporary directory");
    let copy = room.path().join("repo");
    run_program(&repo.top, "cp", &["-a", ".", &copy.display().to_string()]);
    for script in scripts {
        let ran = run_program(&copy, "sh", &["-ec", script]);
        assert!(ran.status.success(), "{script}: {}", String::from_utf8_lossy(&ran.stderr));
    }
    Snapshot::take(&copy, &helper()).unwrap_or_else(|error| panic!("{error}"))
}

fn layer_by_script(
    repo: &FixtureRepo,
    view: &TreeView,
    lowers: &[&FixtureLayer],
    script: &str,
) -> (FixtureLayer, TreeView) {
    let lowers: Vec<_> = lowers.iter().map(|layer| layer.path()).chain([repo.top.clone()]).collect();
    let lowers: Vec<&Path> = lowers.iter().map(|path| path.as_path()).collect();
    let layer = FixtureLayer::from_script(&lowers, script).unwrap_or_else(|| panic!("{script}"));
    let next = view.with_layer(&layer.scan(), &repo.rules()).unwrap_or_else(|error| panic!("{error}"));
    (layer, next)
}

fn display_paths(paths: &[Vec<u8>]) -> Vec<String> {
    paths.iter().map(|path| display_path(path)).collect()
}

fn layer_matches_plain_copy() {
    for script in SCRIPTS {
        let repo = build_tree();
        let (view, copy) = (repo.view(), snapshot_of_copy(&repo, &[script]));
        let (layer, after) = layer_by_script(&repo, &view, &[], script);
        // The copy is judged by the ignore rules that the script wrote, the layer by those from before the script.
        let own_rules = script.contains(".gitignore");
        if !own_rules {
            assert_eq!(display_paths(&after.difference(&copy)), Vec::<String>::new(), "{script}");
            assert_eq!(after.id(), copy.id, "{script}");
            let drift = repo.drift_on(&view, &layer, &[], Tracked);
            let drifted: Vec<_> = drift.changes.iter().map(|change| change.path.clone()).collect();
            assert_eq!(drifted, display_paths(&view.base().difference(&copy)), "{script}");
        }
        let has_special = script.contains("mkfifo");
        apply_on(&repo, &view, &layer).unwrap_or_else(|error| panic!("{script}: {error}"));
        let left = after.difference(&repo.snapshot());
        assert!(
            left.is_empty() || own_rules || has_special && display_paths(&left) == ["pipe"],
            "{script}: {:?}",
            display_paths(&left)
        );
    }
}

fn stacked_layers_match_plain_copy() {
    for (first, second) in SCRIPTS.iter().zip(SCRIPTS.iter().skip(1)) {
        let tolerant = |script: &str| format!("{{ {script}\n}} || true");
        let (first, second) = (tolerant(first), tolerant(second));
        if first.contains(".gitignore") || second.contains(".gitignore") {
            continue;
        }
        let repo = build_tree();
        let copy = snapshot_of_copy(&repo, &[&first, &second]);
        let (below, between) = layer_by_script(&repo, &repo.view(), &[], &first);
        let (_, after) = layer_by_script(&repo, &between, &[&below], &second);
        assert_eq!(display_paths(&after.difference(&copy)), Vec::<String>::new(), "{first}; {second}");
    }
}

fn unchanged_tree_has_no_drift() {
    let repo = build_tree();
    let view = repo.view();
    for script in NO_CHANGES {
        assert_eq!(snapshot_of_copy(&repo, &[script]).id, view.id(), "{script}");
        let (layer, after) = layer_by_script(&repo, &view, &[], script);
        assert_eq!(repo.drift_on(&view, &layer, &[], Tracked).changes, [], "{script}");
        assert_eq!(after.id(), view.id(), "{script}");
    }
}
