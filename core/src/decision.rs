//! Decides, from recorded facts: the verdict of a run, the answer of the gate, what to run again, which specs of a commit a
//! hook verifies, which files a step checks, what differs between two runs, and which stored objects are garbage.

pub mod compare;
pub mod file_matcher;
pub mod gate;
pub mod gc;
pub mod input_filter;
pub mod rerun;
pub mod spec_selection;
pub mod step_selection;
pub mod verdict;
