//! Executes a plan and turns it into events: checks, then skills, then evidence. One run loop orders them; every
//! wait covers the event itself, its deadline and the cancellation at once. Other crates define what a change is
//! (`proctor-snapshot`), what a process may do (`proctor-sandbox`), and what an outcome means (`proctor-core`).

mod clock;
mod error;
mod gate;
mod host;
mod remote_server;
mod remote_steps;
mod run;
mod shared_results;
mod step;
mod store;
#[cfg(test)]
mod test_support;

pub use clock::Clock;
pub use error::{EngineError, SpecProblems};
pub use gate::{Gate, GateRequest};
pub use host::commit_specs::{CommitSpecQuery, CommitSpecs, RemovedSpec, WorktreeSpecs, commit_specs, worktree_specs};
pub use host::environment;
pub use host::pushed_commits::pushed_commits;
pub use host::repository::{WorktreePlace, repository_record_name};
pub use host::spec_file::SpecFile;
pub use host::tool_search::{TOOL_VARIABLES, toolchain_env};
pub use host::worktree_watch::{WorktreeChanges, WorktreeWatch};
pub use proctor_git::protocol::{
    CommitRef, NamedCommit, Push, PushedTip, RangeBase, ResolvedPush, StagedCommit, StagedIndex,
};
pub use proctor_sandbox::{
    BlockedSignals, DoctorReport, Launcher, Policy, SetupOp, UnmetRequirement, close_inherited,
    keep_termination_signals_blocked, restore_signal_handling, take_inherited_descriptor, trim_memory,
};
pub use proctor_sql::quiet_stream::QuietStream;
pub use proctor_sql::worker_pool::WorkerPool;
pub use run::engine::{
    CommandTree, Engine, ExecutedCommand, MAX_RANGE, PriorRun, PriorRunRequest, ProfilePreview, ReusePreview,
    RunInProgress, StepPreview, StoredPreview, is_reusable, planned_commands, require_valid_scope, takes_caller_env,
};
pub use run::finish::RevocablePass;
pub use run::request::{
    CacheMode, ChangeHandling, EngineCaller, EngineConfig, ExecOutput, ExecRequest, FinishedRun, HelperPrograms,
    JudgedCommand, PatchResult, RunRequest, RunSource, SandboxPreview, SkillSelection, TraceSettings,
    require_whole_profile,
};
pub use step::live_output::{LiveOutputs, LiveStep, LiveStream, StreamExtent, StreamState, last_line};
pub use step::session::Session;
pub use step::timing;
pub use store::{
    Directory, GcExtent, StoreError, StoredPart, TemporaryFile, collect_garbage, prune_results, recorded_document,
    recorded_runs, result_stats, state_usage, verify_results,
};
pub use tokio_util::sync::CancellationToken;
