//! Decides, from recorded facts: the verdict of a run, the answer of the gate, what to run again, what differs between
//! two runs, and which stored objects are garbage.

pub mod compare;
pub mod gate;
pub mod gc;
pub mod rerun;
pub mod verdict;
