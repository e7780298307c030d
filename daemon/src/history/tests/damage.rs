//! Truncated, overwritten and replaced logs, and invalid index files.

use std::os::unix::fs::symlink;

use super::*;
use crate::history::files::Files;
use crate::history::recovery::settle;

/// Returns the complete log of a run that passed.
fn whole() -> (State, Vec<u8>) {
    let state = State::new();
    let history = state.history();
    complete(&history, NewRun { key: Some(key("a", "request")), ..run("r1") });
    drop(history);
    let bytes = std::fs::read(state.log(&id("r1"))).expect("reads");
    (state, bytes)
}

fn opened(bytes: &[u8]) -> (State, History, Recovered) {
    let state = State::new();
    drop(state.open());
    write(&state.log(&id("r1")), bytes);
    let (history, recovered) = state.open();
    (state, history, recovered)
}

/// Puts something in the place of a file of the history.
type Plant<'a, P> = &'a dyn Fn(&P);

fn write(path: &Path, bytes: &[u8]) {
    use std::io::Write as _;
    let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).open(path).expect("opens");
    file.write_all(bytes).expect("writes");
}

fn fifo(path: &Path) {
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).expect("makes");
}

/// After truncation at any byte, recovery either completes the log or, without a complete first event, removes it.
#[test]
fn a_log_that_is_cut_at_any_byte() {
    let (_, bytes) = whole();
    let begun = bytes.iter().position(|byte| *byte == b'\n').expect("a line") + 1;
    let began = bytes[begun..].iter().position(|byte| *byte == b'\n').expect("a line") + 1 + begun;
    let state = State::new();
    let Ok(files) = Files::open(state.path()) else { panic!("opens") };
    let run = id("r1");
    for cut in 0..=bytes.len() {
        write(&state.log(&run), &bytes[..cut]);
        let done = settle(&files, &run, Clock::system()).expect("settles");
        assert_eq!(done.aside, None, "cut at {cut}: nobody wrote that");
        let Some(settled) = done.settled else {
            assert!(cut < begun && !state.log(&run).exists(), "cut at {cut}");
            continue;
        };
        assert!(cut >= begun, "cut at {cut}");
        assert_eq!(settled.key.map(|key| key.request_sha256), Some(Sha256Hex::of(b"request")));
        let (verdict, code) = (settled.view.verdict, settled.view.exit_code);
        match cut == bytes.len() {
            true => assert_eq!((verdict, code), (Some(Verdict::Passed), Some(0))),
            false => assert_eq!((verdict, code), (Some(Verdict::Inconclusive), Some(EXIT_INTERRUPTED)), "cut at {cut}"),
        }
        let reason = if cut < began { "before the run had begun" } else { "while the run was under way" };
        assert!(cut == bytes.len() || settled.view.reason.contains(reason), "cut at {cut}: {}", settled.view.reason);
        let mended = std::fs::read(state.log(&run)).expect("reads");
        assert_eq!((settled.bytes, settled.view.state), (mended.len() as u64, RunState::Finished));
        let again = settle(&files, &run, Clock::system()).expect("settles");
        assert_eq!(again.settled.map(|again| again.view), Some(settled.view));
        assert!(!again.interrupted && std::fs::read(state.log(&run)).expect("reads") == mended, "cut at {cut}");
    }
}

#[test]
fn a_kill_while_a_log_is_mended_leaves_one_that_can_be() {
    let (_, bytes) = whole();
    let cut = bytes.len() - 10;
    let (_state, history, _) = opened(&bytes[..cut]);
    let (events, _) = history.events(&id("r1"), 0, 100).expect("reads").expect("there");
    // The end was written over the incomplete line, and the bytes after it were not truncated.
    let mut lines = log::lines(&events[..events.len() - 1]).expect("writes");
    let torn = bytes[lines.len()..].to_vec();
    lines.extend(log::lines(&events[events.len() - 1..]).expect("writes"));
    lines.extend(&torn);
    let (_state, history, recovered) = opened(&lines);
    assert_eq!((recovered.interrupted.len(), recovered.set_aside.len()), (0, 1));
    assert_settled(&history);
    let view = history.view(&id("r1")).expect("reads").expect("there");
    assert_eq!((view.verdict, view.seq), (Some(Verdict::Inconclusive), events.len() as u64));
}

#[test]
fn a_log_with_something_else_in_it_never_passes() {
    let (_, bytes) = whole();
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
        let (state, history, recovered) = opened(case.as_bytes());
        let view = history.view(&id("r1")).expect("reads").expect("there");
        assert_eq!((view.verdict, view.exit_code), (Some(Verdict::Inconclusive), Some(EXIT_INCONCLUSIVE)), "{case}");
        assert!(view.reason.contains("is damaged: after event "), "{}", view.reason);
        let kept = std::fs::read(state.path().join("history/damaged/r1.jsonl")).expect("a copy");
        assert_eq!((kept.as_slice(), recovered.set_aside.len()), (case.as_bytes(), 1));
        assert_settled(&history);
        drop(history);
        let (history, recovered) = state.open();
        assert_eq!(recovered, Recovered { runs: 1, ..Recovered::default() });
        assert_settled(&history);
    }
}

#[test]
fn what_follows_an_end_does_not_count() {
    let (_, bytes) = whole();
    let other_end = br#"{"seq":10,"logged_at":"t","event":"cancelling","by":"x"}"#;
    for rest in [&b"{\"se"[..], b"garbage\n", &[other_end, &b"\n"[..]].concat()] {
        let (state, history, recovered) = opened(&[&bytes, rest].concat());
        assert_eq!((recovered.interrupted.len(), recovered.runs), (0, 1));
        let view = history.view(&id("r1")).expect("reads").expect("there");
        assert_eq!((view.verdict, view.cancelled_by), (Some(Verdict::Passed), None));
        assert_eq!(std::fs::read(state.log(&id("r1"))).expect("reads"), bytes);
        assert_settled(&history);
    }
}

#[test]
fn a_log_without_its_beginning_is_no_run() {
    let (_, bytes) = whole();
    let second = bytes.iter().position(|byte| *byte == b'\n').expect("a line") + 1;
    let foreign = String::from_utf8(bytes.clone()).expect("text").replacen("\"run_id\":\"r1\"", "\"run_id\":\"r2\"", 1);
    for log in [&bytes[second..], b"\n", b"garbage\n", &[0; 100_000], foreign.as_bytes()] {
        let (state, history, recovered) = opened(log);
        assert_eq!((recovered.runs, recovered.interrupted.len()), (0, 0));
        assert_eq!(listed(&history), []);
        assert_eq!(history.view(&id("r1")).expect("looks"), None);
        let aside = state.path().join("history/damaged/r1.jsonl");
        let torn = !log.contains(&b'\n');
        assert_eq!((aside.exists(), recovered.set_aside.len()), (!torn, usize::from(!torn)));
        history.begin(run("r1")).expect("the name is free");
    }
}

#[test]
fn what_is_no_file_of_ours_is_never_a_log() {
    let elsewhere = tempfile::tempdir().expect("temp");
    let victim = elsewhere.path().join("victim");
    let (_, bytes) = whole();
    let plants: [(&str, Plant<'_, Path>); 5] = [
        ("a symlink", &|path| symlink(&victim, path).expect("links")),
        ("a symlink to nothing", &|path| symlink("/nonexistent", path).expect("links")),
        ("a fifo", &|path| fifo(path)),
        ("a hard link", &|path| {
            let other = path.with_extension("other");
            write(&other, &bytes);
            std::fs::hard_link(&other, path).expect("links");
        }),
        ("a directory", &|path| std::fs::create_dir_all(path.join("x")).expect("makes")),
    ];
    for (what, plant) in plants {
        write(&victim, &bytes);
        let state = State::new();
        let history = state.history();
        plant(&state.log(&id("r1")));
        assert!(history.begin(run("r1")).is_err(), "{what}");
        if what != "a symlink to nothing" {
            assert!(history.view(&id("r1")).is_err(), "{what}");
        }
        let mut log = history.begin(run("r2")).expect("begins");
        std::fs::remove_file(state.log(&id("r2"))).expect("removes");
        plant(&state.log(&id("r2")));
        log.append(doubted("x")).expect_err(what);
        let ended = log.finish(end(Verdict::Passed));
        assert_eq!((ended.view.verdict, ended.view.exit_code), (Some(Verdict::Inconclusive), Some(EXIT_INCONCLUSIVE)));
        assert_eq!(history.view(&id("r2")).expect("is known"), Some(ended.view));
        drop(history);
        let (history, recovered) = state.open();
        assert_eq!((recovered.runs, recovered.set_aside.len()), (0, 2), "{what}");
        assert_settled(&history);
        assert_eq!(std::fs::read(&victim).expect("reads"), bytes, "{what}");
    }
}

/// Produces a run whose end could not be written, because its log had a second hard link at that moment.
fn unwritten(state: &State, history: &History) -> Ended {
    let log = history.begin(run("r1")).expect("begins");
    let other = state.path().join("other");
    std::fs::hard_link(state.log(&id("r1")), &other).expect("links");
    let ended = log.finish(end(Verdict::Passed));
    assert_eq!(ended.view.verdict, Some(Verdict::Inconclusive));
    std::fs::remove_file(&other).expect("removes");
    ended
}

#[test]
fn an_end_that_no_log_holds_is_made_by_the_next_daemon() {
    let state = State::new();
    let history = state.history();
    unwritten(&state, &history);
    assert_eq!(listed(&history)[0].state, RunState::Finished);
    let killed = state.killed();
    let (history, recovered) = killed.open();
    assert_eq!(recovered.interrupted, [id("r1")]);
    assert_settled(&history);
}

/// If truncation of the log failed too, the log may contain an end that was never reported.
#[test]
fn an_end_that_was_taken_back_is_no_event() {
    use std::io::Write as _;
    let state = State::new();
    let history = state.history();
    let ended = unwritten(&state, &history);
    let taken_back = LoggedEvent { seq: 2, logged_at: "t".into(), event: end(Verdict::Passed) };
    for behind in [log::lines([&taken_back]).expect("writes"), b"garbage\n".to_vec()] {
        let mut file = std::fs::OpenOptions::new().append(true).open(state.log(&id("r1"))).expect("opens");
        file.write_all(&behind).expect("writes");
        let (events, more) = history.events(&id("r1"), 0, 9).expect("reads").expect("there");
        assert_eq!((RunView::fold(&events).as_ref(), events.len(), more), (Some(&ended.view), 3, false));
        let (events, more) = history.events(&id("r1"), 1, 1).expect("reads").expect("there");
        assert_eq!((events[0].seq, events.len(), more), (2, 1, true));
    }
    history.begin(run("r2")).expect("begins, and writes the end");
    let (events, _) = history.events(&id("r1"), 0, 9).expect("reads").expect("there");
    assert_eq!(RunView::fold(&events), Some(ended.view));
}

#[test]
fn a_directory_of_the_history_is_none_of_ours() {
    for name in ["events", "patches", "damaged", "lock"] {
        let state = State::new();
        drop(state.open());
        let elsewhere = State::new();
        let place = state.path().join("history").join(name);
        if place.is_dir() {
            std::fs::remove_dir_all(&place).expect("removes");
        } else {
            std::fs::remove_file(&place).expect("removes");
        }
        symlink(elsewhere.path(), &place).expect("links");
        match History::open(state.path(), Clock::system()) {
            Err(StartError::History { reason, .. }) => assert!(reason.contains("symbolic link"), "{reason}"),
            other => panic!("{name}: {:?}", other.map(|(_, recovered)| recovered)),
        }
        assert_eq!(std::fs::read_dir(elsewhere.path()).expect("lists").count(), 0);
    }
}

/// Lists are the same whatever is in the place of the index.
#[test]
fn an_index_that_is_none_is_made_anew() {
    let elsewhere = tempfile::tempdir().expect("temp");
    let place = |state: &State| state.path().join("history/index.sqlite");
    let gone = |state: &State| std::fs::remove_file(place(state)).expect("removes");
    let plants: [(&str, Plant<'_, State>); 12] = [
        ("nothing", &gone),
        ("an empty file", &|state: &State| write(&place(state), b"")),
        ("garbage", &|state: &State| write(&place(state), &b"garbage\n".repeat(1_000))),
        ("half of it", &|state: &State| {
            let bytes = std::fs::read(place(state)).expect("reads");
            write(&place(state), &bytes[..bytes.len() / 2]);
        }),
        ("a page of zeros", &|state: &State| {
            let mut bytes = std::fs::read(place(state)).expect("reads");
            bytes[4096..8192].fill(0);
            write(&place(state), &bytes);
        }),
        ("a symlink", &|state: &State| {
            let other = elsewhere.path().join("other.sqlite");
            std::fs::rename(place(state), &other)
                .or_else(|_| std::fs::copy(place(state), &other).map(drop))
                .expect("moves");
            std::fs::remove_file(place(state)).ok();
            symlink(&other, place(state)).expect("links");
        }),
        ("a fifo", &|state: &State| {
            gone(state);
            fifo(&place(state));
        }),
        ("a directory", &|state: &State| {
            gone(state);
            std::fs::create_dir_all(place(state).join("x")).expect("makes");
        }),
        ("an older version", &|state: &State| {
            let db = rusqlite::Connection::open(place(state)).expect("opens");
            db.pragma_update(None, "user_version", 0).expect("sets");
        }),
        ("another program's", &|state: &State| {
            gone(state);
            let db = rusqlite::Connection::open(place(state)).expect("opens");
            db.execute_batch("CREATE TABLE runs (x); PRAGMA user_version = 1").expect("makes");
        }),
        ("a log of another index", &|state: &State| {
            gone(state);
            write(&state.path().join("history/index.sqlite-wal"), &[7; 40_000]);
        }),
        ("a link as its log", &|state: &State| {
            symlink("/nonexistent", state.path().join("history/index.sqlite-wal")).expect("links");
        }),
    ];
    for (what, plant) in plants {
        let state = State::new();
        let history = state.history();
        for n in 0..20 {
            complete(&history, NewRun { key: Some(key(&format!("k{n}"), "request")), ..run(&format!("r{n}")) });
        }
        let before = listed(&history);
        drop(history);
        plant(&state);
        let (history, recovered) = state.open();
        assert!(recovered.rebuilt.is_some(), "{what}");
        assert_eq!((listed(&history), recovered.runs), (before, 20), "{what}");
        assert_eq!(history.idempotent(7, "k3").expect("asks").map(|(run, _)| run), Some(id("r3")), "{what}");
        assert_settled(&history);
        drop(history);
        assert_eq!(state.open().1, Recovered { runs: 20, ..Recovered::default() }, "{what}");
    }
}

#[test]
fn an_index_that_missed_something_is_brought_up_to_the_logs() {
    let state = State::new();
    let history = state.history();
    complete(&history, run("r1"));
    let waiting = history.begin(run("r2")).expect("begins");
    drop(waiting);
    drop(history);
    let old = std::fs::read(state.path().join("history/index.sqlite")).expect("reads");
    let history = state.history();
    complete(&history, run("r3"));
    drop(history);
    std::fs::remove_file(state.log(&id("r1"))).expect("removes");
    write(&state.path().join("history/index.sqlite"), &old);
    let (history, recovered) = state.open();
    assert_eq!((recovered.runs, recovered.rebuilt), (2, None));
    assert_eq!(names(&listed(&history)), ["r3", "r2"]);
    assert_settled(&history);
}

#[test]
fn rows_that_are_none_of_ours_are_noticed_while_it_is_open() {
    let state = State::new();
    let history = state.history();
    complete(&history, run("r1"));
    let before = listed(&history);
    let spoil = |sql: &str| {
        if let Slot::Open(index) = &mut *history.shared.slot() {
            index.db.execute_batch(sql).expect("spoils");
        }
    };
    spoil("UPDATE runs SET summary = '{}'");
    history.list(&RunFilter::default(), None).expect_err("once");
    assert_eq!(listed(&history), before);
    spoil("DROP TABLE runs");
    history.list(&RunFilter::default(), None).expect_err("once");
    assert_eq!(listed(&history), before);
    assert_settled(&history);
}
