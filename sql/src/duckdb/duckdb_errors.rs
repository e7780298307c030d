//! Parses error messages of DuckDB, both in JSON (`json_serialize_plan`, `json_serialize_sql`) and as text.

use std::fmt::Display;
use std::ops::Range;

use proctor_core::sql::{Dialect, SqlCode};
use serde_json::Value;

use crate::engine::{EngineRefusal, is_limit_code};
use crate::lexer::{self, SqlTokenKind};
use crate::name_suggestions::{is_similar, suggest_names};

/// Functions that require OVER; DuckDB does not find them without it.
const WINDOW_FUNCTIONS: &[&str] = &[
    "cume_dist",
    "dense_rank",
    "first_value",
    "lag",
    "last_value",
    "lead",
    "nth_value",
    "ntile",
    "percent_rank",
    "rank",
    "row_number",
];

/// A parsed error of DuckDB.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ParsedError {
    /// The kind of the error, in lower case: `binder`, `catalog`, `parser`, `out of memory`.
    pub(super) kind: String,
    /// The whole message, without the kind and the position.
    pub(super) message: String,
    /// The kind of the catalog entry that the error is about: `Table`, `Scalar Function`.
    pub(super) entry_kind: String,
    /// The name that the error is about.
    pub(super) name: Option<String>,
    /// The position of the error, in bytes.
    position: Option<usize>,
    candidates: Vec<String>,
}

impl ParsedError {
    /// Parses an error in JSON; returns `None` if the JSON is not an error.
    pub(super) fn from_json(json: &Value) -> Option<Self> {
        if json["error"] != Value::Bool(true) {
            return None;
        }
        let field = |name: &str| json[name].as_str().map(str::to_owned);
        let message = field("error_message").unwrap_or_default();
        Some(Self {
            kind: field("error_type").unwrap_or_default(),
            entry_kind: field("type").unwrap_or_default(),
            name: field("name").or_else(|| parse_name(&message)),
            position: field("position").and_then(|position| position.parse().ok()),
            candidates: parse_candidates(&message),
            message,
        })
    }

    /// Parses the message of an error.
    pub(super) fn from_error(error: &impl Display, sql: &str) -> Self {
        Self::from_text(&error.to_string(), sql)
    }

    /// Parses an error as text: `Binder Error: …`, followed by `LINE 1: …` and a `^`.
    pub(super) fn from_text(text: &str, sql: &str) -> Self {
        let (head, rest) = text.split_once(" Error: ").unwrap_or(("", text));
        let is_head = !head.is_empty() && head.len() < 40 && !head.contains('\n');
        let (kind, rest) = if is_head { (head.to_ascii_lowercase(), rest) } else { (String::new(), text) };
        let (message, marker) = match rest.find("\n\nLINE ") {
            Some(at) => (&rest[..at], Some(&rest[at + 2..])),
            None => (rest, None),
        };
        let entry = message.split_once(" with name ").map_or("", |(entry, _)| entry);
        Self {
            kind,
            message: message.trim_end().to_owned(),
            entry_kind: if entry.len() < 30 { entry.to_owned() } else { String::new() },
            name: parse_name(message),
            position: marker.and_then(|marker| parse_position(marker, sql)),
            candidates: parse_candidates(message),
        }
    }

    /// Returns the first line of the message without its final punctuation.
    fn first_sentence(&self) -> String {
        let line = self.message.lines().next().unwrap_or_default().trim_end_matches(['!', '.']).trim();
        if line.is_empty() { "the engine does not report the reason".to_owned() } else { line.to_owned() }
    }

    /// Returns the title that DuckDB uses: `Binder Error`.
    fn title(&self) -> Option<String> {
        let words = self.kind.split_ascii_whitespace().map(|word| {
            let mut letters = word.chars();
            let first = letters.next().map(|first| first.to_ascii_uppercase());
            first.into_iter().chain(letters).collect::<String>()
        });
        let title = words.collect::<Vec<_>>().join(" ");
        (!title.is_empty()).then(|| format!("{} Error", title.replace("Transactioncontext", "TransactionContext")))
    }

    /// Converts the error to a refusal of a statement.
    pub(super) fn to_refusal(&self, sql: &str) -> EngineRefusal {
        let code = self.code();
        let message = if self.is_window_without_over() {
            format!("`{}` is a window function, which requires OVER", self.name.as_deref().unwrap_or_default())
        } else {
            self.first_sentence()
        };
        let is_of_name = matches!(
            code,
            SqlCode::UnknownColumn | SqlCode::UnknownTable | SqlCode::UnknownFunction | SqlCode::AmbiguousColumn
        );
        EngineRefusal {
            code,
            message,
            engine_code: self.title(),
            range: self.subject_range(sql, code),
            subject: self.name.clone().filter(|_| is_of_name || code == SqlCode::UngroupedColumn),
            candidates: self.similar_candidates(code),
        }
    }

    /// Converts the error of an internal statement to a failure of the engine.
    pub(super) fn to_engine_failure(&self) -> EngineRefusal {
        EngineRefusal { code: SqlCode::EngineFailed, ..self.to_refusal("") }
    }

    /// Converts the error of an internal statement with limits: a limit stays one, everything else is a failure of the
    /// engine.
    pub(super) fn to_internal_refusal(&self) -> EngineRefusal {
        let refusal = self.to_refusal("");
        if is_limit_code(refusal.code) { refusal } else { self.to_engine_failure() }
    }

    fn is_window_without_over(&self) -> bool {
        self.kind == "catalog"
            && self.name.as_ref().is_some_and(|name| WINDOW_FUNCTIONS.contains(&name.to_ascii_lowercase().as_str()))
    }

    /// Returns the candidates that may be what a misspelt name means. DuckDB also suggests names that are not similar.
    fn similar_candidates(&self, code: SqlCode) -> Vec<String> {
        let Some(name) = &self.name else { return Vec::new() };
        match code {
            SqlCode::UnknownColumn | SqlCode::UnknownTable | SqlCode::UnknownFunction => suggest_names(
                name,
                self.candidates.iter().map(String::as_str).filter(|candidate| is_similar(name, candidate)),
            ),
            SqlCode::AmbiguousColumn => self.candidates.clone(),
            _ => Vec::new(),
        }
    }

    fn code(&self) -> SqlCode {
        match self.kind.as_str() {
            "parser" | "syntax" => self.syntax_code(),
            "binder" | "parameter not resolved" | "parameter not allowed" | "expression" => self.binder_code(),
            "catalog" | "dependency" => self.catalog_code(),
            "conversion" | "mismatch type" | "invalid type" | "decimal" => SqlCode::WrongType,
            "constraint" => SqlCode::ConstraintBroken,
            "permission" | "io" | "http" | "missing extension" | "autoload" => SqlCode::FileAccess,
            "invalid configuration" => SqlCode::SettingRefused,
            "interrupt" | "interrupted" => SqlCode::TimeLimit,
            "out of memory" => SqlCode::MemoryLimit,
            "result limit" => SqlCode::ResultLimit,
            "internal" | "fatal" | "transactioncontext" | "connection" | "startup" | "serialization" | "" => {
                SqlCode::EngineFailed
            }
            _ if self.is_too_large() => SqlCode::MemoryLimit,
            // Errors of values while a statement runs: out of range, invalid input, not implemented and others.
            _ => SqlCode::RunFailed,
        }
    }

    /// Reports whether a value exceeds the maximum size of a value.
    fn is_too_large(&self) -> bool {
        ["maximum supported string size", "maximum supported size", "larger than 2^"]
            .iter()
            .any(|words| self.message.contains(words))
    }

    fn syntax_code(&self) -> SqlCode {
        if self.message.starts_with("unterminated") {
            SqlCode::UnterminatedToken
        } else if self.message.contains("expression depth") || self.message.contains("too deep") {
            SqlCode::TooDeep
        } else if self.message.starts_with("window \"") {
            // The syntax is valid, but a name does not exist.
            SqlCode::BindError
        } else if self.message.starts_with("VALUES lists must all") {
            SqlCode::ColumnCount
        } else {
            SqlCode::SyntaxError
        }
    }

    /// Reports whether the error is about the syntax of the text, not about names.
    pub(super) fn is_syntax_error(&self) -> bool {
        matches!(self.kind.as_str(), "parser" | "syntax")
            && matches!(self.syntax_code(), SqlCode::UnterminatedToken | SqlCode::TooDeep | SqlCode::SyntaxError)
    }

    fn binder_code(&self) -> SqlCode {
        const WORDS: &[(&str, SqlCode)] = &[
            ("expression depth limit", SqlCode::TooDeep),
            ("Ambiguous reference", SqlCode::AmbiguousColumn),
            ("Referenced column", SqlCode::UnknownColumn),
            ("Referenced update column", SqlCode::UnknownColumn),
            ("does not have a column", SqlCode::UnknownColumn),
            ("does not exist on left side", SqlCode::UnknownColumn),
            ("does not exist on right side", SqlCode::UnknownColumn),
            ("Referenced table", SqlCode::UnknownTable),
            ("Catalog \"", SqlCode::UnknownTable),
            ("No function matches", SqlCode::WrongArguments),
            ("Could not choose a best candidate", SqlCode::WrongType),
            ("Cannot compare", SqlCode::WrongType),
            ("Cannot mix values", SqlCode::WrongType),
            ("must appear in the GROUP BY", SqlCode::UngroupedColumn),
            ("cannot contain", SqlCode::MisusedFunction),
            ("cannot be nested", SqlCode::MisusedFunction),
            ("columns but", SqlCode::ColumnCount),
            ("value mismatch", SqlCode::ColumnCount),
            ("same number of result columns", SqlCode::ColumnCount),
            ("Subquery returns", SqlCode::ColumnCount),
            ("already exists", SqlCode::AlreadyThere),
        ];
        WORDS.iter().find(|(words, _)| self.message.contains(words)).map_or(SqlCode::BindError, |(_, code)| *code)
    }

    fn catalog_code(&self) -> SqlCode {
        if self.message.contains("already exists") {
            return SqlCode::AlreadyThere;
        }
        if self.is_window_without_over() {
            return SqlCode::MisusedFunction;
        }
        match self.entry_kind.as_str() {
            entry if entry.contains("Function") || entry.contains("Macro") => SqlCode::UnknownFunction,
            "Table" | "View" => SqlCode::UnknownTable,
            "Column" => SqlCode::UnknownColumn,
            "Type" => SqlCode::WrongType,
            _ if self.message.contains("does not exist because schema") => SqlCode::UnknownTable,
            _ => SqlCode::BindError,
        }
    }

    /// Returns the range of the name that the error is about, searching from the position that DuckDB reports. If it is
    /// not found, returns the token at that position.
    fn subject_range(&self, sql: &str, code: SqlCode) -> Option<Range<usize>> {
        /// The maximum distance of the name from the position, in tokens: `schema.table.column`.
        const MAX_TOKEN_DISTANCE: usize = 8;
        let pieces = lexer::tokenize(sql, Dialect::Duckdb);
        let solid = |piece: SqlTokenKind| !matches!(piece, SqlTokenKind::Whitespace | SqlTokenKind::Comment);
        let from = self.position.unwrap_or(0);
        let mut following = pieces.iter().filter(|(piece, range)| solid(*piece) && range.end > from);
        let at = following.clone().next().map(|(_, range)| range.clone());
        let is_name =
            |piece: SqlTokenKind| matches!(piece, SqlTokenKind::Word | SqlTokenKind::Quoted | SqlTokenKind::String);
        let max_tokens = if self.position.is_some() { MAX_TOKEN_DISTANCE } else { usize::MAX };
        let bare = self.name.as_deref().map(|name| name.rsplit_once('.').map_or(name, |(_, bare)| bare));
        let named = bare.filter(|_| code != SqlCode::SyntaxError).and_then(|name| {
            following
                .by_ref()
                .take(max_tokens)
                .find(|(piece, range)| {
                    is_name(*piece) && lexer::unquote(&sql[range.clone()]).eq_ignore_ascii_case(name)
                })
                .map(|(_, range)| range.clone())
        });
        match self.position {
            Some(position) => named.or(at).or_else(|| Some(position.min(sql.len())..sql.len())),
            None => named,
        }
    }
}

/// Returns the name that a message is about, if DuckDB does not report it separately.
fn parse_name(message: &str) -> Option<String> {
    let first = message.lines().next()?;
    for begin in
        ["with name ", "a column named ", "update column ", "column name ", "to column name ", "Referenced column "]
    {
        if let Some((_, rest)) = first.split_once(begin) {
            return Some(first_name(rest));
        }
    }
    for begin in ["Referenced table ", "Catalog ", "column ", "Column "] {
        if let Some(rest) = first.strip_prefix(begin) {
            return Some(first_name(rest));
        }
    }
    None
}

/// Returns the word or the quoted name at the beginning of a text.
fn first_name(rest: &str) -> String {
    match rest.strip_prefix('"').and_then(|rest| rest.split_once('"')) {
        Some((name, _)) => name.to_owned(),
        None => rest.split([' ', '!', '"', ',', '\n']).next().unwrap_or_default().to_owned(),
    }
}

/// Returns the quoted names in the lines of a message that suggest candidates.
fn parse_candidates(message: &str) -> Vec<String> {
    const HEADS: [&str; 3] = ["Did you mean", "Candidate ", "Ambiguous reference"];
    let lines = message.lines().filter(|line| HEADS.iter().any(|head| line.starts_with(head)));
    let mut found = Vec::new();
    for line in lines {
        let line = line.split_once("(use: ").map_or(line, |(_, uses)| uses);
        found.extend(line.split('"').skip(1).step_by(2).map(str::to_owned));
    }
    found
}

/// Returns the byte position that a marker points at: `LINE 2: …text` with a `^` below it. DuckDB shortens long lines
/// and marks this with dots.
fn parse_position(marker: &str, sql: &str) -> Option<usize> {
    let (line, caret) = marker.split_once('\n')?;
    let column = caret.find('^')?;
    let (head, shown) = line.split_once(": ")?;
    let number: usize = head.strip_prefix("LINE ")?.parse().ok()?;
    let column = column.checked_sub(head.len() + 2)?;
    let start: usize = sql.split_inclusive('\n').take(number.checked_sub(1)?).map(str::len).sum();
    let whole = sql[start..].lines().next().unwrap_or_default();
    let offset = match shown.strip_prefix("... ").or_else(|| shown.strip_prefix("...")) {
        Some(rest) => {
            let visible = rest.trim_end_matches("...").trim_end();
            let cut = shown.len() - rest.len();
            whole.find(visible)? + column.checked_sub(cut)?
        }
        None => shown.char_indices().nth(column).map_or(column, |(at, _)| at),
    };
    Some((start + offset).min(sql.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refusal_parts(text: &str, sql: &str) -> (SqlCode, Option<String>, Option<String>) {
        let refusal = ParsedError::from_text(text, sql).to_refusal(sql);
        (refusal.code, refusal.range.map(|place| sql[place].to_owned()), refusal.subject)
    }

    #[test]
    fn parses_text_errors() {
        let cases: &[(&str, &str, SqlCode, Option<&str>)] = &[
            (
                "Binder Error: Referenced column \"nmae\" not found in FROM clause!\nCandidate bindings: \"name\"\n\nLINE 1: SELECT nmae FROM customers\n               ^",
                "SELECT nmae FROM customers",
                SqlCode::UnknownColumn,
                Some("nmae"),
            ),
            (
                "Catalog Error: Table with name ordres does not exist!\nDid you mean \"orders\"?\n\nLINE 1: ... c.name, o.amount FROM customers c, (SELECT amount FROM ordres) o\n                                                                   ^",
                "SELECT c.name, o.amount FROM customers c, (SELECT amount FROM ordres) o",
                SqlCode::UnknownTable,
                Some("ordres"),
            ),
            (
                "Binder Error: Table \"orders\" does not have a column with name \"amont\"\n\nDid you mean: \"amount\"",
                "INSERT INTO orders (id, amont) VALUES (9, 1)",
                SqlCode::UnknownColumn,
                Some("amont"),
            ),
            (
                "Parser Error: syntax error at or near \"SELEC\"\n\nLINE 1: SELEC name\n        ^",
                "SELEC name",
                SqlCode::SyntaxError,
                Some("SELEC"),
            ),
            (
                "Constraint Error: Duplicate key \"id: 1\" violates primary key constraint.",
                "INSERT INTO a VALUES (1)",
                SqlCode::ConstraintBroken,
                None,
            ),
            ("INTERRUPT Error: Interrupted!", "SELECT 1", SqlCode::TimeLimit, None),
            ("Out of Memory Error: could not allocate block", "SELECT 1", SqlCode::MemoryLimit, None),
            ("INTERNAL Error: Attempted to access index 1", "SELECT 1", SqlCode::EngineFailed, None),
            ("Out of Range Error: Overflow", "SELECT 1", SqlCode::RunFailed, None),
            (
                "Catalog Error: Scalar Function with name row_number does not exist!",
                "SELECT row_number()",
                SqlCode::MisusedFunction,
                Some("row_number"),
            ),
            ("something new", "SELECT 1", SqlCode::EngineFailed, None),
        ];
        for (text, sql, code, place) in cases {
            let (found, at, _) = refusal_parts(text, sql);
            assert_eq!((found, at.as_deref()), (*code, *place), "{text}");
        }
    }

    #[test]
    fn parses_json_errors() {
        let sql = "SELECT 'é', c.nmae FROM customers c";
        let error = json!({
            "error": true, "error_type": "binder", "name": "nmae", "position": "13", "candidates": "name,email",
            "error_message": "Table \"c\" does not have a column named \"nmae\"\n\nCandidate bindings: : \"name\", \"email\"",
        });
        let refusal = ParsedError::from_json(&error).unwrap().to_refusal(sql);
        assert_eq!(refusal.code, SqlCode::UnknownColumn);
        assert_eq!(&sql[refusal.range.unwrap()], "nmae");
        assert_eq!(refusal.candidates, ["name"]);
        assert_eq!(refusal.engine_code.as_deref(), Some("Binder Error"));
        assert_eq!(ParsedError::from_json(&json!({"error": false, "plans": []})), None);
    }

    #[test]
    fn ignores_dissimilar_candidates() {
        let text = "Catalog Error: Table with name holidays does not exist!\nDid you mean \"pg_class\"?";
        assert!(
            ParsedError::from_text(text, "SELECT 1 FROM holidays")
                .to_refusal("SELECT 1 FROM holidays")
                .candidates
                .is_empty()
        );
    }

    #[test]
    fn suggests_both_sides_of_ambiguity() {
        let text = "Binder Error: Ambiguous reference to column name \"id\" (use: \"c.id\" or \"o.id\")";
        let refusal = ParsedError::from_text(text, "SELECT id FROM c, o").to_refusal("SELECT id FROM c, o");
        assert_eq!((refusal.code, refusal.candidates), (SqlCode::AmbiguousColumn, vec!["c.id".into(), "o.id".into()]));
        assert_eq!(refusal.subject.as_deref(), Some("id"));
    }

    #[test]
    fn accepts_malformed_error_text() {
        for text in ["", " Error: ", "LINE 1:", "Binder Error: x\n\nLINE 9: y\n ^", "A Error: b\n\nLINE x: \n^"] {
            let _ = ParsedError::from_text(text, "SELECT 1").to_refusal("SELECT 1");
        }
    }
}
