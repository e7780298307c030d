//! Implements `proctor hook`, which makes git and coding agents verify the work before they continue.

mod agent_hook;
mod blocked;
mod git_command;
mod git_environment;
mod hook_directory;
mod hook_file;
mod hook_run;
mod hook_script;
mod hook_specs;
mod install;
mod pre_commit;
mod pre_push;
mod pushed_refs;
mod repository_specs;
mod status;

use crate::args::{HookCommand, HookName, HookRunArgs, RepoArgs};
use crate::caller::Caller;
use crate::error::CliError;
use crate::screen::Screen;
use git_command::GitContext;
use hook_directory::HookDirectory;

/// Runs the subcommand.
///
/// # Errors
/// The subcommand fails.
pub(crate) async fn hook(command: &HookCommand, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    match command {
        HookCommand::Install(args) => install::install(args, &find_hook_directory(&args.repo, caller)?, caller, screen),
        HookCommand::Uninstall(args) => install::uninstall(args, &find_hook_directory(&args.repo, caller)?, screen),
        HookCommand::Status(args) => Ok(status::status(&find_hook_directory(&args.repo, caller)?, caller, screen)),
        HookCommand::Run(args) => run(args, caller, screen).await,
    }
}

fn find_hook_directory(repo: &RepoArgs, caller: &Caller) -> Result<HookDirectory, CliError> {
    let at = repo.repo.as_ref().map_or_else(|| caller.cwd.clone(), |named| caller.cwd.join(named));
    HookDirectory::find(GitContext { directory: &at, is_directory_named: repo.repo.is_some(), caller })
}

async fn run(args: &HookRunArgs, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    match args.hook {
        Some(HookName::PrePush) => pre_push::verify_push(args, caller, screen).await,
        Some(HookName::PreCommit) => pre_commit::verify_staged(args, caller, screen).await,
        None => agent_hook::verify_for_agent(args, caller, screen).await,
    }
}
