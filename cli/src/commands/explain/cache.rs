//! Renders whether a run would use the stored results of steps, and why.

use proctor_core::record::evidence::{CACHED, ReuseSource};
use proctor_runner::{ProfilePreview, ReusePreview, StepPreview, StoredPreview};

use crate::style::{DIM, GOOD, STRONG, UNSURE, paint};
use crate::text::escape_line;

/// Maximum number of inputs of a step that are listed.
const MAX_LISTED_INPUTS: usize = 1_000;

/// Renders how a run would reuse results, and the steps of a profile, or only the step with the path `wanted`. With
/// `verbose`, lists the inputs of the results.
pub(super) fn render(preview: &ProfilePreview, wanted: Option<&str>, verbose: bool) -> String {
    let chosen = preview.steps.iter().filter(|step| wanted.is_none_or(|wanted| step.path == wanted));
    let text: String = chosen.map(|step| render_step(step, verbose)).collect();
    match wanted.filter(|_| text.is_empty()) {
        Some(check) => format!("{} would be executed: toolchain checks are never reused\n", escape_line(check)),
        None => mode_line(preview) + &text,
    }
}

/// Renders the reuse mode and the reason, if no step can reuse a result.
fn mode_line(preview: &ProfilePreview) -> String {
    let Some(reason) = &preview.reason else { return String::new() };
    format!("{} {}; {}\n", paint(DIM, "reuse:"), preview.mode.as_str(), escape_line(reason))
}

fn render_step(preview: &StepPreview, verbose: bool) -> String {
    let path = paint(STRONG, escape_line(&preview.path));
    let mut text = match &preview.reuse {
        ReusePreview::Reused(result) => {
            let word = paint(GOOD, format!("would be {CACHED}"));
            let source = escape_line(&result.source.phrase());
            format!("{path} {word}\n  {source}\n{}", input_lines(result, verbose))
        }
        ReusePreview::NothingToCheck { reason } => {
            format!("{path} would not run: {}\n", escape_line(reason))
        }
        ReusePreview::Executed { reason, identity, newest, not_stored } => {
            let word = paint(UNSURE, "would be executed:");
            let mut text = format!("{path} {word} {}\n", escape_line(reason));
            if let Some(reason) = not_stored {
                text.push_str(&format!("  the last execution was not stored: {}\n", escape_line(reason)));
            }
            if let Some(result) = newest {
                text.push_str(&format!("  the newest stored result is {}\n", origin(&result.source)));
                text.push_str(&input_lines(result, verbose));
            }
            if !identity.is_empty() {
                text.push_str("  a result is stored for all of these together:\n");
                text.extend(identity.iter().map(|part| format!("    {part}\n")));
            }
            text
        }
    };
    if let Some(note) = &preview.note {
        text.push_str(&format!("  {}\n", escape_line(note)));
    }
    if !preview.executed_before.is_empty() {
        let before = escape_line(&preview.executed_before.join(", "));
        text.push_str(&format!(
            "  {} {before}\n",
            paint(DIM, "provided that these steps, which would be executed before, leave no files:")
        ));
    }
    text
}

fn origin(source: &ReuseSource) -> String {
    let machine = source.origin.as_ref().map(|origin| format!(" of `{}` (key {})", origin.host, origin.short_key()));
    let machine = escape_line(&machine.unwrap_or_default());
    format!("of run {}{machine}, executed {}", source.run_id, escape_line(&source.executed_at))
}

/// Renders which files the step looked for although they are not inputs and, if `verbose`, what it read.
fn input_lines(StoredPreview { inputs, inputs_note, .. }: &StoredPreview, verbose: bool) -> String {
    let note = inputs_note.as_ref().map(|note| format!("  it {}\n", escape_line(note))).unwrap_or_default();
    if !verbose {
        return note;
    }
    let shown = inputs.displayed().take(MAX_LISTED_INPUTS);
    let line =
        |access: String, path: &str| format!("    {} {}\n", paint(DIM, format!("{access:<6}")), escape_line(path));
    let lines = shown.map(|input| line(input.access.to_string(), &input.path));
    let mut text: String = [note].into_iter().chain(lines).collect();
    let hidden = inputs.path_count().saturating_sub(MAX_LISTED_INPUTS);
    if hidden > 0 {
        text.push_str(&format!("    and {hidden} more\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use proctor_core::model::names::RunId;
    use proctor_core::model::trace::{AccessTrace, AccessedPath, PathState};
    use proctor_core::record::run_reuse::ReuseMode;
    use proctor_core::reuse::ObservedInputs;
    use proctor_core::text::digest::Sha256Hex;

    use super::*;
    use crate::text::strip_colours;

    fn source(inputs: u64) -> ReuseSource {
        let executed_at = "2026-01-02T03:04:05.678Z".to_owned();
        let run_id = RunId::new("r1").expect("an id");
        ReuseSource {
            run_id,
            executed_at,
            inputs_sha256: Sha256Hex::digest(b""),
            inputs,
            whole_tree: false,
            transparent_caches: Vec::new(),
            origin: None,
        }
    }

    fn inputs(number: usize) -> ObservedInputs {
        let absent = |number| AccessedPath {
            path: format!("/{number:04}").into_bytes(),
            state: PathState::Absent,
            stamp: None,
            read: false,
            listing: None,
        };
        let host = AccessTrace::new((0..number).map(absent).collect()).expect("a trace");
        ObservedInputs::new(AccessTrace::default(), Vec::new(), host).expect("inputs")
    }

    fn stored(counted: u64, listed: usize) -> StoredPreview {
        StoredPreview { source: source(counted), inputs: inputs(listed), inputs_note: None }
    }

    fn preview(path: &str, reuse: ReusePreview) -> StepPreview {
        StepPreview { path: path.to_owned(), reuse, note: None, executed_before: Vec::new() }
    }

    fn observed(steps: &[StepPreview]) -> ProfilePreview {
        ProfilePreview { mode: ReuseMode::Observed, reason: None, steps: steps.to_vec() }
    }

    #[test]
    fn names_the_mode_if_steps_cannot_be_observed() {
        let step = preview("a/s", ReusePreview::NothingToCheck { reason: "no file".to_owned() });
        let whole = ProfilePreview {
            mode: ReuseMode::WholeTree,
            reason: Some("no device".to_owned()),
            ..observed(std::slice::from_ref(&step))
        };
        let text = strip_colours(&render(&whole, None, false));
        assert_eq!(text, "reuse: whole_tree; no device\na/s would not run: no file\n");
    }

    #[test]
    fn names_the_source_of_a_usable_result() {
        let reused = preview("a/s", ReusePreview::Reused(stored(2, 2)));
        let other = preview("a/t", ReusePreview::NothingToCheck { reason: "no file".to_owned() });
        let rendered =
            |verbose| strip_colours(&render(&observed(&[reused.clone(), other.clone()]), Some("a/s"), verbose));
        let short =
            "a/s would be cached\n  cached from run r1, executed 2026-01-02T03:04:05.678Z, 2 inputs unchanged\n";
        assert_eq!(rendered(false), short);
        assert_eq!(rendered(true), format!("{short}    absent /0000\n    absent /0001\n"));
        assert!(
            strip_colours(&render(&observed(&[reused, other]), None, false)).ends_with("a/t would not run: no file\n")
        );
    }

    #[test]
    fn gives_the_reasons_for_an_execution() {
        let reuse = ReusePreview::Executed {
            reason: "`x` now exists".to_owned(),
            identity: &[],
            newest: Some(StoredPreview {
                inputs_note: Some("looked for 1 path that is not an input: a".to_owned()),
                ..stored(1, MAX_LISTED_INPUTS + 2)
            }),
            not_stored: Some("it did not pass".to_owned()),
        };
        let executed = StepPreview {
            executed_before: vec!["b/t".to_owned()],
            note: Some("`per_file` is wrong".to_owned()),
            ..preview("a/s", reuse)
        };
        let text = strip_colours(&render(&observed(std::slice::from_ref(&executed)), None, false));
        assert_eq!(
            text,
            "a/s would be executed: `x` now exists\n  the last execution was not stored: it did not pass\n  the newest \
             stored result is of run r1, executed 2026-01-02T03:04:05.678Z\n  it looked for 1 path that is not an input: a\n  `per_file` is wrong\n  provided that these steps, which would be \
             executed before, leave no files: b/t\n"
        );
        let long = strip_colours(&render(&observed(&[executed]), None, true));
        assert!(long.contains("    and 2 more\n") && long.contains("    absent /0999\n"), "{long}");
    }
}
