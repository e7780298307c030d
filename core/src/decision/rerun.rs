//! Selects the skills of a plan for `--last-failed`, from the recorded outcomes of earlier runs. The plan lists the
//! skills that are left out, so the plan digests of a partial and a whole run differ. A request for the whole plan
//! therefore never gets the result of a partial run.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::names::{RunId, SkillName};
use crate::model::plan::Plan;
use crate::text::humanize::count;

/// Maximum number of skills that a sentence names.
const MAX_NAMED_SKILLS: usize = 5;

/// The selection that `--last-failed` made for a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Rerun {
    /// The previous recorded run of the same repository and profile.
    pub after: RunId,
    /// The skills of the plan that had not passed, including those that had never run, in the order of the plan.
    pub not_passed: Vec<SkillName>,
    /// The skills of the profile that were left out because they had passed. If the list is empty, the run is a
    /// whole one.
    pub left_out: Vec<SkillName>,
    /// Skills that had not passed and were removed from the profile.
    pub gone: Vec<SkillName>,
}

/// The last recorded outcome of each skill, passed or not: according to the newest recorded run and, if that was
/// partial, the runs before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastOutcomes {
    after: RunId,
    passed: BTreeMap<SkillName, bool>,
}

impl LastOutcomes {
    /// Creates an empty set of outcomes; `after` is the newest recorded run.
    pub fn new(after: RunId) -> Self {
        Self { after, passed: BTreeMap::new() }
    }

    /// Adds the outcome of a skill in an older run. An outcome of a newer run takes precedence.
    pub fn add_older(&mut self, skill: SkillName, passed: bool) {
        self.passed.entry(skill).or_insert(passed);
    }

    /// Combines the outcomes with `other`: a skill counts as passed only if it passed in both.
    #[must_use]
    pub fn intersect(mut self, other: &Self) -> Self {
        self.passed
            .extend(other.passed.iter().filter(|(_, passed)| !**passed).map(|(skill, _)| (skill.clone(), false)));
        self.passed.retain(|skill, passed| !*passed || other.has_passed(skill));
        self
    }

    /// Returns whether every skill of a plan has a recorded outcome.
    pub fn has_outcomes_for(&self, plan: &Plan) -> bool {
        plan.skills.iter().all(|skill| self.passed.contains_key(&skill.name))
    }

    fn has_passed(&self, skill: &SkillName) -> bool {
        self.passed.get(skill).is_some_and(|passed| *passed)
    }
}

/// Removes the skills that passed when they last ran and that no remaining skill needs. A skill without a recorded
/// outcome counts as not passed. If all skills passed, keeps the whole plan, because an earlier pass does not
/// answer a new request.
pub fn select_skills(plan: Plan, outcomes: &LastOutcomes) -> (Plan, Rerun) {
    let not_passed: Vec<SkillName> =
        plan.skills.iter().map(|skill| &skill.name).filter(|name| !outcomes.has_passed(name)).cloned().collect();
    let in_plan: BTreeSet<&SkillName> = plan.skills.iter().map(|skill| &skill.name).collect();
    let gone = outcomes.passed.iter().filter(|(name, passed)| !**passed && !in_plan.contains(name));
    let gone = gone.map(|(name, _)| name.clone()).collect();
    let kept = with_needs(&plan, &not_passed);
    let after = outcomes.after.clone();
    if kept.is_empty() {
        return (plan, Rerun { after, not_passed, left_out: Vec::new(), gone });
    }
    let (skills, others): (Vec<_>, Vec<_>) = plan.skills.into_iter().partition(|skill| kept.contains(&skill.name));
    let left_out: Vec<SkillName> = others.into_iter().map(|skill| skill.name).collect();
    (Plan { skills, left_out: left_out.clone(), ..plan }, Rerun { after, not_passed, left_out, gone })
}

/// Returns these skills and everything that they need.
pub(super) fn with_needs(plan: &Plan, wanted: &[SkillName]) -> BTreeSet<SkillName> {
    let mut kept = BTreeSet::new();
    let mut open: Vec<&SkillName> = wanted.iter().collect();
    while let Some(name) = open.pop() {
        if kept.insert(name.clone()) {
            open.extend(plan.skills.iter().filter(|skill| skill.name == *name).flat_map(|skill| &skill.needs));
        }
    }
    kept
}

impl Rerun {
    /// Returns whether skills of the profile were left out, so the run does not verify the whole profile.
    pub fn is_partial(&self) -> bool {
        !self.left_out.is_empty()
    }

    /// Returns a phrase that marks a partial run; `None` for a whole one.
    pub fn phrase(&self) -> Option<String> {
        self.is_partial().then(|| format!("{} of the profile skipped", count(self.left_out.len(), "skill")))
    }

    /// Returns a sentence that readers need to interpret the verdict; `ran` is the number of skills in the run's
    /// plan.
    pub fn sentence(&self, ran: usize) -> String {
        let gone = match self.gone.is_empty() {
            true => String::new(),
            false => format!("; the profile no longer contains {}, which had not passed", name_list(&self.gone)),
        };
        let after = &self.after;
        if self.is_partial() {
            let all = count(ran + self.left_out.len(), "skill");
            let left_out = name_list(&self.left_out);
            return format!(
                "only {ran} of {all} ran: those that had not passed by run {after}, and those that they need; left out: {left_out}{gone}"
            );
        }
        let why = if self.not_passed.is_empty() { "nothing had failed" } else { "nothing could be left out" };
        format!("{why} by run {after}, so every skill was run{gone}")
    }
}

fn name_list(skills: &[SkillName]) -> String {
    let first: Vec<String> = skills.iter().take(MAX_NAMED_SKILLS).map(|skill| format!("`{skill}`")).collect();
    match skills.len().saturating_sub(MAX_NAMED_SKILLS) {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::names::ProfileName;
    use crate::spec::{self, OperatorConfig};
    use crate::text::digest::Sha256Hex;

    /// Returns a plan of skills with these names and needs.
    fn plan(skills: &[(&str, &[&str])]) -> Plan {
        let names: Vec<&str> = skills.iter().map(|(name, _)| *name).collect();
        let mut text = format!("version: 1\nprofiles: {{ p: {{ include: [{}] }} }}\nskills:\n", names.join(", "));
        for (name, needs) in skills {
            let needs = if needs.is_empty() { String::new() } else { format!("needs: [{}], ", needs.join(", ")) };
            text.push_str(&format!("  {name}: {{ {needs}steps: [{{ name: s, cmd: [\"true\"] }}] }}\n"));
        }
        let spec = spec::parse(text.as_bytes()).expect("a spec").spec;
        let profile = ProfileName::new("p").expect("a name");
        spec::resolve(&spec, &profile, &OperatorConfig::default(), Sha256Hex::digest(b"spec"), 1).expect("a plan").plan
    }

    fn skill(name: &str) -> SkillName {
        SkillName::new(name).expect("a name")
    }

    fn last_outcomes(outcomes: &[(&str, bool)]) -> LastOutcomes {
        let mut known = LastOutcomes::new(RunId::new("r1").expect("an id"));
        outcomes.iter().for_each(|(name, passed)| known.add_older(skill(name), *passed));
        known
    }

    /// Returns the names of the skills that run, had not passed, are left out, and are gone.
    fn select_names(plan: Plan, outcomes: &[(&str, bool)]) -> [String; 4] {
        let (plan, rerun) = select_skills(plan, &last_outcomes(outcomes));
        assert_eq!(plan.left_out, rerun.left_out);
        let ran: Vec<SkillName> = plan.skills.iter().map(|skill| skill.name.clone()).collect();
        let words = |names: &[SkillName]| names.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(" ");
        [words(&ran), words(&rerun.not_passed), words(&rerun.left_out), words(&rerun.gone)]
    }

    #[test]
    fn selects_only_skills_that_did_not_pass() {
        let all = || plan(&[("a", &[]), ("b", &[]), ("c", &[])]);
        assert_eq!(select_names(all(), &[("a", true), ("b", false), ("c", true)]), ["b", "b", "a c", ""]);
        assert_eq!(
            select_names(all(), &[("a", true), ("c", true)]),
            ["b", "b", "a c", ""],
            "what never ran has not passed"
        );
        assert_eq!(select_names(all(), &[]), ["a b c", "a b c", "", ""]);
    }

    #[test]
    fn selects_all_skills_if_nothing_failed() {
        let all = plan(&[("a", &[]), ("b", &[])]);
        let digest = all.digest();
        let (same, rerun) = select_skills(all, &last_outcomes(&[("a", true), ("b", true)]));
        assert_eq!((same.digest(), rerun.is_partial()), (digest, false));
        assert_eq!(rerun.sentence(2), "nothing had failed by run r1, so every skill was run");
    }

    #[test]
    fn selects_needed_skills() {
        let all = || plan(&[("a", &[]), ("b", &["a"]), ("c", &["b"]), ("d", &["a"]), ("e", &[])]);
        let passed = |but: &str| ["a", "b", "c", "d", "e"].map(|name| (name, name != but));
        assert_eq!(select_names(all(), &passed("c")), ["a b c", "c", "d e", ""]);
        assert_eq!(select_names(all(), &passed("a")), ["a", "a", "b c d e", ""], "not what needs it: that passed");
    }

    #[test]
    fn reports_failed_skills_removed_from_profile() {
        let one = plan(&[("a", &[]), ("b", &[])]);
        assert_eq!(
            select_names(one, &[("a", false), ("b", true), ("old", false), ("older", true)]),
            ["a", "a", "b", "old"]
        );
        let (_, rerun) = select_skills(plan(&[("b", &[])]), &last_outcomes(&[("b", true), ("old", false)]));
        assert!(!rerun.is_partial() && rerun.gone == [skill("old")]);
    }

    #[test]
    fn newest_outcome_takes_precedence() {
        let known = last_outcomes(&[("a", true), ("a", false), ("b", false), ("b", true)]);
        assert!(known.has_passed(&skill("a")) && !known.has_passed(&skill("b")));
        assert!(
            !known.has_outcomes_for(&plan(&[("a", &[]), ("c", &[])]))
                && known.has_outcomes_for(&plan(&[("a", &[]), ("b", &[])]))
        );
    }

    #[test]
    fn intersection_requires_pass_in_both() {
        let one = last_outcomes(&[("a", true), ("b", true), ("c", false), ("d", true)]);
        let both = one.intersect(&last_outcomes(&[("a", true), ("b", false), ("c", true), ("e", false)]));
        assert_eq!(both.passed, last_outcomes(&[("a", true), ("b", false), ("c", false), ("e", false)]).passed);
    }

    #[test]
    fn partial_plan_has_another_digest() {
        let all = plan(&[("a", &[]), ("b", &[])]);
        let whole = all.digest();
        let (part, _) = select_skills(all, &last_outcomes(&[("a", true)]));
        assert_ne!(part.digest(), whole);
        // The digest also differs from that of a spec without the left-out skill.
        let alone = Plan { left_out: Vec::new(), ..part.clone() };
        assert_ne!(part.digest(), alone.digest());
    }
}
