//! Tests of the audit trail: every change of a row or of the head is found.

use std::path::Path;
use std::time::{Duration, SystemTime};

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn fixed() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_323_045)
}

fn open(directory: &Path) -> AuditTrail {
    AuditTrail::open(directory, AuditRetention::default(), Clock::from_fn(fixed)).expect("opens")
}

fn append(trail: &mut AuditTrail, n: u64) {
    let kind = if n.is_multiple_of(3) { AuditKind::Question } else { AuditKind::Answer };
    trail.append(&format!("ask{}", n / 3), kind, json!({ "n": n, "text": "a \"b\" é\n" })).expect("appends");
}

/// Creates a trail with this many records.
fn trail_of(directory: &Path, count: u64) -> AuditTrail {
    let mut trail = open(directory);
    (0..count).for_each(|n| append(&mut trail, n));
    trail
}

fn problems(trail: &AuditTrail) -> Vec<AuditProblem> {
    trail.verify().expect("reads").problems
}

fn change(trail: &AuditTrail, sql: &str) {
    trail.connection.execute_batch(sql).expect(sql);
}

#[test]
fn intact_trail_has_no_problem() {
    let directory = tempfile::tempdir().expect("a directory");
    let trail = trail_of(directory.path(), 7);
    let report = trail.verify().expect("reads");
    assert!(report.is_intact(), "{report:?}");
    assert_eq!((report.records, report.first, report.last), (7, 1, 7));
    let reader = AuditTrail::open_existing(directory.path()).expect("opens");
    assert!(reader.verify().expect("reads").is_intact());
    let latest = reader.latest(2).expect("reads");
    assert_eq!(latest.iter().map(|ask| (ask.id.as_str(), ask.records)).collect::<Vec<_>>(), [("ask1", 3), ("ask2", 1)]);
    assert_eq!(latest[0].at, "2026-01-02T03:04:05.000Z");
}

#[test]
fn empty_trail_is_intact_and_missing_trail_is_an_error() {
    let directory = tempfile::tempdir().expect("a directory");
    assert!(matches!(AuditTrail::open_existing(directory.path()), Err(AuditError::Missing(_))));
    let trail = open(directory.path());
    assert!(trail.verify().expect("reads").is_intact());
}

#[test]
fn files_are_private() {
    use std::os::unix::fs::PermissionsExt as _;
    let parent = tempfile::tempdir().expect("a directory");
    let directory = parent.path().join("ask");
    let _trail = trail_of(&directory, 1);
    let mode = |path: &Path| std::fs::metadata(path).expect("there").permissions().mode() & 0o777;
    assert_eq!(mode(&directory), 0o700);
    for file in std::fs::read_dir(&directory).expect("lists") {
        let file = file.expect("an entry").path();
        assert_eq!(mode(&file) & 0o077, 0, "{}", file.display());
    }
}

#[test]
fn each_changed_byte_is_found() {
    let directory = tempfile::tempdir().expect("a directory");
    let trail = trail_of(directory.path(), 3);
    let mut rows = Vec::new();
    trail.for_each(None, |stored| rows.push(stored.clone())).expect("reads");
    let head = head_file::read(&trail.path(HEAD)).expect("reads");
    for at in 0..rows.len() {
        for byte in 0..rows[at].record.len() {
            if !rows[at].record.is_char_boundary(byte) || !rows[at].record.is_char_boundary(byte + 1) {
                continue;
            }
            let mut changed = rows.clone();
            let replacement = if &rows[at].record[byte..=byte] == "0" { "1" } else { "0" };
            changed[at].record.replace_range(byte..=byte, replacement);
            let verify = |rows: &[StoredRecord]| {
                let mut chain = ChainReader::new(head.clone());
                rows.iter().for_each(|row| chain.push(row));
                chain.finish().problems
            };
            assert!(!verify(&changed).is_empty(), "byte {byte} of record {}", at + 1);
            // With a hash that fits, the next record or the head shows the change.
            changed[at].hash = Sha256Hex::digest(changed[at].record.as_bytes()).to_string();
            assert!(!verify(&changed).is_empty(), "byte {byte} of record {} with its hash", at + 1);
        }
    }
}

#[test]
fn changed_missing_and_inserted_rows_are_found() {
    const COUNT: u64 = 6;
    let insert = |seq: u64, from: u64| {
        format!("INSERT INTO records SELECT {seq}, ask, at_ms, record, hash FROM records WHERE seq = {from}")
    };
    let mut changes = vec![
        insert(COUNT + 1, COUNT),
        insert(0, 1),
        "DELETE FROM records".to_owned(),
        "UPDATE records SET seq = seq + 100; UPDATE records SET seq = seq - 99".to_owned(),
        "UPDATE records SET seq = -seq".to_owned(),
    ];
    for seq in 1..=COUNT {
        changes.push(format!("DELETE FROM records WHERE seq = {seq}"));
        changes.push(format!("DELETE FROM records WHERE seq <= {seq}"));
        changes.push(format!("DELETE FROM records WHERE seq >= {seq}"));
        changes.push(format!("UPDATE records SET ask = ask || 'x' WHERE seq = {seq}"));
        changes.push(format!("UPDATE records SET record = record || ' ' WHERE seq = {seq}"));
        changes.push(format!("UPDATE records SET hash = upper(hash) || 'x' WHERE seq = {seq}"));
        changes.push(format!("UPDATE records SET seq = seq + 100 WHERE seq = {seq}"));
    }
    for seq in 1..COUNT {
        // Closes the gap of a removed row, and opens a gap for an inserted one.
        changes
            .push(format!("DELETE FROM records WHERE seq = {seq}; UPDATE records SET seq = seq - 1 WHERE seq > {seq}"));
        changes.push(format!(
            "UPDATE records SET seq = -seq - 1 WHERE seq > {seq}; UPDATE records SET seq = -seq WHERE seq < 0; {}",
            insert(seq + 1, seq)
        ));
    }
    for sql in changes {
        let directory = tempfile::tempdir().expect("a directory");
        let trail = trail_of(directory.path(), COUNT);
        change(&trail, &sql);
        assert!(!problems(&trail).is_empty(), "{sql}");
    }
}

#[test]
fn changed_head_is_found() {
    for text in ["", "{}", "{\"count\":3,\"hash\":\"00\",\"version\":1}"] {
        let directory = tempfile::tempdir().expect("a directory");
        let trail = trail_of(directory.path(), 3);
        let mut new = tempfile::NamedTempFile::new_in(directory.path()).expect("a file");
        std::io::Write::write_all(&mut new, text.as_bytes()).expect("writes");
        new.persist(trail.path(HEAD)).expect("renames");
        assert_eq!(problems(&trail), [AuditProblem::NoHead], "{text}");
    }
    let directory = tempfile::tempdir().expect("a directory");
    let mut trail = trail_of(directory.path(), 3);
    head_file::write(&trail.path(HEAD), &Head::empty()).expect("writes");
    assert_eq!(problems(&trail), [AuditProblem::BeyondHead { head: 0, last: 3 }]);
    std::fs::remove_file(trail.path(HEAD)).expect("removes");
    assert_eq!(problems(&trail), [AuditProblem::NoHead]);
    assert!(matches!(trail.append("a", AuditKind::End, json!({})), Err(AuditError::Damaged(_))));
}

#[test]
fn nothing_is_appended_after_missing_records() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut trail = trail_of(directory.path(), 4);
    change(&trail, "DELETE FROM records WHERE seq > 2");
    let error = trail.append("a", AuditKind::End, json!({})).expect_err("damaged");
    assert!(matches!(error, AuditError::Damaged(AuditProblem::MissingEnd { head: 4, last: 2 })), "{error}");
}

#[test]
fn interrupted_append_is_recorded_by_the_next_one() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut trail = trail_of(directory.path(), 2);
    let head = head_file::read(&trail.path(HEAD)).expect("reads").expect("a head");
    append(&mut trail, 2);
    // The process ends after the commit and before the head is written.
    head_file::write(&trail.path(HEAD), &head).expect("writes");
    assert_eq!(problems(&trail), [AuditProblem::BeyondHead { head: 2, last: 3 }]);
    append(&mut trail, 3);
    let report = trail.verify().expect("reads");
    assert!(report.is_intact(), "{report:?}");
    assert_eq!((report.last, report.recovered), (5, vec![4]));
}

#[test]
fn removal_of_old_records_keeps_the_chain_verifiable() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut trail = open(directory.path());
    trail.retention.max_bytes = 256 << 10;
    for n in 0..200 {
        trail.append("ask", AuditKind::Answer, json!({ "n": n, "text": "x".repeat(4_000) })).expect("appends");
        assert!(trail.verify().expect("reads").is_intact(), "after {n}");
    }
    let report = trail.verify().expect("reads");
    assert!(report.records < 70 && report.removed > 100 && report.first == report.removed + 1, "{report:?}");
    let size = std::fs::metadata(trail.path(DATABASE)).expect("there").len();
    assert!(size < 2 * (256 << 10), "{size}");
    // Without its checkpoint, and after the removal of more rows, the start is missing.
    change(&trail, &format!("DELETE FROM records WHERE seq = {}", report.first));
    assert_eq!(problems(&trail), [AuditProblem::MissingStart { seq: report.first + 1 }]);
}

#[test]
fn records_beyond_their_age_are_removed() {
    fn later() -> SystemTime {
        fixed() + Duration::from_secs(100)
    }
    let directory = tempfile::tempdir().expect("a directory");
    let mut trail = trail_of(directory.path(), 5);
    trail.retention.max_age = Some(Duration::from_secs(50));
    trail.clock = Clock::from_fn(later);
    append(&mut trail, 5);
    let report = trail.verify().expect("reads");
    assert!(report.is_intact(), "{report:?}");
    // Old records are removed before an insertion, and the last record always stays.
    assert_eq!((report.removed, report.first, report.last), (4, 5, 7));
}

#[test]
fn two_writers_append_to_one_chain() {
    let directory = tempfile::tempdir().expect("a directory");
    drop(open(directory.path()));
    std::thread::scope(|scope| {
        for writer in 0..3u64 {
            let directory = directory.path();
            scope.spawn(move || {
                let mut trail = open(directory);
                (0..15).for_each(|n| append(&mut trail, writer * 100 + n));
            });
        }
    });
    let report = open(directory.path()).verify().expect("reads");
    assert!(report.is_intact() && report.recovered.is_empty(), "{report:?}");
    assert_eq!(report.records, 45);
}

#[test]
fn export_contains_each_record_as_hashed() {
    let directory = tempfile::tempdir().expect("a directory");
    let trail = trail_of(directory.path(), 2);
    let mut lines = Vec::new();
    trail.for_each(None, |stored| lines.push((stored.clone(), stored.to_export_line()))).expect("reads");
    for (stored, line) in lines {
        let value: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(value["hash"], stored.hash);
        assert!(line.contains(&stored.record));
    }
    let damaged = StoredRecord { seq: 1, ask: String::new(), record: "{\n".into(), hash: "x\"".into() };
    let line: Value = serde_json::from_str(&damaged.to_export_line()).expect("JSON");
    assert_eq!(line["damaged"], "{\n");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_other_order_or_selection_of_rows_is_found(count in 2u64..8, picks in prop::collection::vec(0usize..8, 0..9)) {
        let directory = tempfile::tempdir().expect("a directory");
        let trail = trail_of(directory.path(), count);
        let head = head_file::read(&trail.path(HEAD)).expect("reads");
        let mut rows = Vec::new();
        trail.for_each(None, |stored| rows.push(stored.clone())).expect("reads");
        let picked: Vec<&StoredRecord> = picks.iter().filter_map(|at| rows.get(*at)).collect();
        let mut chain = ChainReader::new(head);
        picked.iter().for_each(|row| chain.push(row));
        let is_same = picked.len() == rows.len() && picked.iter().zip(&rows).all(|(a, b)| *a == b);
        prop_assert_eq!(chain.finish().problems.is_empty(), is_same);
    }
}
