//! Executes a plan and turns it into events: checks, then skills, then evidence. One run loop orders them; every
//! wait covers the event itself, its deadline and the cancellation at once. Other crates define what a change is
//! (`proctor-snapshot`), what a process may do (`proctor-sandbox`), and what an outcome means (`proctor-core`).

mod alternates;
mod attempt;
mod checks;
mod clock;
mod context;
mod dispatch;
mod engine;
pub mod environment;
mod error;
mod finish;
mod gate;
mod git_on_demand;
mod git_program;
mod guards;
mod judge;
mod live_output;
mod output;
mod patch;
mod probe;
mod pushed;
mod readings;
mod record;
mod report;
mod repository;
mod request;
mod rerun;
mod schedule;
mod session;
mod skill;
mod skill_caches;
mod source;
mod spec_file;
mod stack;
mod step;
mod store;
mod surroundings;
#[cfg(test)]
mod test_support;
pub mod timing;
mod toolchain;
mod tools;

pub use clock::Clock;
pub use engine::{
    CommitAsked, Earlier, Engine, Executed, Looked, MAX_RANGE, UnderWay, commands, is_reusable, takes_env,
};
pub use error::{EngineError, SpecProblems};
pub use finish::Pass;
pub use gate::{Gate, GateRequest};
pub use live_output::{Extent, LiveOutputs, LiveStep, LiveStream, StreamState, last_line};
pub use proctor_sandbox::{
    DoctorReport, Finding, HeldSignals, Policy, SetupOp, claim_signals, close_inherited, give_back_memory, hold_signals,
};
pub use proctor_snapshot::protocol::{CommitRef, NamedCommit, Push, Pushed, PushedTip, StagedIndex};
pub use proctor_sql::pool::Workers;
pub use proctor_sql::stream::QuietStream;
pub use pushed::pushed;
pub use request::{
    CachesWanted, ChangesWanted, EngineConfig, ExecReport, ExecRequest, Helpers, Patch, Preview, RunReport, RunRequest,
    RunSource, Serving, SkillsWanted, StepReport, Tracing,
};
pub use rerun::demand_whole;
pub use session::Session;
pub use spec_file::SpecFile;
pub use store::{Directory, GcExtent, Part, StoreError, Temporary, collect_garbage, recorded_document};
pub use tokio_util::sync::CancellationToken;
pub use tools::{TOOL_VARIABLES, toolchain_env};
