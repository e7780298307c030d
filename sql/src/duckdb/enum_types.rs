//! Checks the enum types that a statement names. A value of a type, even NULL, shows all values of the type
//! (`enum_range(NULL::mood)`, `typeof`, `DESCRIBE`), so under lists a type must belong to a column that is on the lists.

use proctor_core::sql::SqlCode;

use super::DuckDb;
use super::generated_columns::reachable_texts;
use super::list_checks::{refusal_about, significant_tokens};
use crate::allow_lists::NameLists;
use crate::catalog::Catalog;
use crate::engine::{BoundStatement, EngineRefusal};
use crate::hidden_names::visible_catalog;
use crate::lexer::{self, SqlTokenKind};

/// Functions that read the name of a type from a text.
const TEXT_TYPE_FUNCTIONS: [&str; 4] = ["from_json", "from_json_strict", "json_transform", "json_transform_strict"];
/// Types with parts that have types.
const NESTED_TYPES: [&str; 4] = ["map", "row", "struct", "union"];

impl DuckDb {
    /// Checks that a statement, and the macros and views that it uses, name no enum type off the lists.
    pub(super) fn check_enum_types(
        &self,
        sql: &str,
        bound: &BoundStatement,
        allow: &NameLists,
    ) -> Result<(), EngineRefusal> {
        let catalog = &self.content.catalog;
        if catalog.enum_types.is_empty() {
            return Ok(());
        }
        let visible = visible_catalog(catalog, allow);
        let hidden = catalog.enum_types.iter().filter(|one| !visible.enum_types.contains(one));
        let hidden: Vec<String> = hidden.map(|one| one.name.to_lowercase()).collect();
        if hidden.is_empty() {
            return Ok(());
        }
        let is_definition = bound.schema_changes().next().is_some();
        for text in reachable_texts(self, sql)? {
            if let Some(name) = named_type(&text, &hidden, &visible, is_definition) {
                let message = format!("`{name}` shows the values of a type whose columns are not on the lists");
                return Err(refusal_about(SqlCode::MetadataRefused, message, &name));
            }
        }
        Ok(())
    }
}

/// Returns the first of these types that a text may name. A name that a visible table or column has too counts only
/// where a type is expected.
fn named_type(sql: &str, types: &[String], visible: &Catalog, is_definition: bool) -> Option<String> {
    let solid = significant_tokens(sql);
    let word = |at: usize| solid.get(at).map_or("", |(_, range)| &sql[range.clone()]);
    let is_any = |at: usize, words: &[&str]| words.iter().any(|one| word(at).eq_ignore_ascii_case(one));
    if let Some(at) = (0..solid.len()).find(|at| is_any(*at, &TEXT_TYPE_FUNCTIONS) && word(at + 1) == "(") {
        return Some(word(at).to_owned());
    }
    let has_nested_types = (0..solid.len()).any(|at| is_any(at, &NESTED_TYPES) && word(at + 1) == "(");
    let is_type_expected = |at: usize| {
        let mut first = at;
        while first >= 2 && word(first - 1) == "." {
            first -= 2;
        }
        let follows = first > 0 && is_any(first - 1, &["::", ":", "as", "type"]);
        let precedes_text = solid.get(at + 1).is_some_and(|(kind, _)| *kind == SqlTokenKind::String);
        follows || precedes_text || is_definition || has_nested_types
    };
    (0..solid.len()).find_map(|at| {
        if !matches!(solid[at].0, SqlTokenKind::Word | SqlTokenKind::Quoted) {
            return None;
        }
        let name = lexer::unquote(word(at)).to_lowercase();
        let is_shared = visible.table(&name).is_some() || visible.tables_with(&name).next().is_some();
        (types.contains(&name) && (!is_shared || is_type_expected(at))).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{CatalogColumn, CatalogTable};

    #[test]
    fn finds_types_and_not_columns_of_the_same_name() {
        let column = CatalogColumn { name: "state".to_owned(), ..CatalogColumn::default() };
        let table = CatalogTable { name: "t".to_owned(), columns: vec![column], ..CatalogTable::default() };
        let visible = Catalog { tables: vec![table], ..Catalog::default() };
        let types = ["mood".to_owned(), "state".to_owned()];
        let found = |sql, is_definition| named_type(sql, &types, &visible, is_definition);
        for sql in [
            "SELECT enum_range(NULL::mood)",
            "SELECT CAST(NULL AS main.\"Mood\")",
            "SELECT NULL::state",
            "SELECT NULL :: memory.main.State[]",
            "SELECT try_cast(NULL AS state)",
            "SELECT state 'x' FROM t",
            "SELECT NULL::STRUCT(a state)",
            "SELECT from_json('1', '\"st' || 'ate\"')",
        ] {
            assert!(found(sql, false).is_some(), "{sql}");
        }
        for sql in [
            "SELECT state, count(state) FROM t WHERE t.state = 'mood' GROUP BY state",
            "UPDATE t SET state = 'x' WHERE state = 'y'",
        ] {
            assert_eq!(found(sql, false), None, "{sql}");
        }
        assert!(found("CREATE TABLE x (a state)", true).is_some());
    }
}
