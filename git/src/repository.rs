//! Reads a repository with libgit2, or from the output of the `git` program where libgit2 cannot read its format.

pub(crate) mod changed_files;
pub(crate) mod commit_objects;
pub mod commit_tree;
pub mod git_dir;
pub mod git_dir_objects;
mod history;
pub(crate) mod index_reader;
pub(crate) mod listing;
mod object_reader;
pub(crate) mod open_repository;
mod pushed_commits;
pub(crate) mod ref_history;
pub mod request_handler;
pub(crate) mod revision;
pub mod source_files;
mod staged_commit;
mod tree_comparison;
pub mod watchdog;
mod worktree_comparison;
pub(crate) mod worktree_walk;
