//! `cargo xtask page`: writes the HTML page of a run from the record that `proctor run --format json` prints.

use std::io::{Read, Write};

use anyhow::{Context, Result};
use proctor_core::record::run_record::RunRecord;
use proctor_core::report::html;

/// Maximum size of a record, in bytes.
const MAX_RECORD: u64 = 256 << 20;

/// Reads a record from `input`, and writes its page.
pub(crate) fn write(input: impl Read, mut output: impl Write) -> Result<()> {
    let record: RunRecord =
        serde_json::from_reader(input.take(MAX_RECORD)).context("the input is not the record of a run")?;
    output.write_all(html::render_page(&record, &[]).as_bytes()).context("the page could not be written")
}
