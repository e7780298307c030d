//! Writes the outputs of the action.

use std::io::{self, BufWriter, Write as _};

use super::agent_error::AgentError;
use super::input_root::InputRoot;
use super::stream_capture::StreamCapture;
use crate::agent::{AgentReport, AgentStream, CHANGES_CONTENT_FILE, LayerChange, MAX_REPORT_BYTES, REPORT_FILE};
use crate::layer_changes::{LayerBounds, LayerChangeError};
use crate::run_space::{Layer, Sealed};

/// Name of the report until it is complete.
const PARTIAL_REPORT: &str = "report.json.partial";
/// Maximum number of files and directories in the list of changes.
const MAX_CHANGES: usize = 200_000;
/// Size of the buffer for the content of small files, in bytes.
const BUFFER: usize = 256 << 10;

/// Writes the output file of a stream, and returns its description.
pub(super) fn write_stream(root: &InputRoot, name: &str, capture: StreamCapture) -> Result<AgentStream, AgentError> {
    let (stream, content) = capture.finish();
    let written = root.create_output(name)?.write_all(&content);
    written.map_err(AgentError::path("cannot write", root.path().join(name)))?;
    Ok(stream)
}

/// Writes the content of the files that the step wrote, and returns the list of its changes, or the reason for having
/// none. Entries for which `is_left_out` is true are not in the list.
pub(super) fn write_changes(
    root: &InputRoot,
    layer: Result<&Layer<Sealed>, String>,
    max_bytes: u64,
    is_left_out: &dyn Fn(&[u8]) -> bool,
) -> Result<Result<Vec<LayerChange>, String>, AgentError> {
    let file = root.create_output(CHANGES_CONTENT_FILE)?;
    let layer = match layer {
        Ok(layer) => layer,
        Err(reason) => return Ok(Err(reason)),
    };
    let bounds = LayerBounds { entries: MAX_CHANGES, bytes: max_bytes };
    let mut content = BufWriter::with_capacity(BUFFER, &file);
    let read = layer.read_changes(bounds, is_left_out, &mut content);
    let read = read.and_then(|changes| content.flush().map(|()| changes).map_err(LayerChangeError::Content));
    drop(content);
    if let Err(error) = read {
        // Removes the content, which is useless without the list.
        let cannot = AgentError::path("cannot shorten", root.path().join(CHANGES_CONTENT_FILE));
        file.set_len(0).map_err(cannot)?;
        return Ok(Err(error.to_string()));
    }
    Ok(read.map_err(|error| error.to_string()))
}

/// Writes the report, as the last output.
pub(super) fn write_report(root: &InputRoot, mut report: AgentReport) -> Result<(), AgentError> {
    let mut text = encode(&report)?;
    if text.len() as u64 > MAX_REPORT_BYTES {
        report.changes.clear();
        report.changes_error = Some(format!("the list of the step's changes has more than {MAX_REPORT_BYTES} bytes"));
        text = encode(&report)?;
    }
    let written = root.create_output(PARTIAL_REPORT)?.write_all(&text);
    written.map_err(AgentError::path("cannot write", root.path().join(PARTIAL_REPORT)))?;
    root.rename_output(PARTIAL_REPORT, REPORT_FILE)
}

fn encode(report: &AgentReport) -> Result<Vec<u8>, AgentError> {
    serde_json::to_vec(report)
        .map_err(|error| AgentError::System { what: "cannot encode the report", source: io::Error::other(error) })
}
