//! Reads the files with cases, correct queries and mutants into rows of one type.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::Deserialize;

use super::sqlite_schema;

/// The sets of SQLite queries.
const SQLITE_SETS: [&str; 4] = ["bird-mini-sqlite", "defog-sqlite", "t2s-geography", "t2s-restaurants"];

/// A statement with its correct verdict.
#[derive(Debug, Clone)]
pub(crate) struct SqlCase {
    pub id: String,
    /// The query, or the query that a mutant was made from; empty for a case.
    pub gold: String,
    /// `gold`, `case`, or the kind of a mutant's error.
    pub kind: String,
    /// The statements that create its schema.
    pub ddl: String,
    pub sql: String,
    pub question: Option<String>,
    pub policy: String,
    pub expect: String,
    pub stage: String,
    pub category: String,
}

impl SqlCase {
    /// Returns the half of the queries, by a hash of the name; `None` for a case.
    pub(super) fn half(&self) -> Option<u32> {
        let hash = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(16_777_619);
        (!self.gold.is_empty()).then(|| (self.gold.bytes().fold(2_166_136_261, hash) >> 7) & 1)
    }
}

/// One line of any of the files.
#[derive(Deserialize)]
struct CaseLine {
    id: String,
    dialect: String,
    schema: String,
    sql: String,
    #[serde(default)]
    gold: String,
    #[serde(default)]
    set: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    question: Option<String>,
    #[serde(default)]
    policy: String,
    #[serde(default)]
    expect: String,
    #[serde(default)]
    stage: Option<String>,
    #[serde(default)]
    category: String,
    #[serde(default)]
    engine_refuses: bool,
    #[serde(default)]
    engine_error: Option<String>,
}

/// Returns the cases of a dialect.
pub(super) fn read_cases(folder: &Path, dialect: &str) -> Result<Vec<SqlCase>> {
    let ddl: BTreeMap<String, BTreeMap<String, String>> = read_json(&folder.join("cases_schemas.json"))?;
    let cases = read_lines(&folder.join("cases.jsonl"))?.into_iter().filter(|line| line.dialect == dialect);
    let with_schema = |line: CaseLine| {
        let ddl = ddl.get(&line.schema)?.get(dialect)?.clone();
        Some(to_case(line, "case", ddl))
    };
    Ok(cases.filter_map(with_schema).collect())
}

/// Returns every SQLite row for which all files exist.
pub(crate) fn read_rows(folder: &Path) -> Result<Vec<SqlCase>> {
    let mut found = read_cases(folder, "sqlite")?;
    let data = folder.join("data");
    if !data.join("gold.jsonl").is_file() {
        println!("skipped: {} does not contain gold.jsonl", data.display());
        return Ok(found);
    }
    let ddl: BTreeMap<String, String> = read_json(&data.join("schemas.json"))?;
    let ddl: BTreeMap<String, String> =
        ddl.into_iter().map(|(name, ddl)| (name, sqlite_schema::convert_to_sqlite(&ddl))).collect();
    let schema = |line: &CaseLine| ddl.get(&line.schema).cloned().unwrap_or_default();
    let gold: Vec<CaseLine> = read_lines(&data.join("gold.jsonl"))?.into_iter().filter(is_selected).collect();
    let refused: BTreeSet<String> =
        gold.iter().filter(|line| line.engine_refuses).map(|line| line.id.clone()).collect();
    for mut line in gold.into_iter().filter(|line| !line.engine_refuses) {
        line.gold.clone_from(&line.id);
        let ddl = schema(&line);
        found.push(to_case(line, "gold", ddl));
    }
    for line in read_lines(&data.join("mutants.jsonl"))?.into_iter().filter(is_selected) {
        // Skip mutants that should be broken but still run, and mutants of broken queries.
        let is_broken = ["misspelt", "unknown", "syntax", "column_of"].iter().any(|begin| line.kind.starts_with(begin));
        if refused.contains(&line.gold) || (is_broken && line.engine_error.is_none()) {
            continue;
        }
        let (kind, ddl) = (line.kind.clone(), schema(&line));
        found.push(to_case(line, &kind, ddl));
    }
    Ok(found)
}

fn is_selected(line: &CaseLine) -> bool {
    SQLITE_SETS.contains(&line.set.as_str()) && line.dialect == "sqlite"
}

fn to_case(line: CaseLine, kind: &str, ddl: String) -> SqlCase {
    SqlCase {
        id: line.id,
        gold: line.gold,
        kind: kind.to_owned(),
        ddl,
        sql: line.sql,
        question: line.question,
        policy: line.policy,
        expect: line.expect,
        stage: line.stage.unwrap_or_default(),
        category: line.category,
    }
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    serde_json::from_str(&text).with_context(|| path.display().to_string())
}

fn read_lines(path: &Path) -> Result<Vec<CaseLine>> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let line = |(number, text): (usize, &str)| {
        serde_json::from_str(text).with_context(|| format!("{}, line {}", path.display(), number + 1))
    };
    text.lines().enumerate().filter(|(_, text)| !text.trim().is_empty()).map(line).collect()
}
