//! Parses error messages of DuckDB, both in JSON (`json_serialize_plan`, `json_serialize_sql`) and as text.

use std::ops::Range;

use proctor_core::sql::{Dialect, SqlCode};
use serde_json::Value;

use crate::engine::Refusal;
use crate::nearest::{is_near, nearest};
use crate::text::{self, Piece};

/// The start of the error that [`super`] generates for a result that is too large, before the number of bytes.
pub(super) const TOO_LARGE: &str = "Result Limit Error: the result has more than these bytes: ";

/// Functions that require OVER; DuckDB does not find them without it.
const WINDOWS: &[&str] = &[
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
pub(super) struct Said {
    /// The kind of the error, in lower case: `binder`, `catalog`, `parser`, `out of memory`.
    pub(super) kind: String,
    /// The whole message, without the kind and the position.
    pub(super) message: String,
    /// The kind of the catalog entry that the error is about: `Table`, `Scalar Function`.
    pub(super) entry: String,
    /// The name that the error is about.
    pub(super) name: Option<String>,
    /// The position of the error, in bytes.
    position: Option<usize>,
    candidates: Vec<String>,
}

impl Said {
    /// Parses an error in JSON; returns `None` if the JSON is not an error.
    pub(super) fn of_json(json: &Value) -> Option<Self> {
        if json["error"] != Value::Bool(true) {
            return None;
        }
        let field = |name: &str| json[name].as_str().map(str::to_owned);
        let message = field("error_message").unwrap_or_default();
        Some(Self {
            kind: field("error_type").unwrap_or_default(),
            entry: field("type").unwrap_or_default(),
            name: field("name").or_else(|| name_in(&message)),
            position: field("position").and_then(|position| position.parse().ok()),
            candidates: candidates_in(&message),
            message,
        })
    }

    /// Parses an error as text: `Binder Error: …`, followed by `LINE 1: …` and a `^`.
    pub(super) fn of_text(text: &str, sql: &str) -> Self {
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
            entry: if entry.len() < 30 { entry.to_owned() } else { String::new() },
            name: name_in(message),
            position: marker.and_then(|marker| position_in(marker, sql)),
            candidates: candidates_in(message),
        }
    }

    /// Returns the first line of the message without its final punctuation.
    fn sentence(&self) -> String {
        let line = self.message.lines().next().unwrap_or_default().trim_end_matches(['!', '.']).trim();
        if line.is_empty() { "the engine does not say why".to_owned() } else { line.to_owned() }
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
    pub(super) fn refusal(&self, sql: &str) -> Refusal {
        let code = self.code();
        let message = if self.is_window_alone() {
            format!("`{}` is a window function, which requires OVER", self.name.as_deref().unwrap_or_default())
        } else {
            self.sentence()
        };
        let is_of_name = matches!(
            code,
            SqlCode::UnknownColumn | SqlCode::UnknownTable | SqlCode::UnknownFunction | SqlCode::AmbiguousColumn
        );
        Refusal {
            code,
            message,
            engine_code: self.title(),
            place: self.place(sql, code),
            subject: self.name.clone().filter(|_| is_of_name || code == SqlCode::UngroupedColumn),
            candidates: self.near_candidates(code),
        }
    }

    /// Converts the error of an internal statement to a failure of the engine.
    pub(super) fn failed(&self) -> Refusal {
        Refusal { code: SqlCode::EngineFailed, ..self.refusal("") }
    }

    fn is_window_alone(&self) -> bool {
        self.kind == "catalog"
            && self.name.as_ref().is_some_and(|name| WINDOWS.contains(&name.to_ascii_lowercase().as_str()))
    }

    /// Returns the candidates that may be what a misspelt name means. DuckDB also suggests names that are not similar.
    fn near_candidates(&self, code: SqlCode) -> Vec<String> {
        let Some(name) = &self.name else { return Vec::new() };
        match code {
            SqlCode::UnknownColumn | SqlCode::UnknownTable | SqlCode::UnknownFunction => {
                nearest(name, self.candidates.iter().map(String::as_str).filter(|candidate| is_near(name, candidate)))
            }
            SqlCode::AmbiguousColumn => self.candidates.clone(),
            _ => Vec::new(),
        }
    }

    fn code(&self) -> SqlCode {
        match self.kind.as_str() {
            "parser" | "syntax" => self.of_form(),
            "binder" | "parameter not resolved" | "parameter not allowed" | "expression" => self.of_binder(),
            "catalog" | "dependency" => self.of_catalog(),
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

    fn of_form(&self) -> SqlCode {
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
    pub(super) fn is_of_form(&self) -> bool {
        matches!(self.kind.as_str(), "parser" | "syntax")
            && matches!(self.of_form(), SqlCode::UnterminatedToken | SqlCode::TooDeep | SqlCode::SyntaxError)
    }

    fn of_binder(&self) -> SqlCode {
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

    fn of_catalog(&self) -> SqlCode {
        if self.message.contains("already exists") {
            return SqlCode::AlreadyThere;
        }
        if self.is_window_alone() {
            return SqlCode::MisusedFunction;
        }
        match self.entry.as_str() {
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
    fn place(&self, sql: &str, code: SqlCode) -> Option<Range<usize>> {
        /// The maximum distance of the name from the position, in tokens: `schema.table.column`.
        const FAR: usize = 8;
        let pieces = text::pieces(sql, Dialect::Duckdb);
        let solid = |piece: Piece| !matches!(piece, Piece::Space | Piece::Comment);
        let from = self.position.unwrap_or(0);
        let mut behind = pieces.iter().filter(|(piece, range)| solid(*piece) && range.end > from);
        let at = behind.clone().next().map(|(_, range)| range.clone());
        let is_name = |piece: Piece| matches!(piece, Piece::Word | Piece::Quoted | Piece::String);
        let most = if self.position.is_some() { FAR } else { usize::MAX };
        let bare = self.name.as_deref().map(|name| name.rsplit_once('.').map_or(name, |(_, bare)| bare));
        let named = bare.filter(|_| code != SqlCode::SyntaxError).and_then(|name| {
            behind
                .by_ref()
                .take(most)
                .find(|(piece, range)| {
                    is_name(*piece) && text::unquoted(&sql[range.clone()]).eq_ignore_ascii_case(name)
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
fn name_in(message: &str) -> Option<String> {
    let first = message.lines().next()?;
    for begin in
        ["with name ", "a column named ", "update column ", "column name ", "to column name ", "Referenced column "]
    {
        if let Some((_, rest)) = first.split_once(begin) {
            return Some(word(rest));
        }
    }
    for begin in ["Referenced table ", "Catalog ", "column ", "Column "] {
        if let Some(rest) = first.strip_prefix(begin) {
            return Some(word(rest));
        }
    }
    None
}

/// Returns the word or the quoted name at the beginning of a text.
fn word(rest: &str) -> String {
    match rest.strip_prefix('"').and_then(|rest| rest.split_once('"')) {
        Some((name, _)) => name.to_owned(),
        None => rest.split([' ', '!', '"', ',', '\n']).next().unwrap_or_default().to_owned(),
    }
}

/// Returns the quoted names in the lines of a message that suggest candidates.
fn candidates_in(message: &str) -> Vec<String> {
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
fn position_in(marker: &str, sql: &str) -> Option<usize> {
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

    fn refused(text: &str, sql: &str) -> (SqlCode, Option<String>, Option<String>) {
        let refusal = Said::of_text(text, sql).refusal(sql);
        (refusal.code, refusal.place.map(|place| sql[place].to_owned()), refusal.subject)
    }

    #[test]
    fn a_text_is_understood() {
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
            let (found, at, _) = refused(text, sql);
            assert_eq!((found, at.as_deref()), (*code, *place), "{text}");
        }
    }

    #[test]
    fn json_is_understood() {
        let sql = "SELECT 'é', c.nmae FROM customers c";
        let said = json!({
            "error": true, "error_type": "binder", "name": "nmae", "position": "13", "candidates": "name,email",
            "error_message": "Table \"c\" does not have a column named \"nmae\"\n\nCandidate bindings: : \"name\", \"email\"",
        });
        let refusal = Said::of_json(&said).unwrap().refusal(sql);
        assert_eq!(refusal.code, SqlCode::UnknownColumn);
        assert_eq!(&sql[refusal.place.unwrap()], "nmae");
        assert_eq!(refusal.candidates, ["name"]);
        assert_eq!(refusal.engine_code.as_deref(), Some("Binder Error"));
        assert_eq!(Said::of_json(&json!({"error": false, "plans": []})), None);
    }

    #[test]
    fn what_is_no_slip_is_not_proposed() {
        let text = "Catalog Error: Table with name holidays does not exist!\nDid you mean \"pg_class\"?";
        assert!(Said::of_text(text, "SELECT 1 FROM holidays").refusal("SELECT 1 FROM holidays").candidates.is_empty());
    }

    #[test]
    fn both_sides_of_an_ambiguity_are_proposed() {
        let text = "Binder Error: Ambiguous reference to column name \"id\" (use: \"c.id\" or \"o.id\")";
        let refusal = Said::of_text(text, "SELECT id FROM c, o").refusal("SELECT id FROM c, o");
        assert_eq!((refusal.code, refusal.candidates), (SqlCode::AmbiguousColumn, vec!["c.id".into(), "o.id".into()]));
        assert_eq!(refusal.subject.as_deref(), Some("id"));
    }

    #[test]
    fn any_text_is_borne() {
        for text in ["", " Error: ", "LINE 1:", "Binder Error: x\n\nLINE 9: y\n ^", "A Error: b\n\nLINE x: \n^"] {
            let _ = Said::of_text(text, "SELECT 1").refusal("SELECT 1");
        }
    }
}
