//! Computes the order of skills and the layers that each skill sees. Has no side effects.

use std::collections::BTreeSet;

use proctor_core::model::names::SkillName;
use proctor_core::model::plan::{Plan, ReadOnly, SkillOrder};
use proctor_snapshot::IgnoredContent;

/// The position of one skill in the run. Numbers are indices into the plan's skills.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SkillSlot {
    /// Skills that must end before this one starts.
    pub(crate) after: BTreeSet<usize>,
    /// Skills whose layers this one sees, in stacking order.
    pub(crate) sees: Vec<usize>,
    /// True if the needed skills must have passed.
    pub(crate) requires_pass: bool,
}

/// The order of all skills.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Schedule {
    pub(crate) slots: Vec<SkillSlot>,
    /// Maximum number of skills that run at the same time.
    pub(crate) parallel: usize,
}

impl Schedule {
    pub(crate) fn for_plan(plan: &Plan) -> Self {
        match plan.order {
            SkillOrder::Sequence => Self { slots: sequence_slots(plan.skills.len()), parallel: 1 },
            SkillOrder::Graph { parallel } => {
                Self { slots: graph_slots(plan), parallel: usize::try_from(parallel.max(1)).unwrap_or(usize::MAX) }
            }
        }
    }

    /// Returns how much to read of ignored directories in layers.
    pub(crate) fn ignored_content(plan: &Plan) -> IgnoredContent {
        let steps = || plan.skills.iter().flat_map(|skill| &skill.steps);
        let only_tracks = steps().all(|step| step.read_only == ReadOnly::Tracked);
        match plan.order {
            // A step compares ignored files, or applies them to the worktree.
            _ if !only_tracks => IgnoredContent::Hashed,
            // Skills may change the same path without seeing each other.
            SkillOrder::Graph { .. } => IgnoredContent::Listed,
            SkillOrder::Sequence => IgnoredContent::Skipped,
        }
    }

    /// Returns the pairs among the skills that `slot` sees that do not see each other. They may have changed the
    /// same path independently.
    pub(crate) fn unrelated_pairs(&self, slot: usize) -> Vec<(usize, usize)> {
        let sees = &self.slots[slot].sees;
        let pairs = sees.iter().enumerate().flat_map(|(i, a)| sees[i + 1..].iter().map(move |b| (*a, *b)));
        pairs.filter(|(a, b)| !self.are_related(*a, *b)).collect()
    }

    /// Returns whether one of the two skills sees the layers of the other.
    pub(crate) fn are_related(&self, a: usize, b: usize) -> bool {
        self.slots[a].sees.contains(&b) || self.slots[b].sees.contains(&a)
    }
}

fn sequence_slots(count: usize) -> Vec<SkillSlot> {
    (0..count)
        .map(|place| SkillSlot { after: (0..place).collect(), sees: (0..place).collect(), requires_pass: false })
        .collect()
}

/// Computes the order by `needs`. A skill sees the layers of all its direct and indirect needs, since those built
/// on each other. The plan has no cycle; `resolve` refuses one.
fn graph_slots(plan: &Plan) -> Vec<SkillSlot> {
    let place = |name: &SkillName| plan.skills.iter().position(|skill| skill.name == *name);
    let direct: Vec<Vec<usize>> =
        plan.skills.iter().map(|skill| skill.needs.iter().filter_map(place).collect()).collect();
    let order = topological_order(&direct);
    let slot = |of: usize| {
        let closure = transitive_needs(of, &direct);
        let sees = order.iter().copied().filter(|place| closure.contains(place)).collect();
        SkillSlot { after: closure, sees, requires_pass: true }
    };
    (0..plan.skills.len()).map(slot).collect()
}

fn transitive_needs(of: usize, direct: &[Vec<usize>]) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    let mut todo = direct[of].clone();
    while let Some(place) = todo.pop() {
        if found.insert(place) {
            todo.extend(&direct[place]);
        }
    }
    found
}

/// Sorts skills so that each one comes after its needs; otherwise keeps the order of the plan.
fn topological_order(direct: &[Vec<usize>]) -> Vec<usize> {
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
    fn sequence_shows_all_earlier_skills() {
        let schedule = Schedule::for_plan(&plan(&[("a", &[]), ("b", &[]), ("c", &[])]));
        assert_eq!(schedule.parallel, 1);
        assert_eq!(schedule.slots[2], SkillSlot { after: [0, 1].into(), sees: vec![0, 1], requires_pass: false });
        assert_eq!(schedule.unrelated_pairs(2), []);
    }

    #[test]
    fn graph_shows_only_transitive_needs() {
        let schedule =
            Schedule::for_plan(&plan(&[("d", &["b", "c"]), ("a", &[]), ("b", &["a"]), ("c", &["a"]), ("x", &[])]));
        assert_eq!(schedule.slots[0], SkillSlot { after: [1, 2, 3].into(), sees: vec![1, 2, 3], requires_pass: true });
        assert_eq!(schedule.slots[4], SkillSlot { after: [].into(), sees: vec![], requires_pass: true });
        assert_eq!(schedule.unrelated_pairs(0), [(2, 3)]);
    }

    #[test]
    fn reads_ignored_content_only_where_needed() {
        use proctor_core::model::plan::ReadOnly::{Off, Strict};
        let mut sequence = plan(&[("a", &[]), ("b", &[])]);
        assert_eq!(Schedule::ignored_content(&sequence), IgnoredContent::Skipped);
        assert_eq!(Schedule::ignored_content(&plan(&[("a", &[]), ("b", &["a"])])), IgnoredContent::Listed);
        for mode in [Off, Strict] {
            sequence.skills[1].steps[0].read_only = mode;
            assert_eq!(Schedule::ignored_content(&sequence), IgnoredContent::Hashed);
        }
    }
}
