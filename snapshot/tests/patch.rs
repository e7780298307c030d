//! Tests that git accepts the patches made of layers.

use std::fs;
use std::os::fd::AsFd as _;
use std::path::PathBuf;

use proctor_snapshot::{PatchInput, Snapshot, TreeView, patch};

use crate::repository::{FixtureLayer, FixtureRepo, helper, open, run_program};
use crate::{Requirement, SnapshotTestCase, campaign_size};

pub(crate) const CASES: &[SnapshotTestCase] = &[
    (
        "patch: generates applicable patches for random scripts",
        Requirement::OverlayMounts,
        patches_of_random_scripts_apply,
    ),
    ("patch: generates applicable patches for each kind of change", Requirement::Nothing, patches_of_each_kind_apply),
    ("patch: writes empty patch without changes", Requirement::Nothing, writes_empty_patch_without_changes),
    ("patch: refuses inexpressible changes", Requirement::Nothing, refuses_inexpressible_changes),
    ("patch: refuses missing original content", Requirement::Nothing, refuses_missing_original_content),
];

/// Number of random scripts in `make test` and in `make test-long`.
const SCRIPTS: [usize; 2] = [60, 300];

/// Paths for the scripts, quoted for a shell.
const PATHS: [&str; 18] = [
    "README.md",
    "src/main.rs",
    "src/deep/er/file",
    "src",
    "src/deep",
    "run.sh",
    "binary",
    "empty",
    "link",
    "'a b'",
    "'quo\"te'",
    "'back\\slash'",
    "\"$(printf 'new\\nline')\"",
    "\"$(printf 'tab\\there')\"",
    "\"$(printf '\\303\\244\\377')\"",
    "./-dash",
    "new/one",
    "crlf.txt",
];

/// A pseudo-random number generator with a fixed sequence (Knuth's MMIX constants).
struct ScriptNumbers(u64);

impl ScriptNumbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }

    fn path(&mut self) -> &'static str {
        PATHS[self.below(PATHS.len())]
    }

    fn operation(&mut self) -> String {
        let (path, other, n) = (self.path(), self.path(), self.below(40));
        let made = format!("mkdir -p \"$(dirname {path})\"");
        match self.below(13) {
            0 => format!("{made}; seq {n} > {path}"),
            1 => format!("{made}; printf 'no newline {n}' > {path}"),
            2 => format!("{made}; printf 'a\\000b{n}\\n' > {path}"),
            3 => format!("printf 'more {n}\\n' >> {path}"),
            4 => format!("rm -rf {path}"),
            5 => format!("{made}; ln -sfn {other} {path}"),
            6 => format!("chmod $((n{n} = {n} % 2 ? 755 : 644)) {path}"),
            7 => format!("mv -f {path} {other}"),
            8 => format!("rm -rf {path}; mkdir -p {path}/inside; echo {n} > {path}/inside/x"),
            9 => format!("{made}; : > {path}"),
            10 => format!("sed -i '{}s/.*/changed {n}/' {path}", 1 + n % 9),
            11 => format!("{made}; printf 'x\\r\\ny {n}\\r\\n' > {path}"),
            _ => format!("touch {path}; cp -a {path} {other}"),
        }
    }

    fn script(&mut self) -> String {
        let operations: Vec<String> =
            (0..=self.below(7)).map(|_| format!("( {} ) 2>&- || :", self.operation())).collect();
        operations.join("\n")
    }
}

fn varied_repository() -> FixtureRepo {
    let repo = FixtureRepo::small();
    let lines: String = (1..60).map(|n| format!("line {n}\n")).collect();
    repo.write("src/deep/er/file", &lines)
        .write("run.sh", "#!/bin/sh\n")
        .write("binary", b"\0\x01\xff")
        .write("empty", "");
    repo.write("a b", "blank")
        .write("quo\"te", "q\n")
        .write(b"\xc3\xa4\xff", "bytes\n")
        .write("crlf.txt", "a\r\nb\r\n");
    repo.write("tab\there", "x\n").write("new\nline", &lines);
    fs::set_permissions(repo.at("run.sh"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("a mode");
    std::os::unix::fs::symlink("src/main.rs", repo.at("link")).expect("a link");
    repo.commit();
    repo
}

/// Returns the patch of one layer, and the resulting tree.
fn patch_for_layer(repo: &FixtureRepo, before: &TreeView, layer: &FixtureLayer) -> (Result<Vec<u8>, String>, TreeView) {
    let after = before.with_layer(&layer.scan(), &repo.rules()).unwrap_or_else(|error| panic!("{error}"));
    let (top, upper) = (open(&repo.top), layer.open());
    let input = PatchInput { before, after: &after, repo: top.as_fd(), uppers: &[upper.as_fd()] };
    (patch(input).map_err(|error| error.to_string()), after)
}

/// A clone to which patches are applied.
struct PatchedClone {
    repo: FixtureRepo,
    patch: PathBuf,
}

impl PatchedClone {
    fn clone_of(repo: &FixtureRepo) -> Self {
        let clone = FixtureRepo::empty();
        clone.git(&["fetch", "-q", repo.top.to_str().expect("text"), "HEAD"]);
        clone.git(&["reset", "-q", "--hard", "FETCH_HEAD"]);
        let patch = clone.dir.path().join("a.patch");
        Self { repo: clone, patch }
    }

    /// Applies a patch to the clean clone and checks the resulting tree.
    fn check(&self, patch: &[u8], after: &TreeView, script: &str) {
        self.repo.git(&["reset", "-q", "--hard"]);
        self.repo.git(&["clean", "-ffdxq"]);
        crate::repository::write_file(&self.patch, patch);
        let shown = || format!("{}\nscript:\n{script}", String::from_utf8_lossy(patch));
        if !patch.is_empty() {
            let output = run_program(&self.repo.top, "git", &["apply", self.patch.to_str().expect("text")]);
            assert!(output.status.success(), "{}\n{}", String::from_utf8_lossy(&output.stderr), shown());
        }
        let tree = Snapshot::take(&self.repo.top, &helper()).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(tree.id, after.id(), "{:?}\n{}", after.difference(&tree), shown());
    }
}

fn patches_of_random_scripts_apply() {
    let repo = varied_repository();
    let (before, clone, mut numbers) = (repo.view(), PatchedClone::clone_of(&repo), ScriptNumbers(42));
    let (mut changed, count) = (0, campaign_size(SCRIPTS[0], SCRIPTS[1]));
    for _ in 0..count {
        let script = numbers.script();
        let layer = FixtureLayer::from_script(&[&repo.top], &script).expect("the script runs");
        let (patch, after) = patch_for_layer(&repo, &before, &layer);
        let patch = patch.unwrap_or_else(|error| panic!("{error}\n{script}"));
        changed += usize::from(!patch.is_empty());
        clone.check(&patch, &after, &script);
    }
    assert!(changed > count / 2, "only {changed} scripts changed anything");
}

fn patches_of_each_kind_apply() {
    let repo = varied_repository();
    let (before, clone) = (repo.view(), PatchedClone::clone_of(&repo));
    let check = |layer: &FixtureLayer, words: &[&str]| {
        let (patch, after) = patch_for_layer(&repo, &before, layer);
        let patch = patch.unwrap_or_else(|error| panic!("{error}"));
        let text = String::from_utf8_lossy(&patch).into_owned();
        assert!(words.iter().all(|word| text.contains(word)), "{words:?}\n{text}");
        clone.check(&patch, &after, "");
    };
    check(FixtureLayer::new().write("README.md", "other\n"), &["--- a/README.md\n+++ b/README.md\n@@ -1 +1 @@\n"]);
    check(
        FixtureLayer::new().write("new", "x"),
        &["new file mode 100644", "--- /dev/null", "\\ No newline at end of file"],
    );
    check(FixtureLayer::new().write("new", ""), &["new file mode 100644"]);
    check(FixtureLayer::new().write("run.sh", "#!/bin/sh\n"), &["old mode 100755\nnew mode 100644\n"]);
    check(FixtureLayer::new().write("binary", "\0"), &["GIT binary patch\nliteral 1\n"]);
    check(FixtureLayer::new().write("big", vec![0; 200_000]), &["literal 200000\n", "literal 0\n"]);
    check(FixtureLayer::new().link("link", "elsewhere"), &["120000", "-src/main.rs"]);
    check(FixtureLayer::new().link("README.md", "x"), &["deleted file mode 100644", "new file mode 120000"]);
    check(FixtureLayer::new().write("a b", "x"), &["diff --git \"a/a b\" \"b/a b\"\n"]);
    check(FixtureLayer::new().write("src/deep/er/file/x", "x").opaque("src/deep/er/file"), &["b/src/deep/er/file/x"]);
}

fn writes_empty_patch_without_changes() {
    let repo = varied_repository();
    let layer = FixtureLayer::new();
    layer.write("README.md", "hello\n").write("target/ignored", "x").write("changes/009_x/verify/a.json", "{}");
    assert_eq!(patch_for_layer(&repo, &repo.view(), &layer).0, Ok(Vec::new()));
}

fn refuses_inexpressible_changes() {
    let repo = varied_repository();
    let inner = repo.at("inner");
    fs::create_dir(&inner).expect("makes");
    repo.git(&["-C", "inner", "init", "-q"]);
    repo.write("inner/file", "x");
    let view = repo.view();
    for (layer, words) in [
        (
            &{
                let l = FixtureLayer::new();
                l.fifo("fifo");
                l
            },
            "`fifo` is a fifo",
        ),
        (FixtureLayer::new().write("inner/file", "y"), "`inner/file` is in a nested repository"),
        (FixtureLayer::new().write("large", vec![b'x'; (32 << 20) + 1]), "`large` has more than 32 MiB"),
    ] {
        let refused = patch_for_layer(&repo, &view, layer).0.expect_err(words);
        assert!(refused.contains(words), "{refused}");
    }
}

fn refuses_missing_original_content() {
    let repo = varied_repository();
    let view = repo.view();
    repo.write("README.md", "somebody's edit\n");
    let refused = patch_for_layer(&repo, &view, FixtureLayer::new().write("README.md", "x")).0.expect_err("refused");
    assert!(refused.contains("`README.md`") && refused.contains("was changed after it was read"), "{refused}");
}
