//! Decides which run starts next, without a clock or tasks. Callers take turns; the repositories of a caller take
//! turns; and within a repository, the oldest request that may start is next.
//!
//! Conflicting runs are never active together and start in the order of their requests: a later run cannot overtake an
//! earlier one that it conflicts with. So no run waits forever. The queue depends neither on the content of a run nor
//! on the way it is started.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use proctor_core::model::names::{ChangesetId, RunId};

#[cfg(test)]
mod tests;

/// Limits of the queue. Each number is at least 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueLimits {
    /// Maximum number of active runs.
    pub active: usize,
    /// Maximum number of active runs of one caller.
    pub active_per_caller: usize,
    /// Maximum number of waiting runs.
    pub waiting: usize,
    /// Maximum number of waiting runs of one caller.
    pub waiting_per_caller: usize,
}

/// The properties of a run that decide when it may start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueEntry {
    /// The run.
    pub id: RunId,
    /// The caller whose turn the run uses.
    pub uid: u32,
    /// Part of the repository that the run reserves.
    pub claim: RepoClaim,
}

/// The part of a repository that a run reserves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepoClaim {
    /// Canonical path of the repository.
    pub repo: Arc<str>,
    /// Changeset that the run writes to. A changeset has one writer at a time.
    pub changeset: Option<ChangesetId>,
    /// How the run uses the worktree.
    pub worktree: WorktreeUse,
}

/// How a run uses the worktree of its repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorktreeUse {
    /// The run does not use the worktree: it verifies a commit.
    Unused,
    /// The run reads the worktree.
    Reads,
    /// The run may change the worktree, so no other run may verify it at the same time.
    Changes,
}

impl RepoClaim {
    /// Returns whether the two runs must not be active at the same time.
    pub fn conflicts(&self, other: &Self) -> bool {
        let changes =
            |one: &Self, two: &Self| one.worktree == WorktreeUse::Changes && two.worktree != WorktreeUse::Unused;
        let same_changeset = self.changeset.is_some() && self.changeset == other.changeset;
        self.repo == other.repo && (same_changeset || changes(self, other) || changes(other, self))
    }
}

/// Reason why a run cannot be queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QueueFull {
    /// The total limit of waiting runs is reached.
    #[error("{0} runs are already waiting")]
    Total(usize),
    /// The caller's limit of waiting runs is reached.
    #[error("{0} of your runs are already waiting")]
    PerCaller(usize),
}

/// Sequence number of a request.
type QueueTicket = u64;

/// The waiting and active runs.
#[derive(Debug)]
pub struct FairQueue {
    limits: QueueLimits,
    last: QueueTicket,
    waiting: BTreeMap<QueueTicket, QueueEntry>,
    active: HashMap<RunId, QueueEntry>,
    /// Callers with waiting runs; the caller at the front has the next turn.
    callers: VecDeque<CallerQueue>,
}

/// The repositories of one caller that have waiting runs; the one at the front has the next turn.
#[derive(Debug)]
struct CallerQueue {
    uid: u32,
    repos: VecDeque<Arc<str>>,
}

impl FairQueue {
    /// Creates an empty queue.
    pub fn new(limits: QueueLimits) -> Self {
        let (waiting, active, callers) = (BTreeMap::new(), HashMap::new(), VecDeque::new());
        Self { limits, last: 0, waiting, active, callers }
    }

    /// Applies new limits. Runs that already exceed them are not removed.
    pub fn set_limits(&mut self, limits: QueueLimits) {
        self.limits = limits;
    }

    /// Queues a run.
    ///
    /// # Errors
    /// Too many runs wait.
    pub fn push(&mut self, entry: QueueEntry) -> Result<(), QueueFull> {
        let own = self.waiting.values().filter(|other| other.uid == entry.uid).count();
        if self.waiting.len() >= self.limits.waiting {
            return Err(QueueFull::Total(self.waiting.len()));
        }
        if own >= self.limits.waiting_per_caller {
            return Err(QueueFull::PerCaller(own));
        }
        self.enqueue_repo(entry.uid, &entry.claim.repo);
        self.last += 1;
        self.waiting.insert(self.last, entry);
        Ok(())
    }

    /// Returns the next run that may start and marks it active. Returns `None` if no run may start.
    pub fn start_next(&mut self) -> Option<QueueEntry> {
        if self.active.len() >= self.limits.active {
            return None;
        }
        let ticket = self.select_next(&self.startable_tickets())?;
        let entry = self.waiting.remove(&ticket)?;
        self.rotate(entry.uid, &entry.claim.repo);
        self.active.insert(entry.id.clone(), entry.clone());
        Some(entry)
    }

    /// Removes a waiting or active run. Returns whether the queue contained it.
    pub fn remove(&mut self, id: &RunId) -> bool {
        if self.active.remove(id).is_some() {
            return true;
        }
        let Some(ticket) = self.waiting.iter().find_map(|(ticket, entry)| (entry.id == *id).then_some(*ticket)) else {
            return false;
        };
        self.waiting.remove(&ticket);
        self.remove_idle_callers();
        true
    }

    /// Returns the number of waiting runs.
    pub fn waiting_count(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the number of active runs.
    pub fn active_count(&self) -> usize {
        self.active.len()
    }

    /// Returns the runs that could start if it were their turn.
    fn startable_tickets(&self) -> HashSet<QueueTicket> {
        let mut taken: HashMap<&str, RepoClaims<'_>> = HashMap::new();
        let mut busy: HashMap<u32, usize> = HashMap::new();
        for entry in self.active.values() {
            taken.entry(&entry.claim.repo).or_default().add(&entry.claim);
            *busy.entry(entry.uid).or_default() += 1;
        }
        let mut startable = HashSet::new();
        for (ticket, entry) in &self.waiting {
            let claims = taken.entry(&entry.claim.repo).or_default();
            let is_below_limit = busy.get(&entry.uid).is_none_or(|count| *count < self.limits.active_per_caller);
            if is_below_limit && !claims.conflicts_with(&entry.claim) {
                startable.insert(*ticket);
            }
            // A waiting run blocks later conflicting runs, whether or not it can start itself.
            claims.add(&entry.claim);
        }
        startable
    }

    /// Selects the run whose turn it is.
    fn select_next(&self, startable: &HashSet<QueueTicket>) -> Option<QueueTicket> {
        let first_of = |uid: u32, repo: &Arc<str>| {
            let mut own = self.waiting.iter().filter(|(_, entry)| entry.uid == uid && entry.claim.repo == *repo);
            own.find_map(|(ticket, _)| startable.contains(ticket).then_some(*ticket))
        };
        self.callers.iter().find_map(|line| line.repos.iter().find_map(|repo| first_of(line.uid, repo)))
    }

    /// Adds a caller or repository without waiting runs at the end of its queue.
    fn enqueue_repo(&mut self, uid: u32, repo: &Arc<str>) {
        match self.callers.iter_mut().find(|line| line.uid == uid) {
            Some(line) if line.repos.contains(repo) => {}
            Some(line) => line.repos.push_back(Arc::clone(repo)),
            None => self.callers.push_back(CallerQueue { uid, repos: VecDeque::from([Arc::clone(repo)]) }),
        }
    }

    /// Moves the caller and the repository that had their turn to the end.
    fn rotate(&mut self, uid: u32, repo: &Arc<str>) {
        if let Some(at) = self.callers.iter().position(|line| line.uid == uid)
            && let Some(mut line) = self.callers.remove(at)
        {
            line.repos.retain(|other| other != repo);
            line.repos.push_back(Arc::clone(repo));
            self.callers.push_back(line);
        }
        self.remove_idle_callers();
    }

    fn remove_idle_callers(&mut self) {
        let waiting: HashSet<(u32, &Arc<str>)> =
            self.waiting.values().map(|entry| (entry.uid, &entry.claim.repo)).collect();
        self.callers.iter_mut().for_each(|line| line.repos.retain(|repo| waiting.contains(&(line.uid, repo))));
        self.callers.retain(|line| !line.repos.is_empty());
    }
}

/// Union of the claims on one repository. A query takes constant time instead of one comparison per claim.
#[derive(Default)]
struct RepoClaims<'a> {
    changesets: HashSet<&'a ChangesetId>,
    reads: bool,
    changes: bool,
}

impl<'a> RepoClaims<'a> {
    fn add(&mut self, claim: &'a RepoClaim) {
        self.changesets.extend(&claim.changeset);
        self.reads |= claim.worktree == WorktreeUse::Reads;
        self.changes |= claim.worktree == WorktreeUse::Changes;
    }

    fn conflicts_with(&self, claim: &RepoClaim) -> bool {
        let worktree = match claim.worktree {
            WorktreeUse::Unused => false,
            WorktreeUse::Reads => self.changes,
            WorktreeUse::Changes => self.reads || self.changes,
        };
        worktree || claim.changeset.as_ref().is_some_and(|id| self.changesets.contains(id))
    }
}
