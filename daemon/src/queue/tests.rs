//! Property tests of the queue over arbitrary histories.

use super::*;
use proptest::prelude::*;

const LIMITS: QueueLimits = QueueLimits { active: 3, active_per_caller: 2, waiting: 24, waiting_per_caller: 10 };

fn entry(number: usize, (uid, repo, changeset, worktree): (u32, u8, Option<u8>, WorktreeUse)) -> QueueEntry {
    let changeset = changeset.map(|id| ChangesetId::new(format!("c{id}")).expect("an id"));
    let claim = RepoClaim { repo: format!("/r{repo}").into(), changeset, worktree };
    QueueEntry { id: RunId::new(format!("r{number}")).expect("an id"), uid, claim }
}

fn reading_entry(number: usize, uid: u32, repo: u8) -> QueueEntry {
    entry(number, (uid, repo, None, WorktreeUse::Reads))
}

fn start_all(queue: &mut FairQueue) -> Vec<String> {
    std::iter::from_fn(|| queue.start_next()).map(|entry| entry.id.to_string()).collect()
}

#[test]
fn callers_and_their_repositories_take_turns() {
    let limits = QueueLimits { active: 1, active_per_caller: 1, waiting: 100, waiting_per_caller: 100 };
    let mut queue = FairQueue::new(limits);
    for (number, (uid, repo)) in [(1, 0), (1, 0), (1, 0), (1, 1), (2, 2), (2, 2)].into_iter().enumerate() {
        queue.push(reading_entry(number, uid, repo)).expect("room");
    }
    let mut order = Vec::new();
    while let Some(next) = queue.start_next() {
        queue.remove(&next.id);
        order.push(next.id.to_string());
    }
    assert_eq!(order, ["r0", "r4", "r3", "r5", "r1", "r2"]);
}

#[test]
fn changeset_has_one_writer_at_a_time() {
    let mut queue = FairQueue::new(LIMITS);
    for (number, changeset) in [(0, Some(1)), (1, Some(1)), (2, Some(2)), (3, None)] {
        queue.push(entry(number, (number as u32 % 2, 0, changeset, WorktreeUse::Reads))).expect("room");
    }
    assert_eq!(start_all(&mut queue), ["r0", "r3", "r2"]);
    assert!(queue.remove(&RunId::new("r0").expect("an id")));
    assert_eq!(start_all(&mut queue), ["r1"]);
}

#[test]
fn worktree_change_is_exclusive_and_not_overtaken_by_reads() {
    let mut queue = FairQueue::new(LIMITS);
    for (number, worktree) in
        [WorktreeUse::Reads, WorktreeUse::Changes, WorktreeUse::Reads, WorktreeUse::Unused].iter().enumerate()
    {
        queue.push(entry(number, (number as u32, 0, None, *worktree))).expect("room");
    }
    assert_eq!(start_all(&mut queue), ["r0", "r3"]);
    queue.remove(&RunId::new("r0").expect("an id"));
    assert_eq!(start_all(&mut queue), ["r1"]);
    queue.remove(&RunId::new("r1").expect("an id"));
    assert_eq!(start_all(&mut queue), ["r2"]);
}

#[test]
fn bounds_waiting_runs_per_caller_and_in_total() {
    let mut queue = FairQueue::new(QueueLimits { waiting: 3, waiting_per_caller: 2, ..LIMITS });
    queue.push(reading_entry(0, 1, 0)).expect("room");
    queue.push(reading_entry(1, 1, 0)).expect("room");
    assert_eq!(queue.push(reading_entry(2, 1, 0)), Err(QueueFull::PerCaller(2)));
    queue.push(reading_entry(3, 2, 0)).expect("room");
    assert_eq!(queue.push(reading_entry(4, 3, 0)), Err(QueueFull::Total(3)));
    queue.remove(&RunId::new("r3").expect("an id"));
    queue.push(reading_entry(5, 3, 0)).expect("room");
}

/// An operation on a queue.
#[derive(Debug, Clone)]
enum QueueOperation {
    Push(u32, u8, Option<u8>, WorktreeUse),
    Start,
    /// An active run ends.
    End(usize),
    /// A waiting run is cancelled.
    Cancel(usize),
}

fn acts() -> impl Strategy<Value = Vec<QueueOperation>> {
    let worktree = prop_oneof![Just(WorktreeUse::Unused), Just(WorktreeUse::Reads), Just(WorktreeUse::Changes)];
    let push = (0..4u32, 0..3u8, proptest::option::of(0..2u8), worktree)
        .prop_map(|(uid, repo, changeset, worktree)| QueueOperation::Push(uid, repo, changeset, worktree));
    let act = prop_oneof![
        4 => push,
        4 => Just(QueueOperation::Start),
        2 => (0..8usize).prop_map(QueueOperation::End),
        1 => (0..8usize).prop_map(QueueOperation::Cancel),
    ];
    proptest::collection::vec(act, 0..200)
}

/// A queue together with a naive model of it.
struct QueueModel {
    queue: FairQueue,
    number: usize,
    waiting: Vec<QueueEntry>,
    active: Vec<QueueEntry>,
    /// For each caller, the other callers whose runs could have started since its last start, but did not.
    passed_over: HashMap<u32, HashSet<u32>>,
}

impl QueueModel {
    fn new() -> Self {
        let (waiting, active) = (Vec::new(), Vec::new());
        Self { queue: FairQueue::new(LIMITS), number: 0, waiting, active, passed_over: HashMap::new() }
    }

    fn apply(&mut self, act: &QueueOperation) {
        match act {
            QueueOperation::Push(uid, repo, changeset, worktree) => {
                self.number += 1;
                let entry = entry(self.number, (*uid, *repo, *changeset, *worktree));
                if self.queue.push(entry.clone()).is_ok() {
                    self.waiting.push(entry);
                }
            }
            QueueOperation::Start => self.start(),
            QueueOperation::End(n) if !self.active.is_empty() => {
                let ended = self.active.remove(n % self.active.len());
                assert!(self.queue.remove(&ended.id));
            }
            QueueOperation::Cancel(n) if !self.waiting.is_empty() => {
                let gone = self.waiting.remove(n % self.waiting.len());
                assert!(self.queue.remove(&gone.id));
            }
            QueueOperation::End(_) | QueueOperation::Cancel(_) => {}
        }
        self.check();
    }

    /// Computes the startable runs from the documented rules, independently of the implementation.
    fn could_start(&self) -> Vec<QueueEntry> {
        let earlier_or_active = |at: usize| self.waiting[..at].iter().chain(&self.active);
        let own = |uid: u32| self.active.iter().filter(|entry| entry.uid == uid).count();
        let may = |(at, entry): &(usize, &QueueEntry)| {
            self.active.len() < LIMITS.active
                && own(entry.uid) < LIMITS.active_per_caller
                && !earlier_or_active(*at).any(|other| other.claim.conflicts(&entry.claim))
        };
        self.waiting.iter().enumerate().filter(may).map(|(_, entry)| entry.clone()).collect()
    }

    fn start(&mut self) {
        let could = self.could_start();
        let started = self.queue.start_next();
        assert_eq!(started.is_some(), !could.is_empty(), "one starts exactly where one may");
        let Some(started) = started else { return };
        assert!(could.contains(&started), "only what may start does");
        let first = could.iter().find(|other| other.uid == started.uid && other.claim.repo == started.claim.repo);
        assert_eq!(first, Some(&started), "first asked for, first started");
        self.waiting.retain(|entry| entry.id != started.id);
        self.active.push(started.clone());
        self.check_fairness(&started, &could);
    }

    /// Checks that no caller starts twice while a run of the same other caller could have started both times.
    fn check_fairness(&mut self, started: &QueueEntry, could: &[QueueEntry]) {
        let others: HashSet<u32> = could.iter().map(|entry| entry.uid).filter(|uid| *uid != started.uid).collect();
        let before = self.passed_over.insert(started.uid, others.clone()).unwrap_or_default();
        let twice: Vec<_> = before.intersection(&others).collect();
        assert!(twice.is_empty(), "{} started twice before {twice:?}", started.uid);
        self.passed_over.values_mut().for_each(|passed| {
            passed.remove(&started.uid);
        });
        // A caller without a startable run loses its place.
        let eligible: HashSet<u32> = could.iter().map(|entry| entry.uid).collect();
        self.passed_over.values_mut().for_each(|passed| passed.retain(|uid| eligible.contains(uid)));
    }

    fn check(&mut self) {
        let waits: HashSet<u32> = self.waiting.iter().map(|entry| entry.uid).collect();
        self.passed_over.values_mut().for_each(|passed| passed.retain(|uid| waits.contains(uid)));
        assert_eq!((self.queue.waiting_count(), self.queue.active_count()), (self.waiting.len(), self.active.len()));
        assert!(self.active.len() <= LIMITS.active && self.waiting.len() <= LIMITS.waiting);
        for (at, one) in self.active.iter().enumerate() {
            let together = self.active[at + 1..].iter().find(|other| other.claim.conflicts(&one.claim));
            assert_eq!(together, None, "these must not be under way together");
        }
        let lines: usize = self.queue.callers.iter().map(|line| line.repos.len()).sum();
        assert!(lines <= self.waiting.len(), "no request waits without a reason");
    }

    /// Checks that all waiting runs start eventually if active runs end.
    fn run_until_empty(&mut self) {
        for _ in 0..=2 * LIMITS.waiting {
            self.start();
            if !self.active.is_empty() {
                self.apply(&QueueOperation::End(0));
            }
        }
        assert!(self.waiting.is_empty(), "{:?} wait for ever", self.waiting);
    }
}

proptest! {
    #[test]
    fn invariants_hold_for_any_operations(acts in acts()) {
        let mut watched = QueueModel::new();
        acts.iter().for_each(|act| watched.apply(act));
        watched.run_until_empty();
    }

    #[test]
    fn union_of_claims_conflicts_like_each_claim(claims in proptest::collection::vec(
        (proptest::option::of(0..2u8), prop_oneof![Just(WorktreeUse::Unused), Just(WorktreeUse::Reads), Just(WorktreeUse::Changes)]),
        1..6,
    )) {
        let claims: Vec<RepoClaim> =
            claims.into_iter().map(|(changeset, worktree)| entry(0, (0, 0, changeset, worktree)).claim).collect();
        let (new_claim, others) = claims.split_first().expect("one at least");
        let mut taken = RepoClaims::default();
        others.iter().for_each(|claim| taken.add(claim));
        prop_assert_eq!(taken.conflicts_with(new_claim), others.iter().any(|claim| claim.conflicts(new_claim)));
    }
}
