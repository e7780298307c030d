//! The layers that can set a value, and lookup of the nearest layer that sets it.

use std::collections::BTreeMap;

use super::operator::{LimitSettings, exceeds};
use super::provenance::Origin;
use super::span::{Span, Spanned};
use super::written::{Defaults, Skill, Step, StepLimits, Table, Text};
use crate::names::{EnvName, VarName};
use crate::plan::{Argv, Leaks, Limit, Network, ReadOnly, RelPath};
use crate::sql::Dialect;

/// A single command with the settings of its caller.
#[derive(Debug, Clone)]
pub struct Adhoc {
    /// The command.
    pub cmd: Argv,
    /// The directory in which it runs, relative to the repository.
    pub workdir: Option<RelPath>,
    /// Timeout, in milliseconds.
    pub timeout_ms: Option<u64>,
    /// Time between SIGTERM and SIGKILL, in milliseconds.
    pub grace_ms: Option<u64>,
    /// Network access.
    pub network: Option<Network>,
    /// Files that the command must not change.
    pub read_only: Option<ReadOnly>,
    /// How to treat processes that the command leaves behind.
    pub leaks: Option<Leaks>,
    /// Environment variables that the command inherits from the caller.
    pub env_allowlist: Option<Vec<EnvName>>,
    /// Environment variables that are set.
    pub env: BTreeMap<VarName, String>,
    /// Resource limits.
    pub limits: LimitSettings,
}

/// The settings of one layer of the spec; defaults, skills and steps can all set them.
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
    /// Returns the settings of `defaults`; an absent section sets nothing.
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

/// The settings of a caller, in the form of a spec layer.
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

/// The source of settings that exist only for a step or a single command.
#[derive(Clone, Copy)]
pub(super) enum Own<'a> {
    /// A toolchain check, which cannot have these settings.
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

    /// Returns the dialect if the step checks SQL instead of running a command.
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

    /// Returns one of the limits. A step can only set a number; the command line can also set it to unlimited.
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

/// A value and its origin.
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

/// Returns the operator's default, if any; otherwise the built-in default, lowered to the operator's ceiling.
pub(super) fn unspoken(operator: Option<Limit>, built_in: Limit, most: Limit) -> Chosen<Limit> {
    match operator {
        Some(value) => Chosen { value, origin: Origin::Operator },
        None if exceeds(built_in, most) => Chosen { value: most, origin: Origin::Operator },
        None => Chosen { value: built_in, origin: Origin::BuiltIn },
    }
}
