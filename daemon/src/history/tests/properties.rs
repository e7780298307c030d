//! Property tests: an index row is always the fold of its log, and pages show each run exactly once.

use proptest::prelude::*;

use super::*;
use crate::history::shared_history::IndexState;

/// An operation on one of several runs.
#[derive(Debug, Clone)]
enum HistoryOperation {
    Begin,
    Append(Box<RunEvent>),
    Finish(Verdict),
    DropLog,
    FailIndex,
    DamageIndex,
}

fn history_operation() -> impl Strategy<Value = HistoryOperation> {
    let events = passed_events();
    let events = events[..events.len() - 1].to_vec();
    let any = prop_oneof![
        proptest::sample::select(events),
        "[a-z \\PC]{0,40}".prop_map(|message| tree_changed_event(&message)),
        "[A-Z]{1,9}".prop_map(|by| RunEvent::Cancelling { by }),
    ];
    let verdict = proptest::sample::select(vec![Verdict::Passed, Verdict::Failed, Verdict::Inconclusive]);
    prop_oneof![
        2 => Just(HistoryOperation::Begin),
        8 => any.prop_map(|event| HistoryOperation::Append(Box::new(event))),
        2 => verdict.prop_map(HistoryOperation::Finish),
        1 => Just(HistoryOperation::DropLog),
        1 => Just(HistoryOperation::FailIndex),
        1 => Just(HistoryOperation::DamageIndex),
    ]
}

fn assert_rows_match_logs(history: &History) -> Result<(), TestCaseError> {
    let rows = list_all(history);
    for row in &rows {
        let (events, _) = history.events(&row.id, 0, 1_000).expect("reads").expect("there");
        let folded = LoggedRun::from_log(&events).expect("a run").view();
        prop_assert_eq!(&folded.summary(), row);
        prop_assert_eq!(Some(folded), history.view(&row.id).expect("reads"));
    }
    prop_assert_eq!(rows.len(), history.shared.files.runs().expect("lists").len());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn index_row_is_the_fold_of_its_log(script in proptest::collection::vec((0usize..3, history_operation()), 0..40)) {
        let state = TestStateDir::new();
        let history = state.history();
        let mut logs: [Option<RunLogWriter>; 3] = [None, None, None];
        let mut views: BTreeMap<RunId, RunView> = BTreeMap::new();
        for (n, (place, what)) in script.into_iter().enumerate() {
            let log = &mut logs[place];
            match (what, log.take()) {
                (HistoryOperation::Begin, None) => *log = Some(history.begin(run(&format!("r{n}"))).expect("begins")),
                (HistoryOperation::Append(event), Some(mut open)) => {
                    open.append(*event).expect("logs");
                    *log = Some(open);
                }
                (HistoryOperation::Finish(verdict), Some(open)) => {
                    let ended = open.finish(end_event(verdict));
                    views.insert(ended.view.id.clone(), ended.view);
                }
                (HistoryOperation::DropLog, Some(open)) => drop(open),
                (HistoryOperation::FailIndex, open) => {
                    *history.shared.index_state() = IndexState::Closed;
                    *log = open;
                }
                (HistoryOperation::DamageIndex, open) => {
                    *history.shared.index_state() = IndexState::Damaged;
                    *log = open;
                }
                (_, open) => *log = open,
            }
            assert_rows_match_logs(&history)?;
        }
        // The properties also hold after a kill.
        let killed = state.copy_after_kill();
        let (after, recovered) = killed.open();
        assert_rows_match_logs(&after)?;
        assert_consistent(&after);
        prop_assert_eq!(recovered.interrupted.len(), logs.iter().flatten().count());
        for (id, view) in views {
            prop_assert_eq!(after.view(&id).expect("reads"), Some(view));
        }
    }

    #[test]
    fn pages_show_each_run_once(
        before in 0usize..30,
        limit in 1u32..7,
        between in proptest::collection::vec(any::<bool>(), 0..12),
    ) {
        let state = TestStateDir::new();
        let history = state.history();
        let mut serial = 0;
        let mut add = || {
            serial += 1;
            // These ids are not in the order of time.
            drop(history.begin(run(&format!("{:x}-{serial}", (serial * 7919) % 4099))).expect("begins"));
        };
        (0..before).for_each(|_| add());
        let expected: Vec<RunId> = list_all(&history).into_iter().map(|run| run.id).collect();
        let mut times: Vec<String> = list_all(&history).into_iter().map(|run| run.queued_at).collect();
        times.reverse();
        prop_assert!(times.is_sorted());
        let (mut seen, mut cursor, mut between) = (Vec::new(), None, between.into_iter());
        loop {
            let filter = RunFilter { cursor, limit: Some(limit), ..RunFilter::default() };
            let page = history.list(&filter, Some(7)).expect("lists");
            prop_assert!(page.runs.len() <= limit as usize);
            seen.extend(page.runs.into_iter().map(|run| run.id));
            cursor = page.next_cursor;
            if cursor.is_none() {
                break;
            }
            if between.next() == Some(true) {
                add();
            }
        }
        // A run that was queued in the same millisecond in which a page ends may appear too.
        let mut once = seen.clone();
        once.sort();
        once.dedup();
        prop_assert_eq!(once.len(), seen.len());
        seen.retain(|id| expected.contains(id));
        prop_assert_eq!(seen, expected);
    }
}
