//! Runs the command that writes a needed path: in a sandbox like that of a step, over the tree. Its writes to the tree
//! are discarded; its writes to the path are the result.

use std::path::Path;
use std::sync::Arc;

use proctor_core::model::enforcement::Control;
use proctor_core::model::outcome::Termination;
use proctor_core::model::plan::{PlannedStep, RelPath};
use proctor_core::record::evidence::StreamEvidence;
use proctor_sandbox::{CACHE_UPPER, CacheForm, CacheMount, CacheSource};

use crate::error::one_line;
use crate::run::run_context::RunContext;
use crate::step::attempt::{self, AttemptResult};
use crate::step::layer_stack::LayerStack;
use crate::step::timing::StageTimer;

/// Maximum number of the last lines of output that a message quotes.
const MAX_QUOTED_LINES: usize = 4;
/// Maximum length of each of these lines, in characters.
const MAX_QUOTED_LENGTH: usize = 200;

/// Runs `command`, which writes the directory `path` of the tree. On success, the result is in `room`/`upper`.
///
/// # Errors
/// A phrase that follows the command: the command failed, or the sandbox could not be set up.
pub(crate) async fn run(
    context: &Arc<RunContext>,
    command: &PlannedStep,
    path: &RelPath,
    room: &Path,
) -> Result<(), String> {
    let source = match &context.caches.form {
        CacheForm::Layers => CacheSource::Layers { room: room.to_owned(), lowers: vec![context.caches.empty.clone()] },
        CacheForm::Copy { .. } => CacheSource::Directory(room.join(CACHE_UPPER)),
        CacheForm::Empty { reason } => return Err(format!("cannot be stored: {reason}")),
    };
    let (policy, _) =
        context.policy_with_mounts(command, vec![CacheMount { at: path.clone(), source: source.clone() }]);
    let stack = LayerStack::new(Arc::clone(&context.tree.snapshot));
    let facts = &context.tree.repository.facts;
    context.withdraw_earlier_pass().await?;
    let spawned = context.launcher.spawn(&context.space, &stack.lowers(), facts, &policy);
    let (running, layer) = spawned.map_err(|error| format!("did not start: {}", one_line(&error)))?;
    let mut timer = StageTimer::start();
    let result =
        attempt::supervise(running, command, &context.outputs, None, &context.cancel, |_| {}, &mut timer).await;
    let judged = judge(context, command, &result);
    drop(result);
    context.space.release_cache(&source);
    let sealed = layer.seal();
    let discarded = tokio::task::spawn_blocking(move || sealed.discard()).await;
    if let Ok(Err(error)) = discarded {
        tracing::warn!(%error, "the layer of a preparing command cannot be removed before the run ends");
    }
    judged
}

fn judge(context: &RunContext, command: &PlannedStep, result: &AttemptResult) -> Result<(), String> {
    if !result.processes_ended {
        return Err("left a process that could not be ended".to_owned());
    }
    let gaps: Vec<&str> = result.enforcement.gaps(&context.host_view.tolerated).map(Control::as_str).collect();
    match &result.termination {
        Termination::Exited { code: 0 } if gaps.is_empty() => Ok(()),
        Termination::Exited { code: 0 } => Err(format!("ran without {}", gaps.join(", "))),
        Termination::NotStarted { reason, .. } => Err(format!("did not start: {reason}")),
        other => {
            let quoted = quoted_output(&result.stderr).or_else(|| quoted_output(&result.stdout));
            let offline = match command.network {
                proctor_core::model::plan::Network::Deny => " (`network: deny`)",
                proctor_core::model::plan::Network::Allow => "",
            };
            Err(format!("{}{offline}{}", other.phrase(), quoted.map(|lines| format!(": {lines}")).unwrap_or_default()))
        }
    }
}

/// Returns the last lines of an output as one line; `None` if there are none.
fn quoted_output(stream: &StreamEvidence) -> Option<String> {
    let text = if stream.tail.is_empty() { &stream.preview } else { &stream.tail };
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let last = &lines[lines.len().saturating_sub(MAX_QUOTED_LINES)..];
    let cut = |line: &&str| line.chars().take(MAX_QUOTED_LENGTH).collect::<String>();
    (!last.is_empty()).then(|| last.iter().map(cut).collect::<Vec<_>>().join(" | "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_the_last_lines_of_output() {
        let stream = |preview: &str, tail: &str| StreamEvidence {
            preview: preview.to_owned(),
            tail: tail.to_owned(),
            ..StreamEvidence::empty()
        };
        assert_eq!(quoted_output(&stream("", "")), None);
        assert_eq!(quoted_output(&stream("one\n\n two\n", "")).as_deref(), Some("one | two"));
        assert_eq!(quoted_output(&stream("1", "2\n3\n4\n5\n6\n")).as_deref(), Some("3 | 4 | 5 | 6"));
        let long = quoted_output(&stream(&"x".repeat(500), "")).expect("a line");
        assert_eq!(long.len(), MAX_QUOTED_LENGTH);
    }
}
