//! Implements `proctor hook install` and `uninstall`. An existing hook is kept, and our hook runs it first.

use std::path::{Path, PathBuf};

use proctor_core::spec;

use super::place::{Place, Users};
use super::script::{Manager, Script, Whose};
use super::slot::{Hook, Slot, Standing, standing};
use crate::args::{HookInstallArgs, HookName, HookUninstallArgs};
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
    place: &Place,
    caller: &Caller,
    screen: &mut Screen,
) -> Result<u8, CliError> {
    let shared = may_write(args, place, screen)?;
    let program = program(caller)?;
    let named = if args.hooks.is_empty() { &[HookName::PrePush][..] } else { &args.hooks };
    if args.options.each_commit && !named.contains(&HookName::PrePush) {
        return Err(CliError::Usage {
            message: "`--each-commit` is about commits that are pushed".to_owned(),
            hint: "install `pre-push` with it, or omit it".to_owned(),
        });
    }
    let slots: Vec<(Slot, Putting)> = named
        .iter()
        .map(|hook| Slot { hook: *hook, directory: place.hooks.clone() })
        .map(|slot| Ok((slot.clone(), putting(&slot, args.force)?)))
        .collect::<Result<_, CliError>>()?;
    for (slot, putting) in slots {
        let script = Script { hook: slot.hook, options: &args.options, program: &program, shared };
        put(&slot, putting, &script.text(), screen)?;
    }
    warn_without_spec(place, screen);
    Ok(0)
}

/// How a new hook treats the existing file.
enum Putting {
    /// No file exists, or one of our hooks with this text, which is replaced.
    Replaced(Option<Vec<u8>>),
    /// Another hook exists, which is kept and runs first.
    Chained(Hook),
}

/// Decides how to treat the existing file, before anything is written.
fn putting(slot: &Slot, force: bool) -> Result<Putting, CliError> {
    let hook = match slot.standing() {
        Standing::Nothing => return Ok(Putting::Replaced(None)),
        Standing::Hook(hook) => hook,
        Standing::DeadLink => return Err(unusable(&slot.path(), "a link that leads nowhere")),
        Standing::Other(what) => return Err(unusable(&slot.path(), &what)),
    };
    match hook.whose {
        Whose::Ours(_) => Ok(Putting::Replaced(Some(hook.bytes))),
        Whose::Edited if force => Ok(Putting::Replaced(Some(hook.bytes))),
        Whose::Edited => Err(CliError::Usage {
            message: format!("the Proctor hook `{}` was edited", show(&slot.path())),
            hint: "`--force` replaces it and discards the edits".to_owned(),
        }),
        Whose::Of(_) | Whose::Foreign if standing(&slot.before()) != Standing::Nothing => Err(CliError::Usage {
            message: format!(
                "`{}` was put there after ours, which keeps another one as `{}`",
                show(&slot.path()),
                show(&slot.before())
            ),
            hint: "remove one of the two, or merge them, and install again".to_owned(),
        }),
        Whose::Of(_) | Whose::Foreign => match slot.chained().first() {
            Some((ours, _)) => Err(CliError::Usage {
                message: format!("the hook `{}` already runs Proctor's hook: `{}`", show(&slot.path()), show(ours)),
                hint: format!("run `proctor hook uninstall {}` first to install it in another way", slot.hook.as_str()),
            }),
            None => Ok(Putting::Chained(hook)),
        },
    }
}

fn unusable(path: &Path, what: &str) -> CliError {
    CliError::Usage {
        message: format!("at `{}` stands {what}", show(path)),
        hint: "move it away, and install again".to_owned(),
    }
}

fn put(slot: &Slot, putting: Putting, text: &str, screen: &mut Screen) -> Result<(), CliError> {
    let (name, path) = (slot.hook.as_str(), show(&slot.path()));
    match putting {
        Putting::Replaced(Some(old)) if old == text.as_bytes() && is_executable(slot) => {
            screen.out(&format!("{name} is installed already: {path}\n"));
        }
        Putting::Replaced(old) => {
            slot.put(text, false)?;
            let word = if old.is_some() { "replaced" } else { "installed" };
            screen.out(&format!("{word} {name}: {path}\n"));
        }
        Putting::Chained(hook) => {
            slot.put(text, true)?;
            screen.out(&format!("installed {name}: {path}\n"));
            tell_chained(slot, &hook, screen);
        }
    }
    Ok(())
}

fn is_executable(slot: &Slot) -> bool {
    matches!(slot.standing(), Standing::Hook(Hook { is_executable: true, .. }))
}

/// Reports that an existing hook was kept.
fn tell_chained(slot: &Slot, hook: &Hook, screen: &mut Screen) {
    let before = show(&slot.before());
    let of = match hook.whose {
        Whose::Of(manager) => format!(", which is {}'s,", manager.name()),
        _ => String::new(),
    };
    if hook.is_executable {
        screen.out(&format!("the existing hook{of} is kept and runs first: {before}\n"));
    } else {
        let message =
            format!("the existing hook{of} is not executable, so neither git nor Proctor's hook runs it: {before}");
        screen.err(&style::warning(&message));
    }
    if let Whose::Of(manager) = hook.whose
        && let Some(command) = manager.rewrites_by()
    {
        let message = format!("{} rewrites its hooks with `{command}`, and overwrites Proctor's hook", manager.name());
        screen.err(&style::warning_with(&message, &["run `proctor hook install` again after it".to_owned()]));
    }
}

/// Checks that the hook directory may be written to. Returns whether other repositories use it too.
fn may_write(args: &HookInstallArgs, place: &Place, screen: &mut Screen) -> Result<bool, CliError> {
    if place.is_huskys() {
        return Err(CliError::Usage {
            message: format!(
                "{} looks after the hooks in `{}`, and writes them anew",
                Manager::Husky.name(),
                show(&place.hooks)
            ),
            hint: "put the line `proctor hook run pre-push -- \"$@\"` into `.husky/pre-push` instead".to_owned(),
        });
    }
    match place.users() {
        Users::Own => Ok(false),
        Users::Tree => {
            let message =
                format!("`{}` is part of the tree, so every user of the tree gets the hook", show(&place.hooks));
            screen.err(&style::warning(&message));
            Ok(false)
        }
        Users::Others if args.shared => Ok(true),
        Users::Others => Err(CliError::Usage {
            message: format!("`{}` is not this repository's alone: {}", show(&place.hooks), place.reason()),
            hint: format!(
                "give the repository hooks of its own by `git config --local core.hooksPath {}`; or say `--shared`, \
                 and every repository that has a spec is verified",
                show(&place.common_dir.join("hooks"))
            ),
        }),
    }
}

/// Returns the path of the running program in the form that a hook script can contain.
fn program(caller: &Caller) -> Result<String, CliError> {
    let path: PathBuf = caller.bin_dir.join("proctor");
    let text = path.to_str().filter(|text| !text.contains(['\n', '\r']));
    text.map(str::to_owned).ok_or_else(|| CliError::Environment {
        message: format!("a hook cannot call `{}`: its path is not one line of UTF-8", show(&path)),
        hint: "install proctor elsewhere".to_owned(),
    })
}

fn warn_without_spec(place: &Place, screen: &mut Screen) {
    if !place.top.join(spec::PATH).is_file() {
        let message = format!("there is no `{}` yet, and the hook rejects commits without one", spec::PATH);
        screen.err(&style::warning_with(&message, &["write one, and commit it".to_owned()]));
    }
}

/// Removes the named hooks, or all installed ones.
///
/// # Errors
/// A named hook was not installed by Proctor, or was edited.
pub(super) fn uninstall(args: &HookUninstallArgs, place: &Place, screen: &mut Screen) -> Result<u8, CliError> {
    let named = if args.hooks.is_empty() { &HookName::ALL[..] } else { &args.hooks };
    let mut first = None;
    for hook in named {
        let slot = Slot { hook: *hook, directory: place.hooks.clone() };
        let taken = taken(&slot, screen);
        if let Err(error) = taken {
            // The other hooks are removed even if one fails.
            match first {
                None => first = Some(error),
                Some(_) => screen.err(&error.render()),
            }
        }
    }
    first.map_or(Ok(0), Err)
}

fn taken(slot: &Slot, screen: &mut Screen) -> Result<(), CliError> {
    let (name, path) = (slot.hook.as_str(), show(&slot.path()));
    let whose = match slot.standing() {
        Standing::Hook(hook) => hook.whose,
        Standing::Nothing | Standing::DeadLink | Standing::Other(_) => Whose::Foreign,
    };
    match whose {
        Whose::Ours(_) => {
            let word = if slot.take_away()? { "; the previous hook is restored" } else { "" };
            screen.out(&format!("took {name} away: {path}{word}\n"));
            Ok(())
        }
        Whose::Edited => Err(CliError::Usage {
            message: format!("the Proctor hook `{path}` was edited and is not removed"),
            hint: match standing(&slot.before()) {
                Standing::Nothing => "remove the file yourself".to_owned(),
                _ => format!("remove the file yourself; the previous hook is `{}`", show(&slot.before())),
            },
        }),
        Whose::Of(_) | Whose::Foreign => {
            let chained = slot.chained();
            if chained.is_empty() {
                screen.out(&format!("{name} is not installed: there is no Proctor hook at {path}\n"));
            }
            chained.iter().try_for_each(|(path, whose)| taken_from_chain(slot, path, whose, screen))
        }
    }
}

/// Removes one of our hooks that another hook manager keeps at `path` and runs from its own hook.
fn taken_from_chain(slot: &Slot, path: &Path, whose: &Whose, screen: &mut Screen) -> Result<(), CliError> {
    let name = slot.hook.as_str();
    if *whose == Whose::Edited {
        return Err(CliError::Usage {
            message: format!(
                "the hook `{}` is ours, was edited, and still runs from `{}`",
                show(path),
                show(&slot.path())
            ),
            hint: "remove the file yourself".to_owned(),
        });
    }
    let rest = if slot.take_away_chained(path)? { "; the hook that ours ran first keeps its place there" } else { "" };
    screen.out(&format!("removed {name}, which the hook `{}` ran: {}{rest}\n", show(&slot.path()), show(path)));
    Ok(())
}
