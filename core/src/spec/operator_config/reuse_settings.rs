//! Parses `[reuse]` of `proctord.toml`: the reuse of the results of steps.

use schemars::JsonSchema;
use serde::Deserialize;

/// The default share of reused results that are checked by running the step again.
const RECHECK_PERCENT: u8 = 2;

/// The reuse of the results of steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReuseSettings {
    /// True if a stored result is used when every input that the step read is the same.
    pub enabled: bool,
    /// Share of the usable results, in percent, for which the step is executed nevertheless and compared.
    pub recheck_percent: u8,
}

impl Default for ReuseSettings {
    fn default() -> Self {
        Self { enabled: true, recheck_percent: RECHECK_PERCENT }
    }
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReuseFile {
    /// If true, a step is not executed again while every input that it read is the same. Default: true.
    enabled: Option<bool>,
    /// Share of the usable results, in percent, for which the step is executed nevertheless. If it then does not pass,
    /// the step is excluded from reuse. Default: 2.
    #[schemars(range(max = 100))]
    recheck_percent: Option<u8>,
}

impl ReuseSettings {
    pub(super) fn from_file(file: &ReuseFile) -> Self {
        let Self { enabled, recheck_percent } = Self::default();
        Self {
            enabled: file.enabled.unwrap_or(enabled),
            recheck_percent: file.recheck_percent.unwrap_or(recheck_percent).min(100),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::OperatorConfig;
    use super::*;

    #[test]
    fn parses_reuse_table_with_defaults() {
        let reuse = |text: &str| OperatorConfig::parse(text).expect(text).reuse;
        assert_eq!(reuse(""), ReuseSettings { enabled: true, recheck_percent: 2 });
        assert_eq!(reuse("[reuse]\n"), ReuseSettings::default());
        let off = reuse("[reuse]\nenabled = false\nrecheck_percent = 0\n");
        assert_eq!(off, ReuseSettings { enabled: false, recheck_percent: 0 });
        assert!(OperatorConfig::parse("[reuse]\nrecheck = 1").is_err());
        assert!(OperatorConfig::parse("[reuse]\nrecheck_percent = 300").is_err());
    }
}
