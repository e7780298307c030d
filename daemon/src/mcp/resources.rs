//! Serves runs, outputs and evidence as resources, in parts. All content is enclosed in marks, including evidence,
//! because it quotes the output of steps.

use std::time::Duration;

use proctor_core::api::{Problem, ProblemType, RunSummary, RunView};
use rmcp::ErrorData;
use rmcp::model::{
    ErrorCode, ListResourceTemplatesResult, ListResourcesResult, MetaObject, ReadResourceResult, Resource,
    ResourceContents, ResourceTemplate,
};
use serde_json::json;

use super::backend::Backend;
use super::present::CAUTION;
use super::untrusted::{Keep, Untrusted, name};
use super::uri::{Address, TEMPLATES, VERIFY};
use super::words;
use crate::service::RunFilter;

/// Maximum number of bytes of an output or document in one read.
pub(super) const MAX_CHUNK: usize = 32 << 10;
/// Maximum size of a problem's details in an error, in bytes.
const MAX_DETAIL: usize = 1_000;
/// Number of runs in a page of resources.
const PAGE: u32 = 50;

/// Returns the URI templates.
pub(super) fn templates() -> ListResourceTemplatesResult {
    let template = |(uri, name, about): &(&str, &str, &str)| {
        ResourceTemplate::new(*uri, *name).with_description(*about).with_mime_type("text/plain")
    };
    ListResourceTemplatesResult::with_all_items(TEMPLATES.iter().map(template).collect())
}

/// Lists the runs that the caller may see, newest first.
pub(super) async fn list<B: Backend>(backend: &B, cursor: Option<String>) -> Result<ListResourcesResult, ErrorData> {
    let filter = RunFilter { cursor, limit: Some(PAGE), ..RunFilter::default() };
    let page = backend.list(filter).await.map_err(|problem| refused(&problem))?;
    let mut listed = ListResourcesResult::with_all_items(page.runs.iter().map(listed).collect());
    listed.next_cursor = page.next_cursor;
    Ok(listed)
}

fn listed(run: &RunSummary) -> Resource {
    let verdict = run.verdict.map_or(run.state.as_str(), proctor_core::verdict::Verdict::as_str);
    Resource::new(Address::Run(run.id.clone()).to_string(), format!("run {}", run.id))
        .with_description(format!(
            "profile {}, {verdict}, asked for at {}",
            name(run.asked.profile.as_str()),
            run.queued_at
        ))
        .with_mime_type("text/plain")
}

/// Reads the resource at a URI.
pub(super) async fn read<B: Backend>(backend: &B, uri: &str) -> Result<ReadResourceResult, ErrorData> {
    let unknown = || ErrorData::resource_not_found("there is no such resource; see the templates", None);
    let address = Address::parse(uri).ok_or_else(unknown)?;
    let part = part(backend, &address).await.map_err(|problem| refused(&problem))?;
    Ok(ReadResourceResult::new(vec![part.contents(uri, &address)]))
}

/// A part of a resource.
struct Part {
    about: String,
    bytes: Vec<u8>,
    offset: u64,
    total: u64,
}

async fn part<B: Backend>(backend: &B, address: &Address) -> Result<Part, Problem> {
    match address {
        Address::Run(id) => {
            let run = backend.watch(id, None, Duration::ZERO).await?.run;
            let bytes = overview(&run).into_bytes();
            let total = bytes.len() as u64;
            Ok(Part { about: format!("run {id}"), bytes, offset: 0, total }.bounded())
        }
        Address::Output(id, of, offset) => {
            let (part, total) = backend.output(id, *of, *offset, MAX_CHUNK).await?;
            let bytes = whole_characters(part.bytes, part.more);
            Ok(Part { about: "an output".to_owned(), bytes, offset: *offset, total })
        }
        Address::Evidence(id, file, offset) => {
            let document = backend.evidence(id, &format!("{VERIFY}{file}")).await?;
            let start = usize::try_from(*offset).unwrap_or(usize::MAX).min(document.len());
            let total = document.len() as u64;
            let part =
                Part { about: format!("evidence {file}"), bytes: document[start..].to_vec(), offset: *offset, total };
            Ok(part.bounded())
        }
    }
}

impl Part {
    fn bounded(mut self) -> Self {
        let more = self.bytes.len() > MAX_CHUNK;
        self.bytes.truncate(MAX_CHUNK);
        self.bytes = whole_characters(self.bytes, more);
        self
    }

    fn contents(self, uri: &str, address: &Address) -> ResourceContents {
        let end = self.offset.saturating_add(self.bytes.len() as u64);
        let next = (end < self.total && !self.bytes.is_empty()).then(|| address.clone().at(end).to_string());
        let about = format!("{}, bytes {} to {end} of {}", self.about, self.offset, self.total);
        let mut text = format!("{CAUTION}\n{}", Untrusted::of_output(&self.bytes).marked(&about));
        if let (Some(next), false) = (&next, matches!(address, Address::Run(_))) {
            text.push_str(&format!("\nMore: {next}"));
        }
        let meta = json!({ "proctor/untrusted": true, "proctor/total_bytes": self.total, "proctor/next": next });
        let meta = MetaObject(meta.as_object().cloned().unwrap_or_default());
        ResourceContents::text(text, uri).with_mime_type("text/plain").with_meta(meta)
    }
}

/// Removes an incomplete character at the end if more bytes follow.
pub(super) fn whole_characters(mut bytes: Vec<u8>, more: bool) -> Vec<u8> {
    let Err(error) = std::str::from_utf8(&bytes) else { return bytes };
    let cut = error.error_len().is_none() && more && error.valid_up_to() > 0;
    if cut {
        bytes.truncate(error.valid_up_to());
    }
    bytes
}

/// Describes a run as text, with the URIs of its outputs and evidence.
fn overview(run: &RunView) -> String {
    let mut lines =
        vec![words::headline(run), format!("asked for at {}, profile {}", run.queued_at, run.asked.profile)];
    lines.push(format!("repository {}", run.asked.repo));
    for (unit, step) in words::units(run) {
        lines.push(format!("{} {}, {}: {}", unit.as_str(), step.n, words::named(step), words::manner(step)));
        let outputs = super::present::outputs(unit, step).into_iter();
        lines.extend(outputs.map(|(of, bytes)| format!("  {bytes} bytes: {}", Address::Output(run.id.clone(), of, 0))));
    }
    lines.extend(run.doubts.iter().map(|record| record.message.clone()));
    lines.extend(run.problem.iter().flat_map(super::present::problem_lines));
    let files = run.evidence.keys().filter_map(|file| file.strip_prefix(VERIFY));
    lines.extend(files.map(|file| Address::Evidence(run.id.clone(), file.to_owned(), 0).to_string()));
    lines.join("\n")
}

fn refused(problem: &Problem) -> ErrorData {
    let detail = Untrusted::of_text(&problem.detail).cut(MAX_DETAIL, Keep::Start).marked("details");
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
    fn parts_end_where_characters_do() {
        let euro = "a€".as_bytes();
        assert_eq!(whole_characters(euro[..3].to_vec(), true), b"a");
        assert_eq!(whole_characters(euro[..3].to_vec(), false), euro[..3]);
        assert_eq!(whole_characters(b"a\xffb\xe2".to_vec(), true), b"a\xffb\xe2", "no text anyway");
        assert_eq!(whole_characters(euro[1..3].to_vec(), true), &euro[1..3], "never nothing");
    }
}
