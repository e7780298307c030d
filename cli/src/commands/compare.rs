//! Implements `proctor compare`, which shows the differences between two runs. Each run is named by its id or by the
//! directory of its documents.

use std::path::{Path, PathBuf};

use proctor_core::decision::compare::{
    ChangedPath, Comparison, Difference, DifferenceKind, RunDocuments, TreeDifference, UnknownTree,
    compare as compared, compared_commits,
};
use proctor_core::model::drift::ChangeKind;
use proctor_core::model::names::RunId;

use crate::args::{CompareArgs, OutputFormat};
use crate::caller::Caller;
use crate::daemon::{self, Purpose};
use crate::engine;
use crate::error::CliError;
use crate::installation;
use crate::run_documents;
use crate::screen::Screen;
use crate::style::{self, ADDED, DIM, GOOD, REMOVED, STRONG, UNSURE, paint};
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
    let tree = compare_trees((&before, &after), args, caller, screen).await?;
    let comparison = Comparison { tree, ..compared(&before, &after) };
    match args.format {
        OutputFormat::Human => screen.out(&render(&comparison, screen.width())),
        OutputFormat::Json => screen.out_canonical(&comparison),
    }
    Ok(if comparison.same { 0 } else { EXIT_DIFFERENT })
}

/// Compares the trees of two runs, if they differ. The paths are read from the repository of the caller.
async fn compare_trees(
    (before, after): (&RunDocuments, &RunDocuments),
    args: &CompareArgs,
    caller: &Caller,
    screen: &mut Screen,
) -> Result<Option<TreeDifference>, CliError> {
    let commits = match compared_commits(before, after) {
        Ok(Some(commits)) => commits,
        Ok(None) => return Ok(None),
        Err(reason) => return Ok(Some(TreeDifference::Unknown { reason })),
    };
    let unknown = Ok(Some(TreeDifference::Unknown { reason: UnknownTree::Commit }));
    let Ok(repo) = installation::repository(&args.repo, caller) else { return unknown };
    let operator = installation::operator(&args.daemon.operator, caller)?;
    let engine = engine::open(&args.state, operator, caller, screen)?;
    match engine.changes_between(&repo, commits).await {
        Ok(changes) => Ok(Some(TreeDifference::from_changes(changes))),
        Err(error) => {
            let message = format!("the trees of the runs cannot be compared: {}", error.message());
            screen.err(&style::warning(&escape_line(&message)));
            unknown
        }
    }
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
                "the documents may be in a state directory other than `{}` (`--state-dir`)",
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
    let with_paths = |difference: &&Difference| {
        let paths = comparison.tree.as_ref().filter(|_| difference.kind == DifferenceKind::Tree);
        render_difference(difference, width) + &paths.map(render_tree).unwrap_or_default()
    };
    let mut text = unmeasured.iter().map(with_paths).collect::<String>();
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

/// Renders the paths at which the trees differ.
fn render_tree(tree: &TreeDifference) -> String {
    let (paths, omitted) = match tree {
        TreeDifference::Unknown { reason } => {
            return format!("  {}\n", paint(DIM, format!("the changed paths are not known: {}", reason.phrase())));
        }
        TreeDifference::Known { paths, omitted } => (paths, *omitted),
    };
    let line = |path: &ChangedPath| format!("  {} {}\n", change_word(path.kind), escape_line(&path.path));
    let mut text: String = paths.iter().map(line).collect();
    if omitted > 0 {
        let more = count(usize::try_from(omitted).unwrap_or(usize::MAX), "more path");
        text.push_str(&format!("  {}\n", paint(DIM, format!("and {more}"))));
    }
    text
}

fn change_word(kind: ChangeKind) -> &'static str {
    match kind {
        ChangeKind::Created => "created",
        ChangeKind::Modified => "modified",
        ChangeKind::Deleted => "deleted",
        ChangeKind::ModeChanged => "mode changed",
        ChangeKind::TypeChanged => "type changed",
    }
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
    use proctor_core::decision::compare::VERSION;

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
        Comparison { version: VERSION, before: run("r1"), after: run("r2"), same, differences, omitted: 0, tree: None }
    }

    #[test]
    fn names_changed_paths_or_why_they_are_unknown() {
        let tree = difference(DifferenceKind::Tree, "", "", "t1", Some("t2"));
        let changes = (0..21).map(|number| (format!("src/{number:02}").into_bytes(), ChangeKind::Modified));
        let known =
            Comparison { tree: Some(TreeDifference::from_changes(changes)), ..comparison(false, vec![tree.clone()]) };
        let text = strip_colours(&render(&known, 80));
        assert!(text.contains("  + t2\n  modified src/00\n") && text.contains("  and 1 more path\n"), "{text}");
        let reason = UnknownTree::Worktree;
        let unknown = Comparison { tree: Some(TreeDifference::Unknown { reason }), ..comparison(false, vec![tree]) };
        let text = strip_colours(&render(&unknown, 80));
        assert!(text.contains("the changed paths are not known: a run of the worktree records only"), "{text}");
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
