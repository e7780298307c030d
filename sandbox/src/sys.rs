//! unsafe
