//! Tests ignore rules against git and libgit2: every path that git would add is covered, and no path is covered
//! that both ignore.

mod ignore_generator;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::Path;

use proctor_core::model::drift::display_path;
use proctor_snapshot::Snapshot;

use crate::git_comparison::covered_by_git;
use crate::repository::{FixtureRepo, git_output, run_program, write_file};
use crate::{Requirement, SnapshotTestCase};
use ignore_generator::{GeneratedRules, generate};

/// Number of repositories in each generated case, unless `PROCTOR_IGNORE_ROUNDS` is set.
const ROUNDS: u64 = 16;

pub(crate) const CASES: &[SnapshotTestCase] = &[
    ("ignore: generated rules match git 1", Requirement::Nothing, || generated_rules_match_git(1)),
    ("ignore: generated rules match git 2", Requirement::Nothing, || generated_rules_match_git(2)),
    ("ignore: generated rules match git 3", Requirement::Nothing, || generated_rules_match_git(3)),
    ("ignore: generated rules match git 4", Requirement::Nothing, || generated_rules_match_git(4)),
    ("ignore: lower file re-includes paths", Requirement::Nothing, lower_file_reincludes_paths),
    ("ignore: file re-includes paths of info/exclude", Requirement::Nothing, file_reincludes_paths_of_info_exclude),
    ("ignore: keeps trailing blanks except spaces", Requirement::Nothing, keeps_trailing_blanks_except_spaces),
    (
        "ignore: ignores self-ignoring virtual environment",
        Requirement::Nothing,
        ignores_self_ignoring_virtual_environment,
    ),
    ("ignore: links to directories match git", Requirement::Nothing, links_to_directories_match_git),
    (
        "ignore: ignores virtual environment made by Python",
        Requirement::Python,
        ignores_virtual_environment_made_by_python,
    ),
    ("ignore: reads skipped rules from index", Requirement::Nothing, reads_skipped_rules_from_index),
    ("ignore: tolerates line on which libgit2 hangs", Requirement::Nothing, tolerates_line_on_which_libgit2_hangs),
    ("ignore: tolerates pattern that crashes libgit2", Requirement::Nothing, tolerates_pattern_that_crashes_libgit2),
    ("ignore: reads case-insensitively sorted index", Requirement::Nothing, reads_case_insensitively_sorted_index),
    ("ignore: refuses too many wildcards", Requirement::Nothing, refuses_too_many_wildcards),
    ("ignore: reports external rules by content", Requirement::Nothing, reports_external_rules_by_content),
];

fn generated_rules_match_git(case: u64) {
    #[expect(clippy::disallowed_methods, reason = "the caller of the test sets its duration")]
    let number = |name: &str, default| std::env::var(name).map_or(default, |text| text.parse().expect("a number"));
    let (rounds, seed) = (number("PROCTOR_IGNORE_ROUNDS", ROUNDS), number("PROCTOR_IGNORE_SEED", 0));
    for round in 0..rounds {
        compare_with_git(&generate(seed + case * 1_000_000 + round));
    }
}

/// Compares the covered paths, and the answers about paths that may be missing, with git and libgit2.
#[track_caller]
fn compare_with_git(generated: &GeneratedRules) {
    let GeneratedRules { repo, log, queried, libgit2_is_comparable } = generated;
    let context = || format!("in {}\n{}", repo.top.display(), log.join("\n"));
    let snapshot = repo.take().unwrap_or_else(|error| panic!("{error}\n{}", context()));
    let covered: BTreeSet<Vec<u8>> = snapshot.entries.paths().collect();
    let by_git = covered_by_git(&repo.top, b"");
    let shown = |paths: &[&Vec<u8>]| paths.iter().map(|path| display_path(path)).collect::<Vec<_>>();
    let hidden: Vec<_> = by_git.difference(&covered).collect();
    assert!(hidden.is_empty(), "git would add {:?}\n{}", shown(&hidden), context());
    let more = covered.difference(&by_git).filter(|_| *libgit2_is_comparable);
    // With `core.ignoreCase`, git does not list a file that is tracked with different case.
    let tracked = git_output(&repo.top, &["ls-files", "-z"]);
    let is_known = |path: &[u8]| tracked.split(|byte| *byte == 0).any(|file| file.eq_ignore_ascii_case(path));
    // If only libgit2 shows a repository, git does not list the files in it.
    let is_unseen = |path: &[u8]| {
        let above = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| &path[..at]);
        above.into_iter().any(|above| repo.at(above).join(".git").exists() && !by_git.contains(above))
    };
    let more = more.filter(|path| !is_known(path) && !is_unseen(path));
    let more: Vec<_> = more.filter(|path| libgit2_ignores(&repo.top, path)).collect();
    assert!(more.is_empty(), "git and libgit2 ignore {:?}\n{}", shown(&more), context());
    compare_query_answers(repo, queried, &context);
}

/// Compares the answers about paths of the outermost repository, whether or not they exist.
fn compare_query_answers(repo: &FixtureRepo, queried: &BTreeSet<Vec<u8>>, context: &dyn Fn() -> String) {
    let tracked = git_output(&repo.top, &["ls-files", "-z"]);
    let tracked: Vec<&[u8]> = tracked.split(|byte| *byte == 0).collect();
    let is_plain = |path: &&[u8]| {
        let bare = path.strip_suffix(b"/").unwrap_or(path);
        // Git treats the paths of a query as patterns for tracked files.
        let is_pattern = tracked.len() > 1 && path.iter().any(|byte| b"*?[\\".contains(byte));
        let is_tracked = tracked.iter().any(|file| *file == bare || file.starts_with(&[bare, b"/"].concat()));
        let place = repo.at(bare);
        let is_other = |place: &Path| place.is_symlink() || place.join(".git").exists();
        // Git examines the existing file, while our query describes a file that may be created.
        let is_there = place.symlink_metadata().is_ok_and(|found| found.is_dir() != path.ends_with(b"/"));
        !is_pattern
            && !is_tracked
            && !is_there
            && !place.ancestors().take_while(|above| *above != repo.top).any(is_other)
    };
    let queried: Vec<&[u8]> = queried.iter().map(Vec::as_slice).filter(is_plain).collect();
    let input = repo.dir.path().join("queried");
    write_file(&input, &queried.iter().flat_map(|path| [path, &b"\0"[..]].concat()).collect::<Vec<_>>());
    let script = format!("alias.ask=!git check-ignore -z --stdin < '{}' || test $? = 1", input.display());
    let printed = git_output(&repo.top, &["-c", &script, "ask"]);
    let by_git: BTreeSet<&[u8]> = printed.split(|byte| *byte == 0).collect();
    let ours = repo.rules().are_ignored(&queried).unwrap_or_else(|error| panic!("{error}\n{}", context()));
    for (path, ours) in queried.iter().zip(ours) {
        assert!(by_git.contains(path) || !ours, "git does not ignore {}\n{}", display_path(path), context());
    }
}

/// Checks whether libgit2 ignores a path or one of its parent directories, by the rules of the innermost
/// repository.
fn libgit2_ignores(top: &Path, path: &[u8]) -> bool {
    let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
    let ends: Vec<usize> = slashes.chain([path.len()]).collect();
    let inner = ends.iter().rev().skip(1).find(|end| top.join(OsStr::from_bytes(&path[..**end])).join(".git").exists());
    let from = inner.map_or(0, |end| end + 1);
    let place = top.join(OsStr::from_bytes(&path[..from]));
    let repository = git2::Repository::open(&place).expect("opens");
    repository.set_config(&git2::Config::open(&place.join(".git/config")).expect("a config")).expect("sets");
    ends.iter().filter(|end| **end > from).any(|end| {
        let mut part = path[from..*end].to_vec();
        part.extend_from_slice(if *end < path.len() { b"/" } else { b"" });
        repository.is_path_ignored(OsStr::from_bytes(&part)).expect("answers")
    })
}

fn is_covered(snapshot: &Snapshot, path: &str) -> bool {
    snapshot.entries.contains(path.as_bytes())
}

fn lower_file_reincludes_paths() {
    let repo = FixtureRepo::empty();
    repo.write(".gitignore", "*.log\na/**\n").write("d/.gitignore", "!k.log\n").write("d/k.log", "x");
    repo.write("d/l.log", "x").write("a/.gitignore", "!keep\n").write("a/keep", "x");
    let snapshot = repo.snapshot();
    assert!(is_covered(&snapshot, "d/k.log") && is_covered(&snapshot, "a/keep") && !is_covered(&snapshot, "d/l.log"));
    let queried: [&[u8]; 4] = [b"d/k.log", b"d/new.log", b"a/keep", b"a/new"];
    assert_eq!(repo.rules().are_ignored(&queried).expect("answers"), [false, true, false, true]);
}

fn file_reincludes_paths_of_info_exclude() {
    let repo = FixtureRepo::empty();
    repo.write(".git/info/exclude", "*.py\n").write(".gitignore", "!k.py\n").write("k.py", "x").write("l.py", "x");
    let snapshot = repo.snapshot();
    assert!(is_covered(&snapshot, "k.py") && !is_covered(&snapshot, "l.py"));
}

fn keeps_trailing_blanks_except_spaces() {
    for (blank, is_cut) in
        [("\t", false), ("\u{b}", false), ("\u{c}", false), (" ", true), ("\r", true), ("\r\r", false)]
    {
        let repo = FixtureRepo::empty();
        repo.write(".gitignore", format!("a{blank}\n")).write("a", "x");
        assert_eq!(is_covered(&repo.snapshot(), "a"), !is_cut, "{blank:?}");
    }
}

fn ignores_self_ignoring_virtual_environment() {
    let repo = FixtureRepo::small();
    fs::create_dir_all(repo.at(".venv/lib/python3.12/site-packages")).expect("makes");
    symlink("lib", repo.at(".venv/lib64")).expect("links");
    symlink("/usr/bin/env", repo.at(".venv/python3")).expect("links");
    repo.write(".venv/.gitignore", "*\n").write(".venv/pyvenv.cfg", "x").write(".venv/lib/python3.12/x.py", "x");
    let snapshot = repo.snapshot();
    assert_eq!((snapshot.git.dirty, repo.git(&["status", "--porcelain"]).as_str()), (Some(false), ""));
    assert!(!snapshot.entries.paths().any(|path| path.starts_with(b".venv")));
    // A rule for directories does not ignore a link to a directory.
    repo.write(".gitignore", "target/\nlib64/\n");
    symlink("src", repo.at("lib64")).expect("links");
    assert!(is_covered(&repo.snapshot(), "lib64"));
}

/// Only a pattern with a trailing slash is about directories. All other patterns also match a link to a directory.
fn links_to_directories_match_git() {
    const PATTERNS: &[&str] = &[
        "*",
        "**",
        "/*",
        "l*",
        "lib64",
        "/lib64",
        "**/lib64",
        ".venv/*",
        ".venv/**",
        ".venv/lib64",
        "lib64/",
        "*/",
        "**/",
        ".venv/*/",
        "*\n!lib64",
        "*\n!lib64/",
        "*\n!.gitignore",
        "*/\nlib64",
        ".venv",
        ".venv/",
    ];
    for file in [".gitignore", ".venv/.gitignore", ".git/info/exclude"] {
        for pattern in PATTERNS {
            let repo = FixtureRepo::small();
            fs::create_dir_all(repo.at(".venv/lib/x")).expect("makes");
            for (target, link) in [("lib", "lib64"), ("lib/x", "l2"), ("..", "up"), ("nowhere", "lost")] {
                symlink(target, repo.at(".venv").join(link)).expect("links");
            }
            repo.write(".venv/lib/x/y.py", "x").write(file, format!("{pattern}\n"));
            let snapshot = repo.snapshot();
            let covered: BTreeSet<Vec<u8>> = snapshot.entries.paths().collect();
            let by_git = covered_by_git(&repo.top, b"");
            // libgit2 takes a link to a directory for a directory, and shows it. Showing more is safe.
            let libgit2_shows_link = pattern.contains("!lib64/");
            assert!(covered.is_superset(&by_git), "`{pattern}` in {file}");
            assert!(libgit2_shows_link || covered == by_git, "`{pattern}` in {file}: {covered:?}");
            let queried: [&[u8]; 4] = [b".venv/lib64", b".venv/l2", b".venv/up", b".venv/lost"];
            let ignored = repo.rules().are_ignored(&queried).expect("answers");
            let is_covered = queried.map(|path| !covered.contains(path));
            assert_eq!(ignored, is_covered, "the query about links agrees: `{pattern}` in {file}");
        }
    }
}

fn ignores_virtual_environment_made_by_python() {
    let repo = FixtureRepo::small();
    let made = run_program(&repo.top, "python3", &["-m", "venv", "--without-pip", ".venv"]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    repo.write(".venv/.gitignore", "*\n");
    assert!(repo.at(".venv/bin/python3").is_symlink());
    let snapshot = repo.snapshot();
    assert_eq!(snapshot.git.dirty, Some(false));
    assert!(!snapshot.entries.paths().any(|path| path.starts_with(b".venv")));
}

fn reads_skipped_rules_from_index() {
    let repo = FixtureRepo::small();
    repo.write("d/.gitignore", "!k.log\n").write("d/k.log", "x");
    repo.git(&["add", "d/.gitignore"]);
    repo.git(&["update-index", "--skip-worktree", "d/.gitignore"]);
    fs::remove_file(repo.at("d/.gitignore")).expect("removes");
    let snapshot = repo.snapshot();
    assert!(is_covered(&snapshot, "d/k.log"));
    let rules = repo.rules().with_submodules(snapshot.known_submodules());
    assert_eq!(rules.are_ignored(&[b"d/k.log", b"e/k.log"]).expect("answers"), [false, true]);
}

/// Some editors use a form feed as a page separator.
fn tolerates_line_on_which_libgit2_hangs() {
    let repo = FixtureRepo::small();
    repo.write(".gitignore", "target/\n*.log\n\u{c}\n").write("a.log", "x").write("target/x", "x").write("new", "x");
    repo.write("build/.gitignore", "!\u{b}\n").write("build/x", "x").write(".git/info/exclude", "build/\n");
    let snapshot = repo.snapshot();
    assert!(!is_covered(&snapshot, "a.log") && !is_covered(&snapshot, "target/x") && is_covered(&snapshot, "new"));
    assert!(!is_covered(&snapshot, "build/x"));
    repo.write(".gitignore", "target/\n*.log\n");
    assert!(!is_covered(&repo.snapshot(), "build/x"));
}

/// libgit2 dereferences a null pointer for this pattern.
fn tolerates_pattern_that_crashes_libgit2() {
    let repo = FixtureRepo::small();
    repo.write(".gitignore", "target/\n*.log\n!//\n").write("a.log", "x").write("target/x", "x").write("new", "x");
    let snapshot = repo.snapshot();
    assert!(!is_covered(&snapshot, "a.log") && !is_covered(&snapshot, "target/x") && is_covered(&snapshot, "new"));
}

/// Entries of an index are found regardless of the order in which libgit2 returns them.
fn reads_case_insensitively_sorted_index() {
    let repo = FixtureRepo::empty();
    repo.git(&["config", "core.ignoreCase", "true"]);
    for path in ["K.LOG", "a b/\\b/.gitignore", "a b/\\b/x", "a b/y", "Bc/d", "b/e"] {
        repo.write(path, "");
    }
    repo.commit();
    // Only libgit2 can read an index with such a path.
    repo.git(&["update-index", "--skip-worktree", "a b/\\b/.gitignore"]);
    repo.git(&["add", "--intent-to-add", "--force", "K.LOG"]);
    fs::remove_file(repo.at("a b/\\b/.gitignore")).expect("removes");
    let snapshot = repo.snapshot();
    assert_eq!(snapshot.git.dirty, Some(false));
    assert_eq!(snapshot.entries.paths().collect::<BTreeSet<_>>(), covered_by_git(&repo.top, b""));
}

fn refuses_too_many_wildcards() {
    let repo = FixtureRepo::small();
    repo.write("src/.gitignore", format!("x\n{}\n", "*a".repeat(513)));
    let refusal = repo.refusal();
    assert!(refusal.contains("src/.gitignore") && refusal.contains("line 2 has more than 512 wildcards"), "{refusal}");
}

fn reports_external_rules_by_content() {
    let repo = FixtureRepo::small();
    let named = |repo: &FixtureRepo| -> Vec<String> {
        repo.snapshot().git.external_rules.iter().map(|rules| rules.name.clone()).collect()
    };
    assert_eq!(named(&repo), [""; 0]);
    repo.write(".git/info/exclude", "# nothing\n*.tmp\n");
    repo.git(&["init", "-q", "vendored"]);
    repo.write("vendored/.git/info/exclude", "x\n");
    let place = repo.dir.path().join("excludes");
    write_file(&place, b"y\n");
    repo.git(&["config", "core.excludesFile", &place.display().to_string()]);
    repo.git(&["config", "core.ignoreCase", "true"]);
    assert_eq!(named(&repo), ["core.excludesFile", "core.ignoreCase", "info/exclude", "vendored: info/exclude"]);
    let rules = repo.snapshot().git.external_rules;
    assert_eq!(rules[0].file, place);
    assert_eq!(rules[2].rules_sha256, proctor_core::text::digest::Sha256Hex::digest(b"*.tmp\n"));
}
