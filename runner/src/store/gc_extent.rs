//! Defines which copies and caches a clean-up removes.

/// The copies and caches to remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GcExtent {
    /// Only data beyond the limits.
    Excess,
    /// All data that no run uses.
    All,
}
