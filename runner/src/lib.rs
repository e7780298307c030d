//! A plan becomes events.
