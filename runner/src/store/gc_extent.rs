//! Defines which copies and caches a clean-up removes.

/// The copies and caches to remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GcExtent {
    /// Those beyond the limits.
    Excess,
    /// All that no run holds.
    All,
}
