//! In which order skills run and whose layers each of them sees. Pure.

use std::collections::BTreeSet;

use proctor_core::names::SkillName;
use proctor_core::plan::{Plan, ReadOnly, SkillOrder};
use proctor_snapshot::IgnoredContent;

/// One skill's place in the run; numbers are places in the plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Slot {
    /// Skills that must have ended before it begins.
    pub(crate) after: BTreeSet<usize>,
    /// Skills whose layers it sees, in the order in which they are stacked.
    pub(crate) sees: Vec<usize>,
    /// Whether those must have passed.
    pub(crate) demands_pass: bool,
}

/// The whole order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Schedule {
    pub(crate) slots: Vec<Slot>,
    /// How many may run at once.
    pub(crate) parallel: usize,
}

impl Schedule {
    pub(crate) fn of(plan: &Plan) -> Self {
        match plan.order {
            SkillOrder::Sequence => Self { slots: sequence(plan.skills.len()), parallel: 1 },
            SkillOrder::Graph { parallel } => {
                Self { slots: graph(plan), parallel: usize::try_from(parallel.max(1)).unwrap_or(usize::MAX) }
            }
        }
    }

    /// What must be read of the directories in layers that git ignores.
    pub(crate) fn ignored_content(plan: &Plan) -> IgnoredContent {
        let steps = || plan.skills.iter().flat_map(|skill| &skill.steps);
        let tracks_alone = steps().all(|step| step.read_only == ReadOnly::Tracked);
        match plan.order {
            // Some step compares ignored files, or carries them into the worktree.
            _ if !tracks_alone => IgnoredContent::Hashed,
            // Skills may touch the same path without knowing of each other.
            SkillOrder::Graph { .. } => IgnoredContent::Listed,
            SkillOrder::Sequence => IgnoredContent::Skipped,
        }
    }

    /// Pairs among the skills that `slot` sees of which neither sees the other: the ones that
    /// may have touched the same path without knowing of each other.
    pub(crate) fn unrelated(&self, slot: usize) -> Vec<(usize, usize)> {
        let sees = &self.slots[slot].sees;
        let pairs = sees.iter().enumerate().flat_map(|(i, a)| sees[i + 1..].iter().map(move |b| (*a, *b)));
        pairs.filter(|(a, b)| !self.related(*a, *b)).collect()
    }

    /// Whether one of the two sees the layers of the other.
    pub(crate) fn related(&self, a: usize, b: usize) -> bool {
        self.slots[a].sees.contains(&b) || self.slots[b].sees.contains(&a)
    }
}

fn sequence(count: usize) -> Vec<Slot> {
    (0..count)
        .map(|place| Slot { after: (0..place).collect(), sees: (0..place).collect(), demands_pass: false })
        .collect()
}

/// What a skill needs was built on what that needs: it sees the whole closure. The plan has no
/// cycle; `resolve` refuses one.
fn graph(plan: &Plan) -> Vec<Slot> {
    let place = |name: &SkillName| plan.skills.iter().position(|skill| skill.name == *name);
    let direct: Vec<Vec<usize>> =
        plan.skills.iter().map(|skill| skill.needs.iter().filter_map(place).collect()).collect();
    let order = topological(&direct);
    let slot = |of: usize| {
        let closure = closure(of, &direct);
        let sees = order.iter().copied().filter(|place| closure.contains(place)).collect();
        Slot { after: closure, sees, demands_pass: true }
    };
    (0..plan.skills.len()).map(slot).collect()
}

fn closure(of: usize, direct: &[Vec<usize>]) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    let mut todo = direct[of].clone();
    while let Some(place) = todo.pop() {
        if found.insert(place) {
            todo.extend(&direct[place]);
        }
    }
    found
}

/// What is needed before what needs it; among equals, the order of the plan.
fn topological(direct: &[Vec<usize>]) -> Vec<usize> {
    let mut order: Vec<usize> = Vec::with_capacity(direct.len());
    while order.len() < direct.len() {
        let ready = |place: &usize| !order.contains(place) && direct[*place].iter().all(|need| order.contains(need));
        match (0..direct.len()).find(ready) {
            Some(place) => order.push(place),
            None => break,
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::plan;

    #[test]
    fn without_needs_each_skill_sees_all_before_it_whatever_became_of_them() {
        let schedule = Schedule::of(&plan(&[("a", &[]), ("b", &[]), ("c", &[])]));
        assert_eq!(schedule.parallel, 1);
        assert_eq!(schedule.slots[2], Slot { after: [0, 1].into(), sees: vec![0, 1], demands_pass: false });
        assert_eq!(schedule.unrelated(2), []);
    }

    #[test]
    fn with_needs_a_skill_sees_the_closure_of_what_it_needs_and_nothing_else() {
        let schedule = Schedule::of(&plan(&[("d", &["b", "c"]), ("a", &[]), ("b", &["a"]), ("c", &["a"]), ("x", &[])]));
        assert_eq!(schedule.slots[0], Slot { after: [1, 2, 3].into(), sees: vec![1, 2, 3], demands_pass: true });
        assert_eq!(schedule.slots[4], Slot { after: [].into(), sees: vec![], demands_pass: true });
        assert_eq!(schedule.unrelated(0), [(2, 3)]);
    }

    #[test]
    fn ignored_output_is_read_where_somebody_may_ask_for_it() {
        use proctor_core::plan::ReadOnly::{Off, Strict};
        let mut sequence = plan(&[("a", &[]), ("b", &[])]);
        assert_eq!(Schedule::ignored_content(&sequence), IgnoredContent::Skipped);
        assert_eq!(Schedule::ignored_content(&plan(&[("a", &[]), ("b", &["a"])])), IgnoredContent::Listed);
        for mode in [Off, Strict] {
            sequence.skills[1].steps[0].read_only = mode;
            assert_eq!(Schedule::ignored_content(&sequence), IgnoredContent::Hashed);
        }
    }
}
