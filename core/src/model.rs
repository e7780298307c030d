//! Defines the terms of a run: names, plan, events, outcomes, drift, and what the sandbox enforced.

pub mod cache;
pub mod drift;
pub mod enforcement;
pub mod event;
pub mod exec;
pub mod leak;
pub mod names;
pub mod outcome;
pub mod outcome_reason;
pub mod plan;
pub mod run_scope;
pub mod system_roots;
pub mod tier;
pub mod trace;
pub mod withheld;
