//! Implements `proctor du`, which lists what uses the space of the state directory.

use proctor_core::decision::gc::KindUsage;
use proctor_core::text::humanize::{size, used_size};
use proctor_runner::{EngineError, state_usage};
use schemars::JsonSchema;
use serde::Serialize;

use crate::args::{DuArgs, OutputFormat};
use crate::caller::Caller;
use crate::engine::engine_error;
use crate::error::CliError;
use crate::installation::{self, show};
use crate::screen::Screen;
use crate::style::{DIM, STRONG, paint};
use crate::text::escape_line;

/// Maximum number of repositories of a kind that are shown as text.
const MAX_SHOWN: usize = 10;

/// The output of `proctor du --format json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct DiskUsageRecord {
    /// The state directory.
    pub state_dir: String,
    /// The used bytes on the disk.
    pub bytes: u64,
    /// The used space of each kind, largest first.
    pub kinds: Vec<KindUsage>,
}

/// Lists the used space. The code is 0 even if the state directory does not exist.
///
/// # Errors
/// The directory is not a state directory, or cannot be read.
pub(crate) fn du(args: &DuArgs, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    let state_dir = installation::state_dir(&args.state, caller)?;
    let retention = installation::operator(&args.operator, caller)?.daemon.retention;
    let kinds = state_usage(&state_dir).map_err(|error| engine_error(EngineError::Store(error)))?;
    let kinds: Vec<KindUsage> = kinds.into_iter().map(|kind| kind.with_bound(&retention)).collect();
    let bytes = kinds.iter().fold(0_u64, |sum, kind| sum.saturating_add(kind.bytes));
    let record = DiskUsageRecord { state_dir: show(&state_dir), bytes, kinds };
    match args.format {
        OutputFormat::Json => screen.out_json(&record)?,
        OutputFormat::Human => screen.out(&render(&record)),
    }
    Ok(0)
}

fn render(record: &DiskUsageRecord) -> String {
    let mut text: String = record.kinds.iter().map(render_kind).collect();
    text.push_str(&format!("{:>10} in {}\n", used_size(record.bytes), escape_line(&record.state_dir)));
    text
}

fn render_kind(usage: &KindUsage) -> String {
    let bound = usage.max_bytes.map(|max| paint(DIM, format!(", at most {}", size(max)))).unwrap_or_default();
    let mut text = format!("{:>10} {}{bound}\n", used_size(usage.bytes), paint(STRONG, &usage.kind));
    for one in usage.repositories.iter().take(MAX_SHOWN) {
        text.push_str(&format!("{:>10}   {}\n", used_size(one.bytes), escape_line(&one.repository)));
    }
    let hidden = usage.repositories.len().saturating_sub(MAX_SHOWN);
    if hidden > 0 {
        text.push_str(&format!("{:>10}   {}\n", "", paint(DIM, format!("and {hidden} more repositories"))));
    }
    if usage.unassigned_bytes > 0 && !usage.repositories.is_empty() {
        let name = paint(DIM, "of unknown repositories");
        text.push_str(&format!("{:>10}   {name}\n", used_size(usage.unassigned_bytes)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_kinds_with_their_repositories() {
        let kinds = vec![
            KindUsage::new("private copies", 5 << 20, [("/a".to_owned(), 1 << 20), ("/b".to_owned(), 3 << 20)]),
            KindUsage::new("other", 1 << 10, []),
        ];
        let retention = proctor_core::spec::OperatorConfig::default().daemon.retention;
        let kinds = kinds.into_iter().map(|kind| kind.with_bound(&retention)).collect();
        let record = DiskUsageRecord { state_dir: "/s".to_owned(), bytes: 6 << 20, kinds };
        let text = crate::text::strip_colours(&render(&record));
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        assert_eq!(
            lines,
            [
                "5 MiB private copies, at most 20 GiB",
                "3 MiB   /b",
                "1 MiB   /a",
                "1 MiB   of unknown repositories",
                "1 KiB other",
                "6 MiB in /s"
            ]
        );
    }
}
