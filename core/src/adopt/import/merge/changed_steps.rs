//! Changes steps of an existing spec in its text, so that they check the files of imported steps too.

use serde_json::Value;

use super::repeated_checks::{RepeatedCheck, StepChange};
use crate::adopt::import::spec_yaml::{command_field, files_field};
use crate::spec::{self, Span, Spec, Step};

/// Indentation of the fields of a step in the usual layout.
const INDENT: &str = "        ";

/// Returns the text with the changes of all steps. A step whose layout is unusual stays as it is, and its entry is removed
/// from `repeated`, so that the imported step is added.
pub(super) fn change_steps(existing: &str, old: &Spec, repeated: &mut Vec<RepeatedCheck>) -> String {
    let mut text = existing.to_owned();
    // A change moves what follows it.
    let mut order: Vec<usize> = (0..repeated.len()).collect();
    let start = |one: &RepeatedCheck| step_of(old, one).and_then(|step| Some(step.cmd.as_ref()?.span.start));
    order.sort_by_key(|number| std::cmp::Reverse(start(&repeated[*number])));
    let mut failed = Vec::new();
    for number in order {
        let one = &repeated[number];
        let Some(change) = &one.change else { continue };
        let changed = step_of(old, one).and_then(|step| changed_text(&text, step, change));
        match changed.filter(|changed| is_expected(&text, changed, one, change)) {
            Some(changed) => text = changed,
            None => failed.push(one.clone()),
        }
    }
    repeated.retain(|one| !failed.contains(one));
    text
}

fn step_of<'s>(spec: &'s Spec, one: &RepeatedCheck) -> Option<&'s Step> {
    spec.skills.get(one.skill.as_str())?.steps.value.get(one.step)
}

/// Returns the text with one changed step; `None` for an unusual layout.
fn changed_text(text: &str, step: &Step, change: &StepChange) -> Option<String> {
    let cmd = field_lines(text, "cmd", step.cmd.as_ref()?.span)?;
    let fix = match (&step.fix, &change.fix) {
        (Some(fix), Some(words)) => Some((field_lines(text, "fix", fix.span)?, words)),
        _ => None,
    };
    let mut replacements = vec![(cmd, files_field(&change.files) + &command_field("cmd", &change.cmd))];
    replacements.extend(fix.map(|(lines, words)| (lines, command_field("fix", words))));
    replacements.sort_by_key(|((start, _), _)| std::cmp::Reverse(*start));
    let mut changed = text.to_owned();
    for ((start, end), lines) in replacements {
        changed.replace_range(start..end, &lines);
    }
    Some(changed)
}

/// Returns the range of the lines of a field, if no other text is on them.
fn field_lines(text: &str, key: &str, value: Span) -> Option<(usize, usize)> {
    let (start, end) = (usize::try_from(value.start).ok()?, usize::try_from(value.end).ok()?);
    let head = format!("\n{INDENT}{key}:");
    let line = text.get(..start)?.rfind(&head)? + 1;
    let is_key = text.get(line..start)?.trim() == format!("{key}:");
    let end = start + text.get(start..end)?.trim_end().len();
    let line_end = text[end..].find('\n').map_or(text.len(), |length| end + length + 1);
    (is_key && text[end..line_end].trim().is_empty()).then_some((line, line_end))
}

/// Returns whether a text differs from the one before only by the change of one step.
fn is_expected(before: &str, after: &str, one: &RepeatedCheck, change: &StepChange) -> bool {
    let (Ok(before), Ok(after)) = (spec::parse(before.as_bytes()), spec::parse(after.as_bytes())) else { return false };
    let Some(step) = step_of(&after.spec, one) else { return false };
    let argv = |command: Option<&spec::Spanned<spec::SpecCommand>>| {
        command.and_then(|command| command.value.argv().ok()).map(Vec::from)
    };
    let rest = |spec: &Spec| {
        let mut value = serde_json::to_value(spec).unwrap_or_default();
        let step = &mut value["skills"][&one.skill]["steps"][one.step];
        for key in ["cmd", "fix", "files"] {
            step[key] = Value::Null;
        }
        value
    };
    argv(step.cmd.as_ref()).as_ref() == Some(&change.cmd)
        && argv(step.fix.as_ref()) == change.fix
        && step.files.as_ref().is_some_and(|files| files.value.to_rules(1, false) == change.files)
        && rest(&before.spec) == rest(&after.spec)
        && after.warnings.len() <= before.warnings.len()
}
