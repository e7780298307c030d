//! The filter in force: a thread puts itself under it and makes real calls.
use super::*;
