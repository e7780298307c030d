//! The levels on which a setting may stand, and which of them is the nearest that says something.

use std::collections::BTreeMap;

use super::operator::{LimitSettings, exceeds};
use super::provenance::Origin;
use super::span::{Span, Spanned};
use super::written::{Defaults, Skill, Step, StepLimits, Table, Text};
use crate::names::{EnvName, VarName};
use crate::plan::{Argv, Leaks, Limit, Network, ReadOnly, RelPath};
use crate::sql::Dialect;

/// One command that is run by itself, with what its caller set.
#[derive(Debug, Clone)]
pub struct Adhoc {
    /// The command.
    pub cmd: Argv,
    /// Where it runs, relative to the repository.
    pub workdir: Option<RelPath>,
    /// Its timeout, in milliseconds.
    pub timeout_ms: Option<u64>,
    /// The time between SIGTERM and SIGKILL, in milliseconds.
    pub grace_ms: Option<u64>,
    /// What network it sees.
    pub network: Option<Network>,
    /// What it must not change.
    pub read_only: Option<ReadOnly>,
    /// What processes mean that it leaves behind.
    pub leaks: Option<Leaks>,
    /// The variables that it gets from the caller.
    pub env_allowlist: Option<Vec<EnvName>>,
    /// The variables that are set.
    pub env: BTreeMap<VarName, String>,
    /// What it may use.
    pub limits: LimitSettings,
}

/// What one level of the spec says of the settings that may stand on every level.
#[derive(Clone, Copy)]
pub(super) struct Settings<'a> {
    pub(super) origin: fn(Span) -> Origin,
    pub(super) workdir: Option<&'a Spanned<RelPath>>,
    pub(super) timeout_ms: Option<&'a Spanned<u64>>,
    pub(super) network: Option<&'a Spanned<Network>>,
    pub(super) read_only: Option<&'a Spanned<ReadOnly>>,
    pub(super) leaks: Option<&'a Spanned<Leaks>>,
    pub(super) env_allowlist: Option<&'a Spanned<Vec<Spanned<EnvName>>>>,
    pub(super) env: Option<&'a Table<VarName, Text>>,
}

macro_rules! settings {
    ($level:expr, $origin:expr) => {
        Settings {
            origin: $origin,
            workdir: $level.workdir.as_ref(),
            timeout_ms: $level.timeout_ms.as_ref(),
            network: $level.network.as_ref(),
            read_only: $level.read_only.as_ref(),
            leaks: $level.leaks.as_ref(),
            env_allowlist: $level.env_allowlist.as_ref(),
            env: $level.env.as_ref(),
        }
    };
}

impl<'a> Settings<'a> {
    pub(super) fn of_step(step: &'a Step) -> Self {
        settings!(step, Origin::Step)
    }
    pub(super) fn of_skill(skill: &'a Skill) -> Self {
        settings!(skill, Origin::Skill)
    }
    /// An absent section is an empty one.
    pub(super) fn of_defaults(defaults: Option<&'a Defaults>) -> Self {
        match defaults {
            Some(defaults) => settings!(defaults, Origin::Defaults),
            None => Self {
                origin: Origin::Defaults,
                workdir: None,
                timeout_ms: None,
                network: None,
                read_only: None,
                leaks: None,
                env_allowlist: None,
                env: None,
            },
        }
    }
}

/// What a caller set, in the shape of a level of the spec.
pub(super) struct Overrides(Defaults);

impl Overrides {
    pub(super) fn of(adhoc: &Adhoc) -> Self {
        fn placed<T>(value: T) -> Spanned<T> {
            Spanned::new(value, Span::default())
        }
        let env = adhoc.env.iter().map(|(name, value)| (placed(name.clone()), Text(value.clone()))).collect();
        Self(Defaults {
            workdir: adhoc.workdir.clone().map(placed),
            timeout_ms: adhoc.timeout_ms.map(placed),
            network: adhoc.network.map(placed),
            read_only: adhoc.read_only.map(placed),
            leaks: adhoc.leaks.map(placed),
            env_allowlist: adhoc.env_allowlist.clone().map(|names| placed(names.into_iter().map(placed).collect())),
            env: Some(Table(env)),
        })
    }

    pub(super) fn settings(&self) -> Settings<'_> {
        settings!(self.0, |_| Origin::CommandLine)
    }
}

/// What only a step, or the caller of one command, can say.
#[derive(Clone, Copy)]
pub(super) enum Own<'a> {
    /// A toolchain check says nothing of this.
    Nothing,
    Step(&'a Step),
    CommandLine(&'a Adhoc),
}

impl<'a> Own<'a> {
    pub(super) fn get<T>(self, pick: impl Fn(&'a Step) -> Option<&'a Spanned<T>>) -> Option<&'a Spanned<T>> {
        match self {
            Self::Step(step) => pick(step),
            Self::Nothing | Self::CommandLine(_) => None,
        }
    }

    /// Whose SQL it judges, where it has that in place of a command.
    pub(super) fn sql(self) -> Option<Dialect> {
        match self {
            Self::Step(Step { cmd: None, sql: Some(sql), .. }) => Some(sql.value.check().dialect),
            Self::Nothing | Self::Step(_) | Self::CommandLine(_) => None,
        }
    }

    pub(super) fn grace_ms(self) -> Option<Chosen<u64>> {
        match self {
            Self::Nothing => None,
            Self::Step(step) => {
                step.grace_ms.map(|asked| Chosen { value: asked.value, origin: Origin::Step(asked.span) })
            }
            Self::CommandLine(adhoc) => adhoc.grace_ms.map(|value| Chosen { value, origin: Origin::CommandLine }),
        }
    }

    /// One of the limits, which a step writes as a number and the command line may lift.
    pub(super) fn limit<T: Copy + Into<u64>>(
        self,
        written: impl Fn(&StepLimits) -> Option<Spanned<T>>,
        said: impl Fn(&LimitSettings) -> Option<Limit>,
    ) -> Option<Chosen<Limit>> {
        match self {
            Self::Nothing => None,
            Self::Step(step) => {
                let asked = step.limits.as_ref().and_then(written)?;
                Some(Chosen { value: Limit::Max(asked.value.into()), origin: Origin::Step(asked.span) })
            }
            Self::CommandLine(adhoc) => said(&adhoc.limits).map(|value| Chosen { value, origin: Origin::CommandLine }),
        }
    }
}

/// A value, and where it came from.
pub(super) struct Chosen<T> {
    pub(super) value: T,
    pub(super) origin: Origin,
}

pub(super) fn nearest<'a, T: Clone + 'a>(
    layers: &[Settings<'a>],
    pick: impl Fn(&Settings<'a>) -> Option<&'a Spanned<T>>,
) -> Option<Chosen<T>> {
    layers.iter().find_map(|layer| {
        pick(layer).map(|found| Chosen { value: found.value.clone(), origin: (layer.origin)(found.span) })
    })
}

pub(super) fn by_default<T>(value: T) -> Chosen<T> {
    Chosen { value, origin: Origin::BuiltIn }
}

/// The operator's value, or else the built-in one as far as the operator's ceiling lets it be.
pub(super) fn unspoken(operator: Option<Limit>, built_in: Limit, most: Limit) -> Chosen<Limit> {
    match operator {
        Some(value) => Chosen { value, origin: Origin::Operator },
        None if exceeds(built_in, most) => Chosen { value: most, origin: Origin::Operator },
        None => Chosen { value: built_in, origin: Origin::BuiltIn },
    }
}
