//! Represents the declarations of a spec for the rules.

use std::collections::BTreeMap;

use crate::model::names::{ProfileName, SkillName};
use crate::spec::span::{Span, Spanned};
use crate::spec::spec_types::{Profile, Skill, SpannedMap, Spec, Step, ToolCheck};

/// A spec with an index of its skills by name.
pub(crate) struct SpecIndex<'a> {
    pub(crate) spec: &'a Spec,
    pub(crate) skills: BTreeMap<&'a str, &'a Skill>,
}

impl<'a> SpecIndex<'a> {
    pub(crate) fn has_skill(&self, name: &SkillName) -> bool {
        self.skills.contains_key(name.as_str())
    }

    pub(crate) fn checks(&self) -> impl Iterator<Item = &'a ToolCheck> {
        let toolchains = self.spec.toolchains.iter().flat_map(SpannedMap::iter);
        toolchains.flat_map(|(_, toolchain)| toolchain.required.iter().flatten())
    }

    pub(crate) fn profiles(&self) -> impl Iterator<Item = (&'a Spanned<ProfileName>, &'a Profile)> {
        self.spec.profiles.iter()
    }

    pub(crate) fn skills(&self) -> impl Iterator<Item = (&'a Spanned<SkillName>, &'a Skill)> {
        self.spec.skills.iter()
    }

    pub(crate) fn steps(&self) -> impl Iterator<Item = &'a Step> {
        self.skills().flat_map(|(_, skill)| &skill.steps.value)
    }
}

/// Calls `each` with every value that repeats an earlier one, and with the span of the first occurrence.
pub(crate) fn for_each_repeated<'a, T: Ord + 'a>(
    values: impl IntoIterator<Item = &'a Spanned<T>>,
    mut each: impl FnMut(&'a Spanned<T>, Span),
) {
    let mut first: BTreeMap<&T, Span> = BTreeMap::new();
    for value in values {
        match first.get(&value.value) {
            Some(span) => each(value, *span),
            None => {
                first.insert(&value.value, value.span);
            }
        }
    }
}

/// Returns whether the spec orders its skills by `needs`.
pub(crate) fn uses_needs(spec: &Spec) -> bool {
    spec.skills.iter().any(|(_, skill)| skill.needs.is_some())
}
