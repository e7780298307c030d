//! Which run is next: pure, no clock and no task in it. Callers take turns, within a caller its
//! repositories do, and within a repository the one that was asked for first is first.
//!
//! Runs that must not be under way together never are, and start in the order in which they were
//! asked for: nothing that is asked for later overtakes what it would keep from starting. So no
//! run waits for ever. What a run is, and how it is started, is not known here.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use proctor_core::names::{ChangesetId, RunId};

#[cfg(test)]
mod tests;

/// How much is taken on. Each number is at least 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// How many runs are under way at once.
    pub active: usize,
    /// How many of them are one caller's.
    pub active_per_caller: usize,
    /// How many runs wait.
    pub waiting: usize,
    /// How many of them are one caller's.
    pub waiting_per_caller: usize,
}

/// What of a run decides when it may start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The run.
    pub id: RunId,
    /// Whose turn it is.
    pub uid: u32,
    /// What of it other runs must not touch.
    pub claim: Claim,
}

/// What of a repository a run has to itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The repository, by its canonical path.
    pub repo: Arc<str>,
    /// The changeset that it writes to: it has one writer.
    pub changeset: Option<ChangesetId>,
    /// What it does with the worktree.
    pub worktree: Worktree,
}

/// What a run does with the worktree of its repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Worktree {
    /// Nothing: it verifies a commit.
    Apart,
    /// It reads it.
    Reads,
    /// It may change it, so that nobody else may verify it meanwhile.
    Changes,
}

impl Claim {
    /// Whether both cannot be under way at the same time.
    pub fn conflicts(&self, other: &Self) -> bool {
        let changes = |one: &Self, two: &Self| one.worktree == Worktree::Changes && two.worktree != Worktree::Apart;
        let same_changeset = self.changeset.is_some() && self.changeset == other.changeset;
        self.repo == other.repo && (same_changeset || changes(self, other) || changes(other, self))
    }
}

/// Why a run cannot wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Full {
    /// As many wait as may.
    #[error("{0} runs are already waiting")]
    Everywhere(usize),
    /// As many of this caller wait as may.
    #[error("{0} of your runs are already waiting")]
    Caller(usize),
}

/// The order in which runs were asked for.
type Ticket = u64;

/// The runs that wait and those that are under way.
#[derive(Debug)]
pub struct Queue {
    limits: Limits,
    last: Ticket,
    waiting: BTreeMap<Ticket, Entry>,
    active: HashMap<RunId, Entry>,
    /// Those whose runs wait: whose turn is next comes first.
    callers: VecDeque<Line>,
}

/// The repositories of one caller whose runs wait: whose turn is next comes first.
#[derive(Debug)]
struct Line {
    uid: u32,
    repos: VecDeque<Arc<str>>,
}

impl Queue {
    /// Nothing waits, and nothing is under way.
    pub fn new(limits: Limits) -> Self {
        let (waiting, active, callers) = (BTreeMap::new(), HashMap::new(), VecDeque::new());
        Self { limits, last: 0, waiting, active, callers }
    }

    /// From now on `limits` hold. What waits or is under way beyond them stays.
    pub fn limit(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Lets a run wait for its turn.
    ///
    /// # Errors
    /// Too many wait.
    pub fn push(&mut self, entry: Entry) -> Result<(), Full> {
        let own = self.waiting.values().filter(|other| other.uid == entry.uid).count();
        if self.waiting.len() >= self.limits.waiting {
            return Err(Full::Everywhere(self.waiting.len()));
        }
        if own >= self.limits.waiting_per_caller {
            return Err(Full::Caller(own));
        }
        self.line_up(entry.uid, &entry.claim.repo);
        self.last += 1;
        self.waiting.insert(self.last, entry);
        Ok(())
    }

    /// The next run that may start; it is under way from now on. `None` where none may.
    pub fn start_next(&mut self) -> Option<Entry> {
        if self.active.len() >= self.limits.active {
            return None;
        }
        let ticket = self.chosen(&self.startable())?;
        let entry = self.waiting.remove(&ticket)?;
        self.take_turn(entry.uid, &entry.claim.repo);
        self.active.insert(entry.id.clone(), entry.clone());
        Some(entry)
    }

    /// Takes a run out, whether it waits or is under way; answers whether it was in.
    pub fn remove(&mut self, id: &RunId) -> bool {
        if self.active.remove(id).is_some() {
            return true;
        }
        let Some(ticket) = self.waiting.iter().find_map(|(ticket, entry)| (entry.id == *id).then_some(*ticket)) else {
            return false;
        };
        self.waiting.remove(&ticket);
        self.forget_idle_lines();
        true
    }

    /// How many wait.
    pub fn waiting_count(&self) -> usize {
        self.waiting.len()
    }

    /// How many are under way.
    pub fn active_count(&self) -> usize {
        self.active.len()
    }

    /// Those that could start if it were their turn.
    fn startable(&self) -> HashSet<Ticket> {
        let mut taken: HashMap<&str, Taken<'_>> = HashMap::new();
        let mut busy: HashMap<u32, usize> = HashMap::new();
        for entry in self.active.values() {
            taken.entry(&entry.claim.repo).or_default().add(&entry.claim);
            *busy.entry(entry.uid).or_default() += 1;
        }
        let mut startable = HashSet::new();
        for (ticket, entry) in &self.waiting {
            let claims = taken.entry(&entry.claim.repo).or_default();
            let has_room = busy.get(&entry.uid).is_none_or(|count| *count < self.limits.active_per_caller);
            if has_room && !claims.conflict(&entry.claim) {
                startable.insert(*ticket);
            }
            // It stands before all that come later, whether it can start or not.
            claims.add(&entry.claim);
        }
        startable
    }

    /// The one whose turn it is.
    fn chosen(&self, startable: &HashSet<Ticket>) -> Option<Ticket> {
        let first_of = |uid: u32, repo: &Arc<str>| {
            let mut own = self.waiting.iter().filter(|(_, entry)| entry.uid == uid && entry.claim.repo == *repo);
            own.find_map(|(ticket, _)| startable.contains(ticket).then_some(*ticket))
        };
        self.callers.iter().find_map(|line| line.repos.iter().find_map(|repo| first_of(line.uid, repo)))
    }

    /// Who has nothing waiting yet is last.
    fn line_up(&mut self, uid: u32, repo: &Arc<str>) {
        match self.callers.iter_mut().find(|line| line.uid == uid) {
            Some(line) if line.repos.contains(repo) => {}
            Some(line) => line.repos.push_back(Arc::clone(repo)),
            None => self.callers.push_back(Line { uid, repos: VecDeque::from([Arc::clone(repo)]) }),
        }
    }

    /// Who had a turn is last now.
    fn take_turn(&mut self, uid: u32, repo: &Arc<str>) {
        if let Some(at) = self.callers.iter().position(|line| line.uid == uid)
            && let Some(mut line) = self.callers.remove(at)
        {
            line.repos.retain(|other| other != repo);
            line.repos.push_back(Arc::clone(repo));
            self.callers.push_back(line);
        }
        self.forget_idle_lines();
    }

    fn forget_idle_lines(&mut self) {
        let waiting: HashSet<(u32, &Arc<str>)> =
            self.waiting.values().map(|entry| (entry.uid, &entry.claim.repo)).collect();
        self.callers.iter_mut().for_each(|line| line.repos.retain(|repo| waiting.contains(&(line.uid, repo))));
        self.callers.retain(|line| !line.repos.is_empty());
    }
}

/// What is claimed of one repository. It answers as if each claim were asked, in the time of one.
#[derive(Default)]
struct Taken<'a> {
    changesets: HashSet<&'a ChangesetId>,
    reads: bool,
    changes: bool,
}

impl<'a> Taken<'a> {
    fn add(&mut self, claim: &'a Claim) {
        self.changesets.extend(&claim.changeset);
        self.reads |= claim.worktree == Worktree::Reads;
        self.changes |= claim.worktree == Worktree::Changes;
    }

    fn conflict(&self, claim: &Claim) -> bool {
        let worktree = match claim.worktree {
            Worktree::Apart => false,
            Worktree::Reads => self.changes,
            Worktree::Changes => self.reads || self.changes,
        };
        worktree || claim.changeset.as_ref().is_some_and(|id| self.changesets.contains(id))
    }
}
