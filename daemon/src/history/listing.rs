//! Lists runs in pages, newest first. The cursor holds the id of the last run of a page and the time at which it was
//! queued, so runs that are added or removed between requests cause neither repetitions nor gaps.

use proctor_core::api::{RunPage, RunSummary};
use proctor_core::names::RunId;
use rusqlite::types::{Type, Value};

use super::HistoryError;
use super::index::Index;
use crate::service::{MAX_PAGE, RunFilter};

/// Separates the time from the id in a cursor; no id contains it.
const BETWEEN: char = '_';

/// Position after the last run of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cursor {
    queued_at: String,
    id: RunId,
}

impl Cursor {
    fn of(run: &RunSummary) -> Self {
        Self { queued_at: run.queued_at.clone(), id: run.id.clone() }
    }

    fn text(&self) -> String {
        format!("{}{BETWEEN}{}", self.queued_at, self.id)
    }

    fn parse(text: &str) -> Result<Self, HistoryError> {
        let none = || HistoryError::Cursor(text.chars().take(100).flat_map(char::escape_default).collect());
        let (queued_at, id) = text.rsplit_once(BETWEEN).ok_or_else(none)?;
        let is_time = queued_at.bytes().all(|b| b.is_ascii_digit() || b"-:.TZ".contains(&b));
        if !is_time || queued_at.is_empty() || queued_at.len() > 40 {
            return Err(none());
        }
        Ok(Self { queued_at: queued_at.to_owned(), id: RunId::new(id).map_err(|_| none())? })
    }
}

/// Returns the page for `filter`, with runs of `uid` or of all users.
pub(super) fn page(index: &Index, filter: &RunFilter, uid: Option<u32>) -> Result<RunPage, HistoryError> {
    let limit = filter.limit.unwrap_or(MAX_PAGE).clamp(1, MAX_PAGE) as usize;
    let (condition, values) = condition(filter, uid)?;
    // One extra row shows whether there is a next page.
    let text =
        format!("SELECT summary FROM runs WHERE {condition} ORDER BY queued_at DESC, id DESC LIMIT {}", limit + 1);
    let mut query = index.db.prepare_cached(&text)?;
    let rows = query.query_map(rusqlite::params_from_iter(values), |row| row.get::<_, String>(0))?;
    let mut runs = Vec::new();
    for summary in rows {
        runs.push(read(&summary?)?);
    }
    let more = runs.len() > limit;
    runs.truncate(limit);
    let next_cursor = runs.last().filter(|_| more).map(|run| Cursor::of(run).text());
    Ok(RunPage { runs, next_cursor })
}

fn read(summary: &str) -> rusqlite::Result<RunSummary> {
    let not_ours = |error: serde_json::Error| rusqlite::Error::FromSqlConversionFailure(0, Type::Text, Box::new(error));
    serde_json::from_str(summary).map_err(not_ours)
}

fn condition(filter: &RunFilter, uid: Option<u32>) -> Result<(String, Vec<Value>), HistoryError> {
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
        let cursor = Cursor::parse(cursor)?;
        parts.push("(queued_at, id) < (?, ?)");
        values.extend([Value::Text(cursor.queued_at), text(cursor.id.as_str())]);
    }
    Ok((parts.join(" AND "), values))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_reads_back_and_nothing_else_is_one() {
        let cursor = Cursor { queued_at: "2026-01-02T03:04:05.678Z".into(), id: RunId::new("r-1").expect("an id") };
        assert_eq!(Cursor::parse(&cursor.text()).expect("reads"), cursor);
        for text in ["", "_", "x", "2026_", "_r1", "2026_../x", "'; DROP TABLE runs_r1", "2026\0_r1", &"9".repeat(99)] {
            assert!(matches!(Cursor::parse(text), Err(HistoryError::Cursor(_))), "{text}");
        }
    }
}
