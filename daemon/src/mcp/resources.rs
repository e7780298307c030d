//! Serves runs, outputs and evidence as resources, in parts. All content is enclosed in marks, including evidence,
//! because it quotes the output of steps.

use std::time::Duration;

use proctor_core::api::{Problem, ProblemType, RunSummary, RunView};
use proctor_core::record::evidence::cached_of_steps;
use rmcp::ErrorData;
use rmcp::model::{
    ErrorCode, ListResourceTemplatesResult, ListResourcesResult, MetaObject, ReadResourceResult, Resource,
    ResourceContents, ResourceTemplate,
};
use serde_json::json;

use super::backend::Backend;
use super::descriptions;
use super::resource_uri::{ResourceUri, TEMPLATES, VERIFY_PREFIX};
use super::run_answer::UNTRUSTED_NOTE;
use super::untrusted::{KeptEnd, UntrustedText, safe_name};
use crate::history::RunFilter;

/// Maximum number of bytes of an output or document in one read.
pub(super) const MAX_CHUNK: usize = 32 << 10;
/// Maximum size of a problem's details in an error, in bytes.
const MAX_DETAIL: usize = 1_000;
/// Number of runs in a page of resources.
const PAGE_SIZE: u32 = 50;

/// Returns the URI templates.
pub(super) fn templates() -> ListResourceTemplatesResult {
    let template = |(uri, name, about): &(&str, &str, &str)| {
        ResourceTemplate::new(*uri, *name).with_description(*about).with_mime_type("text/plain")
    };
    ListResourceTemplatesResult::with_all_items(TEMPLATES.iter().map(template).collect())
}

/// Lists the runs that the caller may see, newest first.
pub(super) async fn list_resources<B: Backend>(
    backend: &B,
    cursor: Option<String>,
) -> Result<ListResourcesResult, ErrorData> {
    let filter = RunFilter { cursor, limit: Some(PAGE_SIZE), ..RunFilter::default() };
    let page = backend.list(filter).await.map_err(|problem| resource_error(&problem))?;
    let mut listed = ListResourcesResult::with_all_items(page.runs.iter().map(run_resource).collect());
    listed.next_cursor = page.next_cursor;
    Ok(listed)
}

fn run_resource(run: &RunSummary) -> Resource {
    let verdict = run.verdict.map_or(run.state.as_str(), proctor_core::decision::verdict::Verdict::as_str);
    let steps = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    let cached = cached_of_steps(steps(run.cached_steps), steps(run.steps));
    let cached = cached.map(|cached| format!(", {cached}")).unwrap_or_default();
    Resource::new(ResourceUri::Run(run.id.clone()).to_string(), format!("run {}", run.id))
        .with_description(format!(
            "profile {}, {verdict}{cached}, requested at {}",
            safe_name(run.request.profile.as_str()),
            run.queued_at
        ))
        .with_mime_type("text/plain")
}

/// Reads the resource at a URI.
pub(super) async fn read_resource<B: Backend>(backend: &B, uri: &str) -> Result<ReadResourceResult, ErrorData> {
    let unknown = || ErrorData::resource_not_found("there is no such resource; see the templates", None);
    let address = ResourceUri::parse(uri).ok_or_else(unknown)?;
    let part = load_part(backend, &address).await.map_err(|problem| resource_error(&problem))?;
    Ok(ReadResourceResult::new(vec![part.into_contents(uri, &address)]))
}

/// A part of a resource.
struct ResourcePart {
    about: String,
    bytes: Vec<u8>,
    offset: u64,
    total: u64,
}

async fn load_part<B: Backend>(backend: &B, address: &ResourceUri) -> Result<ResourcePart, Problem> {
    match address {
        ResourceUri::Run(id) => {
            let run = backend.watch(id, None, Duration::ZERO).await?.run;
            let bytes = run_overview(&run).into_bytes();
            let total = bytes.len() as u64;
            Ok(ResourcePart { about: format!("run {id}"), bytes, offset: 0, total }.truncated())
        }
        ResourceUri::Output(id, output, offset) => {
            let (part, total) = backend.output(id, *output, *offset, MAX_CHUNK).await?;
            let bytes = trim_partial_character(part.bytes, part.has_more);
            Ok(ResourcePart { about: "an output".to_owned(), bytes, offset: *offset, total })
        }
        ResourceUri::Evidence(id, file, offset) => {
            let document = backend.evidence(id, &format!("{VERIFY_PREFIX}{file}")).await?;
            let start = usize::try_from(*offset).unwrap_or(usize::MAX).min(document.len());
            let total = document.len() as u64;
            let part = ResourcePart {
                about: format!("evidence {file}"),
                bytes: document[start..].to_vec(),
                offset: *offset,
                total,
            };
            Ok(part.truncated())
        }
    }
}

impl ResourcePart {
    fn truncated(mut self) -> Self {
        let more = self.bytes.len() > MAX_CHUNK;
        self.bytes.truncate(MAX_CHUNK);
        self.bytes = trim_partial_character(self.bytes, more);
        self
    }

    fn into_contents(self, uri: &str, address: &ResourceUri) -> ResourceContents {
        let end = self.offset.saturating_add(self.bytes.len() as u64);
        let next = (end < self.total && !self.bytes.is_empty()).then(|| address.clone().with_offset(end).to_string());
        let about = format!("{}, bytes {} to {end} of {}", self.about, self.offset, self.total);
        let mut text = format!("{UNTRUSTED_NOTE}\n{}", UntrustedText::from_output(&self.bytes).with_marks(&about));
        if let (Some(next), false) = (&next, matches!(address, ResourceUri::Run(_))) {
            text.push_str(&format!("\nMore: {next}"));
        }
        let meta = json!({ "proctor/untrusted": true, "proctor/total_bytes": self.total, "proctor/next": next });
        let meta = MetaObject(meta.as_object().cloned().unwrap_or_default());
        ResourceContents::text(text, uri).with_mime_type("text/plain").with_meta(meta)
    }
}

/// Removes an incomplete character at the end if more bytes follow.
pub(super) fn trim_partial_character(mut bytes: Vec<u8>, more: bool) -> Vec<u8> {
    let Err(error) = std::str::from_utf8(&bytes) else { return bytes };
    let cut = error.error_len().is_none() && more && error.valid_up_to() > 0;
    if cut {
        bytes.truncate(error.valid_up_to());
    }
    bytes
}

/// Describes a run as text, with the URIs of its outputs and evidence.
fn run_overview(run: &RunView) -> String {
    let mut lines =
        vec![descriptions::headline(run), format!("requested at {}, profile {}", run.queued_at, run.request.profile)];
    lines.push(format!("repository {}", run.request.repo));
    for (unit, step) in descriptions::units(run) {
        lines.push(format!(
            "{} {}, {}: {}",
            unit.as_str(),
            step.n,
            descriptions::step_name(step),
            descriptions::describe_end(step)
        ));
        let outputs = super::run_answer::step_outputs(unit, step).into_iter();
        lines.extend(
            outputs
                .map(|(output, bytes)| format!("  {bytes} bytes: {}", ResourceUri::Output(run.id.clone(), output, 0))),
        );
    }
    lines.extend(run.doubts.iter().map(|record| record.message.clone()));
    lines.extend(run.problem.iter().flat_map(super::run_answer::problem_lines));
    let files = run.evidence.keys().filter_map(|file| file.strip_prefix(VERIFY_PREFIX));
    lines.extend(files.map(|file| ResourceUri::Evidence(run.id.clone(), file.to_owned(), 0).to_string()));
    lines.join("\n")
}

fn resource_error(problem: &Problem) -> ErrorData {
    let detail = UntrustedText::from_text(&problem.detail).truncate(MAX_DETAIL, KeptEnd::Start).with_marks("details");
    let code = match problem.kind {
        ProblemType::NotFound | ProblemType::Gone => ErrorCode::RESOURCE_NOT_FOUND,
        ProblemType::Internal => ErrorCode::INTERNAL_ERROR,
        _ => ErrorCode::INVALID_PARAMS,
    };
    ErrorData::new(code, problem.kind.title(), Some(json!({ "detail": detail })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_end_at_character_boundaries() {
        let euro = "a€".as_bytes();
        assert_eq!(trim_partial_character(euro[..3].to_vec(), true), b"a");
        assert_eq!(trim_partial_character(euro[..3].to_vec(), false), euro[..3]);
        assert_eq!(trim_partial_character(b"a\xffb\xe2".to_vec(), true), b"a\xffb\xe2", "no text anyway");
        assert_eq!(trim_partial_character(euro[1..3].to_vec(), true), &euro[1..3], "never nothing");
    }
}
