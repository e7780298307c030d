//! Implements `proctor compare`, which shows the differences between two runs. Each run is named by its id or by the
//! directory of its documents.

use std::path::{Path, PathBuf};

use proctor_core::decision::compare::{Comparison, Difference, RunDocuments, compare as compared};
use proctor_core::model::names::RunId;

use crate::args::{CompareArgs, OutputFormat};
use crate::caller::Caller;
use crate::daemon::{self, Purpose};
use crate::error::CliError;
use crate::installation;
use crate::run_documents;
use crate::screen::Screen;
use crate::style::{ADDED, DIM, GOOD, REMOVED, STRONG, UNSURE, paint};
use crate::text::{count, escape_line, truncate};

/// Exit code for runs that differ.
const EXIT_DIFFERENT: u8 = 1;

/// Compares two runs. Returns code 0 if they differ at most in measured values such as durations, otherwise 1.
///
/// # Errors
/// A run cannot be found or read.
pub(crate) async fn compare(args: &CompareArgs, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    let before = load_documents(&args.before, args, caller).await?;
    let after = load_documents(&args.after, args, caller).await?;
    let comparison = compared(&before, &after);
    match args.format {
        OutputFormat::Human => screen.out(&render(&comparison, screen.width())),
        OutputFormat::Json => screen.out_canonical(&comparison),
    }
    Ok(if comparison.same { 0 } else { EXIT_DIFFERENT })
}

/// Loads the documents of the named run or directory.
async fn load_documents(named: &str, args: &CompareArgs, caller: &Caller) -> Result<RunDocuments, CliError> {
    if let Some(dir) = documents_directory(named, caller) {
        return run_documents::load(&dir);
    }
    let run = RunId::new(named).map_err(|bad| CliError::Usage {
        message: format!("`{}` is neither a run nor a directory: {bad}", escape_line(named)),
        hint: "`proctor status` lists runs; write a directory with a `/`, such as `./verify`".to_owned(),
    })?;
    let state = installation::state_dir(&args.state, caller)?;
    let repo = installation::repository(&args.repo, caller).ok();
    if let Some(dir) = run_documents::find_directory(&run, &state, repo.as_deref()) {
        return run_documents::load(&dir);
    }
    match daemon::find_daemon(&args.daemon, Purpose::ReadRuns, caller).await {
        Ok(daemon) => run_documents::fetch(&daemon.client, &run).await,
        Err(error) => Err(CliError::Usage {
            message: format!("the documents of the run {run} are not stored here, and no daemon is available: {error}"),
            hint: format!(
                "they may be in another state directory than `{}` (`--state-dir`)",
                installation::show(&state)
            ),
        }),
    }
}

/// Returns a directory if `named` is a path, which a `/` distinguishes from a run id. For the inner directory
/// `verify` the parent is returned.
fn documents_directory(named: &str, caller: &Caller) -> Option<PathBuf> {
    if !named.contains('/') && named != "." {
        return None;
    }
    let path = caller.cwd.join(named);
    let is_inner = !path.join("05-status.json").exists() && path.ends_with("verify");
    Some(if is_inner { path.parent().map(Path::to_owned).unwrap_or(path) } else { path })
}

fn render(comparison: &Comparison, width: usize) -> String {
    let (unmeasured, measured): (Vec<_>, Vec<_>) = comparison.differences.iter().partition(|it| !it.measured);
    let mut text = unmeasured.iter().map(|difference| render_difference(difference, width)).collect::<String>();
    if !measured.is_empty() {
        text.push_str(&format!("{}\n", paint(DIM, "measured, which equal inputs need not reproduce:")));
        text.extend(measured.iter().map(|difference| render_difference(difference, width)));
    }
    if comparison.omitted > 0 {
        text.push_str(&format!("and {} more\n", comparison.omitted));
    }
    let (before, after) = (&comparison.before, &comparison.after);
    let head = match comparison.same {
        true => format!("{}: {before} and {after}", paint(GOOD, "the same")),
        false => {
            let hidden = usize::try_from(comparison.omitted).unwrap_or(usize::MAX);
            let number = count(unmeasured.len().saturating_add(hidden), "difference");
            format!("{}: {number} from {before} to {after}", paint(UNSURE, "different"))
        }
    };
    text + &head + "\n"
}

/// Renders a difference with the value before and after.
fn render_difference(difference: &Difference, width: usize) -> String {
    let Difference { kind, at, field, before, after, .. } = difference;
    let position: Vec<&str> = [at.as_str(), field.as_str()].into_iter().filter(|part| !part.is_empty()).collect();
    let place = escape_line(&position.join(" "));
    let head = format!("{} {place}", paint(STRONG, kind.as_str()));
    let line = |sign: char, style, value: &Option<String>| {
        let value = value.as_deref().map_or_else(|| "(not there)".to_owned(), escape_line);
        format!("  {}\n", paint(style, truncate(&format!("{sign} {value}"), width.saturating_sub(2))))
    };
    head.trim_end().to_owned() + "\n" + &line('-', REMOVED, before) + &line('+', ADDED, after)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::strip_colours;
    use proctor_core::decision::compare::{DifferenceKind, VERSION};

    fn difference(kind: DifferenceKind, at: &str, field: &str, before: &str, after: Option<&str>) -> Difference {
        Difference {
            kind,
            at: at.into(),
            field: field.into(),
            before: Some(before.into()),
            after: after.map(str::to_owned),
            measured: kind == DifferenceKind::Duration,
        }
    }

    fn comparison(same: bool, differences: Vec<Difference>) -> Comparison {
        let run = |id: &str| RunId::new(id).expect("an id");
        Comparison { version: VERSION, before: run("r1"), after: run("r2"), same, differences, omitted: 0 }
    }

    #[test]
    fn shows_differences_before_measured_values() {
        let differences = vec![
            difference(DifferenceKind::Verdict, "", "", "passed", Some("failed")),
            difference(DifferenceKind::Duration, "a/s", "", "100 ms", Some("900 ms")),
            difference(DifferenceKind::Drift, "a/s", "src/\u{1b}x.rs", "modified", None),
            difference(DifferenceKind::Output, "a/s", "stdout", &"e".repeat(200), Some("f")),
        ];
        insta::assert_snapshot!(strip_colours(&render(&comparison(false, differences), 80)));
        assert_eq!(strip_colours(&render(&comparison(true, vec![]), 80)), "the same: r1 and r2\n");
    }

    #[test]
    fn slash_distinguishes_directory_from_run() {
        let caller = Caller::for_tests(&[]);
        assert_eq!(documents_directory("20260102T030405Z-1", &caller), None);
        assert_eq!(documents_directory("changes/x/verify", &caller), Some("/changes/x".into()));
        assert_eq!(documents_directory("/a/b", &caller), Some("/a/b".into()));
    }
}
