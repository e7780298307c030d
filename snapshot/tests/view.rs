//! Tests the tree before a step, and conflicts between two skills.

use proctor_snapshot::{Standing, conflicts};

use crate::repository::{Layer, Repo};
use crate::{Case, Need};

pub(crate) const CASES: &[Case] = &[
    ("view: without layers it is the snapshot", Need::Nothing, without_layers),
    ("view: ignored files and artifacts change no id", Need::Nothing, what_changes_no_id),
    ("view: a change and its way back", Need::Whiteouts, there_and_back),
    ("view: what is hidden stays hidden", Need::Whiteouts, hidden),
    ("view: a file too large is the root of no snapshot", Need::Nothing, too_large),
    ("view: conflicts of files", Need::Nothing, conflicts_of_files),
    ("view: conflicts with what is deleted", Need::Whiteouts, conflicts_with_deletions),
];

fn without_layers() {
    let repo = Repo::small();
    let view = repo.view();
    assert_eq!(view.id(), view.base().id);
    assert!(view.difference(&repo.snapshot()).is_empty());
    assert_eq!(view.standing(b"nothing"), Standing::Uncovered);
}

fn what_changes_no_id() {
    let (repo, layer) = (Repo::small(), Layer::new());
    layer
        .write("target/x", "x")
        .write("a.log", "x")
        .write("changes/a/verify/x.json", "x")
        .write("README.md", "hello\n");
    layer.mkdir("empty").write("changes/a/05-status.json", "x");
    let view = repo.view().apply(&layer.scan(), &repo.rules()).expect("applies");
    assert_eq!(view.id(), view.base().id);
    assert!(matches!(view.standing(b"target/x"), Standing::Entry(_)));
}

fn there_and_back() {
    let (repo, there, back) = (Repo::small(), Layer::new(), Layer::new());
    there.write("README.md", "x").whiteout("src").write("new/a", "x");
    back.write("README.md", "hello\n").write("src/main.rs", "fn main() {}\n").whiteout("new");
    let view = repo.view();
    let changed = view.apply(&there.scan(), &repo.rules()).expect("applies");
    assert_ne!(changed.id(), view.id());
    let paths: Vec<_> =
        changed.difference(view.base()).into_iter().map(|p| String::from_utf8_lossy(&p).into_owned()).collect();
    assert_eq!(paths, ["README.md", "new/a", "src/main.rs"]);
    assert_eq!(changed.apply(&back.scan(), &repo.rules()).expect("applies").id(), view.id());
}

fn hidden() {
    let (repo, gone, again) = (Repo::small(), Layer::new(), Layer::new());
    repo.write("target/deep/x", "x");
    gone.whiteout("src").whiteout("target");
    again.write("src/new.rs", "x");
    let view = repo.view().apply(&gone.scan(), &repo.rules()).expect("applies");
    let view = view.apply(&again.scan(), &repo.rules()).expect("applies");
    assert_eq!(view.standing(b"src/main.rs"), Standing::Absent);
    assert_eq!(view.standing(b"target/deep/x"), Standing::Absent);
    assert!(matches!(view.standing(b"src/new.rs"), Standing::Entry(_)));
}

fn too_large() {
    let (repo, layer) = (Repo::small(), Layer::new());
    layer.write("big", "");
    std::fs::OpenOptions::new().write(true).open(layer.at("big")).expect("opens").set_len(5 << 30).expect("grows");
    let view = repo.view().apply(&layer.scan(), &repo.rules()).expect("applies");
    assert_eq!(view.standing(b"big"), Standing::Unhashed(5 << 30));
    assert_ne!(view.id(), view.base().id);
}

fn found(a: &Layer, b: &Layer) -> Vec<String> {
    let paths = conflicts(&[&a.scan()], &[&b.scan()]);
    assert_eq!(paths, conflicts(&[&b.scan()], &[&a.scan()]));
    paths.into_iter().map(|path| String::from_utf8(path).expect("text")).collect()
}

fn conflicts_of_files() {
    let (a, b) = (Layer::new(), Layer::new());
    a.write("d/one", "x").write("same", "x").write("f", "x").mkdir("e");
    b.write("d/two", "x").write("same", "x").write("f/x", "x").mkdir("e");
    assert_eq!(found(&a, &b), ["f", "f/x", "same"]);
}

fn conflicts_with_deletions() {
    let (a, b) = (Layer::new(), Layer::new());
    a.whiteout("d").opaque("o").write("o/x", "x").whiteout("w").opaque("q");
    b.write("d/x/y", "x").write("o/y", "x").whiteout("w").mkdir("q");
    assert_eq!(found(&a, &b), ["d", "d/x/y", "o/y", "w"]);
}
