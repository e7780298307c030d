//! The two levels of the tests: `make test` runs small versions of the campaigns, `make test-long` sets
//! `PROCTOR_TEST_LONG=1` and runs all cases in full.

use std::sync::LazyLock;

/// The environment variable that selects the full campaigns.
const VARIABLE: &str = "PROCTOR_TEST_LONG";

/// Returns whether all cases run, and all campaigns in full.
pub(crate) fn is_long() -> bool {
    static IS_LONG: LazyLock<bool> = LazyLock::new(|| {
        #[expect(clippy::disallowed_methods, reason = "the command line selects the level")]
        let value = std::env::var(VARIABLE).unwrap_or_default();
        match value.as_str() {
            "" | "0" => false,
            "1" => true,
            other => panic!("{VARIABLE} is `{other}`; it must be 0 or 1"),
        }
    });
    *IS_LONG
}

/// Returns the size of a campaign: `small` in `make test`, and `full` in `make test-long`.
pub(crate) fn campaign_size<T>(small: T, full: T) -> T {
    if is_long() { full } else { small }
}
