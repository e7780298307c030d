//! Tests hidden changes of the tree, and operations that change nothing, in one table that is run with each method of
//! drift detection. The repository's config, index and ignore rules hide as much as possible.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use proctor_core::drift::times_tell_of_changes;
use serde_json::Value;

use crate::environment::{CHANGESET, Repo, TestEnvironment};
use crate::machine;
use crate::needs::{Case, Needs, case};
use crate::spec::{Skill, Spec, Step};

use super::degrading::lacking;

pub(super) const CASES: &[Case] = &[
    case("adversary::what_a_layer_shows", by_layer).needs(NEEDS),
    case("", by_layer).needs(NEEDS).unprivileged("adversary::what_a_layer_shows_to_a_user"),
    case("adversary::what_a_layer_over_a_private_copy_shows", by_layer_over_a_copy).needs(NEEDS),
    case("adversary::what_a_copy_beside_the_tree_shows", by_copy_on_disk).needs(NEEDS),
    case("", by_copy_on_disk).needs(NEEDS).unprivileged("adversary::what_a_copy_beside_the_tree_shows_to_a_user"),
    case("adversary::what_a_copy_in_memory_shows", by_copy_in_memory).needs(NEEDS),
];

const NEEDS: &[Needs] = &[Needs::Sandbox, Needs::Program("python3"), Needs::Program("git")];

/// A program to run in a step, with the expected drift.
struct Row {
    name: &'static str,
    program: Program,
    /// The expected drift; empty if the program makes no change.
    drift: &'static [(&'static str, &'static str)],
}

enum Program {
    Sh(&'static str),
    Python(&'static str),
}
use Program::{Python, Sh};

const fn row(name: &'static str, program: Program, drift: &'static [(&'static str, &'static str)]) -> Row {
    Row { name, program, drift }
}

const README: &[(&str, &str)] = &[("README.md", "modified")];
const LIB: &[(&str, &str)] = &[("src/lib.rs", "modified")];

/// Changes that git does not show, and similar ones. `$S` is a scratch directory of the step. Git commands that write
/// to the read-only repository fail, and are tried nevertheless.
const ATTACKS: &[Row] = &[
    row(
        "same_size_within_a_second_and_mtime_reset",
        Sh("cp -p README.md $S/ref; sed -i s/first/FIRST/ README.md; touch -r $S/ref README.md"),
        README,
    ),
    row(
        "times_of_nanoseconds_reset",
        Python(
            "st = os.stat('README.md'); edit('README.md', b'f', b'F'); os.utime('README.md', ns=(st.st_atime_ns, st.st_mtime_ns))",
        ),
        README,
    ),
    row("assumed_unchanged", Sh("echo x >> src/assumed"), &[("src/assumed", "modified")]),
    row(
        "assumed_unchanged_by_the_step",
        Sh("git update-index --assume-unchanged README.md; echo x >> README.md"),
        README,
    ),
    row("skip_worktree", Sh("echo x >> src/skipped"), &[("src/skipped", "modified")]),
    row("sparse_checkout_drop", Sh("rm src/skipped; git sparse-checkout set src"), &[("src/skipped", "deleted")]),
    row(
        "trustctime_and_check_stat",
        Sh("git config core.checkStat minimal; cp -p README.md $S/r; sed -i s/l/L/ README.md; touch -r $S/r README.md"),
        README,
    ),
    row("ignore_stat", Sh("git config core.ignoreStat true; echo x >> README.md"), README),
    row(
        "forged_index_stat",
        Sh(
            "echo x >> README.md; cp .git/index $S/i; GIT_INDEX_FILE=$S/i git update-index --refresh; cp $S/i .git/index; git add README.md",
        ),
        README,
    ),
    row("file_mode_off_and_chmod", Sh("chmod +x README.md"), &[("README.md", "mode_changed")]),
    row("symlinks_off", Sh("rm link; printf src > link"), &[("link", "type_changed")]),
    row("commit_of_the_change", Sh("echo x >> README.md; git commit -qam x"), README),
    row(
        "reset_to_an_orphan",
        Sh("echo x >> README.md; git checkout -q --orphan o; git add -A; git commit -qm o"),
        README,
    ),
    row(
        "removed_from_the_index_and_excluded",
        Sh("git rm -q --cached README.md; echo README.md >> .git/info/exclude; echo x >> README.md"),
        README,
    ),
    row("excluded_by_info", Sh("echo new >> .git/info/exclude; echo x > new"), &[("new", "created")]),
    row(
        "a_gitignore_that_hides_itself",
        Sh("mkdir d; printf '*\\n' > d/.gitignore; echo x > d/x"),
        &[("d/.gitignore", "created"), ("d/x", "created")],
    ),
    row(
        "a_rule_for_what_is_new",
        Sh("echo new >> .gitignore; echo x > new"),
        &[(".gitignore", "modified"), ("new", "created")],
    ),
    row("untracked_files_not_shown", Sh("echo x > new"), &[("new", "created")]),
    row("a_submodule_that_is_ignored", Sh("echo x >> sub/README"), &[("sub/README", "modified")]),
    row("a_new_file_in_a_submodule", Sh("echo x > sub/new"), &[("sub/new", "created")]),
    row(
        "a_program_for_fsmonitor",
        Sh(
            "git config core.fsmonitor 'touch /tmp/ran'; git config core.hooksPath h; echo x >> README.md; git status >/dev/null",
        ),
        README,
    ),
    row(
        "a_mapping_whose_writer_goes_on",
        Python(
            "r, w = os.pipe()\nif os.fork() == 0:\n  os.setsid()\n  f = open('README.md', 'r+b'); m = mmap.mmap(f.fileno(), 8); n = 0\n  \
             while True:\n    m[0] = 65 + n % 20; n += 1\n    if n == 9: os.write(w, b'x')\nos.read(r, 1)",
        ),
        README,
    ),
    row(
        "a_mapping_that_was_read_first",
        Python("f = open('README.md', 'r+b'); m = mmap.mmap(f.fileno(), 8); x = m[0]; m[0] = 90; m.close(); f.close()"),
        README,
    ),
    row(
        "a_mapping_kept_past_its_descriptor",
        Python(
            "fd = os.open('README.md', os.O_RDWR); m = mmap.mmap(fd, 8); x = m[:]; os.close(fd); m[1] = 90; m.flush()",
        ),
        README,
    ),
    row(
        "a_parent_directory_became_a_link",
        Sh("cp -a src $S/s; rm -r src; ln -s $S/s src; echo x >> src/lib.rs"),
        &[
            ("src", "type_changed"),
            ("src/assumed", "deleted"),
            ("src/block", "deleted"),
            ("src/lib.rs", "deleted"),
            ("src/run", "deleted"),
            ("src/skipped", "deleted"),
        ],
    ),
    row("an_edit_and_the_directory_shut", Sh("echo x >> src/lib.rs; chmod 000 src"), LIB),
    row("an_edit_and_the_file_shut", Sh("echo x >> src/lib.rs; chmod 000 src/lib.rs"), LIB),
    row("a_fifo_in_place_of_a_file", Sh("rm README.md; mkfifo README.md"), &[("README.md", "type_changed")]),
    row(
        "a_socket_in_place_of_a_file",
        Python("os.remove('README.md'); socket.socket(socket.AF_UNIX).bind('README.md')"),
        &[("README.md", "type_changed")],
    ),
    row(
        "a_link_to_the_same_bytes",
        Sh("mkdir -p target; mv README.md target/r; ln -s target/r README.md"),
        &[("README.md", "type_changed")],
    ),
    row("a_link_that_leads_elsewhere", Sh("ln -sfn target link"), &[("link", "modified")]),
    row(
        "a_directory_in_place_of_a_file",
        Sh("rm README.md; mkdir README.md; echo x > README.md/x"),
        &[("README.md", "type_changed"), ("README.md/x", "created")],
    ),
    row(
        "a_file_in_place_of_a_directory",
        Sh("rm -r deep; echo x > deep"),
        &[("deep", "type_changed"), ("deep/a/b", "deleted")],
    ),
    row("an_edit_inside_a_nested_repository", Sh("echo x >> nested/file"), &[("nested/file", "modified")]),
    row(
        "the_config_of_a_nested_repository",
        Sh("echo '[a]' >> nested/.git/config"),
        &[("nested/.git/config", "modified")],
    ),
    row(
        "a_hook_in_a_nested_repository",
        Sh("echo x > nested/.git/hooks/post-checkout"),
        &[("nested/.git/hooks/post-checkout", "created")],
    ),
    row(
        "moved_away_edited_and_back",
        Sh("cp -a deep d2; rm -r deep; echo x >> d2/a/b; mv d2 deep"),
        &[("deep/a/b", "modified")],
    ),
    row("through_a_hard_link", Sh("ln README.md h; echo x >> h; rm h"), README),
    row(
        "through_a_hard_link_in_an_ignored_place",
        Sh("mkdir -p target; ln README.md target/h; echo x >> target/h"),
        README,
    ),
    row(
        "through_a_descriptor_for_reading",
        Python("fd = os.open('README.md', os.O_RDONLY); open(f'/proc/self/fd/{fd}', 'a').write('x')"),
        README,
    ),
    row(
        "through_the_working_directory_of_a_process",
        Python("os.chdir('src'); open('/proc/self/cwd/../README.md', 'a').write('x')"),
        README,
    ),
    row(
        "a_file_without_a_name_put_in_its_place",
        Python(
            "fd = os.open('.', os.O_TMPFILE | os.O_RDWR, 0o644); os.write(fd, b'new'); os.remove('README.md'); \
             assert libc.linkat(-100, f'/proc/self/fd/{fd}'.encode(), -100, b'README.md', 0x400) == 0",
        ),
        README,
    ),
    row(
        "exchanged_with_a_new_one",
        Python("open('new.log', 'w').write('new'); assert renameat2('new.log', 'README.md', 2) == 0"),
        README,
    ),
    row(
        "two_files_exchanged",
        Python("assert renameat2('README.md', 'src/lib.rs', 2) == 0"),
        &[("README.md", "modified"), ("src/lib.rs", "modified")],
    ),
    row(
        "a_hole_punched",
        Python(
            "fd = os.open('src/block', os.O_RDWR); assert libc.fallocate(fd, 3, ctypes.c_long(0), ctypes.c_long(4096)) == 0, ctypes.get_errno()",
        ),
        &[("src/block", "modified")],
    ),
    row("grown_by_nothing", Sh("truncate -s +1 README.md"), README),
    row(
        "copied_within_the_kernel",
        Python("s = os.open('src/lib.rs', os.O_RDONLY); d = os.open('README.md', os.O_RDWR); os.sendfile(d, s, 0, 8)"),
        README,
    ),
    row(
        "written_at_an_offset_through_another_name",
        Sh("ln README.md h.log; printf X | dd of=h.log bs=1 seek=3 conv=notrunc status=none"),
        README,
    ),
    row("renamed_in_case", Sh("mv README.md readme.md"), &[("README.md", "deleted"), ("readme.md", "created")]),
    row("tracked_in_an_ignored_place", Sh("echo x >> kept.log"), &[("kept.log", "modified")]),
    row("deleted_and_ignored", Sh("rm kept.log; echo x > other.log"), &[("kept.log", "deleted")]),
    row("names_of_odd_bytes", Sh("echo x > \"$(printf 'n\\nl\\377')\""), &[("n\\x0al\\xff", "created")]),
    row("the_exec_bit_taken", Sh("chmod -x src/run"), &[("src/run", "mode_changed")]),
    row("tracked_missing_and_ignored", Sh("echo gone > gone.log"), &[("gone.log", "created")]),
    row("untracked_work_edited", Sh("echo x >> draft"), &[("draft", "modified")]),
    row("untracked_work_removed", Sh("rm draft; echo draft >> .git/info/exclude"), &[("draft", "deleted")]),
    row("an_ignored_directory_became_a_file", Sh("rm -r target; echo x > target"), &[("target", "created")]),
    row("through_a_link_of_the_tree", Sh("echo x >> link/lib.rs"), LIB),
    row("moved_to_another_name", Sh("cp -a deep d2; rm -r deep"), &[("d2/a/b", "created"), ("deep/a/b", "deleted")]),
    row("another_tracked_file_linked_over_it", Sh("ln -f src/lib.rs README.md"), README),
    row(
        "a_range_copied_by_the_kernel",
        Python(
            "s = os.open('src/lib.rs', os.O_RDWR); d = os.open('README.md', os.O_RDWR); os.copy_file_range(s, d, 8)",
        ),
        README,
    ),
    row(
        "the_git_directory_of_a_nested_repository_became_a_file",
        Sh("rm -rf nested/.git; echo 'gitdir: /x' > nested/.git"),
        &[("nested/.git", "type_changed")],
    ),
    row("emptied", Sh(": > README.md"), README),
    row(
        "a_new_repository",
        Sh("mkdir r; git init -q --template= r; echo x > r/x"),
        &[("r/.git/HEAD", "created"), ("r/.git/config", "created"), ("r/x", "created")],
    ),
];

/// Operations that do not change the tree.
const HONEST: &[Row] = &[
    row("honest_touch", Sh("touch README.md src/lib.rs; touch -d 1999-01-01 src README.md"), &[]),
    row("honest_rewrite", Sh("cat README.md > $S/c; cat $S/c > README.md; cp README.md r2; mv r2 README.md"), &[]),
    row(
        "honest_mapping",
        Python("f = open('README.md', 'r+b'); m = mmap.mmap(f.fileno(), 8); m[0] = m[0]; m.flush()"),
        &[],
    ),
    row("honest_rename_and_back", Sh("mv README.md r; mv r README.md; cp -a src s; rm -r src; mv s src"), &[]),
    row(
        "honest_ignored",
        Sh("mkdir -p target/a; echo x > target/a/b; echo x > a.log; echo x > src/b.log; rm target/old"),
        &[],
    ),
    row("honest_ignored_repository", Sh("mkdir -p target; git init -q target/r; echo x > target/r/x"), &[]),
    row(
        "honest_artifacts",
        Sh(
            "cd changes/009_x; mkdir -p verify/sub; echo x > verify/x.json; echo x > verify/sub/y; echo '{}' > 05-status.json",
        ),
        &[],
    ),
    row("honest_modes", Sh("chmod +x README.md; chmod -x README.md; chmod 600 src/lib.rs; chmod 700 src"), &[]),
    row("honest_same_size", Sh("truncate -s $(stat -c %s README.md) README.md"), &[]),
    row("honest_attributes", Python("[try_to(os.setxattr, p, 'user.x', b'y') for p in ('README.md', 'src')]"), &[]),
    row("honest_empty_directories", Sh("mkdir -p e/f; mkdir g; rmdir g"), &[]),
    row("honest_hard_link", Sh("ln README.md h; rm h; mkdir -p target; ln README.md target/h"), &[]),
    row("honest_link_made_again", Sh("t=$(readlink link); rm link; ln -s $t link"), &[]),
    row(
        "honest_exchange_and_back",
        Python("renameat2('README.md', 'src/lib.rs', 2); renameat2('README.md', 'src/lib.rs', 2)"),
        &[],
    ),
    row("honest_grown_and_cut", Sh("echo x >> README.md; truncate -s -2 README.md"), &[]),
    row("honest_created_and_removed", Sh("mkdir d; echo x > d/x; rm -r d; mkfifo p; rm p"), &[]),
    row("honest_git", Sh("git status >/dev/null; git diff >/dev/null; git log -1 >/dev/null"), &[]),
];

/// First lines of each Python program.
const PRELUDE: &str = "import ctypes, mmap, os, socket\nlibc = ctypes.CDLL(None, use_errno=True)\n\
    def renameat2(a, b, flags): return libc.renameat2(-100, a.encode(), -100, b.encode(), flags)\n\
    def edit(path, old, new):\n  text = open(path, 'rb').read(); open(path, 'r+b').write(text.replace(old, new, 1))\n\
    def try_to(act, *rest):\n  try: act(*rest)\n  except OSError: pass\n";

impl Row {
    fn skill(&self) -> Skill {
        let step = match self.program {
            Sh(script) => Step::sh("it", &format!("S=$(mktemp -d); {{ {script}; }} || true")),
            Python(program) => Step::python("it", &format!("{PRELUDE}{program}")),
        };
        Skill::new(self.name, [step.with("timeout_ms: 60000")])
    }
}

fn rows() -> impl Iterator<Item = &'static Row> {
    ATTACKS.iter().chain(HONEST)
}

/// Builds a spec whose skills do not see each other's layers. One skill needs another, which makes the order of all
/// skills a graph.
fn spec() -> Spec {
    let last = Skill::new("last", [Step::sh("it", "true")]).with("needs: [honest_touch]");
    Spec::new(rows().map(Row::skill).chain([last]))
}

/// Creates a repository that hides as much as possible from git commands.
fn hostile(env: &TestEnvironment) -> Repo<'_> {
    let inner = env.repo_at("inner", &Spec::of_script("true"));
    inner.write("README", "inner\n");
    inner.commit();
    let repo = env.repo(&spec());
    repo.write("src/assumed", "assumed\n");
    repo.write("src/skipped", "skipped\n");
    repo.write("src/block", "b".repeat(16384));
    repo.write("src/run", "#!/bin/sh\n");
    std::fs::set_permissions(repo.file("src/run"), std::fs::Permissions::from_mode(0o755)).expect("a mode");
    repo.write("deep/a/b", "deep\n");
    repo.write("kept.log", "kept\n");
    repo.write("gone.log", "gone\n");
    repo.link("link", Path::new("src"));
    repo.git(&["add", "--all"]);
    repo.git(&["add", "--force", "kept.log", "gone.log"]);
    let source = inner.path().to_str().expect("UTF-8");
    repo.git(&["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", source, "sub"]);
    repo.git(&["config", "--file", ".gitmodules", "submodule.sub.ignore", "all"]);
    repo.commit();
    repo.write("nested/file", "nested\n");
    env.git(&repo.file("nested"), &["init", "--quiet"]);
    repo.write("target/old", "old\n");
    repo.write("draft", "draft\n");
    std::fs::remove_file(repo.file("gone.log")).expect("a file of the test");
    repo.git(&["update-index", "--assume-unchanged", "src/assumed"]);
    repo.git(&["update-index", "--skip-worktree", "src/skipped"]);
    for (key, value) in [
        ("core.trustctime", "false"),
        ("core.checkStat", "minimal"),
        ("core.fileMode", "false"),
        ("core.symlinks", "false"),
        ("core.ignoreStat", "true"),
        ("status.showUntrackedFiles", "no"),
        ("diff.ignoreSubmodules", "all"),
        ("submodule.sub.ignore", "all"),
    ] {
        repo.git(&["config", key, value]);
    }
    repo
}

fn by_layer(env: &TestEnvironment) {
    env.share_worktrees();
    finds_all(env, &[], "layer", &[]);
}

/// A private copy does not contain the git directories of nested repositories.
fn by_layer_over_a_copy(env: &TestEnvironment) {
    let of_nested_git = [
        "the_config_of_a_nested_repository",
        "a_hook_in_a_nested_repository",
        "the_git_directory_of_a_nested_repository_became_a_file",
    ];
    finds_all(env, &[], "layer", &of_nested_git);
}

/// Without namespaces, the copy is on a disk of the host.
fn by_copy_on_disk(env: &TestEnvironment) {
    let as_root = machine::is_root() && !env.changes_user();
    let (lacks, place) =
        if as_root { ("unshare=EPERM", PathBuf::from("/var/tmp")) } else { ("namespaces", env.root().to_owned()) };
    let kind = rustix::fs::statfs(&place).expect("a file system").f_type;
    let trusted = times_tell_of_changes(u64::try_from(kind).unwrap_or_default());
    finds_all(env, &lacking(&[lacks]), if trusted { "stat" } else { "rehash" }, &[]);
}

/// Without overlays, the copy is on the tmpfs of the run.
fn by_copy_in_memory(env: &TestEnvironment) {
    env.share_worktrees();
    finds_all(env, &lacking(&["fsconfig:1@0=EINVAL"]), "rehash", &[]);
}

fn finds_all(env: &TestEnvironment, wrapper: &[&str], method: &str, left_out: &[&str]) {
    let repo = hostile(env);
    let before = as_it_is(&repo);
    let arguments = ["run", "--changeset", CHANGESET, "--sandbox=best-effort", "--format", "json"];
    let run = env.finish(env.start_through(repo.path(), wrapper, &arguments)).exits(3);
    let rows = rows().filter(|row| !left_out.contains(&row.name));
    let wrong: Vec<String> = rows.filter_map(|row| row.wrong(&repo, method)).collect();
    assert!(wrong.is_empty(), "by {method}:\n{}\n{run}", wrong.join("\n"));
    assert_eq!(as_it_is(&repo), before, "the real tree was changed");
    assert!(!Path::new("/tmp/ran").exists(), "a program of the repository ran");
}

/// Returns mode and content of all files in a repository, including git's own files, but without Proctor's documents.
fn as_it_is(repo: &Repo<'_>) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
    let ours = |path: &PathBuf| path.starts_with(repo.changeset());
    let read = |path: PathBuf| {
        let meta = path.symlink_metadata().expect("the walk found it");
        let bytes = if meta.is_file() { std::fs::read(&path).expect("a file of the test") } else { Vec::new() };
        (path, (meta.permissions().mode(), bytes))
    };
    machine::walk(repo.path()).into_iter().filter(|path| !ours(path)).map(read).collect()
}

impl Row {
    /// Returns the deviation from the expected result, if any.
    fn wrong(&self, repo: &Repo<'_>, method: &str) -> Option<String> {
        let step = repo.evidence(self.name)["steps"][0].clone();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let changes = step["drift"]["changes"].as_array().cloned().unwrap_or_default();
        let found: BTreeSet<_> = changes.iter().map(|change| (text(&change["path"]), text(&change["kind"]))).collect();
        let expected: BTreeSet<_> =
            self.drift.iter().map(|(path, kind)| ((*path).to_owned(), (*kind).to_owned())).collect();
        let outcome = if self.drift.is_empty() { "passed" } else { "drifted" };
        let told = (text(&step["outcome"]), text(&step["drift"]["method"]));
        let program_ran = step["exit_code"] == 0;
        if program_ran && found == expected && told == (outcome.to_owned(), method.to_owned()) {
            return None;
        }
        let stderr = text(&step["stderr_preview"]);
        let ended = &step["termination"];
        Some(format!("{}: {told:?} {found:?} instead of {outcome} {expected:?}; {ended} {stderr}", self.name))
    }
}
