//! Rejects options of `proctor run` that contradict each other.

use proctor_runner::SkillSelection;

use super::patch_output;
use crate::args::{RunArgs, RunFormat};
use crate::caller::Caller;
use crate::error::CliError;

/// Checks whether a revision is a range of commits.
pub(super) fn is_range(rev: &str) -> bool {
    rev.contains("..")
}

/// Returns the skills that the options select.
pub(super) fn skills_wanted(args: &RunArgs) -> SkillSelection {
    if args.last_failed { SkillSelection::NotPassed } else { SkillSelection::All }
}

/// Rejects combinations of options that contradict each other.
pub(super) fn reject_conflicting_options(args: &RunArgs, caller: &Caller) -> Result<(), CliError> {
    let usage = |message: &str, hint: &str| Err(CliError::Usage { message: message.into(), hint: hint.into() });
    let is_range_given = args.rev.as_deref().is_some_and(is_range);
    if is_range_given && args.changeset.is_some() {
        return usage(
            "a range has one result per commit, but a changeset stores only one",
            "name only its last commit",
        );
    }
    if is_range_given && args.patch.is_some() {
        return usage("`--patch` writes the changes of one run, and a range has many", "name one commit");
    }
    if args.scope.watch && args.reports.format != RunFormat::Human {
        return usage("`--watch` has no end, so it has no machine-readable result", "omit `--format`");
    }
    let to_stdout = args.patch.as_deref().is_some_and(patch_output::is_stdout);
    if to_stdout && args.reports.format != RunFormat::Human {
        return usage("`--patch -` and `--format` both write to standard output", "name a file for the patch");
    }
    // Patch content comes from a step, and a terminal would interpret escape sequences in it.
    if to_stdout && caller.stdout_is_terminal {
        return usage(
            "an unescaped patch is not written to a terminal",
            "name a file, or use `-` and redirect the output",
        );
    }
    Ok(())
}
