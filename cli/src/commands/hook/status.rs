//! Implements `proctor hook status`, which shows the existing hooks with their owners, and whether ours would work
//! now.

use std::path::Path;

use proctor_core::spec;
use proctor_core::verdict::EXIT_INCONCLUSIVE;
use rustix::fs::Access;

use super::place::Place;
use super::script::{BEFORE, Ours, Whose, calls_us};
use super::slot::{Hook, Slot, Standing, standing};
use crate::args::HookName;
use crate::caller::Caller;
use crate::installation::show;
use crate::screen::Screen;
use crate::specfile::Specification;
use crate::style::{self, BAD, DIM, GOOD, UNSURE, paint};
use crate::text::shown_line;

/// Shows the hooks. If a hook that Proctor installed would not work, the exit code is that of an inconclusive run.
pub(super) fn status(place: &Place, caller: &Caller, screen: &mut Screen) -> u8 {
    screen.out(&format!("{} {}, {}\n", paint(DIM, "hooks:"), show(&place.hooks), place.reason()));
    let mut code = 0;
    for hook in HookName::ALL {
        let slot = Slot { hook, directory: place.hooks.clone() };
        let told = of(&slot, place, caller);
        screen.out(&told.text);
        if told.is_broken {
            code = EXIT_INCONCLUSIVE;
        }
    }
    code
}

/// The report on one hook.
struct Told {
    text: String,
    is_broken: bool,
}

fn of(slot: &Slot, place: &Place, caller: &Caller) -> Told {
    let name = format!("{:<10}", slot.hook.as_str());
    let line = |style, word: &str, rest: &str| format!("{name} {} {rest}\n", paint(style, word));
    let fine = |text| Told { text, is_broken: false };
    let hook = match slot.standing() {
        Standing::Nothing => {
            let how = format!("`proctor hook install {}` installs it", slot.hook.as_str());
            return fine(line(DIM, "not installed:", &how));
        }
        Standing::DeadLink => {
            return fine(line(UNSURE, "not installed,", "there is a dangling link in its place"));
        }
        Standing::Other(what) => return fine(line(UNSURE, "not installed,", &format!("there is {what} in its place"))),
        Standing::Hook(hook) => hook,
    };
    match &hook.whose {
        Whose::Ours(ours) => installed(slot, place, caller, &hook, ours),
        Whose::Edited => fine(line(UNSURE, "edited:", "it is ours, and was changed since it was installed")),
        Whose::Of(manager) => fine(line(
            DIM,
            "not installed,",
            &format!("{} has a hook in its place{}", manager.name(), way_to_us(slot, &hook)),
        )),
        Whose::Foreign => {
            fine(line(DIM, "not installed,", &format!("another hook is in its place{}", way_to_us(slot, &hook))))
        }
    }
}

/// Returns whether another owner's hook calls ours, if that can be detected.
fn way_to_us(slot: &Slot, hook: &Hook) -> String {
    if calls_us(&hook.bytes, slot.hook) {
        return ", which calls `proctor hook run`".to_owned();
    }
    match slot.chained().first() {
        Some((path, _)) => format!(", and runs Proctor's hook, which it keeps as {}", show(path)),
        None => String::new(),
    }
}

fn installed(slot: &Slot, place: &Place, caller: &Caller, hook: &Hook, ours: &Ours) -> Told {
    let problems = problems(place, caller, hook, ours);
    let (style, word) = if problems.is_empty() { (GOOD, "installed") } else { (BAD, "would not work") };
    let mut text = format!(
        "{:<10} {} by proctor {}, {}\n",
        slot.hook.as_str(),
        paint(style, word),
        shown_line(&ours.version),
        shown_line(&ours.options)
    );
    problems.iter().for_each(|problem| text.push_str(&format!("           {problem}\n")));
    let first = match standing(&slot.before()) {
        Standing::Nothing => None,
        Standing::Hook(Hook { is_executable: true, whose, .. }) => Some(match whose {
            Whose::Of(manager) => format!("runs first: that of {}", manager.name()),
            _ => "runs first".to_owned(),
        }),
        _ => Some("is not executable, and does not run".to_owned()),
    };
    if let Some(first) = first {
        text.push_str(&format!("           {}{BEFORE} {first}\n", slot.hook.as_str()));
    }
    if ours.version != env!("CARGO_PKG_VERSION") {
        let hint = "another version wrote it; `proctor hook install` replaces it".to_owned();
        text.push_str(&style::lines_of(&[hint]));
    }
    Told { text, is_broken: !problems.is_empty() }
}

/// Returns the problems that would keep our hook from verifying anything.
fn problems(place: &Place, caller: &Caller, hook: &Hook, ours: &Ours) -> Vec<String> {
    let mut problems = Vec::new();
    if !hook.is_executable {
        problems.push("it is not executable, and git does not run it; install it again".to_owned());
    }
    if !is_program(Path::new(&ours.program)) && !is_on_path(caller) {
        problems.push(format!("`{}` is not there any more, and `proctor` is not on PATH", shown_line(&ours.program)));
    }
    problems.extend(problem_of_spec(place, ours, caller));
    problems
}

/// Checks the spec in the worktree. A commit has its own spec, which is likely the same.
fn problem_of_spec(place: &Place, ours: &Ours, caller: &Caller) -> Option<String> {
    let mut words = ours.options.split(' ').skip_while(|word| *word != "--profile");
    let profile = words.nth(1)?;
    match Specification::of_repository(&place.top, caller) {
        Err(_) if !place.top.join(spec::PATH).exists() => Some(format!("there is no `{}`", spec::PATH)),
        Err(_) => Some(format!("`{}` is not valid; `proctor validate` shows the problems", spec::PATH)),
        Ok(found) if found.spec.profiles.get(profile).is_none() => {
            Some(format!("the spec has no profile `{}`", shown_line(profile)))
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
