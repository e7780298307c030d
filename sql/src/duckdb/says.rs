//! What DuckDB says when it has something against a statement, understood: as it says it in JSON (`json_serialize_plan`,
//! `json_serialize_sql`), and as it says it in a text.

use std::ops::Range;

use proctor_core::sql::{Dialect, SqlCode};
use serde_json::Value;

use crate::engine::Refusal;
use crate::nearest::{is_near, nearest};
use crate::text::{self, Piece};

/// What [`super`] says of a result that is larger than it may be, before the number of bytes.
pub(super) const TOO_LARGE: &str = "Result Limit Error: the result has more than these bytes: ";

/// Functions that stand with OVER only, and that DuckDB does not find without it.
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

/// An error of DuckDB's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Said {
    /// What kind of error, in lower case: `binder`, `catalog`, `parser`, `out of memory`.
    pub(super) kind: String,
    /// All of what it says, without the kind and the place.
    pub(super) message: String,
    /// What kind of entry of the catalog it is about: `Table`, `Scalar Function`.
    pub(super) entry: String,
    /// The name that it is about.
    pub(super) name: Option<String>,
    /// Where it is, in bytes.
    position: Option<usize>,
    candidates: Vec<String>,
}

impl Said {
    /// An error in JSON; none where the JSON is no error.
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

    /// An error in a text: `Binder Error: …`, with `LINE 1: …` and a `^` behind it.
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

    /// Its first sentence, for people.
    fn sentence(&self) -> String {
        let line = self.message.lines().next().unwrap_or_default().trim_end_matches(['!', '.']).trim();
        if line.is_empty() { "the engine does not say why".to_owned() } else { line.to_owned() }
    }

    /// What DuckDB calls it: `Binder Error`.
    fn title(&self) -> Option<String> {
        let words = self.kind.split_ascii_whitespace().map(|word| {
            let mut letters = word.chars();
            let first = letters.next().map(|first| first.to_ascii_uppercase());
            first.into_iter().chain(letters).collect::<String>()
        });
        let title = words.collect::<Vec<_>>().join(" ");
        (!title.is_empty()).then(|| format!("{} Error", title.replace("Transactioncontext", "TransactionContext")))
    }

    /// What it has against a statement.
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

    /// It, as a fault of the engine: what was asked was ours.
    pub(super) fn failed(&self) -> Refusal {
        Refusal { code: SqlCode::EngineFailed, ..self.refusal("") }
    }

    fn is_window_alone(&self) -> bool {
        self.kind == "catalog"
            && self.name.as_ref().is_some_and(|name| WINDOWS.contains(&name.to_ascii_lowercase().as_str()))
    }

    /// DuckDB proposes the least unlike of all names; what is no slip is no proposal.
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
            // Out of range, invalid input, not implemented and the like come of values, while it runs.
            _ => SqlCode::RunFailed,
        }
    }

    /// A value that is larger than any may be.
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
            // The form is right; what it names is not there.
            SqlCode::BindError
        } else if self.message.starts_with("VALUES lists must all") {
            SqlCode::ColumnCount
        } else {
            SqlCode::SyntaxError
        }
    }

    /// Whether it is about the form of the text, and not about what it names.
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

    /// The place of the name that it is about, from where DuckDB points on; else what stands where it points.
    fn place(&self, sql: &str, code: SqlCode) -> Option<Range<usize>> {
        /// How many pieces behind the place a name may stand: `schema.table.column`.
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

/// The name that a message is about, where DuckDB does not give it apart.
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

/// The word or the quoted name that a text begins with.
fn word(rest: &str) -> String {
    match rest.strip_prefix('"').and_then(|rest| rest.split_once('"')) {
        Some((name, _)) => name.to_owned(),
        None => rest.split([' ', '!', '"', ',', '\n']).next().unwrap_or_default().to_owned(),
    }
}

/// The quoted names of the lines that propose something.
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

/// The place that a marker points at: `LINE 2: …text` and below it a `^`. DuckDB cuts long lines and says so by dots.
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
