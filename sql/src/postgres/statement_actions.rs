//! Converts the resolved tree of a query or a change of rows to actions. [`super::commands`] classifies other commands.

use std::collections::BTreeSet;
use std::time::Instant;

use super::affected_relations;
use super::builtin_allowlist;
use super::catalog_reader::{self, DatabaseContent, Relation, RelationKind};
use super::node_tree::{
    ACL_DELETE, ACL_INSERT, ACL_SELECT, ACL_UPDATE, RelationUse, StatementFacts, WHOLE_ROW, column_number,
};
use super::session::{Session, SessionError};
use crate::engine::{Action, BoundStatement};

/// The first object id that is not built in.
const FIRST_USER_OID: u32 = 16_384;
/// The maximum nesting of views.
const MAX_VIEW_DEPTH: usize = 64;
/// Bits of `pg_trigger.tgtype`.
const TRIGGER_INSERT: u32 = 4;
const TRIGGER_DELETE: u32 = 8;
const TRIGGER_UPDATE: u32 = 16;
const TRIGGER_TRUNCATE: u32 = 32;

/// Returns everything that a query or a change of rows does.
pub(super) fn from_facts(
    facts: &StatementFacts,
    content: &DatabaseContent,
    session: &Session,
    deadline: Instant,
) -> Result<BTreeSet<Action>, SessionError> {
    let mut collected =
        Collector { content, actions: BTreeSet::new(), functions: BTreeSet::new(), system: BTreeSet::new() };
    collected.add_facts(facts, 0);
    let Collector { mut actions, functions, system, .. } = collected;
    let called = catalog_reader::read_functions(session, &functions, deadline)?;
    actions.extend(called.into_iter().map(|function| Action::Call(function.name)));
    let named = catalog_reader::read_system_relations(session, &system, deadline)?;
    for oid in system {
        actions.insert(match named.get(&oid) {
            Some((schema, name)) if builtin_allowlist::is_schema_catalog(schema, name) => {
                Action::Metadata { source: format!("`{schema}.{name}`"), table: None }
            }
            Some((schema, name)) => Action::Other(format!("it reads `{schema}.{name}`, which describes the server")),
            None => Action::Other("it reads a table that the server does not name".to_owned()),
        });
    }
    Ok(actions)
}

/// Returns the calls of the functions that the triggers of truncated tables call.
pub(super) fn truncation_calls(content: &DatabaseContent, sql: &str, bound: &BoundStatement) -> Vec<Action> {
    let truncated = bound.schema_changes().filter(|(what, _)| *what == "truncate table");
    let names: BTreeSet<&str> = truncated.map(|(_, name)| name).collect();
    if names.is_empty() {
        return Vec::new();
    }
    let triggers = affected_relations::find(content, sql, &names).into_iter().flat_map(|relation| &relation.triggers);
    triggers
        .filter(|(events, _)| events & TRIGGER_TRUNCATE != 0)
        .map(|(_, function)| Action::Call(function.clone()))
        .collect()
}

struct Collector<'a> {
    content: &'a DatabaseContent,
    actions: BTreeSet<Action>,
    functions: BTreeSet<u32>,
    /// The relations that are not part of the schema.
    system: BTreeSet<u32>,
}

impl Collector<'_> {
    fn add_facts(&mut self, facts: &StatementFacts, depth: usize) {
        if depth > MAX_VIEW_DEPTH {
            self.actions.insert(Action::Other("its views are nested too deeply".to_owned()));
            return;
        }
        self.functions.extend(&facts.functions);
        // Built-in casts and operators access nothing but their operands.
        self.functions.extend(facts.implicit_functions.iter().filter(|oid| **oid >= FIRST_USER_OID));
        let keywords = facts.keyword_values.iter().filter_map(|number| builtin_allowlist::keyword_of_session(*number));
        self.actions.extend(keywords.map(|keyword| Action::Call(keyword.to_owned())));
        if facts.is_recursive {
            self.actions.insert(Action::Recursion);
        }
        if facts.locks_rows {
            self.actions.insert(Action::Other("it locks rows".to_owned()));
        }
        if facts.types.iter().any(|oid| builtin_allowlist::is_name_type(*oid)) {
            self.actions.insert(Action::Metadata {
                source: "a type of object names, such as `regclass`".to_owned(),
                table: None,
            });
        }
        for relation in facts.types.iter().filter_map(|kind| self.content.row_types.get(kind)) {
            if let Some(relation) = self.content.relations.get(relation) {
                // The type of a row shows the names of all columns.
                self.add_reads(relation, &[WHOLE_ROW]);
                if relation.kind == RelationKind::View {
                    self.add_definition(relation, depth);
                }
            }
        }
        for relation in &facts.relations {
            self.add_relation(relation, depth);
        }
    }

    fn add_relation(&mut self, used: &RelationUse, depth: usize) {
        let Some(relation) = self.content.relations.get(&used.oid) else {
            if used.permissions != ACL_SELECT {
                self.actions.insert(Action::Other("it changes a table of the server".to_owned()));
            }
            self.system.insert(used.oid);
            return;
        };
        let name = &relation.name;
        match relation.kind {
            RelationKind::Table | RelationKind::View => {}
            RelationKind::Sequence => {
                self.actions.insert(Action::Other(format!("it reads the sequence `{name}`")));
            }
            RelationKind::Foreign => {
                self.actions.insert(Action::File(format!("the table `{name}` of another server")));
            }
        }
        let known = ACL_SELECT | ACL_INSERT | ACL_UPDATE | ACL_DELETE;
        if used.permissions & !known != 0 {
            self.actions.insert(Action::Other(format!("it needs unusual permissions on `{name}`")));
        }
        if used.permissions & ACL_SELECT != 0 {
            self.add_reads(relation, &used.selected);
        }
        if used.permissions & ACL_INSERT != 0 {
            self.actions.insert(Action::Insert(name.clone()));
        }
        // `FOR UPDATE` needs the permission to update, but names no column.
        for column in columns(relation, &used.updated) {
            self.actions.insert(Action::Update { table: name.clone(), column });
        }
        if used.permissions & ACL_DELETE != 0 {
            self.actions.insert(Action::Delete(name.clone()));
        }
        self.add_triggers(relation, used.permissions);
        if !used.is_only {
            self.add_children(relation, used, depth);
        }
        if relation.kind == RelationKind::View {
            if used.permissions & !ACL_SELECT != 0 {
                self.actions.insert(Action::Other(format!("it changes rows through the view `{name}`")));
            }
            self.add_definition(relation, depth);
        }
    }

    /// Adds everything that the definition of a view does.
    fn add_definition(&mut self, view: &Relation, depth: usize) {
        match &view.definition {
            Some(facts) => self.add_facts(facts, depth + 1),
            None => {
                let message = format!("the definition of the view `{}` cannot be read", view.name);
                self.actions.insert(Action::Other(message));
            }
        }
    }

    /// Adds the uses of the tables that inherit from a table: a statement uses them with it. Their columns have the same
    /// names, but may have other numbers.
    fn add_children(&mut self, parent: &Relation, used: &RelationUse, depth: usize) {
        let (selected, updated) = (columns(parent, &used.selected), columns(parent, &used.updated));
        for (oid, child) in parent.children.iter().filter_map(|oid| Some((*oid, self.content.relations.get(oid)?))) {
            let numbers = |names: &BTreeSet<String>| {
                let own = child.columns.iter().filter(|(_, name)| names.contains(*name));
                own.map(|(number, _)| number + WHOLE_ROW).collect()
            };
            let inherited = RelationUse {
                oid,
                permissions: used.permissions & !ACL_INSERT,
                selected: numbers(&selected),
                updated: numbers(&updated),
                ..RelationUse::default()
            };
            self.add_relation(&inherited, depth + 1);
        }
    }

    fn add_reads(&mut self, relation: &Relation, selected: &[i32]) {
        let table = &relation.name;
        let mut columns = columns(relation, selected);
        // A generated column shows the columns that it is computed from.
        let sources = relation
            .generated
            .iter()
            .filter(|(number, _)| relation.columns.get(number).is_some_and(|generated| columns.contains(generated)));
        let sources: Vec<String> = sources
            .flat_map(|(_, sources)| sources)
            .filter_map(|source| relation.columns.get(source).cloned())
            .collect();
        columns.extend(sources);
        if columns.is_empty() {
            self.actions.insert(Action::Read { table: table.clone(), column: None });
        }
        for column in columns {
            self.actions.insert(Action::Read { table: table.clone(), column: Some(column) });
        }
    }

    /// Adds the functions that changes of rows call. Their effects are unknown.
    fn add_triggers(&mut self, relation: &Relation, permissions: u32) {
        let events = [(ACL_INSERT, TRIGGER_INSERT), (ACL_UPDATE, TRIGGER_UPDATE), (ACL_DELETE, TRIGGER_DELETE)];
        let wanted = events.iter().filter(|(acl, _)| permissions & acl != 0).fold(0, |all, (_, event)| all | event);
        for (_, function) in relation.triggers.iter().filter(|(events, _)| events & wanted != 0) {
            self.actions.insert(Action::Call(function.clone()));
        }
        if wanted != 0 && relation.has_rules {
            self.actions.insert(Action::Other(format!("a rule of `{}` replaces the statement", relation.name)));
        }
    }
}

/// Returns the names of columns; a whole row is all columns.
fn columns(relation: &Relation, entries: &[i32]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for number in entries.iter().map(|entry| column_number(*entry)) {
        match number {
            0 => names.extend(relation.columns.values().cloned()),
            1.. => {
                names.insert(relation.columns.get(&number).cloned().unwrap_or_else(|| format!("column {number}")));
            }
            -6 => {
                names.insert("tableoid".to_owned());
            }
            _ => {
                names.insert("ctid".to_owned());
            }
        }
    }
    names
}
