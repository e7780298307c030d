//! Parsers of option values.

use proctor_core::model::enforcement::SandboxMode;
use proctor_core::model::names::{BadName, VarName};
use proctor_core::model::plan::{BadRelPath, Leaks, Limit, Network, ReadOnly, RelPath};
use proctor_core::model::tier::{BadTier, Tier};
use proctor_core::sql::{Dialect, SqlPolicy};

/// Reason why the value of an option is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum OptionValueError {
    /// The value does not have the expected form.
    #[error("{expected} is expected")]
    Unexpected {
        /// Description of the expected form.
        expected: &'static str,
    },
    /// The value is not one of the known names.
    #[error("there is: {}", quoted_list(.known))]
    UnknownName {
        /// The known names.
        known: Vec<&'static str>,
    },
    /// The value is not a valid name.
    #[error(transparent)]
    Name(#[from] BadName),
    /// The value is not a tier.
    #[error(transparent)]
    Tier(#[from] BadTier),
}

pub(super) fn tier(text: &str) -> Result<Tier, OptionValueError> {
    let number: u8 = text.parse().map_err(|_| unexpected("1, 2 or 3"))?;
    Ok(Tier::try_from(number)?)
}

pub(super) fn leaks(text: &str) -> Result<Leaks, OptionValueError> {
    match text {
        "ignore" => Ok(Leaks::Ignore),
        "warn" => Ok(Leaks::Warn),
        "fail" => Ok(Leaks::Fail),
        _ => Err(unexpected("`ignore`, `warn` or `fail`")),
    }
}

pub(super) fn read_only(text: &str) -> Result<ReadOnly, OptionValueError> {
    match text {
        "off" => Ok(ReadOnly::Off),
        "tracked" => Ok(ReadOnly::Tracked),
        "strict" => Ok(ReadOnly::Strict),
        _ => Err(unexpected("`off`, `tracked` or `strict`")),
    }
}

pub(super) fn network(text: &str) -> Result<Network, OptionValueError> {
    match text {
        "deny" => Ok(Network::Deny),
        "allow" => Ok(Network::Allow),
        _ => Err(unexpected("`deny` or `allow`")),
    }
}

pub(super) fn sandbox_mode(text: &str) -> Result<SandboxMode, OptionValueError> {
    match text {
        "strict" => Ok(SandboxMode::Strict),
        "best-effort" => Ok(SandboxMode::BestEffort),
        _ => Err(unexpected("`strict` or `best-effort`")),
    }
}

pub(super) fn count(text: &str) -> Result<Limit, OptionValueError> {
    match text.parse() {
        _ if text == "unlimited" => Ok(Limit::Unlimited),
        Ok(number) if number > 0 => Ok(Limit::Max(number)),
        _ => Err(unexpected("a number of at least 1, or `unlimited`,")),
    }
}

pub(super) fn rel_path(text: &str) -> Result<RelPath, BadRelPath> {
    RelPath::new(text)
}

/// Accepts any possible variable name, so that `explain` can say why a step does not receive it.
pub(super) fn variable(text: &str) -> Result<String, OptionValueError> {
    let is_name = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'=');
    if is_name { Ok(text.to_owned()) } else { Err(unexpected("the name of a variable, without `=`,")) }
}

pub(super) fn assignment(text: &str) -> Result<(VarName, String), OptionValueError> {
    let (name, value) = text.split_once('=').ok_or(unexpected("`NAME=VALUE`"))?;
    Ok((VarName::new(name)?, value.to_owned()))
}

pub(super) fn dialect(text: &str) -> Result<Dialect, OptionValueError> {
    one_of(text, Dialect::ALL.map(|dialect| (dialect.as_str(), dialect)))
}

pub(super) fn policy(text: &str) -> Result<SqlPolicy, OptionValueError> {
    one_of(text, SqlPolicy::ALL.map(|policy| (policy.as_str(), policy)))
}

/// Returns the value whose name the text is, regardless of case.
pub(super) fn one_of<T: Copy, const N: usize>(
    text: &str,
    known: [(&'static str, T); N],
) -> Result<T, OptionValueError> {
    let found = known.iter().find(|(name, _)| *name == text.to_ascii_lowercase());
    found
        .map(|(_, value)| *value)
        .ok_or_else(|| OptionValueError::UnknownName { known: known.map(|(name, _)| name).to_vec() })
}

fn unexpected(expected: &'static str) -> OptionValueError {
    OptionValueError::Unexpected { expected }
}

fn quoted_list(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}
