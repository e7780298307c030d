//! Reads what the machine and the repository provide: the environment, toolchains, git and the spec.

pub(crate) mod alternates;
pub(crate) mod commit_specs;
pub mod environment;
pub(crate) mod git_on_demand;
pub(crate) mod hidden_programs;
pub(crate) mod host_toolchains;
pub(crate) mod image_mount;
pub(crate) mod probe;
pub(crate) mod pushed_commits;
pub(crate) mod repository;
pub(crate) mod sandboxed_git;
pub(crate) mod spec_cache;
pub(crate) mod spec_file;
pub(crate) mod tool_search;
pub(crate) mod worktree_watch;
