//! Lists runs in pages, newest first. The cursor holds the id of the last run of a page and the time at which it was
//! queued, so runs that are added or removed between requests cause neither repetitions nor gaps.

use proctor_core::api::{MAX_PAGE, RunPage, RunState, RunSummary};
use proctor_core::decision::verdict::Verdict;
use proctor_core::model::names::{ChangesetId, ProfileName, RunId};
use rusqlite::types::{Type, Value};

use super::error::HistoryError;
use super::run_index::RunIndex;

/// Separates the time from the id in a cursor; no id contains it.
const SEPARATOR: char = '_';

/// Filter for a list of runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunFilter {
    /// Canonical path of the repository.
    pub repo: Option<String>,
    /// Changeset of the run.
    pub changeset: Option<ChangesetId>,
    /// Profile of the run.
    pub profile: Option<ProfileName>,
    /// State of the run.
    pub state: Option<RunState>,
    /// Verdict of the run.
    pub verdict: Option<Verdict>,
    /// Cursor that an earlier page returned; the list continues after it.
    pub cursor: Option<String>,
    /// Maximum number of runs, up to [`MAX_PAGE`].
    pub limit: Option<u32>,
}

/// Position after the last run of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PageCursor {
    queued_at: String,
    id: RunId,
}

impl PageCursor {
    fn from_run(run: &RunSummary) -> Self {
        Self { queued_at: run.queued_at.clone(), id: run.id.clone() }
    }

    fn encode(&self) -> String {
        format!("{}{SEPARATOR}{}", self.queued_at, self.id)
    }

    fn parse(text: &str) -> Result<Self, HistoryError> {
        let invalid = || HistoryError::InvalidCursor(text.chars().take(100).flat_map(char::escape_default).collect());
        let (queued_at, id) = text.rsplit_once(SEPARATOR).ok_or_else(invalid)?;
        let is_time = queued_at.bytes().all(|b| b.is_ascii_digit() || b"-:.TZ".contains(&b));
        if !is_time || queued_at.is_empty() || queued_at.len() > 40 {
            return Err(invalid());
        }
        Ok(Self { queued_at: queued_at.to_owned(), id: RunId::new(id).map_err(|_| invalid())? })
    }
}

/// Returns the page for `filter`, with runs of `uid` or of all users.
pub(super) fn query_page(index: &RunIndex, filter: &RunFilter, uid: Option<u32>) -> Result<RunPage, HistoryError> {
    let limit = filter.limit.unwrap_or(MAX_PAGE).clamp(1, MAX_PAGE) as usize;
    let (condition, values) = build_condition(filter, uid)?;
    // One extra row shows whether there is a next page.
    let text =
        format!("SELECT summary FROM runs WHERE {condition} ORDER BY queued_at DESC, id DESC LIMIT {}", limit + 1);
    let mut query = index.db.prepare_cached(&text)?;
    let rows = query.query_map(rusqlite::params_from_iter(values), |row| row.get::<_, String>(0))?;
    let mut runs = Vec::new();
    for summary in rows {
        runs.push(parse_summary(&summary?)?);
    }
    let more = runs.len() > limit;
    runs.truncate(limit);
    let next_cursor = runs.last().filter(|_| more).map(|run| PageCursor::from_run(run).encode());
    Ok(RunPage { runs, next_cursor })
}

fn parse_summary(summary: &str) -> rusqlite::Result<RunSummary> {
    let conversion_error =
        |error: serde_json::Error| rusqlite::Error::FromSqlConversionFailure(0, Type::Text, Box::new(error));
    serde_json::from_str(summary).map_err(conversion_error)
}

fn build_condition(filter: &RunFilter, uid: Option<u32>) -> Result<(String, Vec<Value>), HistoryError> {
    let text = |text: &str| Value::Text(text.to_owned());
    let mut parts = vec!["true"];
    let mut values = Vec::new();
    let mut add = |part, value: Option<Value>| {
        if let Some(value) = value {
            parts.push(part);
            values.push(value);
        }
    };
    add("uid = ?", uid.map(|uid| Value::Integer(uid.into())));
    add("repo = ?", filter.repo.as_deref().map(text));
    add("changeset = ?", filter.changeset.as_ref().map(|id| text(id.as_str())));
    add("profile = ?", filter.profile.as_ref().map(|name| text(name.as_str())));
    add("state = ?", filter.state.map(|state| text(state.as_str())));
    add("verdict = ?", filter.verdict.map(|verdict| text(verdict.as_str())));
    if let Some(cursor) = &filter.cursor {
        let cursor = PageCursor::parse(cursor)?;
        parts.push("(queued_at, id) < (?, ?)");
        values.extend([Value::Text(cursor.queued_at), text(cursor.id.as_str())]);
    }
    Ok((parts.join(" AND "), values))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursor_round_trips_and_other_text_is_rejected() {
        let cursor = PageCursor { queued_at: "2026-01-02T03:04:05.678Z".into(), id: RunId::new("r-1").expect("an id") };
        assert_eq!(PageCursor::parse(&cursor.encode()).expect("reads"), cursor);
        for text in ["", "_", "x", "2026_", "_r1", "2026_../x", "'; DROP TABLE runs_r1", "2026\0_r1", &"9".repeat(99)] {
            assert!(matches!(PageCursor::parse(text), Err(HistoryError::InvalidCursor(_))), "{text}");
        }
    }
}
