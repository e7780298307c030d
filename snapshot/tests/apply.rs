//! Tests.
pub(crate) const CASES: &[crate::Case] = &[];
