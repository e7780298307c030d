//! Tests hidden changes of the tree, and operations that change nothing, in one table that is run with each method of
//! drift detection. The repository's config, index and ignore rules hide as much as possible.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use proctor_core::model::drift::ctime_detects_all_changes;
use serde_json::Value;

use crate::environment::{CHANGESET, Repo, TestEnvironment};
use crate::machine;
use crate::needs::{CaseDefinition, Needs, case};
use crate::test_spec::{TestSkill, TestSpec, TestStep};

use super::missing_controls::wrapper_without;

pub(super) const CASES: &[CaseDefinition] = &[
    case("drift_methods::layer_detects_hidden_changes", detects_by_layer).needs(NEEDS_PYTHON_AND_GIT),
    case("", detects_by_layer)
        .needs(NEEDS_PYTHON_AND_GIT)
        .unprivileged("drift_methods::layer_detects_hidden_changes_as_a_user")
        .long(),
    case("drift_methods::layer_over_a_private_copy_detects_hidden_changes", detects_by_layer_over_private_copy)
        .needs(NEEDS_PYTHON_AND_GIT),
    case("drift_methods::copy_on_disk_detects_hidden_changes", detects_by_copy_on_disk).needs(NEEDS_PYTHON_AND_GIT),
    case("", detects_by_copy_on_disk)
        .needs(NEEDS_PYTHON_AND_GIT)
        .unprivileged("drift_methods::copy_on_disk_detects_hidden_changes_as_a_user")
        .long(),
    case("drift_methods::copy_in_memory_detects_hidden_changes", detects_by_copy_in_memory).needs(NEEDS_PYTHON_AND_GIT),
];

const NEEDS_PYTHON_AND_GIT: &[Needs] = &[Needs::Sandbox, Needs::Program("python3"), Needs::Program("git")];

/// A program to run in a step, with the expected drift.
struct DriftProbe {
    name: &'static str,
    program: ProbeProgram,
    /// The expected drift; empty if the program makes no change.
    expected_drift: &'static [(&'static str, &'static str)],
}

enum ProbeProgram {
    Sh(&'static str),
    Python(&'static str),
}
use ProbeProgram::{Python, Sh};

const fn probe(
    name: &'static str,
    program: ProbeProgram,
    expected_drift: &'static [(&'static str, &'static str)],
) -> DriftProbe {
    DriftProbe { name, program, expected_drift }
}

const README_MODIFIED: &[(&str, &str)] = &[("README.md", "modified")];
const LIB_MODIFIED: &[(&str, &str)] = &[("src/lib.rs", "modified")];

/// Changes that git does not show, and similar ones. `$S` is a scratch directory of the step. Git commands that write
/// to the read-only repository fail, and are tried nevertheless.
const HIDDEN_CHANGES: &[DriftProbe] = &[
    probe(
        "same_size_within_a_second_and_mtime_reset",
        Sh("cp -p README.md $S/ref; sed -i s/first/FIRST/ README.md; touch -r $S/ref README.md"),
        README_MODIFIED,
    ),
    probe(
        "times_of_nanoseconds_reset",
        Python(
            "st = os.stat('README.md'); edit('README.md', b'f', b'F'); os.utime('README.md', ns=(st.st_atime_ns, st.st_mtime_ns))",
        ),
        README_MODIFIED,
    ),
    probe("assumed_unchanged", Sh("echo x >> src/assumed"), &[("src/assumed", "modified")]),
    probe(
        "assumed_unchanged_by_the_step",
        Sh("git update-index --assume-unchanged README.md; echo x >> README.md"),
        README_MODIFIED,
    ),
    probe("skip_worktree", Sh("echo x >> src/skipped"), &[("src/skipped", "modified")]),
    probe("sparse_checkout_drop", Sh("rm src/skipped; git sparse-checkout set src"), &[("src/skipped", "deleted")]),
    probe(
        "trustctime_and_check_stat",
        Sh("git config core.checkStat minimal; cp -p README.md $S/r; sed -i s/l/L/ README.md; touch -r $S/r README.md"),
        README_MODIFIED,
    ),
    probe("ignore_stat", Sh("git config core.ignoreStat true; echo x >> README.md"), README_MODIFIED),
    probe(
        "forged_index_stat",
        Sh(
            "echo x >> README.md; cp .git/index $S/i; GIT_INDEX_FILE=$S/i git update-index --refresh; cp $S/i .git/index; git add README.md",
        ),
        README_MODIFIED,
    ),
    probe("file_mode_off_and_chmod", Sh("chmod +x README.md"), &[("README.md", "mode_changed")]),
    probe("symlinks_off", Sh("rm link; printf src > link"), &[("link", "type_changed")]),
    probe("commit_of_the_change", Sh("echo x >> README.md; git commit -qam x"), README_MODIFIED),
    probe(
        "reset_to_an_orphan",
        Sh("echo x >> README.md; git checkout -q --orphan o; git add -A; git commit -qm o"),
        README_MODIFIED,
    ),
    probe(
        "removed_from_the_index_and_excluded",
        Sh("git rm -q --cached README.md; echo README.md >> .git/info/exclude; echo x >> README.md"),
        README_MODIFIED,
    ),
    probe("excluded_by_info", Sh("echo new >> .git/info/exclude; echo x > new"), &[("new", "created")]),
    probe(
        "a_gitignore_that_hides_itself",
        Sh("mkdir d; printf '*\\n' > d/.gitignore; echo x > d/x"),
        &[("d/.gitignore", "created"), ("d/x", "created")],
    ),
    probe(
        "a_rule_for_what_is_new",
        Sh("echo new >> .gitignore; echo x > new"),
        &[(".gitignore", "modified"), ("new", "created")],
    ),
    probe("untracked_files_not_shown", Sh("echo x > new"), &[("new", "created")]),
    probe("a_submodule_that_is_ignored", Sh("echo x >> sub/README"), &[("sub/README", "modified")]),
    probe("a_new_file_in_a_submodule", Sh("echo x > sub/new"), &[("sub/new", "created")]),
    probe(
        "a_program_for_fsmonitor",
        Sh(
            "git config core.fsmonitor 'touch /tmp/ran'; git config core.hooksPath h; echo x >> README.md; git status >/dev/null",
        ),
        README_MODIFIED,
    ),
    probe(
        "a_mapping_whose_writer_goes_on",
        Python(
            "r, w = os.pipe()\nif os.fork() == 0:\n  os.setsid()\n  f = open('README.md', 'r+b'); m = mmap.mmap(f.fileno(), 8); n = 0\n  \
             while True:\n    m[0] = 65 + n % 20; n += 1\n    if n == 9: os.write(w, b'x')\nos.read(r, 1)",
        ),
        README_MODIFIED,
    ),
    probe(
        "a_mapping_that_was_read_first",
        Python("f = open('README.md', 'r+b'); m = mmap.mmap(f.fileno(), 8); x = m[0]; m[0] = 90; m.close(); f.close()"),
        README_MODIFIED,
    ),
    probe(
        "a_mapping_kept_past_its_descriptor",
        Python(
            "fd = os.open('README.md', os.O_RDWR); m = mmap.mmap(fd, 8); x = m[:]; os.close(fd); m[1] = 90; m.flush()",
        ),
        README_MODIFIED,
    ),
    probe(
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
    probe("an_edit_and_the_directory_shut", Sh("echo x >> src/lib.rs; chmod 000 src"), LIB_MODIFIED),
    probe("an_edit_and_the_file_shut", Sh("echo x >> src/lib.rs; chmod 000 src/lib.rs"), LIB_MODIFIED),
    probe("a_fifo_in_place_of_a_file", Sh("rm README.md; mkfifo README.md"), &[("README.md", "type_changed")]),
    probe(
        "a_socket_in_place_of_a_file",
        Python("os.remove('README.md'); socket.socket(socket.AF_UNIX).bind('README.md')"),
        &[("README.md", "type_changed")],
    ),
    probe(
        "a_link_to_the_same_bytes",
        Sh("mkdir -p target; mv README.md target/r; ln -s target/r README.md"),
        &[("README.md", "type_changed")],
    ),
    probe("a_link_that_leads_elsewhere", Sh("ln -sfn target link"), &[("link", "modified")]),
    probe(
        "a_directory_in_place_of_a_file",
        Sh("rm README.md; mkdir README.md; echo x > README.md/x"),
        &[("README.md", "type_changed"), ("README.md/x", "created")],
    ),
    probe(
        "a_file_in_place_of_a_directory",
        Sh("rm -r deep; echo x > deep"),
        &[("deep", "type_changed"), ("deep/a/b", "deleted")],
    ),
    probe("an_edit_inside_a_nested_repository", Sh("echo x >> nested/file"), &[("nested/file", "modified")]),
    probe(
        "the_config_of_a_nested_repository",
        Sh("echo '[a]' >> nested/.git/config"),
        &[("nested/.git/config", "modified")],
    ),
    probe(
        "a_hook_in_a_nested_repository",
        Sh("echo x > nested/.git/hooks/post-checkout"),
        &[("nested/.git/hooks/post-checkout", "created")],
    ),
    probe(
        "moved_away_edited_and_back",
        Sh("cp -a deep d2; rm -r deep; echo x >> d2/a/b; mv d2 deep"),
        &[("deep/a/b", "modified")],
    ),
    probe("through_a_hard_link", Sh("ln README.md h; echo x >> h; rm h"), README_MODIFIED),
    probe(
        "through_a_hard_link_in_an_ignored_place",
        Sh("mkdir -p target; ln README.md target/h; echo x >> target/h"),
        README_MODIFIED,
    ),
    probe(
        "through_a_descriptor_for_reading",
        Python("fd = os.open('README.md', os.O_RDONLY); open(f'/proc/self/fd/{fd}', 'a').write('x')"),
        README_MODIFIED,
    ),
    probe(
        "through_the_working_directory_of_a_process",
        Python("os.chdir('src'); open('/proc/self/cwd/../README.md', 'a').write('x')"),
        README_MODIFIED,
    ),
    probe(
        "a_file_without_a_name_put_in_its_place",
        Python(
            "fd = os.open('.', os.O_TMPFILE | os.O_RDWR, 0o644); os.write(fd, b'new'); os.remove('README.md'); \
             assert libc.linkat(-100, f'/proc/self/fd/{fd}'.encode(), -100, b'README.md', 0x400) == 0",
        ),
        README_MODIFIED,
    ),
    probe(
        "exchanged_with_a_new_one",
        Python("open('new.log', 'w').write('new'); assert renameat2('new.log', 'README.md', 2) == 0"),
        README_MODIFIED,
    ),
    probe(
        "two_files_exchanged",
        Python("assert renameat2('README.md', 'src/lib.rs', 2) == 0"),
        &[("README.md", "modified"), ("src/lib.rs", "modified")],
    ),
    probe(
        "a_hole_punched",
        Python(
            "fd = os.open('src/block', os.O_RDWR); assert libc.fallocate(fd, 3, ctypes.c_long(0), ctypes.c_long(4096)) == 0, ctypes.get_errno()",
        ),
        &[("src/block", "modified")],
    ),
    probe("grown_by_nothing", Sh("truncate -s +1 README.md"), README_MODIFIED),
    probe(
        "copied_within_the_kernel",
        Python("s = os.open('src/lib.rs', os.O_RDONLY); d = os.open('README.md', os.O_RDWR); os.sendfile(d, s, 0, 8)"),
        README_MODIFIED,
    ),
    probe(
        "written_at_an_offset_through_another_name",
        Sh("ln README.md h.log; printf X | dd of=h.log bs=1 seek=3 conv=notrunc status=none"),
        README_MODIFIED,
    ),
    probe("renamed_in_case", Sh("mv README.md readme.md"), &[("README.md", "deleted"), ("readme.md", "created")]),
    probe("tracked_in_an_ignored_place", Sh("echo x >> kept.log"), &[("kept.log", "modified")]),
    probe("deleted_and_ignored", Sh("rm kept.log; echo x > other.log"), &[("kept.log", "deleted")]),
    probe("names_of_odd_bytes", Sh("echo x > \"$(printf 'n\\nl\\377')\""), &[("n\\x0al\\xff", "created")]),
    probe("the_exec_bit_taken", Sh("chmod -x src/run"), &[("src/run", "mode_changed")]),
    probe("tracked_missing_and_ignored", Sh("echo gone > gone.log"), &[("gone.log", "created")]),
    probe("untracked_work_edited", Sh("echo x >> draft"), &[("draft", "modified")]),
    probe("untracked_work_removed", Sh("rm draft; echo draft >> .git/info/exclude"), &[("draft", "deleted")]),
    probe("an_ignored_directory_became_a_file", Sh("rm -r target; echo x > target"), &[("target", "created")]),
    probe("through_a_link_of_the_tree", Sh("echo x >> link/lib.rs"), LIB_MODIFIED),
    probe("moved_to_another_name", Sh("cp -a deep d2; rm -r deep"), &[("d2/a/b", "created"), ("deep/a/b", "deleted")]),
    probe("another_tracked_file_linked_over_it", Sh("ln -f src/lib.rs README.md"), README_MODIFIED),
    probe(
        "a_range_copied_by_the_kernel",
        Python(
            "s = os.open('src/lib.rs', os.O_RDWR); d = os.open('README.md', os.O_RDWR); os.copy_file_range(s, d, 8)",
        ),
        README_MODIFIED,
    ),
    probe(
        "the_git_directory_of_a_nested_repository_became_a_file",
        Sh("rm -rf nested/.git; echo 'gitdir: /x' > nested/.git"),
        &[("nested/.git", "type_changed")],
    ),
    probe("emptied", Sh(": > README.md"), README_MODIFIED),
    probe(
        "a_new_repository",
        Sh("mkdir r; git init -q --template= r; echo x > r/x"),
        &[("r/.git/HEAD", "created"), ("r/.git/config", "created"), ("r/x", "created")],
    ),
];

/// Operations that do not change the tree.
const HARMLESS_OPERATIONS: &[DriftProbe] = &[
    probe("honest_touch", Sh("touch README.md src/lib.rs; touch -d 1999-01-01 src README.md"), &[]),
    probe("honest_rewrite", Sh("cat README.md > $S/c; cat $S/c > README.md; cp README.md r2; mv r2 README.md"), &[]),
    probe(
        "honest_mapping",
        Python("f = open('README.md', 'r+b'); m = mmap.mmap(f.fileno(), 8); m[0] = m[0]; m.flush()"),
        &[],
    ),
    probe("honest_rename_and_back", Sh("mv README.md r; mv r README.md; cp -a src s; rm -r src; mv s src"), &[]),
    probe(
        "honest_ignored",
        Sh("mkdir -p target/a; echo x > target/a/b; echo x > a.log; echo x > src/b.log; rm target/old"),
        &[],
    ),
    probe("honest_ignored_repository", Sh("mkdir -p target; git init -q target/r; echo x > target/r/x"), &[]),
    probe(
        "honest_artifacts",
        Sh(
            "cd changes/009_x; mkdir -p verify/sub; echo x > verify/x.json; echo x > verify/sub/y; echo '{}' > 05-status.json",
        ),
        &[],
    ),
    probe("honest_modes", Sh("chmod +x README.md; chmod -x README.md; chmod 600 src/lib.rs; chmod 700 src"), &[]),
    probe("honest_same_size", Sh("truncate -s $(stat -c %s README.md) README.md"), &[]),
    probe("honest_attributes", Python("[try_to(os.setxattr, p, 'user.x', b'y') for p in ('README.md', 'src')]"), &[]),
    probe("honest_empty_directories", Sh("mkdir -p e/f; mkdir g; rmdir g"), &[]),
    probe("honest_hard_link", Sh("ln README.md h; rm h; mkdir -p target; ln README.md target/h"), &[]),
    probe("honest_link_made_again", Sh("t=$(readlink link); rm link; ln -s $t link"), &[]),
    probe(
        "honest_exchange_and_back",
        Python("renameat2('README.md', 'src/lib.rs', 2); renameat2('README.md', 'src/lib.rs', 2)"),
        &[],
    ),
    probe("honest_grown_and_cut", Sh("echo x >> README.md; truncate -s -2 README.md"), &[]),
    probe("honest_created_and_removed", Sh("mkdir d; echo x > d/x; rm -r d; mkfifo p; rm p"), &[]),
    probe("honest_git", Sh("git status >/dev/null; git diff >/dev/null; git log -1 >/dev/null"), &[]),
];

/// First lines of each Python program.
const PYTHON_PRELUDE: &str = "import ctypes, mmap, os, socket\nlibc = ctypes.CDLL(None, use_errno=True)\n\
    def renameat2(a, b, flags): return libc.renameat2(-100, a.encode(), -100, b.encode(), flags)\n\
    def edit(path, old, new):\n  text = open(path, 'rb').read(); open(path, 'r+b').write(text.replace(old, new, 1))\n\
    def try_to(act, *rest):\n  try: act(*rest)\n  except OSError: pass\n";

impl DriftProbe {
    fn to_skill(&self) -> TestSkill {
        let step = match self.program {
            Sh(script) => TestStep::sh("it", &format!("S=$(mktemp -d); {{ {script}; }} || true")),
            Python(program) => TestStep::python("it", &format!("{PYTHON_PRELUDE}{program}")),
        };
        TestSkill::new(self.name, [step.with_field("timeout_ms: 60000")])
    }
}

fn all_probes() -> impl Iterator<Item = &'static DriftProbe> {
    HIDDEN_CHANGES.iter().chain(HARMLESS_OPERATIONS)
}

/// Builds a spec whose skills do not see each other's layers. One skill needs another, which makes the order of all
/// skills a graph.
fn probe_spec() -> TestSpec {
    let last = TestSkill::new("last", [TestStep::sh("it", "true")]).with_field("needs: [honest_touch]");
    TestSpec::new(all_probes().map(DriftProbe::to_skill).chain([last]))
}

/// Creates a repository that hides as much as possible from git commands.
fn hostile_repository(env: &TestEnvironment) -> Repo<'_> {
    let inner = env.repo_at("inner", &TestSpec::from_script("true"));
    inner.write("README", "inner\n");
    inner.commit();
    let repo = env.repo(&probe_spec());
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

fn detects_by_layer(env: &TestEnvironment) {
    env.use_shared_worktrees();
    assert_all_detected(env, &[], "layer", &[]);
}

/// A private copy does not contain the git directories of nested repositories.
fn detects_by_layer_over_private_copy(env: &TestEnvironment) {
    let nested_git_probes = [
        "the_config_of_a_nested_repository",
        "a_hook_in_a_nested_repository",
        "the_git_directory_of_a_nested_repository_became_a_file",
    ];
    assert_all_detected(env, &[], "layer", &nested_git_probes);
}

/// Without namespaces, the copy is on a disk of the host.
fn detects_by_copy_on_disk(env: &TestEnvironment) {
    let as_root = machine::is_root() && !env.changes_user();
    let (lacks, place) =
        if as_root { ("unshare=EPERM", PathBuf::from("/var/tmp")) } else { ("namespaces", env.root().to_owned()) };
    let kind = rustix::fs::statfs(&place).expect("a file system").f_type;
    let trusted = ctime_detects_all_changes(u64::try_from(kind).unwrap_or_default());
    assert_all_detected(env, &wrapper_without(&[lacks]), if trusted { "stat" } else { "rehash" }, &[]);
}

/// Without overlays, the copy is on the tmpfs of the run.
fn detects_by_copy_in_memory(env: &TestEnvironment) {
    env.use_shared_worktrees();
    assert_all_detected(env, &wrapper_without(&["fsconfig:1@0=EINVAL"]), "rehash", &[]);
}

fn assert_all_detected(env: &TestEnvironment, wrapper: &[&str], method: &str, excluded: &[&str]) {
    let repo = hostile_repository(env);
    let before = tree_contents(&repo);
    let arguments = ["run", "--changeset", CHANGESET, "--sandbox=best-effort", "--format", "json"];
    let run = env.finish(env.start_through(repo.path(), wrapper, &arguments)).exits(3);
    let rows = all_probes().filter(|row| !excluded.contains(&row.name));
    let deviations: Vec<String> = rows.filter_map(|row| row.deviation(&repo, method)).collect();
    assert!(deviations.is_empty(), "by {method}:\n{}\n{run}", deviations.join("\n"));
    assert_eq!(tree_contents(&repo), before, "the real tree was changed");
    assert!(!Path::new("/tmp/ran").exists(), "a program of the repository ran");
}

/// Returns mode and content of all files in a repository, including git's own files, but without Proctor's documents.
fn tree_contents(repo: &Repo<'_>) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
    let is_proctors = |path: &PathBuf| path.starts_with(repo.changeset());
    let read = |path: PathBuf| {
        let meta = path.symlink_metadata().expect("the walk found it");
        let bytes = if meta.is_file() { std::fs::read(&path).expect("a file of the test") } else { Vec::new() };
        (path, (meta.permissions().mode(), bytes))
    };
    machine::walk(repo.path()).into_iter().filter(|path| !is_proctors(path)).map(read).collect()
}

impl DriftProbe {
    /// Returns the deviation from the expected result, if any.
    fn deviation(&self, repo: &Repo<'_>, method: &str) -> Option<String> {
        let step = repo.evidence(self.name)["steps"][0].clone();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let changes = step["drift"]["changes"].as_array().cloned().unwrap_or_default();
        let found: BTreeSet<_> = changes.iter().map(|change| (text(&change["path"]), text(&change["kind"]))).collect();
        let expected: BTreeSet<_> =
            self.expected_drift.iter().map(|(path, kind)| ((*path).to_owned(), (*kind).to_owned())).collect();
        let outcome = if self.expected_drift.is_empty() { "passed" } else { "drifted" };
        let observed = (text(&step["outcome"]), text(&step["drift"]["method"]));
        let program_ran = step["exit_code"] == 0;
        if program_ran && found == expected && observed == (outcome.to_owned(), method.to_owned()) {
            return None;
        }
        let stderr = text(&step["stderr_preview"]);
        let ended = &step["termination"];
        Some(format!("{}: {observed:?} {found:?} instead of {outcome} {expected:?}; {ended} {stderr}", self.name))
    }
}
