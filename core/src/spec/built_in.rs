//! Built-in defaults for values that neither the spec nor the operator sets.

use crate::model::plan::{Determinism, Ignored, Leaks, Network, ReadOnly};
use crate::model::tier::Tier;

/// Timeout, in milliseconds.
pub const TIMEOUT_MS: u64 = 600_000;
/// Time between SIGTERM and SIGKILL, in milliseconds.
pub const GRACE_MS: u64 = 5_000;
/// Network access.
pub const NETWORK: Network = Network::Deny;
/// Protection of the tree.
pub const READ_ONLY: ReadOnly = ReadOnly::Tracked;
/// Visibility of files that git ignores.
pub const IGNORED: Ignored = Ignored::Worktree;
/// Treatment of processes that a step leaves behind.
pub const LEAKS: Leaks = Leaks::Warn;
/// Maximum number of retries after a failed attempt.
pub const RETRIES: u32 = 0;
/// Exit codes that count as success.
pub const EXPECT_EXIT: [u8; 1] = [0];
/// Determinism class of a skill that declares none: the class without guarantees.
pub const DETERMINISM: Determinism = Determinism::D2;
/// Tier of a skill that declares none: the tier that requires trust.
pub const TIER: Tier = Tier::TWO;
