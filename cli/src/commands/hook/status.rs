//! Implements `proctor hook status`, which shows the existing hooks with their owners, and whether ours would work
//! now.

use std::path::{Path, PathBuf};

use proctor_core::decision::verdict::EXIT_INCONCLUSIVE;
use proctor_core::spec;
use rustix::fs::Access;

use super::hook_directory::HookDirectory;
use super::hook_file::{ExistingHook, HookFile, HookFileState, inspect_path};
use super::hook_script::{BEFORE, EACH_SPEC, HookOwner, ProctorHook, has_proctor_call};
use super::repository_specs::RepositorySpecs;
use crate::args::HookName;
use crate::caller::Caller;
use crate::installation::show;
use crate::loaded_spec::LoadedSpec;
use crate::screen::Screen;
use crate::style::{self, BAD, DIM, GOOD, UNSURE, paint};
use crate::text::escape_line;

/// Shows the hooks. If a hook that Proctor installed would not work, the exit code is that of an inconclusive run.
pub(super) fn status(directory: &HookDirectory, caller: &Caller, screen: &mut Screen) -> u8 {
    screen.out(&format!("{} {}, {}\n", paint(DIM, "hooks:"), show(&directory.hooks), directory.reason()));
    let mut code = 0;
    for hook in HookName::ALL {
        let slot = HookFile { hook, directory: directory.hooks.clone() };
        let status = hook_status(&slot, directory, caller);
        screen.out(&status.text);
        if status.is_broken {
            code = EXIT_INCONCLUSIVE;
        }
    }
    code
}

/// The report on one hook.
struct HookStatus {
    text: String,
    is_broken: bool,
}

fn hook_status(slot: &HookFile, directory: &HookDirectory, caller: &Caller) -> HookStatus {
    let name = format!("{:<10}", slot.hook.as_str());
    let line = |style, word: &str, rest: &str| format!("{name} {} {rest}\n", paint(style, word));
    let fine = |text| HookStatus { text, is_broken: false };
    let hook = match slot.inspect() {
        HookFileState::Missing => {
            let how = format!("`proctor hook install {}` installs it", slot.hook.as_str());
            return fine(line(DIM, "not installed:", &how));
        }
        HookFileState::DanglingLink => {
            return fine(line(UNSURE, "not installed,", "a dangling link is at its path"));
        }
        HookFileState::Unusable(what) => {
            return fine(line(UNSURE, "not installed,", &format!("{what} is at its path")));
        }
        HookFileState::File(hook) => hook,
    };
    match &hook.owner {
        HookOwner::Proctor(ours) => installed_hook_status(slot, directory, caller, &hook, ours),
        HookOwner::EditedProctor => fine(line(UNSURE, "edited:", "Proctor's hook was edited after its installation")),
        HookOwner::Manager(manager) => fine(line(
            DIM,
            "not installed,",
            &format!("{} has a hook at its path{}", manager.name(), indirect_call_note(slot, &hook)),
        )),
        HookOwner::Unknown => fine(line(
            DIM,
            "not installed,",
            &format!("another hook is at its path{}", indirect_call_note(slot, &hook)),
        )),
    }
}

/// Returns whether another owner's hook calls ours, if that can be detected.
fn indirect_call_note(slot: &HookFile, hook: &ExistingHook) -> String {
    if has_proctor_call(&hook.bytes, slot.hook) {
        return ", which calls `proctor hook run`".to_owned();
    }
    match slot.chained_hooks().first() {
        Some((path, _)) => format!(", and runs Proctor's hook, which it keeps as {}", show(path)),
        None => String::new(),
    }
}

fn installed_hook_status(
    slot: &HookFile,
    directory: &HookDirectory,
    caller: &Caller,
    hook: &ExistingHook,
    ours: &ProctorHook,
) -> HookStatus {
    let problems = problems(directory, caller, hook, ours);
    let (style, word) = if problems.is_empty() { (GOOD, "installed") } else { (BAD, "would not work") };
    let mut text = format!(
        "{:<10} {} by proctor {}, {}\n",
        slot.hook.as_str(),
        paint(style, word),
        escape_line(&ours.version),
        escape_line(&ours.options)
    );
    problems.iter().for_each(|problem| text.push_str(&format!("           {problem}\n")));
    let first = match inspect_path(&slot.kept_path()) {
        HookFileState::Missing => None,
        HookFileState::File(ExistingHook { is_executable: true, owner: whose, .. }) => Some(match whose {
            HookOwner::Manager(manager) => format!("runs first: that of {}", manager.name()),
            _ => "runs first".to_owned(),
        }),
        _ => Some("is not executable, and does not run".to_owned()),
    };
    if let Some(first) = first {
        text.push_str(&format!("           {}{BEFORE} {first}\n", slot.hook.as_str()));
    }
    if ours.version != env!("CARGO_PKG_VERSION") {
        let hint = "another version wrote it; `proctor hook install` replaces it".to_owned();
        text.push_str(&style::hint_lines(&[hint]));
    }
    HookStatus { text, is_broken: !problems.is_empty() }
}

/// Returns the problems that would keep our hook from verifying anything.
fn problems(directory: &HookDirectory, caller: &Caller, hook: &ExistingHook, ours: &ProctorHook) -> Vec<String> {
    let mut problems = Vec::new();
    if !hook.is_executable {
        problems.push("it is not executable, and git does not run it; install it again".to_owned());
    }
    if !is_program(Path::new(&ours.program)) && !is_on_path(caller) {
        problems.push(format!("`{}` no longer exists, and `proctor` is not on PATH", escape_line(&ours.program)));
    }
    problems.extend(spec_problems(directory, ours, caller));
    problems
}

/// Checks the specs in the worktree. A commit has its own specs, which are likely the same.
fn spec_problems(directory: &HookDirectory, ours: &ProctorHook, caller: &Caller) -> Vec<String> {
    let mut words = ours.options.split(' ');
    let specs = words.clone().any(|word| word == EACH_SPEC).then(|| RepositorySpecs::find(directory, caller));
    let Some(profile) = words.find(|word| *word == "--profile").and_then(|_| words.next()) else { return Vec::new() };
    let below = match specs {
        None => vec![PathBuf::new()],
        Some(Err(error)) => return vec![error.to_string()],
        Some(Ok(specs)) => specs.directories(),
    };
    if below.is_empty() {
        return vec![format!("there is no `{}`, at the top or in a subdirectory", spec::PATH)];
    }
    below.iter().filter_map(|below| spec_problem(directory, below, profile, caller)).collect()
}

/// Checks the spec in a directory of the worktree.
fn spec_problem(directory: &HookDirectory, below: &Path, profile: &str, caller: &Caller) -> Option<String> {
    let root = directory.work_tree.join(below);
    let path = show(&below.join(spec::PATH));
    match LoadedSpec::from_repository(&root, caller) {
        Err(_) if !root.join(spec::PATH).exists() => Some(format!("there is no `{path}`")),
        Err(_) => Some(format!("`{path}` is not valid; `proctor validate` shows the problems")),
        Ok(found) if found.spec.profiles.get(profile).is_none() => {
            let profile = escape_line(profile);
            Some(match below.as_os_str().is_empty() {
                true => format!("the spec has no profile `{profile}`"),
                false => format!("`{path}` has no profile `{profile}`"),
            })
        }
        Ok(_) => None,
    }
}

fn is_program(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, Access::EXEC_OK).is_ok()
}

fn is_on_path(caller: &Caller) -> bool {
    let path = caller.var("PATH").unwrap_or_default();
    path.split(':').any(|directory| is_program(&caller.cwd.join(directory).join("proctor")))
}
