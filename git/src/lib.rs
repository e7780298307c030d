//! Reads git repositories, in a way that nothing in a repository can start a program or do harm.
//!
//! A repository's config is hostile input, so libgit2 never runs in the process that decides: [`helper`] starts
//! `proctor-git`, which runs [`repository::request_handler`] and answers over [`protocol`]. If libgit2 cannot read the
//! format of a repository, an implementor of [`program::GitProgram`] runs the `git` program.

pub mod config;
pub mod error;
pub mod files;
pub mod helper;
pub mod ignore;
pub mod index;
pub mod known_histories;
pub mod object;
pub mod owner_rights;
pub mod program;
pub mod protocol;
pub mod repository;
pub mod repository_paths;
pub mod wire;
