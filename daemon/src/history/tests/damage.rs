//! Truncated, overwritten and replaced logs, and invalid index files.

use std::os::unix::fs::symlink;

use super::*;
use crate::history::history_files::HistoryFiles;
use crate::history::recovery::recover_log;
use crate::history::shared_history::IndexState;

/// Returns the complete log of a run that passed.
fn passed_log() -> (TestStateDir, Vec<u8>) {
    let state = TestStateDir::new();
    let history = state.history();
    complete(&history, NewRun { key: Some(key("a", "request")), ..run("r1") });
    drop(history);
    let bytes = std::fs::read(state.log_path(&id("r1"))).expect("reads");
    (state, bytes)
}

fn open_with_log(bytes: &[u8]) -> (TestStateDir, History, RecoverySummary) {
    let state = TestStateDir::new();
    drop(state.open());
    write_file(&state.log_path(&id("r1")), bytes);
    let (history, recovered) = state.open();
    (state, history, recovered)
}

/// Replaces a file of the history.
type ReplaceFile<'a, P> = &'a dyn Fn(&P);

fn write_file(path: &Path, bytes: &[u8]) {
    use std::io::Write as _;
    let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).open(path).expect("opens");
    file.write_all(bytes).expect("writes");
}

fn fifo(path: &Path) {
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).expect("makes");
}

/// After truncation at any byte, recovery either completes the log or, without a complete first event, removes it.
#[test]
fn recovers_log_cut_at_any_byte() {
    let (_, bytes) = passed_log();
    let begun = bytes.iter().position(|byte| *byte == b'\n').expect("a line") + 1;
    let began = bytes[begun..].iter().position(|byte| *byte == b'\n').expect("a line") + 1 + begun;
    let state = TestStateDir::new();
    let files = HistoryFiles::open(state.path()).expect("opens").expect("not locked");
    let run = id("r1");
    for cut in 0..=bytes.len() {
        write_file(&state.log_path(&run), &bytes[..cut]);
        let recovery = recover_log(&files, &run, Clock::system()).expect("settles");
        assert_eq!(recovery.quarantined, None, "cut at {cut}: nobody wrote that");
        let Some(settled) = recovery.log else {
            assert!(cut < begun && !state.log_path(&run).exists(), "cut at {cut}");
            continue;
        };
        assert!(cut >= begun, "cut at {cut}");
        assert_eq!(settled.key.map(|key| key.request_sha256), Some(Sha256Hex::digest(b"request")));
        let view = settled.run.view();
        let (verdict, code) = (view.verdict, view.exit_code);
        match cut == bytes.len() {
            true => assert_eq!((verdict, code), (Some(Verdict::Passed), Some(0))),
            false => assert_eq!((verdict, code), (Some(Verdict::Inconclusive), Some(EXIT_INTERRUPTED)), "cut at {cut}"),
        }
        let reason = if cut < began { "before the start of the run" } else { "during the run" };
        assert!(cut == bytes.len() || view.reason.contains(reason), "cut at {cut}: {}", view.reason);
        let mended = std::fs::read(state.log_path(&run)).expect("reads");
        assert_eq!((settled.bytes, view.state), (mended.len() as u64, RunState::Finished));
        let again = recover_log(&files, &run, Clock::system()).expect("settles");
        assert_eq!(again.log.map(|again| again.run), Some(settled.run));
        assert!(!again.interrupted && std::fs::read(state.log_path(&run)).expect("reads") == mended, "cut at {cut}");
    }
}

#[test]
fn kill_during_repair_leaves_repairable_log() {
    let (_, bytes) = passed_log();
    let cut = bytes.len() - 10;
    let (_state, history, _) = open_with_log(&bytes[..cut]);
    let (events, _) = history.events(&id("r1"), 0, 100).expect("reads").expect("there");
    // The end was written over the incomplete line, and the bytes after it were not truncated.
    let mut lines = log_lines::to_lines(&events[..events.len() - 1]).expect("writes");
    let torn = bytes[lines.len()..].to_vec();
    lines.extend(log_lines::to_lines(&events[events.len() - 1..]).expect("writes"));
    lines.extend(&torn);
    let (_state, history, recovered) = open_with_log(&lines);
    assert_eq!((recovered.interrupted.len(), recovered.quarantined.len()), (0, 1));
    assert_consistent(&history);
    let view = history.view(&id("r1")).expect("reads").expect("there");
    assert_eq!((view.verdict, view.seq), (Some(Verdict::Inconclusive), events.len() as u64));
}

#[test]
fn corrupted_log_never_passes() {
    let (_, bytes) = passed_log();
    let text = String::from_utf8(bytes).expect("text");
    let lines: Vec<&str> = text.lines().collect();
    let without = |n: usize| [&lines[..n], &lines[n + 1..]].concat().join("\n") + "\n";
    let with = |n: usize, line: &str| [&lines[..n], &[line], &lines[n..]].concat().join("\n") + "\n";
    let cases = [
        without(3),
        without(8 - 1),
        with(4, lines[3]),
        with(4, "garbage"),
        with(4, ""),
        with(4, r#"{"seq":5,"logged_at":"t","event":"nothing"}"#),
        with(4, &"\0".repeat(5_000)),
        with(4, r#"{"seq":99999999999999999999}"#),
        text.replacen("\"seq\":5", "\"seq\":6", 1),
    ];
    for case in &cases {
        let (state, history, recovered) = open_with_log(case.as_bytes());
        let view = history.view(&id("r1")).expect("reads").expect("there");
        assert_eq!((view.verdict, view.exit_code), (Some(Verdict::Inconclusive), Some(EXIT_INCONCLUSIVE)), "{case}");
        assert!(view.reason.contains("is damaged: after event "), "{}", view.reason);
        let kept = std::fs::read(state.path().join("history/damaged/r1.jsonl")).expect("a copy");
        assert_eq!((kept.as_slice(), recovered.quarantined.len()), (case.as_bytes(), 1));
        assert_consistent(&history);
        drop(history);
        let (history, recovered) = state.open();
        assert_eq!(recovered, RecoverySummary { runs: 1, ..RecoverySummary::default() });
        assert_consistent(&history);
    }
}

#[test]
fn bytes_after_end_are_ignored() {
    let (_, bytes) = passed_log();
    let other_end = br#"{"seq":10,"logged_at":"t","event":"cancelling","by":"x"}"#;
    for rest in [&b"{\"se"[..], b"garbage\n", &[other_end, &b"\n"[..]].concat()] {
        let (state, history, recovered) = open_with_log(&[&bytes, rest].concat());
        assert_eq!((recovered.interrupted.len(), recovered.runs), (0, 1));
        let view = history.view(&id("r1")).expect("reads").expect("there");
        assert_eq!((view.verdict, view.cancelled_by), (Some(Verdict::Passed), None));
        assert_eq!(std::fs::read(state.log_path(&id("r1"))).expect("reads"), bytes);
        assert_consistent(&history);
    }
}

#[test]
fn log_without_first_event_is_not_a_run() {
    let (_, bytes) = passed_log();
    let second = bytes.iter().position(|byte| *byte == b'\n').expect("a line") + 1;
    let foreign = String::from_utf8(bytes.clone()).expect("text").replacen("\"run_id\":\"r1\"", "\"run_id\":\"r2\"", 1);
    for log in [&bytes[second..], b"\n", b"garbage\n", &[0; 100_000], foreign.as_bytes()] {
        let (state, history, recovered) = open_with_log(log);
        assert_eq!((recovered.runs, recovered.interrupted.len()), (0, 0));
        assert_eq!(list_all(&history), []);
        assert_eq!(history.view(&id("r1")).expect("looks"), None);
        let aside = state.path().join("history/damaged/r1.jsonl");
        let torn = !log.contains(&b'\n');
        assert_eq!((aside.exists(), recovered.quarantined.len()), (!torn, usize::from(!torn)));
        history.begin(run("r1")).expect("the name is free");
    }
}

#[test]
fn foreign_file_is_never_used_as_log() {
    let elsewhere = tempfile::tempdir().expect("temp");
    let victim = elsewhere.path().join("victim");
    let (_, bytes) = passed_log();
    let plants: [(&str, ReplaceFile<'_, Path>); 5] = [
        ("a symlink", &|path| symlink(&victim, path).expect("links")),
        ("a symlink to nothing", &|path| symlink("/nonexistent", path).expect("links")),
        ("a fifo", &|path| fifo(path)),
        ("a hard link", &|path| {
            let other = path.with_extension("other");
            write_file(&other, &bytes);
            std::fs::hard_link(&other, path).expect("links");
        }),
        ("a directory", &|path| std::fs::create_dir_all(path.join("x")).expect("makes")),
    ];
    for (what, plant) in plants {
        write_file(&victim, &bytes);
        let state = TestStateDir::new();
        let history = state.history();
        plant(&state.log_path(&id("r1")));
        assert!(history.begin(run("r1")).is_err(), "{what}");
        if what != "a symlink to nothing" {
            assert!(history.view(&id("r1")).is_err(), "{what}");
        }
        let mut log = history.begin(run("r2")).expect("begins");
        std::fs::remove_file(state.log_path(&id("r2"))).expect("removes");
        plant(&state.log_path(&id("r2")));
        log.append(tree_changed_event("x")).expect_err(what);
        let ended = log.finish(end_event(Verdict::Passed));
        assert_eq!((ended.view.verdict, ended.view.exit_code), (Some(Verdict::Inconclusive), Some(EXIT_INCONCLUSIVE)));
        assert_eq!(history.view(&id("r2")).expect("is known"), Some(ended.view));
        drop(history);
        let (history, recovered) = state.open();
        assert_eq!((recovered.runs, recovered.quarantined.len()), (0, 2), "{what}");
        assert_consistent(&history);
        assert_eq!(std::fs::read(&victim).expect("reads"), bytes, "{what}");
    }
}

/// Produces a run whose end could not be written, because its log had a second hard link at that moment.
fn run_with_unwritten_end(state: &TestStateDir, history: &History) -> RecordedEnd {
    let log = history.begin(run("r1")).expect("begins");
    let other = state.path().join("other");
    std::fs::hard_link(state.log_path(&id("r1")), &other).expect("links");
    let ended = log.finish(end_event(Verdict::Passed));
    assert_eq!(ended.view.verdict, Some(Verdict::Inconclusive));
    std::fs::remove_file(&other).expect("removes");
    ended
}

#[test]
fn next_daemon_writes_missing_end() {
    let state = TestStateDir::new();
    let history = state.history();
    run_with_unwritten_end(&state, &history);
    assert_eq!(list_all(&history)[0].state, RunState::Finished);
    let killed = state.copy_after_kill();
    let (history, recovered) = killed.open();
    assert_eq!(recovered.interrupted, [id("r1")]);
    assert_consistent(&history);
}

/// If truncation of the log failed too, the log may contain an end that was never reported.
#[test]
fn unreported_end_is_ignored() {
    use std::io::Write as _;
    let state = TestStateDir::new();
    let history = state.history();
    let ended = run_with_unwritten_end(&state, &history);
    let taken_back = LoggedEvent { seq: 2, logged_at: "t".into(), event: end_event(Verdict::Passed) };
    for behind in [log_lines::to_lines([&taken_back]).expect("writes"), b"garbage\n".to_vec()] {
        let mut file = std::fs::OpenOptions::new().append(true).open(state.log_path(&id("r1"))).expect("opens");
        file.write_all(&behind).expect("writes");
        let (events, more) = history.events(&id("r1"), 0, 9).expect("reads").expect("there");
        assert_eq!(
            (LoggedRun::from_log(&events).map(|run| run.view()).as_ref(), events.len(), more),
            (Some(&ended.view), 3, false)
        );
        let (events, more) = history.events(&id("r1"), 1, 1).expect("reads").expect("there");
        assert_eq!((events[0].seq, events.len(), more), (2, 1, true));
    }
    history.begin(run("r2")).expect("begins, and writes the end");
    let (events, _) = history.events(&id("r1"), 0, 9).expect("reads").expect("there");
    assert_eq!(LoggedRun::from_log(&events).map(|run| run.view()), Some(ended.view));
}

#[test]
fn rejects_symlinked_history_directory() {
    for name in ["events", "patches", "damaged", "lock"] {
        let state = TestStateDir::new();
        drop(state.open());
        let elsewhere = TestStateDir::new();
        let path = state.path().join("history").join(name);
        if path.is_dir() {
            std::fs::remove_dir_all(&path).expect("removes");
        } else {
            std::fs::remove_file(&path).expect("removes");
        }
        symlink(elsewhere.path(), &path).expect("links");
        match History::open(state.path(), Clock::system()) {
            Err(OpenHistoryError::Failed { source, .. }) => {
                assert!(source.to_string().contains("symbolic link"), "{source}");
            }
            other => panic!("{name}: {:?}", other.map(|(_, recovered)| recovered)),
        }
        assert_eq!(std::fs::read_dir(elsewhere.path()).expect("lists").count(), 0);
    }
}

/// Lists of runs are the same, whatever exists at the path of the index.
#[test]
fn rebuilds_invalid_index() {
    let elsewhere = tempfile::tempdir().expect("temp");
    let index_path = |state: &TestStateDir| state.path().join("history/index.sqlite");
    let gone = |state: &TestStateDir| std::fs::remove_file(index_path(state)).expect("removes");
    let plants: [(&str, ReplaceFile<'_, TestStateDir>); 12] = [
        ("nothing", &gone),
        ("an empty file", &|state: &TestStateDir| write_file(&index_path(state), b"")),
        ("garbage", &|state: &TestStateDir| write_file(&index_path(state), &b"garbage\n".repeat(1_000))),
        ("half of it", &|state: &TestStateDir| {
            let bytes = std::fs::read(index_path(state)).expect("reads");
            write_file(&index_path(state), &bytes[..bytes.len() / 2]);
        }),
        ("a page of zeros", &|state: &TestStateDir| {
            let mut bytes = std::fs::read(index_path(state)).expect("reads");
            bytes[4096..8192].fill(0);
            write_file(&index_path(state), &bytes);
        }),
        ("a symlink", &|state: &TestStateDir| {
            let other = elsewhere.path().join("other.sqlite");
            std::fs::rename(index_path(state), &other)
                .or_else(|_| std::fs::copy(index_path(state), &other).map(drop))
                .expect("moves");
            std::fs::remove_file(index_path(state)).ok();
            symlink(&other, index_path(state)).expect("links");
        }),
        ("a fifo", &|state: &TestStateDir| {
            gone(state);
            fifo(&index_path(state));
        }),
        ("a directory", &|state: &TestStateDir| {
            gone(state);
            std::fs::create_dir_all(index_path(state).join("x")).expect("makes");
        }),
        ("an older version", &|state: &TestStateDir| {
            let db = rusqlite::Connection::open(index_path(state)).expect("opens");
            db.pragma_update(None, "user_version", 0).expect("sets");
        }),
        ("another program's", &|state: &TestStateDir| {
            gone(state);
            let db = rusqlite::Connection::open(index_path(state)).expect("opens");
            db.execute_batch("CREATE TABLE runs (x); PRAGMA user_version = 1").expect("makes");
        }),
        ("a log of another index", &|state: &TestStateDir| {
            gone(state);
            write_file(&state.path().join("history/index.sqlite-wal"), &[7; 40_000]);
        }),
        ("a link as its log", &|state: &TestStateDir| {
            symlink("/nonexistent", state.path().join("history/index.sqlite-wal")).expect("links");
        }),
    ];
    for (what, plant) in plants {
        let state = TestStateDir::new();
        let history = state.history();
        for n in 0..20 {
            complete(&history, NewRun { key: Some(key(&format!("k{n}"), "request")), ..run(&format!("r{n}")) });
        }
        let before = list_all(&history);
        drop(history);
        plant(&state);
        let (history, recovered) = state.open();
        assert!(recovered.rebuild_reason.is_some(), "{what}");
        assert_eq!((list_all(&history), recovered.runs), (before, 20), "{what}");
        assert_eq!(
            history.run_for_key(7, &idempotency_key("k3")).expect("asks").map(|(run, _)| run),
            Some(id("r3")),
            "{what}"
        );
        assert_consistent(&history);
        drop(history);
        assert_eq!(state.open().1, RecoverySummary { runs: 20, ..RecoverySummary::default() }, "{what}");
    }
}

#[test]
fn updates_index_that_missed_changes() {
    let state = TestStateDir::new();
    let history = state.history();
    complete(&history, run("r1"));
    let waiting = history.begin(run("r2")).expect("begins");
    drop(waiting);
    drop(history);
    let old = std::fs::read(state.path().join("history/index.sqlite")).expect("reads");
    let history = state.history();
    complete(&history, run("r3"));
    drop(history);
    std::fs::remove_file(state.log_path(&id("r1"))).expect("removes");
    write_file(&state.path().join("history/index.sqlite"), &old);
    let (history, recovered) = state.open();
    assert_eq!((recovered.runs, recovered.rebuild_reason), (2, None));
    assert_eq!(names(&list_all(&history)), ["r3", "r2"]);
    assert_consistent(&history);
}

#[test]
fn rebuilds_index_with_foreign_rows_while_open() {
    let state = TestStateDir::new();
    let history = state.history();
    complete(&history, run("r1"));
    let before = list_all(&history);
    let spoil = |sql: &str| {
        if let IndexState::Open(index) = &mut *history.shared.index_state() {
            index.db.execute_batch(sql).expect("spoils");
        }
    };
    spoil("UPDATE runs SET summary = '{}'");
    history.list(&RunFilter::default(), None).expect_err("once");
    assert_eq!(list_all(&history), before);
    spoil("DROP TABLE runs");
    history.list(&RunFilter::default(), None).expect_err("once");
    assert_eq!(list_all(&history), before);
    assert_consistent(&history);
}
