//! Finds uses of hidden columns that neither the authorizer nor the program of a statement shows: searches of a full-text
//! table in all of its columns, and `NATURAL JOIN` of a table with itself.

use std::collections::BTreeSet;

use proctor_core::sql::{Dialect, SqlCode};

use super::schema_reader::SchemaEntry;
use crate::catalog::Catalog;
use crate::engine::{BoundStatement, EngineRefusal};
use crate::lexer::{self, SqlTokenKind};
use crate::sqlite::schema_definitions::{significant_tokens, virtual_table_arguments_start};
use crate::sqlite::statement_program::Instruction;

/// The number of the first query plan of FTS3 and FTS4 that searches text. Plans below scan the table or find a row.
const FIRST_FTS3_SEARCH: i64 = 2;
/// The bits of the number of a plan of FTS3 and FTS4 without its flags.
const FTS3_PLAN_BITS: i64 = 0xffff;

/// The tables whose hidden columns a statement can use unnoticed.
pub(super) struct UnreportedUses {
    tables: Vec<PartlyListedTable>,
    /// The bodies of views and triggers, each with the name of the view or of the trigger's table.
    bodies: Vec<(String, String)>,
}

/// A table with hidden columns.
struct PartlyListedTable {
    name: String,
    module: Option<FullTextModule>,
}

/// A module of full-text tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FullTextModule {
    /// FTS3 and FTS4, where the text of a search can name any column: `body MATCH 'title:x'`.
    Fts3,
    /// FTS5, where the search of a column stays in this column. A search of the table has the number of the first
    /// column behind those of the table.
    Fts5 { columns: usize },
}

impl UnreportedUses {
    /// `partly_listed` are the names of the tables with hidden columns.
    pub(super) fn new(entries: &[&SchemaEntry], partly_listed: BTreeSet<&str>, catalog: &Catalog) -> Self {
        let module = |name: &str| {
            let entry = entries.iter().find(|one| one.kind == "table" && one.name.eq_ignore_ascii_case(name))?;
            full_text_module(&entry.sql, catalog.table(name)?.columns.len())
        };
        let tables =
            partly_listed.into_iter().map(|name| PartlyListedTable { name: name.to_owned(), module: module(name) });
        let has_body = |one: &&&SchemaEntry| matches!(one.kind.as_str(), "view" | "trigger");
        let bodies = entries.iter().filter(has_body).map(|one| (one.table.clone(), one.sql.clone()));
        Self { tables: tables.collect(), bodies: bodies.collect() }
    }

    /// Returns the refusal of a statement that uses hidden columns; `programs` are those of the statement.
    pub(super) fn refusal(
        &self,
        sql: &str,
        bound: &BoundStatement,
        programs: &[Vec<Instruction>],
    ) -> Option<EngineRefusal> {
        let used = bound.tables();
        let is_used = |name: &str| used.iter().any(|table| table.eq_ignore_ascii_case(name));
        let bodies = self.bodies.iter().filter(|(name, _)| is_used(name)).map(|(_, body)| body.as_str());
        let texts: Vec<&str> = std::iter::once(sql).chain(bodies).collect();
        self.tables.iter().filter(|table| is_used(&table.name)).find_map(|table| {
            if table.module.is_some_and(|module| programs.iter().any(|program| searches_table(program, module))) {
                let message = format!("it searches all columns of `{}`, but not all are on the list", table.name);
                return Some(refusal_about(&table.name, message));
            }
            texts.iter().any(|text| joins_naturally_with_itself(text, &table.name)).then(|| {
                let message =
                    format!("`NATURAL JOIN` compares all columns of `{}`, but not all are on the list", table.name);
                refusal_about(&table.name, message)
            })
        })
    }
}

fn refusal_about(table: &str, message: String) -> EngineRefusal {
    EngineRefusal { subject: Some(table.to_owned()), ..EngineRefusal::new(SqlCode::ColumnRefused, message) }
}

fn full_text_module(sql: &str, columns: usize) -> Option<FullTextModule> {
    let solid = significant_tokens(sql);
    let begin = virtual_table_arguments_start(&solid, sql)?;
    let module = lexer::unquote(&sql[solid.get(begin + 1)?.1.clone()]).to_ascii_lowercase();
    match module.as_str() {
        "fts3" | "fts4" => Some(FullTextModule::Fts3),
        "fts5" => Some(FullTextModule::Fts5 { columns }),
        _ => None,
    }
}

/// Reports whether a program searches hidden columns of a full-text table. `VFilter` has the plan in its fourth operand
/// and, as a number, in the register of its third operand.
fn searches_table(program: &[Instruction], module: FullTextModule) -> bool {
    let searches = |filter: &Instruction| match module {
        FullTextModule::Fts3 => {
            let sets_plan = |one: &&Instruction| one.opcode == "Integer" && one.operands[1] == filter.operands[2];
            let plan = program.iter().find(sets_plan).map(|one| one.operands[0] & FTS3_PLAN_BITS);
            plan.is_none_or(|plan| plan >= FIRST_FTS3_SEARCH)
        }
        FullTextModule::Fts5 { columns } => {
            let searched = filter.p4.split('M').skip(1).map(|part| {
                let digits = part.bytes().take_while(u8::is_ascii_digit).count();
                part[..digits].parse::<usize>()
            });
            searched.into_iter().any(|column| column.is_ok_and(|column| column >= columns))
        }
    };
    program.iter().filter(|one| one.opcode == "VFilter").any(searches)
}

/// Reports whether a text contains the word `NATURAL`, and a table more than once.
fn joins_naturally_with_itself(text: &str, table: &str) -> bool {
    let is_solid = |(kind, _): &(SqlTokenKind, std::ops::Range<usize>)| {
        !matches!(kind, SqlTokenKind::Whitespace | SqlTokenKind::Comment)
    };
    let tokens: Vec<&str> =
        lexer::tokenize(text, Dialect::Sqlite).into_iter().filter(is_solid).map(|(_, range)| &text[range]).collect();
    let is_table = |at: &usize| {
        lexer::unquote(tokens[*at]).eq_ignore_ascii_case(table) && tokens.get(at + 1).is_none_or(|next| *next != ".")
    };
    tokens.iter().any(|token| token.eq_ignore_ascii_case("natural")) && (0..tokens.len()).filter(is_table).count() > 1
}
