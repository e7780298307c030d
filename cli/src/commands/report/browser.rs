//! Opens a page in the user's browser.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::caller::Caller;
use crate::error::CliError;
use crate::installation::show;

/// Stands for the page in `$BROWSER`.
const PAGE_PLACEHOLDER: &str = "%s";
const DESKTOP_OPENER: &str = "xdg-open";
const DISPLAY_VARIABLES: [&str; 2] = ["DISPLAY", "WAYLAND_DISPLAY"];

/// Reason why no browser can be started.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum NoBrowser {
    #[error("`$BROWSER` names no installed program")]
    UnknownBrowser,
    #[error("`xdg-open` is not installed, and `$BROWSER` is not set")]
    NoOpener,
    #[error("there is no display: neither `$DISPLAY` nor `$WAYLAND_DISPLAY` is set")]
    NoDisplay,
}

/// Opens a page, and waits for the program that opens it: `$BROWSER`, else `xdg-open`.
///
/// # Errors
/// There is no such program or no display, or the program fails.
#[expect(clippy::disallowed_methods, reason = "the caller's own browser, which the caller asked for")]
pub(super) fn open_page(caller: &Caller, page: &Path) -> Result<(), CliError> {
    let failed = |reason: String| CliError::Environment {
        message: format!("the page is in `{}`, but was not opened: {reason}", show(page)),
        hint: "open the file in a browser, or set `$BROWSER` to a command that does".to_owned(),
    };
    let words = browser_command(caller, page).map_err(|error| failed(error.to_string()))?;
    let mut command = Command::new(&words[0]);
    let ended = command.args(&words[1..]).status();
    match ended {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(failed(format!("`{}` failed ({status})", show(&words[0])))),
        Err(error) => Err(failed(format!("`{}` cannot be started: {error}", show(&words[0])))),
    }
}

/// Returns the command that opens a page. `$BROWSER` lists commands, separated by colons; the first one that is installed
/// is used. A command of `$BROWSER` may be a text browser or reach another machine, so it needs no display here.
fn browser_command(caller: &Caller, page: &Path) -> Result<Vec<PathBuf>, NoBrowser> {
    if let Some(listed) = caller.var("BROWSER") {
        let mut commands = listed.split(':').filter_map(|command| {
            let mut words = command.split_whitespace();
            Some((find_in_path(caller, words.next()?)?, words.collect::<Vec<_>>()))
        });
        let (program, words) = commands.next().ok_or(NoBrowser::UnknownBrowser)?;
        let has_placeholder = words.iter().any(|word| word.contains(PAGE_PLACEHOLDER));
        let page_text = page.to_string_lossy();
        let words = words.into_iter().map(|word| PathBuf::from(word.replace(PAGE_PLACEHOLDER, &page_text)));
        return Ok(std::iter::once(program).chain(words).chain((!has_placeholder).then(|| page.to_owned())).collect());
    }
    let opener = find_in_path(caller, DESKTOP_OPENER).ok_or(NoBrowser::NoOpener)?;
    match DISPLAY_VARIABLES.iter().any(|name| caller.var(name).is_some()) {
        true => Ok(vec![opener, page.to_owned()]),
        false => Err(NoBrowser::NoDisplay),
    }
}

/// Returns the path of an installed program. A name without `/` is looked up in the absolute directories of `PATH`.
fn find_in_path(caller: &Caller, name: &str) -> Option<PathBuf> {
    let is_program = |path: &PathBuf| path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok();
    if name.contains('/') {
        return Some(caller.cwd.join(name)).filter(is_program);
    }
    let directories = caller.var("PATH").into_iter().flat_map(|path| path.split(':')).map(Path::new);
    directories.filter(|directory| directory.is_absolute()).map(|directory| directory.join(name)).find(is_program)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const PAGE: &str = "/c/a page.html";

    /// Returns the command of a caller with these variables, whose `PATH` has these programs.
    fn command(programs: &[&str], env: &[(&str, &str)]) -> Result<Vec<String>, NoBrowser> {
        let bin = tempfile::tempdir().expect("temp");
        for program in programs {
            let path = bin.path().join(program);
            std::fs::copy("/bin/true", &path).expect("copies");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("executable");
        }
        let path = bin.path().to_str().expect("text");
        let caller = Caller::for_tests(&[&[("PATH", path)], env].concat());
        let words = browser_command(&caller, Path::new(PAGE))?;
        let text = |word: PathBuf| word.to_str().expect("text").replace(&format!("{path}/"), "");
        Ok(words.into_iter().map(text).collect())
    }

    #[test]
    fn prefers_the_installed_browser_that_the_user_named() {
        let named = |listed| command(&["w3m", "xdg-open"], &[("BROWSER", listed), ("DISPLAY", ":0")]);
        assert_eq!(named("w3m"), Ok(vec!["w3m".to_owned(), PAGE.to_owned()]));
        assert_eq!(named("missing:w3m -o x"), Ok(["w3m", "-o", "x", PAGE].map(str::to_owned).to_vec()));
        assert_eq!(named("w3m --url=%s -q"), Ok(["w3m", "--url=/c/a page.html", "-q"].map(str::to_owned).to_vec()));
        assert_eq!(named("missing"), Err(NoBrowser::UnknownBrowser));
    }

    #[test]
    fn opens_the_desktop_browser_only_on_a_display() {
        let on_display = [("WAYLAND_DISPLAY", "wayland-0")];
        assert_eq!(command(&["xdg-open"], &on_display), Ok(vec!["xdg-open".to_owned(), PAGE.to_owned()]));
        assert_eq!(command(&["xdg-open"], &[]), Err(NoBrowser::NoDisplay));
        assert_eq!(command(&[], &on_display), Err(NoBrowser::NoOpener));
    }
}
