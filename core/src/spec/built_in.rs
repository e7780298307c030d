//! The values that hold where neither the spec nor the operator says anything.

use crate::plan::{Determinism, Ignored, Leaks, Limit, Limits, Network, ReadOnly};
use crate::tier::Tier;

/// The timeout, in milliseconds.
pub const TIMEOUT_MS: u64 = 600_000;
/// The time between SIGTERM and SIGKILL, in milliseconds.
pub const GRACE_MS: u64 = 5_000;
/// The network.
pub const NETWORK: Network = Network::Deny;
/// The protection of the tree.
pub const READ_ONLY: ReadOnly = ReadOnly::Tracked;
/// What steps see of the files that git ignores.
pub const IGNORED: Ignored = Ignored::Worktree;
/// What processes mean that a step leaves behind.
pub const LEAKS: Leaks = Leaks::Warn;
/// How often a failed attempt is repeated.
pub const RETRIES: u32 = 0;
/// The exit codes that count as success.
pub const EXPECT_EXIT: [u8; 1] = [0];
/// The class of a skill that claims none: the one that promises nothing.
pub const DETERMINISM: Determinism = Determinism::D2;
/// The tier of a skill that declares none: the one that needs trust.
pub const TIER: Tier = Tier::TWO;
/// The limits.
pub const LIMITS: Limits = Limits {
    memory: Limit::Unlimited,
    pids: Limit::Max(4096),
    disk: Limit::Max(2 << 30),
    output: Limit::Max(64 << 20),
    cpu_seconds: Limit::Unlimited,
    // Far above what compilers, test runners and bundlers open (node's file watchers and linkers of large Rust
    // workspaces need some thousands), and low enough for programs that close every number up to the limit, which
    // takes them minutes where a container runtime allows a billion. A lower hard limit of the host holds all the same.
    open_files: Limit::Max(65_536),
};
