//! Implements `proctor gc`, which removes from the state directory everything beyond the bounds, or everything that
//! can be recreated.

use proctor_core::decision::gc::{FreedItems, RemovedItems};
use proctor_core::text::humanize::used_size;
use proctor_runner::{EngineError, GcExtent, collect_garbage};
use schemars::JsonSchema;
use serde::Serialize;

use crate::args::{GcArgs, OutputFormat};
use crate::caller::Caller;
use crate::engine::engine_error;
use crate::error::CliError;
use crate::installation::{self, show};
use crate::screen::Screen;
use crate::style::{DIM, paint};
use crate::text::escape_line;

/// The output of `proctor gc --format json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct GcRecord {
    /// True if all copies and caches were removed, instead of only those beyond the bounds.
    pub all: bool,
    /// The state directory.
    pub state_dir: String,
    /// The removed items of each kind.
    pub freed: RemovedItems,
    /// The total number of freed bytes.
    pub bytes: u64,
}

/// Cleans the caller's state directory.
///
/// # Errors
/// The directory belongs to another user, is not a state directory, or cannot be written.
pub(crate) fn gc(args: &GcArgs, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    let operator = installation::operator(&args.operator, caller)?;
    let state_dir = installation::state_dir(&args.state, caller)?;
    proctor_client::installation::secure_state_dir(&state_dir)?;
    let extent = if args.all { GcExtent::All } else { GcExtent::Excess };
    let freed = match state_dir.symlink_metadata() {
        // There has been no run yet.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => RemovedItems::default(),
        _ => collect_garbage(&state_dir, &operator.daemon.retention, extent)
            .map_err(|error| engine_error(EngineError::Store(error)))?,
    };
    let record = GcRecord { all: args.all, state_dir: show(&state_dir), freed, bytes: freed.bytes() };
    match args.format {
        OutputFormat::Human => screen.out(&render(&record)),
        OutputFormat::Json => screen.out_json(&record)?,
    }
    Ok(0)
}

fn render(record: &GcRecord) -> String {
    let kinds = record.freed.kinds();
    let mut text: String = kinds.iter().map(|(kind, freed)| kind_line(kind, *freed)).collect();
    text.push_str(&format!("freed {} in {}\n", used_size(record.bytes), escape_line(&record.state_dir)));
    text
}

fn kind_line(kind: &str, freed: FreedItems) -> String {
    let in_use = match freed.in_use {
        0 => String::new(),
        held => paint(DIM, format!(" ({held} in use)")),
    };
    format!("{} {:>6} removed, {}{in_use}\n", paint(DIM, format!("{kind:<15}")), freed.number, used_size(freed.bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_each_kind_and_the_sum() {
        let mut freed = RemovedItems::default();
        freed.copies.add(3 << 20);
        freed.copies.in_use = 2;
        freed.caches.add_bytes(1 << 20);
        let record = GcRecord { all: true, state_dir: "/s".to_owned(), bytes: freed.bytes(), freed };
        let text = crate::text::strip_colours(&render(&record));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "private copies       1 removed, 3 MiB (2 in use)");
        assert_eq!(lines[1], "caches               0 removed, 1 MiB");
        assert_eq!(lines[5..], ["freed 4 MiB in /s"]);
    }
}
