//! Implements `proctor hook install` and `uninstall`. An existing hook is kept, and our hook runs it first.

use std::path::{Path, PathBuf};

use proctor_core::spec;

use super::hook_directory::{HookDirectory, HookDirectoryUsers};
use super::hook_file::{ExistingHook, HookFile, HookFileState, inspect_path};
use super::hook_script::{HookManager, HookOwner, HookScript};
use super::repository_specs::RepositorySpecs;
use crate::args::{HookInstallArgs, HookName, HookOptions, HookUninstallArgs};
use crate::caller::Caller;
use crate::error::CliError;
use crate::installation::show;
use crate::screen::Screen;
use crate::style;

/// Installs the named hooks.
///
/// # Errors
/// The directory is shared with other repositories, or an existing file cannot be kept.
pub(super) fn install(
    args: &HookInstallArgs,
    directory: &HookDirectory,
    caller: &Caller,
    screen: &mut Screen,
) -> Result<u8, CliError> {
    let shared = check_directory(args, directory, screen)?;
    let program = program_path(caller)?;
    let named = if args.hooks.is_empty() { &[HookName::PrePush][..] } else { &args.hooks };
    let push_option = args.options.push_options().first().copied();
    if let Some(option) = push_option.filter(|_| !named.contains(&HookName::PrePush)) {
        return Err(CliError::Usage {
            message: format!("`{option}` applies only to pushed commits"),
            hint: "install `pre-push` with it, or omit it".to_owned(),
        });
    }
    let slots: Vec<(HookFile, InstallAction)> = named
        .iter()
        .map(|hook| HookFile { hook: *hook, directory: directory.hooks.clone() })
        .map(|slot| Ok((slot.clone(), choose_action(&slot, args.force)?)))
        .collect::<Result<_, CliError>>()?;
    let specs = RepositorySpecs::find(directory, caller)?;
    let options = HookOptions { each_spec: args.options.each_spec || specs.needs_each_spec(), ..args.options.clone() };
    for (slot, putting) in slots {
        let script = HookScript { hook: slot.hook, options: &options, program: &program, shared };
        install_hook(&slot, putting, &script.text(), screen)?;
    }
    report_specs(&specs, &options, directory, screen);
    Ok(0)
}

/// How a new hook treats the existing file.
enum InstallAction {
    /// No file exists, or one of Proctor's hooks with this text, which is replaced.
    Replace(Option<Vec<u8>>),
    /// Another hook exists, which is kept and runs first.
    Chain(ExistingHook),
}

/// Decides how to treat the existing file, before anything is written.
fn choose_action(slot: &HookFile, force: bool) -> Result<InstallAction, CliError> {
    let hook = match slot.inspect() {
        HookFileState::Missing => return Ok(InstallAction::Replace(None)),
        HookFileState::File(hook) => hook,
        HookFileState::DanglingLink => return Err(unusable_path_error(&slot.path(), "a link without a target")),
        HookFileState::Unusable(what) => return Err(unusable_path_error(&slot.path(), &what)),
    };
    match hook.owner {
        HookOwner::Proctor(_) => Ok(InstallAction::Replace(Some(hook.bytes))),
        HookOwner::EditedProctor if force => Ok(InstallAction::Replace(Some(hook.bytes))),
        HookOwner::EditedProctor => Err(CliError::Usage {
            message: format!("the Proctor hook `{}` was edited", show(&slot.path())),
            hint: "`--force` replaces it and discards the edits".to_owned(),
        }),
        HookOwner::Manager(_) | HookOwner::Unknown if inspect_path(&slot.kept_path()) != HookFileState::Missing => {
            Err(CliError::Usage {
                message: format!(
                    "`{}` was added after Proctor's hook, which keeps another hook as `{}`",
                    show(&slot.path()),
                    show(&slot.kept_path())
                ),
                hint: "remove one of the two, or merge them, and install again".to_owned(),
            })
        }
        HookOwner::Manager(_) | HookOwner::Unknown => match slot.chained_hooks().first() {
            Some((ours, _)) => Err(CliError::Usage {
                message: format!("the hook `{}` already runs Proctor's hook: `{}`", show(&slot.path()), show(ours)),
                hint: format!("run `proctor hook uninstall {}` first to install it in another way", slot.hook.as_str()),
            }),
            None => Ok(InstallAction::Chain(hook)),
        },
    }
}

fn unusable_path_error(path: &Path, what: &str) -> CliError {
    CliError::Usage {
        message: format!("`{}` is {what}", show(path)),
        hint: "move it away, and install again".to_owned(),
    }
}

fn install_hook(slot: &HookFile, putting: InstallAction, text: &str, screen: &mut Screen) -> Result<(), CliError> {
    let (name, path) = (slot.hook.as_str(), show(&slot.path()));
    match putting {
        InstallAction::Replace(Some(old)) if old == text.as_bytes() && is_executable(slot) => {
            screen.out(&format!("{name} is installed already: {path}\n"));
        }
        InstallAction::Replace(old) => {
            slot.write(text, false)?;
            let word = if old.is_some() { "replaced" } else { "installed" };
            screen.out(&format!("{word} {name}: {path}\n"));
        }
        InstallAction::Chain(hook) => {
            slot.write(text, true)?;
            screen.out(&format!("installed {name}: {path}\n"));
            report_kept_hook(slot, &hook, screen);
        }
    }
    Ok(())
}

fn is_executable(slot: &HookFile) -> bool {
    matches!(slot.inspect(), HookFileState::File(ExistingHook { is_executable: true, .. }))
}

/// Reports that an existing hook was kept.
fn report_kept_hook(slot: &HookFile, hook: &ExistingHook, screen: &mut Screen) {
    let kept_path = show(&slot.kept_path());
    let manager_note = match hook.owner {
        HookOwner::Manager(manager) => format!(", which is {}'s,", manager.name()),
        _ => String::new(),
    };
    if hook.is_executable {
        screen.out(&format!("the existing hook{manager_note} is kept and runs first: {kept_path}\n"));
    } else {
        let message = format!(
            "the existing hook{manager_note} is not executable, so neither git nor Proctor's hook runs it: {kept_path}"
        );
        screen.err(&style::warning(&message));
    }
    if let HookOwner::Manager(manager) = hook.owner
        && let Some(command) = manager.rewrite_command()
    {
        let message = format!("{} rewrites its hooks with `{command}`, and overwrites Proctor's hook", manager.name());
        screen.err(&style::warning_with_hints(
            &message,
            &["run `proctor hook install` again after that command".to_owned()],
        ));
    }
}

/// Checks that the hook directory may be written to. Returns whether other repositories use it too.
fn check_directory(args: &HookInstallArgs, directory: &HookDirectory, screen: &mut Screen) -> Result<bool, CliError> {
    if directory.is_managed_by_husky() {
        return Err(CliError::Usage {
            message: format!(
                "{} manages the hooks in `{}` and rewrites them",
                HookManager::Husky.name(),
                show(&directory.hooks)
            ),
            hint: "add the line `proctor hook run pre-push -- \"$@\"` to `.husky/pre-push` instead".to_owned(),
        });
    }
    match directory.users() {
        HookDirectoryUsers::Own => Ok(false),
        HookDirectoryUsers::Tree => {
            let message =
                format!("`{}` is part of the tree, so every user of the tree gets the hook", show(&directory.hooks));
            screen.err(&style::warning(&message));
            Ok(false)
        }
        HookDirectoryUsers::Others if args.shared => Ok(true),
        HookDirectoryUsers::Others => Err(CliError::Usage {
            message: format!("`{}` is shared with other repositories: {}", show(&directory.hooks), directory.reason()),
            hint: format!(
                "set a hook directory for this repository with `git config --local core.hooksPath {}`; or use \
                 `--shared`, which verifies every repository that has a spec",
                show(&directory.common_dir.join("hooks"))
            ),
        }),
    }
}

/// Returns the path of the running program in the form that a hook script can contain.
fn program_path(caller: &Caller) -> Result<String, CliError> {
    let path: PathBuf = caller.bin_dir.join("proctor");
    let text = path.to_str().filter(|text| !text.contains(['\n', '\r']));
    text.map(str::to_owned).ok_or_else(|| CliError::Environment {
        message: format!("a hook cannot call `{}`: its path is not one line of UTF-8", show(&path)),
        hint: "install proctor elsewhere".to_owned(),
    })
}

/// Reports which specs the hook uses.
fn report_specs(specs: &RepositorySpecs, options: &HookOptions, directory: &HookDirectory, screen: &mut Screen) {
    if !specs.is_at_top && specs.subdirectories.is_empty() {
        let message = format!("there is no `{}` yet, and the hook rejects commits without one", spec::PATH);
        screen.err(&style::warning_with_hints(&message, &["write one, and commit it".to_owned()]));
        return;
    }
    if specs.subdirectories.is_empty() {
        return;
    }
    let list = specs.list();
    let text = match (options.each_spec, specs.is_at_top) {
        (true, true) => format!("the hook verifies the spec at the top, and those in {list}\n"),
        (true, false) => {
            format!("the hook verifies each spec of a commit (--each-spec), since the top has none: {list}\n")
        }
        (false, _) => {
            let used = show(&directory.work_tree.join(spec::PATH));
            format!(
                "the hook uses only the spec at the top of the repository, {used}; with --each-spec, also those in {list}\n"
            )
        }
    };
    screen.out(&screen.layout().fit_lines(&text));
}

/// Removes the named hooks, or all installed ones.
///
/// # Errors
/// A named hook was not installed by Proctor, or was edited.
pub(super) fn uninstall(
    args: &HookUninstallArgs,
    directory: &HookDirectory,
    screen: &mut Screen,
) -> Result<u8, CliError> {
    let named = if args.hooks.is_empty() { &HookName::ALL[..] } else { &args.hooks };
    let mut first = None;
    for hook in named {
        let slot = HookFile { hook: *hook, directory: directory.hooks.clone() };
        let result = uninstall_hook(&slot, screen);
        if let Err(error) = result {
            // The other hooks are removed even if one fails.
            match first {
                None => first = Some(error),
                Some(_) => screen.err(&error.render()),
            }
        }
    }
    first.map_or(Ok(0), Err)
}

fn uninstall_hook(slot: &HookFile, screen: &mut Screen) -> Result<(), CliError> {
    let (name, path) = (slot.hook.as_str(), show(&slot.path()));
    let owner = match slot.inspect() {
        HookFileState::File(hook) => hook.owner,
        HookFileState::Missing | HookFileState::DanglingLink | HookFileState::Unusable(_) => HookOwner::Unknown,
    };
    match owner {
        HookOwner::Proctor(_) => {
            let word = if slot.remove()? { "; the previous hook is restored" } else { "" };
            screen.out(&format!("removed {name}: {path}{word}\n"));
            Ok(())
        }
        HookOwner::EditedProctor => Err(CliError::Usage {
            message: format!("the Proctor hook `{path}` was edited and is not removed"),
            hint: match inspect_path(&slot.kept_path()) {
                HookFileState::Missing => "remove the file yourself".to_owned(),
                _ => format!("remove the file yourself; the previous hook is `{}`", show(&slot.kept_path())),
            },
        }),
        HookOwner::Manager(_) | HookOwner::Unknown => {
            let chained = slot.chained_hooks();
            if chained.is_empty() {
                screen.out(&format!("{name} is not installed: there is no Proctor hook at {path}\n"));
            }
            chained.iter().try_for_each(|(path, whose)| uninstall_chained(slot, path, whose, screen))
        }
    }
}

/// Removes one of Proctor's hooks that another hook manager keeps at `path` and runs from its own hook.
fn uninstall_chained(slot: &HookFile, path: &Path, owner: &HookOwner, screen: &mut Screen) -> Result<(), CliError> {
    let name = slot.hook.as_str();
    if *owner == HookOwner::EditedProctor {
        return Err(CliError::Usage {
            message: format!(
                "the Proctor hook `{}` was edited and still runs from `{}`",
                show(path),
                show(&slot.path())
            ),
            hint: "remove the file yourself".to_owned(),
        });
    }
    let rest = if slot.remove_chained(path)? { "; the hook that Proctor's hook ran first is kept there" } else { "" };
    screen.out(&format!("removed {name}, which the hook `{}` ran: {}{rest}\n", show(&slot.path()), show(path)));
    Ok(())
}
