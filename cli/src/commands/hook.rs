//! Implements `proctor hook`, which makes git and coding agents verify the work before they continue.

mod agent;
mod git;
mod install;
mod place;
mod push;
mod refs;
mod script;
mod slot;
mod staged;
mod status;
mod surroundings;

use crate::args::{HookCommand, HookName, HookRunArgs, RepoArgs};
use crate::caller::Caller;
use crate::error::CliError;
use crate::screen::Screen;
use git::Git;
use place::Place;

/// Runs the subcommand.
///
/// # Errors
/// The subcommand fails.
pub(crate) async fn hook(command: &HookCommand, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    match command {
        HookCommand::Install(args) => install::install(args, &place(&args.repo, caller)?, caller, screen),
        HookCommand::Uninstall(args) => install::uninstall(args, &place(&args.repo, caller)?, screen),
        HookCommand::Status(args) => Ok(status::status(&place(&args.repo, caller)?, caller, screen)),
        HookCommand::Run(args) => run(args, caller, screen).await,
    }
}

fn place(repo: &RepoArgs, caller: &Caller) -> Result<Place, CliError> {
    let at = repo.repo.as_ref().map_or_else(|| caller.cwd.clone(), |named| caller.cwd.join(named));
    Place::find(Git { at: &at, is_named: repo.repo.is_some(), caller })
}

async fn run(args: &HookRunArgs, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    match args.hook {
        Some(HookName::PrePush) => push::push(args, caller, screen).await,
        Some(HookName::PreCommit) => staged::staged(args, caller, screen).await,
        None => agent::agent(args, caller, screen).await,
    }
}
