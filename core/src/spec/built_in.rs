//! Built-in defaults for values that neither the spec nor the operator sets.

use crate::model::plan::{Determinism, Ignored, Leaks, Limit, Limits, Network, ReadOnly};
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
/// Resource limits.
pub const LIMITS: Limits = Limits {
    memory: Limit::Unlimited,
    pids: Limit::Max(4096),
    disk: Limit::Max(2 << 30),
    output: Limit::Max(64 << 20),
    cpu_seconds: Limit::Unlimited,
    // Far above what compilers, test runners and bundlers open (node's file watchers and linkers of large Rust
    // workspaces need several thousand). Low enough for programs that close every descriptor number up to the limit:
    // closing a billion, which some container runtimes allow, takes minutes. A lower hard limit of the host still
    // applies.
    open_files: Limit::Max(65_536),
};
