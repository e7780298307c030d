//! The layers that can set a value, and lookup of the nearest layer that sets it.

use std::collections::BTreeMap;

use super::operator_config::exceeds;
use super::provenance::ValueOrigin;
use super::span::{Span, Spanned};
use super::spec_types::{Defaults, Skill, SpannedMap, Step};
use crate::model::names::{EnvName, VarName};
use crate::model::plan::{Argv, Leaks, Limit, LimitSettings, Network, PerLimit, ReadOnly, RelPath};
use crate::spec::spec_text::SpecText;
use crate::sql::sql_policy::Dialect;

/// A single command with the settings of its caller.
#[derive(Debug, Clone)]
pub struct AdhocCommand {
    /// The command.
    pub cmd: Argv,
    /// The directory in which the command runs, relative to the repository.
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
pub(super) struct SettingsLayer<'a> {
    pub(super) origin: fn(Span) -> ValueOrigin,
    pub(super) workdir: Option<&'a Spanned<RelPath>>,
    pub(super) timeout_ms: Option<&'a Spanned<u64>>,
    pub(super) network: Option<&'a Spanned<Network>>,
    pub(super) read_only: Option<&'a Spanned<ReadOnly>>,
    pub(super) leaks: Option<&'a Spanned<Leaks>>,
    pub(super) env_allowlist: Option<&'a Spanned<Vec<Spanned<EnvName>>>>,
    pub(super) env: Option<&'a SpannedMap<VarName, SpecText>>,
}

macro_rules! settings {
    ($level:expr, $origin:expr) => {
        SettingsLayer {
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

impl<'a> SettingsLayer<'a> {
    pub(super) fn from_step(step: &'a Step) -> Self {
        settings!(step, ValueOrigin::Step)
    }
    pub(super) fn from_skill(skill: &'a Skill) -> Self {
        settings!(skill, ValueOrigin::Skill)
    }
    /// Returns the settings of `defaults`; an absent section sets nothing.
    pub(super) fn from_defaults(defaults: Option<&'a Defaults>) -> Self {
        match defaults {
            Some(defaults) => settings!(defaults, ValueOrigin::Defaults),
            None => Self {
                origin: ValueOrigin::Defaults,
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
pub(super) struct CallerSettings(Defaults);

impl CallerSettings {
    pub(super) fn from_adhoc(adhoc: &AdhocCommand) -> Self {
        fn without_position<T>(value: T) -> Spanned<T> {
            Spanned::new(value, Span::default())
        }
        let env =
            adhoc.env.iter().map(|(name, value)| (without_position(name.clone()), SpecText(value.clone()))).collect();
        Self(Defaults {
            determinism: None,
            tier: None,
            workdir: adhoc.workdir.clone().map(without_position),
            timeout_ms: adhoc.timeout_ms.map(without_position),
            network: adhoc.network.map(without_position),
            read_only: adhoc.read_only.map(without_position),
            leaks: adhoc.leaks.map(without_position),
            env_allowlist: adhoc
                .env_allowlist
                .clone()
                .map(|names| without_position(names.into_iter().map(without_position).collect())),
            env: Some(SpannedMap(env)),
            needs_paths: None,
        })
    }

    pub(super) fn as_layer(&self) -> SettingsLayer<'_> {
        settings!(self.0, |_| ValueOrigin::CommandLine)
    }
}

/// The source of settings that exist only for a step or a single command.
#[derive(Clone, Copy)]
pub(super) enum StepOnlySettings<'a> {
    /// A toolchain check, which cannot have these settings.
    ToolchainCheck,
    Step(&'a Step),
    CommandLine(&'a AdhocCommand),
}

impl<'a> StepOnlySettings<'a> {
    pub(super) fn get<T>(self, pick: impl Fn(&'a Step) -> Option<&'a Spanned<T>>) -> Option<&'a Spanned<T>> {
        match self {
            Self::Step(step) => pick(step),
            Self::ToolchainCheck | Self::CommandLine(_) => None,
        }
    }

    /// Returns the dialect if the step checks SQL instead of running a command.
    pub(super) fn sql_dialect(self) -> Option<Dialect> {
        match self {
            Self::Step(Step { cmd: None, sql: Some(sql), .. }) => Some(sql.value.to_check().dialect),
            Self::ToolchainCheck | Self::Step(_) | Self::CommandLine(_) => None,
        }
    }

    pub(super) fn grace_ms(self) -> Option<ValueWithOrigin<u64>> {
        match self {
            Self::ToolchainCheck => None,
            Self::Step(step) => step
                .grace_ms
                .map(|setting| ValueWithOrigin { value: setting.value, origin: ValueOrigin::Step(setting.span) }),
            Self::CommandLine(adhoc) => {
                adhoc.grace_ms.map(|value| ValueWithOrigin { value, origin: ValueOrigin::CommandLine })
            }
        }
    }

    /// Returns one of the limits. A step can only set a number; the command line can also set it to unlimited.
    pub(super) fn limits(self) -> PerLimit<Option<ValueWithOrigin<Limit>>> {
        fn from_step<T: Into<u64>>(setting: Option<Spanned<T>>) -> Option<ValueWithOrigin<Limit>> {
            let Spanned { value, span } = setting?;
            Some(ValueWithOrigin { value: Limit::Max(value.into()), origin: ValueOrigin::Step(span) })
        }
        match self {
            Self::ToolchainCheck => PerLimit::default(),
            Self::Step(step) => {
                let limits = step.limits.unwrap_or_default();
                limits.map(|_, setting| from_step(setting), |_, setting| from_step(setting))
            }
            Self::CommandLine(adhoc) => adhoc
                .limits
                .map_all(|_, limit| limit.map(|value| ValueWithOrigin { value, origin: ValueOrigin::CommandLine })),
        }
    }
}

/// A value and its origin.
#[derive(Clone, Copy)]
pub(super) struct ValueWithOrigin<T> {
    pub(super) value: T,
    pub(super) origin: ValueOrigin,
}

pub(super) fn nearest_setting<'a, T: Clone + 'a>(
    layers: &[SettingsLayer<'a>],
    pick: impl Fn(&SettingsLayer<'a>) -> Option<&'a Spanned<T>>,
) -> Option<ValueWithOrigin<T>> {
    layers.iter().find_map(|layer| {
        pick(layer).map(|found| ValueWithOrigin { value: found.value.clone(), origin: (layer.origin)(found.span) })
    })
}

/// Returns a value that a skill or `defaults` can set, but no step.
pub(super) fn skill_setting<T>(
    own: Option<Spanned<T>>,
    default: Option<Spanned<T>>,
    built_in: T,
) -> ValueWithOrigin<T> {
    match (own, default) {
        (Some(Spanned { value, span }), _) => ValueWithOrigin { value, origin: ValueOrigin::Skill(span) },
        (None, Some(Spanned { value, span })) => ValueWithOrigin { value, origin: ValueOrigin::Defaults(span) },
        (None, None) => built_in_value(built_in),
    }
}

pub(super) fn built_in_value<T>(value: T) -> ValueWithOrigin<T> {
    ValueWithOrigin { value, origin: ValueOrigin::BuiltIn }
}

/// Returns the operator's default, if any; otherwise the built-in default, lowered to the operator's ceiling.
pub(super) fn default_limit(operator: Option<Limit>, built_in: Limit, ceiling: Limit) -> ValueWithOrigin<Limit> {
    match operator {
        Some(value) => ValueWithOrigin { value, origin: ValueOrigin::Operator },
        None if exceeds(built_in, ceiling) => ValueWithOrigin { value: ceiling, origin: ValueOrigin::Operator },
        None => ValueWithOrigin { value: built_in, origin: ValueOrigin::BuiltIn },
    }
}
