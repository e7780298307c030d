//! Tests which changes count as drift.

use std::os::unix::fs::symlink;

use proctor_core::model::drift::{ChangeKind, Diff, EntryKind, MAX_CHANGES, MAX_STEP_DIFF};
use proctor_core::model::plan::ReadOnly::{Off, Strict, Tracked};

use crate::repository::{FixtureLayer, FixtureRepo, kinds};
use crate::{Requirement, SnapshotTestCase};

pub(crate) const CASES: &[SnapshotTestCase] = &[
    ("drift: records edit with diff", Requirement::Nothing, records_edit_with_diff),
    ("drift: ignores touch and rewrite", Requirement::Nothing, ignores_touch_and_rewrite),
    ("drift: records new files except ignored", Requirement::Nothing, records_new_files_except_ignored),
    ("drift: off protects only git directory", Requirement::Nothing, off_protects_only_git_dir),
    ("drift: strict protects ignored files", Requirement::Nothing, strict_protects_ignored_files),
    ("drift: strict lists deleted files", Requirement::Whiteouts, strict_lists_deleted_files),
    ("drift: records exec bit", Requirement::Nothing, records_exec_bit),
    ("drift: records type changes", Requirement::Nothing, records_type_changes),
    ("drift: records directory replaced by file", Requirement::Nothing, records_directory_replaced_by_file),
    ("drift: records file replaced by directory", Requirement::Nothing, records_file_replaced_by_directory),
    ("drift: records deletions", Requirement::Whiteouts, records_deletions),
    ("drift: records changes of recreated directory", Requirement::Nothing, records_changes_of_recreated_directory),
    ("drift: ignores rename and back", Requirement::Nothing, ignores_rename_and_back),
    ("drift: always protects git directory", Requirement::Whiteouts, always_protects_git_dir),
    ("drift: protects nested repository", Requirement::Nothing, protects_nested_repository),
    ("drift: ignores moved and restored submodule", Requirement::Nothing, ignores_moved_and_restored_submodule),
    ("drift: ignores rules written by step", Requirement::Nothing, ignores_rules_written_by_step),
    ("drift: ignores evidence", Requirement::Nothing, ignores_evidence),
    ("drift: records files below evidence path", Requirement::Nothing, records_files_below_evidence_path),
    ("drift: compares with lower layers", Requirement::Whiteouts, compares_with_lower_layers),
    ("drift: omits diffs with reason", Requirement::Nothing, omits_diffs_with_reason),
    ("drift: bounds recorded changes", Requirement::Nothing, bounds_recorded_changes),
];

fn diff_text(diff: &Diff) -> &str {
    match diff {
        Diff::Whole { text } | Diff::Truncated { text, .. } => text,
        other => panic!("{other:?}"),
    }
}

fn records_edit_with_diff() {
    let (repo, layer) = (FixtureRepo::small(), FixtureLayer::new());
    layer.write("README.md", "hello\nworld\n");
    let drift = repo.drift(&layer, Tracked);
    assert_eq!(kinds(&drift), [("README.md", ChangeKind::Modified)].into());
    let expected = "--- a/README.md\n+++ b/README.md\n@@ -1 +1,2 @@\n hello\n+world\n";
    assert_eq!(diff_text(&drift.changes[0].diff), expected);
    assert!(drift.changes[0].before.is_some() && drift.changes[0].after.is_some());
}

fn ignores_touch_and_rewrite() {
    let (repo, layer) = (FixtureRepo::small(), FixtureLayer::new());
    layer.write("README.md", "hello\n").write("src/main.rs", "fn main() {}\n").mkdir("new/empty");
    layer.chmod("README.md", 0o600);
    assert!(repo.drift(&layer, Tracked).is_empty());
    assert!(repo.drift(&layer, Strict).is_empty());
}

fn records_new_files_except_ignored() {
    let (repo, layer) = (FixtureRepo::small(), FixtureLayer::new());
    layer.write("src/new.rs", "x\n").write("target/out", "x").write("a.log", "x").link("link", "/etc");
    let expected = [("link", ChangeKind::Created), ("src/new.rs", ChangeKind::Created)];
    assert_eq!(kinds(&repo.drift(&layer, Tracked)), expected.into());
}

fn off_protects_only_git_dir() {
    let (repo, layer) = (FixtureRepo::small(), FixtureLayer::new());
    layer.write("README.md", "x").write(".git/config", "x");
    assert_eq!(kinds(&repo.drift(&layer, Off)), [(".git/config", ChangeKind::Modified)].into());
}

fn strict_protects_ignored_files() {
    let (repo, layer) = (FixtureRepo::small(), FixtureLayer::new());
    repo.write("target/same", "x").write("target/old", "1\n");
    layer.write("target/same", "x").write("target/old", "2\n").write("target/new", "x").write("cache/x", "x");
    let drift = repo.drift(&layer, Strict);
    assert_eq!(kinds(&drift), [("target/new", ChangeKind::Created), ("target/old", ChangeKind::Modified)].into());
    assert!(diff_text(&drift.changes[1].diff).ends_with("-1\n+2\n"));
}

fn strict_lists_deleted_files() {
    let (repo, layer) = (FixtureRepo::small(), FixtureLayer::new());
    repo.write("target/a/b", "1\n").write("target/c", "x").write("cache/x", "x");
    layer.whiteout("target").whiteout("cache");
    let drift = repo.drift(&layer, Strict);
    assert_eq!(kinds(&drift), [("target/a/b", ChangeKind::Deleted), ("target/c", ChangeKind::Deleted)].into());
    assert!(diff_text(&drift.changes[0].diff).ends_with("-1\n"));
    assert!(repo.drift(&layer, Tracked).is_empty());
}

fn records_exec_bit() {
    let (repo, layer) = (FixtureRepo::small(), FixtureLayer::new());
    layer.write("README.md", "hello\n").chmod("README.md", 0o755);
    let drift = repo.drift(&layer, Tracked);
    assert_eq!(kinds(&drift), [("README.md", ChangeKind::ModeChanged)].into());
    assert_eq!(drift.changes[0].diff, Diff::None);
}

fn records_type_changes() {
    let (repo, layer) = (FixtureRepo::small(), FixtureLayer::new());
    symlink("README.md", repo.at("link")).expect("links");
    layer.link("README.md", "/etc/passwd").fifo("src/main.rs").write("link", "README.md");
    let expected = [
        ("README.md", ChangeKind::TypeChanged),
        ("link", ChangeKind::TypeChanged),
        ("src/main.rs", ChangeKind::TypeChanged),
    ];
    assert_eq!(kinds(&repo.drift(&layer, Tracked)), expected.into());
}

fn records_directory_replaced_by_file() {
    let (repo, layer) = (FixtureRepo::small(), FixtureLayer::new());
    layer.write("src", "x");
    let drift = repo.drift(&layer, Tracked);
    assert_eq!(kinds(&drift), [("src", ChangeKind::TypeChanged), ("src/main.rs", ChangeKind::Deleted)].into());
    let kind = drift.changes[0].before.as_ref().map(|entry| entry.kind);
    assert_eq!(kind, Some(EntryKind::Directory));
}

fn records_file_replaced_by_directory() {
    let (repo, layer) = (FixtureRepo::small(), FixtureLayer::new());
    layer.write("README.md/x", "x");
    let expected = [("README.md", ChangeKind::TypeChanged), ("README.md/x", ChangeKind::Created)];
    assert_eq!(kinds(&repo.drift(&layer, Tracked)), expected.into());
}

fn records_deletions() {
    let (repo, layer) = (FixtureRepo::small(), FixtureLayer::new());
    repo.write("src/a/b", "x").write("target/x", "x");
    layer.whiteout("src").whiteout("README.md").whiteout("target").whiteout("never-there");
    let drift = repo.drift(&layer, Tracked);
    let expected =
        [("README.md", ChangeKind::Deleted), ("src/a/b", ChangeKind::Deleted), ("src/main.rs", ChangeKind::Deleted)];
    assert_eq!(kinds(&drift), expected.into());
    assert_eq!(diff_text(&drift.changes[0].diff), "--- a/README.md\n+++ /dev/null\n@@ -1 +0,0 @@\n-hello\n");
}

fn records_changes_of_recreated_directory() {
    let (repo, layer) = (FixtureRepo::small(), FixtureLayer::new());
    repo.write("src/gone.rs", "x");
    layer.opaque("src").write("src/main.rs", "fn main() {}\n").write("src/new.rs", "x");
    let expected = [("src/gone.rs", ChangeKind::Deleted), ("src/new.rs", ChangeKind::Created)];
    assert_eq!(kinds(&repo.drift(&layer, Tracked)), expected.into());
}

fn ignores_rename_and_back() {
    let (repo, layer) = (FixtureRepo::small(), FixtureLayer::new());
    layer.opaque("src").write("src/main.rs", "fn main() {}\n").write("README.md", "hello\n");
    assert!(repo.drift(&layer, Tracked).is_empty());
}

fn always_protects_git_dir() {
    for mode in [Off, Tracked, Strict] {
        let (repo, layer) = (FixtureRepo::small(), FixtureLayer::new());
        layer.write(".git/hooks/pre-commit", "x");
        assert_eq!(kinds(&repo.drift(&layer, mode)), [(".git/hooks/pre-commit", ChangeKind::Created)].into());
        let layer = FixtureLayer::new();
        layer.whiteout(".git");
        assert!(kinds(&repo.drift(&layer, mode)).contains_key(".git"));
        let layer = FixtureLayer::new();
        layer.mkdir(".git");
        assert!(repo.drift(&layer, mode).is_empty());
    }
}

fn protects_nested_repository() {
    let (repo, layer) = (FixtureRepo::small(), FixtureLayer::new());
    repo.write("vendor/a", "x").git(&["init", "-q", "vendor"]);
    layer.write("vendor/.git/config", "x").write("vendor/a", "y").write("target/t/.git/HEAD", "x");
    let expected = [("vendor/.git/config", ChangeKind::Modified), ("vendor/a", ChangeKind::Modified)];
    assert_eq!(kinds(&repo.drift(&layer, Tracked)), expected.into());
}

fn ignores_moved_and_restored_submodule() {
    let (repo, inner, layer) = (FixtureRepo::small(), FixtureRepo::small(), FixtureLayer::new());
    repo.git(&["submodule", "--quiet", "add", &inner.top.display().to_string(), "sub"]);
    repo.commit();
    layer.opaque("sub");
    for path in ["sub/.git", "sub/.gitignore", "sub/README.md", "sub/src/main.rs"] {
        layer.write(path, repo.read(path));
    }
    assert!(repo.drift(&layer, Tracked).is_empty());
    let view = repo.view();
    assert_eq!(view.with_layer(&layer.scan(), &repo.rules()).expect("applies").id(), view.id());
    std::fs::remove_file(layer.at("sub/.git")).expect("removes");
    assert_eq!(kinds(&repo.drift(&layer, Tracked)), [("sub", ChangeKind::TypeChanged)].into());
}

fn ignores_rules_written_by_step() {
    let (repo, layer) = (FixtureRepo::small(), FixtureLayer::new());
    layer.write(".gitignore", "*\n").write("src/new.rs", "x").write("sub/.gitignore", "*\n").write("sub/x", "x");
    let drift = repo.drift(&layer, Tracked);
    let found: Vec<_> = kinds(&drift).into_keys().collect();
    assert_eq!(found, [".gitignore", "src/new.rs", "sub/.gitignore", "sub/x"]);
}

fn ignores_evidence() {
    let (repo, layer) = (FixtureRepo::small(), FixtureLayer::new());
    layer
        .write("changes/a/verify/x.json", "x")
        .write("changes/a/05-status.json", "x")
        .write("changes/a/00-meta.json", "x");
    for mode in [Tracked, Strict] {
        let drift = repo.drift(&layer, mode);
        assert_eq!(kinds(&drift), [("changes/a/00-meta.json", ChangeKind::Created)].into());
    }
}

fn records_files_below_evidence_path() {
    let repo = FixtureRepo::small();
    repo.write("changes/a/05-status.json/x", "x").write("changes/a/verify/y/z", "z").commit();
    let (removed, replaced) = (FixtureLayer::new(), FixtureLayer::new());
    removed.opaque("changes/a/05-status.json").opaque("changes/a/verify/y");
    replaced.write("changes/a/05-status.json", "{}").write("changes/a/verify/y", "y");
    for (layer, mode) in [(&removed, Tracked), (&replaced, Tracked), (&replaced, Strict)] {
        let drift = repo.drift(layer, mode);
        assert_eq!(kinds(&drift), [("changes/a/05-status.json/x", ChangeKind::Deleted)].into());
    }
}

fn compares_with_lower_layers() {
    let (repo, first, second) = (FixtureRepo::small(), FixtureLayer::new(), FixtureLayer::new());
    first.write("new", "1\n").write("README.md", "first\n").write("target/x", "x");
    let view = repo.view().with_layer(&first.scan(), &repo.rules()).expect("applies");
    second.write("new", "2\n").write("README.md", "first\n").whiteout("target");
    let drift = repo.drift_on(&view, &second, &[&first], Tracked);
    assert_eq!(kinds(&drift), [("new", ChangeKind::Modified)].into());
    assert!(diff_text(&drift.changes[0].diff).ends_with("-1\n+2\n"));
    let drift = repo.drift_on(&view, &second, &[&first], Strict);
    assert_eq!(kinds(&drift), [("new", ChangeKind::Modified), ("target/x", ChangeKind::Deleted)].into());
    let third = FixtureLayer::new();
    third.write("README.md", "hello\n").whiteout("new");
    let drift = repo.drift_on(&view, &third, &[&first], Tracked);
    assert_eq!(kinds(&drift), [("README.md", ChangeKind::Modified), ("new", ChangeKind::Deleted)].into());
}

fn omits_diffs_with_reason() {
    let (repo, layer) = (FixtureRepo::small(), FixtureLayer::new());
    let view = repo.view();
    repo.write("README.md", "edited meanwhile\n");
    layer.write("README.md", "x").write("binary", b"a\0").write("big", "");
    std::fs::OpenOptions::new().write(true).open(layer.at("big")).expect("opens").set_len(5 << 30).expect("grows");
    let drift = repo.drift_on(&view, &layer, &[], Tracked);
    let diffs: Vec<_> = drift.changes.iter().map(|change| (change.path.as_str(), &change.diff)).collect();
    assert!(matches!(diffs[0], ("README.md", Diff::Omitted { reason }) if reason.contains("old content")), "{diffs:?}");
    assert!(matches!(diffs[1], ("big", Diff::Omitted { reason }) if reason.contains("too large")), "{diffs:?}");
    assert_eq!(diffs[2], ("binary", &Diff::Binary));
    assert_eq!(drift.changes[1].after, None);
}

fn bounds_recorded_changes() {
    let (repo, layer) = (FixtureRepo::small(), FixtureLayer::new());
    let line = "0123456789abcdef\n".repeat(64);
    for n in 0..MAX_CHANGES + 5 {
        layer.write(format!("new/{n:05}"), &line);
    }
    let drift = repo.drift(&layer, Tracked);
    assert_eq!((drift.changes.len(), drift.omitted), (MAX_CHANGES, 5));
    let shown: usize =
        drift.changes.iter().map(|change| if let Diff::Whole { text } = &change.diff { text.len() } else { 0 }).sum();
    assert!(shown > MAX_STEP_DIFF / 2 && shown <= MAX_STEP_DIFF, "{shown}");
    assert_eq!(drift, repo.drift(&layer, Tracked));
}
