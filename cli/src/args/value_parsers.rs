//! Parsers of option values.

use proctor_core::model::enforcement::SandboxMode;
use proctor_core::model::names::{BadName, VarName};
use proctor_core::model::plan::{Leaks, Limit, Network, ReadOnly, RelPath};
use proctor_core::model::tier::Tier;

pub(super) fn tier(text: &str) -> Result<Tier, String> {
    let number: u8 = text.parse().map_err(|_| "1, 2 or 3 is expected".to_owned())?;
    Tier::try_from(number).map_err(|bad| bad.to_string())
}

pub(super) fn leaks(text: &str) -> Result<Leaks, String> {
    match text {
        "ignore" => Ok(Leaks::Ignore),
        "warn" => Ok(Leaks::Warn),
        "fail" => Ok(Leaks::Fail),
        _ => Err("`ignore`, `warn` or `fail` is expected".to_owned()),
    }
}

pub(super) fn read_only(text: &str) -> Result<ReadOnly, String> {
    match text {
        "off" => Ok(ReadOnly::Off),
        "tracked" => Ok(ReadOnly::Tracked),
        "strict" => Ok(ReadOnly::Strict),
        _ => Err("`off`, `tracked` or `strict` is expected".to_owned()),
    }
}

pub(super) fn network(text: &str) -> Result<Network, String> {
    match text {
        "deny" => Ok(Network::Deny),
        "allow" => Ok(Network::Allow),
        _ => Err("`deny` or `allow` is expected".to_owned()),
    }
}

pub(super) fn sandbox_mode(text: &str) -> Result<SandboxMode, String> {
    match text {
        "strict" => Ok(SandboxMode::Strict),
        "best-effort" => Ok(SandboxMode::BestEffort),
        _ => Err("`strict` or `best-effort` is expected".to_owned()),
    }
}

pub(super) fn count(text: &str) -> Result<Limit, String> {
    match text.parse() {
        _ if text == "unlimited" => Ok(Limit::Unlimited),
        Ok(number) if number > 0 => Ok(Limit::Max(number)),
        _ => Err("a number of at least 1, or `unlimited`, is expected".to_owned()),
    }
}

pub(super) fn rel_path(text: &str) -> Result<RelPath, String> {
    RelPath::new(text).map_err(|bad| bad.to_string())
}

/// Accepts any possible variable name, so that `explain` can say why a step does not receive it.
pub(super) fn variable(text: &str) -> Result<String, String> {
    let is_name = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'=');
    if is_name { Ok(text.to_owned()) } else { Err("the name of a variable, without `=`, is expected".to_owned()) }
}

pub(super) fn assignment(text: &str) -> Result<(VarName, String), String> {
    let (name, value) = text.split_once('=').ok_or("`NAME=VALUE` is expected")?;
    let name = VarName::new(name).map_err(|bad: BadName| bad.to_string())?;
    Ok((name, value.to_owned()))
}
