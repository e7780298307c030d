//! Implements `proctor cache`, which counts, checks and removes the stored results of steps.

use std::path::Path;

use proctor_core::decision::gc::FreedItems;
use proctor_core::reuse::{ResultStats, ResultVerification};
use proctor_core::text::humanize::used_size;
use proctor_runner::{EngineError, GcExtent, StoreError, prune_results, result_stats, verify_results};
use schemars::JsonSchema;
use serde::Serialize;

use crate::args::{CacheCommand, OutputFormat};
use crate::caller::Caller;
use crate::engine::engine_error;
use crate::error::CliError;
use crate::installation;
use crate::screen::Screen;
use crate::style::{self, DIM, paint};
use crate::text::{count, escape_line};

/// Maximum number of distrusted steps or damaged files that are shown as text.
const MAX_SHOWN: usize = 50;
/// The exit code if a damaged result was found.
const EXIT_DAMAGED: u8 = 1;

/// The output of `proctor cache --format json`: the answer of one command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CacheRecord {
    /// The answer of `proctor cache stats`.
    Stats(ResultStats),
    /// The answer of `proctor cache verify`.
    Verified(ResultVerification),
    /// The answer of `proctor cache prune`.
    Pruned(FreedItems),
}

/// Executes a command on the stored results of the caller's state directory. The exit code is 1 if `verify` finds a
/// damaged result.
///
/// # Errors
/// The directory belongs to another user, is not a state directory, or cannot be read or written.
pub(crate) fn cache(command: &CacheCommand, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    let shared = command.shared();
    let state_dir = installation::state_dir(&shared.state, caller)?;
    proctor_client::installation::secure_state_dir(&state_dir)?;
    let max_bytes = match command {
        CacheCommand::Prune(args) => installation::operator(&args.operator, caller)?.daemon.retention.max_result_bytes,
        CacheCommand::Stats(_) | CacheCommand::Verify(_) => u64::MAX,
    };
    let record = execute(command, &state_dir, max_bytes).map_err(|error| engine_error(EngineError::Store(error)))?;
    match shared.format {
        OutputFormat::Json => screen.out_json(&record)?,
        OutputFormat::Human => screen.out(&render(&record)),
    }
    let is_damaged = matches!(&record, CacheRecord::Verified(verified) if !verified.damaged.is_empty());
    Ok(if is_damaged { EXIT_DAMAGED } else { 0 })
}

fn execute(command: &CacheCommand, state_dir: &Path, max_bytes: u64) -> Result<CacheRecord, StoreError> {
    match command {
        CacheCommand::Stats(_) => result_stats(state_dir).map(CacheRecord::Stats),
        CacheCommand::Verify(_) => verify_results(state_dir).map(CacheRecord::Verified),
        CacheCommand::Prune(args) => {
            let extent = if args.all { GcExtent::All } else { GcExtent::Excess };
            prune_results(state_dir, max_bytes, extent).map(CacheRecord::Pruned)
        }
    }
}

fn render(record: &CacheRecord) -> String {
    match record {
        CacheRecord::Stats(stats) => render_stats(stats),
        CacheRecord::Verified(verified) => render_verification(verified),
        CacheRecord::Pruned(freed) => {
            format!("removed {}, {}\n", counted(freed.number, "entry"), used_size(freed.bytes))
        }
    }
}

fn render_stats(stats: &ResultStats) -> String {
    let mut text = format!(
        "{} of {}, {}\n",
        counted(stats.results, "stored result"),
        counted(stats.steps, "step"),
        used_size(stats.bytes)
    );
    if stats.from_others > 0 {
        text.push_str(&format!("{} {}\n", paint(DIM, "of other machines:"), counted(stats.from_others, "result")));
    }
    if let (Some(oldest), Some(newest)) = (&stats.oldest, &stats.newest) {
        text.push_str(&format!("{} {oldest}\n{} {newest}\n", paint(DIM, "oldest:"), paint(DIM, "newest:")));
    }
    for step in stats.distrusted.iter().take(MAX_SHOWN) {
        text.push_str(&style::warning(&format!("excluded from reuse: {}", escape_line(&step.reason))));
    }
    text + &hidden_line(stats.distrusted.len())
}

fn render_verification(verified: &ResultVerification) -> String {
    let damaged = verified.damaged.iter().take(MAX_SHOWN);
    let lines = damaged
        .map(|file| style::warning(&format!("removed {}: {}", escape_line(&file.file), escape_line(&file.problem))));
    let mut text: String = lines.collect();
    text.push_str(&hidden_line(verified.damaged.len()));
    let intact = counted(verified.intact, "intact result");
    text + &format!("{intact}, {} damaged and removed\n", verified.damaged.len())
}

fn hidden_line(number: usize) -> String {
    let hidden = number.saturating_sub(MAX_SHOWN);
    if hidden == 0 { String::new() } else { format!("and {hidden} more\n") }
}

fn counted(number: u64, noun: &str) -> String {
    match noun.strip_suffix('y') {
        Some(stem) if number != 1 => format!("{number} {stem}ies"),
        _ => count(usize::try_from(number).unwrap_or(usize::MAX), noun),
    }
}

#[cfg(test)]
mod tests {
    use proctor_core::reuse::{DamagedResult, DistrustedStep};

    use super::*;
    use crate::text::strip_colours;

    fn render_plain(record: &CacheRecord) -> String {
        strip_colours(&render(record))
    }

    #[test]
    fn shows_counts_and_excluded_steps() {
        let stats = ResultStats {
            steps: 2,
            results: 3,
            from_others: 1,
            bytes: 2 << 20,
            oldest: Some("2026-01-01T00:00:00Z".to_owned()),
            newest: Some("2026-01-02T00:00:00Z".to_owned()),
            distrusted: vec![DistrustedStep { key: "k".to_owned(), reason: "`test` failed\n".to_owned() }],
        };
        assert_eq!(
            render_plain(&CacheRecord::Stats(stats)),
            "3 stored results of 2 steps, 2 MiB\nof other machines: 1 result\noldest: 2026-01-01T00:00:00Z\nnewest: 2026-01-02T00:00:00Z\n\
             warning: excluded from reuse: `test` failed\\n\n"
        );
        let empty = render_plain(&CacheRecord::Stats(ResultStats::default()));
        assert_eq!(empty, "0 stored results of 0 steps, 0 B\n");
    }

    #[test]
    fn names_each_damaged_file() {
        let damaged = DamagedResult { file: "results/k/1.result".to_owned(), problem: "it is damaged".to_owned() };
        assert_eq!(
            render_plain(&CacheRecord::Verified(ResultVerification { intact: 1, damaged: vec![damaged] })),
            "warning: removed results/k/1.result: it is damaged\n1 intact result, 1 damaged and removed\n"
        );
    }

    #[test]
    fn counts_removed_entries() {
        let mut freed = FreedItems::default();
        freed.add(4096);
        assert_eq!(render_plain(&CacheRecord::Pruned(freed)), "removed 1 entry, 4 KiB\n");
        assert_eq!(render_plain(&CacheRecord::Pruned(FreedItems::default())), "removed 0 entries, 0 B\n");
    }
}
