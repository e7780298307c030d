//! Removes the names that are off the lists of a request from its judgement, so that findings and suggestions do not
//! describe the rest of the schema.
//!
//! Suggestions (candidates, advice, fixes) never contain such a name. A message may repeat a name that the text itself
//! contains; any other is replaced by [`MASK`]. The secrets of a caller are a different subject: see
//! [`proctor_core::text::redact`].

use std::collections::BTreeSet;
use std::ops::Range;

use proctor_core::sql::{Dialect, SqlCode, SqlDiagnostic, StatementView};

use crate::allow_lists::{self, NameLists};
use crate::catalog::{Catalog, CatalogTable, EnumType, bare_name, split_name};
use crate::engine::{EngineRefusal, GENERATED_ROWS_PREFIX};
use crate::lexer;

/// The replacement for a name that is off the lists.
const MASK: &str = "…";
/// The message about a broken constraint whose own message could show something that is off the lists.
const BROKEN_CONSTRAINT: &str = "a constraint or a trigger of the schema refuses the rows";
/// The message about an error that a trigger or a function of the schema raises with a text of its own.
const RAISED_ERROR: &str = "a trigger or a function of the schema raises an error";
/// The beginnings of the engines' codes for such errors: of PostgreSQL and of MySQL.
const RAISED_ERROR_CODES: [&str; 2] = ["P0001", "1644"];
/// Characters that mark an adjacent word as a name.
const NAME_MARKS: [char; 4] = ['`', '"', '\'', '.'];
/// Words that messages contain regardless of the schema.
const ORDINARY_WORDS: [&str; 30] = [
    "name",
    "names",
    "column",
    "columns",
    "table",
    "tables",
    "type",
    "types",
    "function",
    "index",
    "value",
    "values",
    "key",
    "view",
    "row",
    "rows",
    "error",
    "text",
    "number",
    "order",
    "group",
    "date",
    "statement",
    "query",
    "line",
    "position",
    "list",
    "schema",
    "reference",
    "code",
];

/// Returns the tables and views of a catalog that the lists allow, each with its allowed columns.
pub(crate) fn visible_catalog(catalog: &Catalog, allow: &NameLists) -> Catalog {
    let tables = catalog.tables.iter().filter(|table| allow_lists::is_table_allowed(allow, &table.name));
    let with_columns = tables.map(|table| {
        let mut table = table.clone();
        let name = table.name.clone();
        table.columns.retain(|column| allow_lists::is_column_allowed(allow, &name, &column.name));
        table.foreign_keys.retain(|key| {
            allow_lists::is_table_allowed(allow, &key.referenced_table)
                && allow_lists::is_column_allowed(allow, &name, &key.column)
                && key
                    .referenced_column
                    .as_ref()
                    .is_none_or(|to| allow_lists::is_column_allowed(allow, &key.referenced_table, to))
        });
        table
    });
    let tables: Vec<CatalogTable> = with_columns.collect();
    let columns = || tables.iter().flat_map(|table| &table.columns);
    let is_shown = |one: &&EnumType| columns().any(|column| column.declared_type.contains(&one.definition));
    let enum_types = catalog.enum_types.iter().filter(is_shown).cloned().collect();
    Catalog { tables, enum_types }
}

/// The names of tables and columns that a judgement must not reveal.
pub(crate) struct HiddenNames {
    /// Every such name, in lower case.
    names: BTreeSet<String>,
    /// The subset of `names` that the text does not contain.
    unmentioned: BTreeSet<String>,
    /// Every column, as `table.column` in lower case.
    columns: BTreeSet<String>,
    /// The definitions of the enum types that no listed column has.
    enum_definitions: Vec<String>,
}

impl HiddenNames {
    /// Returns the names that the lists hide; `None` if the request has no lists.
    pub(crate) fn new(catalog: &Catalog, allow: &NameLists, sql: &str, dialect: Dialect) -> Option<Self> {
        if !allow_lists::has_name_lists(allow) {
            return None;
        }
        let bare_lowercase_name = |name: &str| bare_name(name, dialect).to_ascii_lowercase();
        let visible = visible_catalog(catalog, allow);
        let mut shown = catalog_names(&visible, dialect);
        let enum_types = catalog.enum_types.iter().filter(|one| !visible.enum_types.contains(one));
        // The lists quote names with dots in all dialects.
        let last_part = |name: &String| split_name(name, &['"']).pop().unwrap_or_default().to_ascii_lowercase();
        shown.extend(allow.tables.iter().map(last_part));
        shown.extend(allow.columns.iter().map(|entry| entry.column.to_ascii_lowercase()));
        let mentioned = lexer::possible_names(sql, dialect);
        let mut names: BTreeSet<String> = catalog_names(catalog, dialect).difference(&shown).cloned().collect();
        let mut unsaid: BTreeSet<String> = names.difference(&mentioned).cloned().collect();
        // If a column is hidden and another table shows a column with the same name, only the qualified name is hidden.
        for table in &catalog.tables {
            let is_off = |column: &str| {
                !allow_lists::is_table_allowed(allow, &table.name)
                    || !allow_lists::is_column_allowed(allow, &table.name, column)
            };
            for column in table.columns.iter().filter(|column| is_off(&column.name)) {
                let column = column.name.to_ascii_lowercase();
                let pair = format!("{}.{column}", bare_lowercase_name(&table.name));
                if !mentioned.contains(&column) {
                    unsaid.insert(pair.clone());
                }
                names.insert(pair);
            }
        }
        let enum_definitions = enum_types.map(|one| one.definition.clone()).collect();
        let columns = qualified_columns(catalog, dialect);
        Some(Self { names, unmentioned: unsaid, columns, enum_definitions })
    }

    /// Removes hidden names from a finding.
    pub(crate) fn mask_diagnostic(&self, found: &mut SqlDiagnostic) {
        if let Some(message) = self.replaced_message(found.code, found.engine_code.as_deref(), &found.message) {
            found.message = message.to_owned();
            found.subject = None;
            found.engine_code =
                found.engine_code.take().and_then(|code| code.split_once(": ").map(|(code, _)| code.to_owned()));
        }
        found.candidates.retain(|candidate| !mentions_any(&self.names, candidate));
        found.advice = found.advice.take().filter(|advice| !mentions_any(&self.names, advice));
        found.fix = found.fix.take().filter(|fix| !mentions_any(&self.names, &fix.replacement));
        found.subject = found.subject.take().filter(|subject| !mentions_any(&self.unmentioned, subject));
        found.engine_code = found.engine_code.take().map(|code| self.mask_text(&code));
        found.message = self.mask_text(&found.message);
    }

    /// Removes the tables that a statement uses without naming them, such as those behind a view.
    pub(crate) fn mask_view(&self, view: &mut StatementView) {
        view.tables.retain(|table| !mentions_any(&self.unmentioned, table));
    }

    /// Returns the message of a refusal without hidden names.
    pub(crate) fn mask_refusal(&self, refusal: &EngineRefusal, message: &str) -> String {
        let replaced = self.replaced_message(refusal.code, refusal.engine_code.as_deref(), &refusal.message);
        replaced.map_or_else(|| self.mask_text(message), str::to_owned)
    }

    /// Returns the replacement for a message that may contain a text of the schema.
    fn replaced_message(&self, code: SqlCode, engine_code: Option<&str>, message: &str) -> Option<&'static str> {
        let is_raised =
            RAISED_ERROR_CODES.iter().any(|raised| engine_code.is_some_and(|code| code.starts_with(raised)));
        match code {
            SqlCode::ConstraintBroken if !shows_only_columns(&self.columns, message) => Some(BROKEN_CONSTRAINT),
            _ if is_raised => Some(RAISED_ERROR),
            _ => None,
        }
    }

    pub(crate) fn mask_text(&self, text: &str) -> String {
        let mut masked = text.to_owned();
        for definition in &self.enum_definitions {
            masked = masked.replace(definition, &format!("ENUM({MASK})"));
        }
        for place in find_mentions(&self.unmentioned, &masked.clone()).into_iter().rev() {
            masked.replace_range(place, MASK);
        }
        masked
    }
}

/// Reports whether the message about a broken constraint is one of the engine that names only columns. Other messages
/// contain names of constraints and indexes, expressions, texts of triggers, or values of rows.
fn shows_only_columns(columns: &BTreeSet<String>, message: &str) -> bool {
    let message = message.strip_prefix(GENERATED_ROWS_PREFIX).unwrap_or(message);
    let is_column = |name: &str| columns.contains(&name.to_ascii_lowercase());
    let is_bare_column = |name: &str| {
        let end = format!(".{}", name.to_ascii_lowercase());
        columns.iter().any(|column| column.ends_with(&end))
    };
    if let Some(names) =
        ["NOT NULL constraint failed: ", "UNIQUE constraint failed: "].iter().find_map(|of| message.strip_prefix(of))
    {
        return names.split(", ").all(is_column);
    }
    let between = |head: &str, tail: &str| message.strip_prefix(head).and_then(|rest| rest.strip_suffix(tail));
    if let Some(names) = between("null value in column \"", "\" violates not-null constraint") {
        return names
            .split_once("\" of relation \"")
            .is_some_and(|(column, table)| is_column(&format!("{table}.{column}")));
    }
    let name = between("Column '", "' cannot be null").or_else(|| between("Field '", "' doesn't have a default value"));
    name.is_some_and(is_bare_column)
}

/// Returns the columns of a catalog as `table.column`, in lower case and without schemas.
fn qualified_columns(catalog: &Catalog, dialect: Dialect) -> BTreeSet<String> {
    let of_table = |table: &CatalogTable| {
        let name = bare_name(&table.name, dialect);
        let columns = table.columns.iter().map(|column| format!("{name}.{}", column.name).to_ascii_lowercase());
        columns.collect::<Vec<_>>()
    };
    catalog.tables.iter().flat_map(of_table).collect()
}

/// Returns the names of tables and columns in a catalog, in lower case and without schemas.
fn catalog_names(catalog: &Catalog, dialect: Dialect) -> BTreeSet<String> {
    let names = catalog.tables.iter().flat_map(|table| {
        std::iter::once(bare_name(&table.name, dialect).to_ascii_lowercase())
            .chain(table.columns.iter().map(|column| column.name.to_ascii_lowercase()))
    });
    names.chain(catalog.enum_types.iter().map(|one| one.name.to_ascii_lowercase())).collect()
}

/// Reports whether a text mentions one of the names.
fn mentions_any(names: &BTreeSet<String>, text: &str) -> bool {
    !find_mentions(names, text).is_empty()
}

/// Returns the byte ranges in which a text mentions one of the names, in order. A name that is also an ordinary word of
/// messages counts only if it is marked as a name.
fn find_mentions(names: &BTreeSet<String>, text: &str) -> Vec<Range<usize>> {
    let lower = text.to_ascii_lowercase();
    let mut found: Vec<Range<usize>> = Vec::new();
    for name in names {
        for (at, _) in lower.match_indices(name.as_str()) {
            let place = at..at + name.len();
            let (before, behind) = (&text[..place.start], &text[place.end..]);
            let is_whole = !before.ends_with(is_word_char) && !behind.starts_with(is_word_char);
            let is_marked = before.ends_with(NAME_MARKS) || behind.starts_with(NAME_MARKS) || before.ends_with(": ");
            if is_whole && (is_marked || !ORDINARY_WORDS.contains(&name.as_str())) {
                found.push(place);
            }
        }
    }
    found.sort_by_key(|place| (place.start, std::cmp::Reverse(place.end)));
    let mut end = 0;
    found.retain(|place| {
        let is_free = place.start >= end;
        end = end.max(place.end);
        is_free
    });
    found
}

fn is_word_char(sign: char) -> bool {
    sign.is_alphanumeric() || matches!(sign, '_' | '$')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognizes_messages_about_columns_only() {
        let columns: BTreeSet<String> = ["t.a", "t.b"].into_iter().map(str::to_owned).collect();
        for (message, expected) in [
            ("UNIQUE constraint failed: t.a, t.b", true),
            ("NOT NULL constraint failed: T.a", true),
            ("it failed on rows generated from the schema: NOT NULL constraint failed: t.a", true),
            ("null value in column \"a\" of relation \"t\" violates not-null constraint", true),
            ("Column 'a' cannot be null", true),
            ("Field 'b' doesn't have a default value", true),
            ("UNIQUE constraint failed: index 'by_tax_number'", false),
            ("CHECK constraint failed: tax_number <> 7", false),
            ("Duplicate entry 'x-7' for key 'a'", false),
            ("Duplicate key \"a: x, b: 7\" violates unique constraint", false),
            ("duplicate key value violates unique constraint \"t_a_tax_number_key\"", false),
            ("locked by the tax office", false),
            // The texts of triggers can resemble messages of the engine.
            ("the tax number cannot be null", false),
            ("Column 'a' of the tax office cannot be null", false),
            ("UNIQUE constraint failed: t.a, tax number", false),
            ("NOT NULL constraint failed: the tax number", false),
        ] {
            assert_eq!(shows_only_columns(&columns, message), expected, "{message}");
        }
    }

    #[test]
    fn finds_only_whole_names() {
        let names: BTreeSet<String> = ["pin", "name", "credit card"].into_iter().map(str::to_owned).collect();
        let cases: [(&str, &[&str]); 7] = [
            ("no such column: pin", &["pin"]),
            ("Did you mean \"PIN\" or pins?", &["PIN"]),
            ("a name in quotes has no end", &[]),
            ("the column `t.name` and 'name'", &["name", "name"]),
            ("no such column: name", &["name"]),
            ("use credit card.pin", &["credit card", "pin"]),
            ("spinning", &[]),
        ];
        for (text, expected) in cases {
            let found: Vec<&str> = find_mentions(&names, text).into_iter().map(|place| &text[place]).collect();
            assert_eq!(found, expected, "{text}");
        }
    }
}
