//! Reads the content of a database from the catalogs of PostgreSQL: tables, views and their definitions, keys, triggers
//! and functions.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::builtin_allowlist;
use super::node_tree::{self, StatementFacts};
use super::session::{Session, SessionError};
use crate::catalog::{Catalog, CatalogColumn, CatalogTable, ForeignKey, SchemaComment, joined_name};

/// The condition for objects of the schema. Temporary objects belong to the judgement itself.
const OWN_SCHEMAS: &str = "n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast') \
    AND n.nspname !~ '^pg_(toast_)?temp_'";

const RELATIONS_QUERY: &str = "
    SELECT c.oid::text, n.nspname::text, c.relname::text, c.relkind::text, a.attnum::text, a.attname::text,
        pg_catalog.format_type(a.atttypid, a.atttypmod), a.attnotnull::text,
        (a.attgenerated <> '' OR a.attidentity = 'a')::text, c.reltype::text, coalesce(t.typarray, 0)::text
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    LEFT JOIN pg_catalog.pg_type t ON t.oid = c.reltype
    LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND ";
/// The columns that each generated column is computed from. Versions 14 and older record the dependency of the column,
/// later ones that of its expression.
const GENERATED_QUERY: &str = "
    SELECT a.attrelid::text, a.attnum::text, p.refobjsubid::text
    FROM pg_catalog.pg_attribute a
    JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    JOIN pg_catalog.pg_depend p ON p.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass
        AND p.refobjid = a.attrelid AND p.refobjsubid > 0 AND p.refobjsubid <> a.attnum
        AND ((p.classid = 'pg_catalog.pg_attrdef'::pg_catalog.regclass AND p.objid = d.oid)
            OR (p.classid = p.refclassid AND p.objid = a.attrelid AND p.objsubid = a.attnum))
    WHERE a.attgenerated <> ''";
/// The tables that inherit from others. A partition counts as a part of its table.
const CHILDREN_QUERY: &str = "
    SELECT i.inhparent::text, i.inhrelid::text FROM pg_catalog.pg_inherits i
    JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid WHERE c.relkind IN ('r', 'f') AND NOT c.relispartition";
const KEYS_QUERY: &str = "
    SELECT con.conrelid::text, a.attname::text, k.ord::text
    FROM pg_catalog.pg_constraint con CROSS JOIN LATERAL unnest(con.conkey) WITH ORDINALITY AS k(col, ord)
    JOIN pg_catalog.pg_attribute a ON a.attrelid = con.conrelid AND a.attnum = k.col WHERE con.contype = 'p'";
const FOREIGN_KEYS_QUERY: &str = "
    SELECT con.conrelid::text, con.confrelid::text, a.attname::text, f.attname::text, con.confdeltype::text,
        con.confupdtype::text
    FROM pg_catalog.pg_constraint con CROSS JOIN LATERAL unnest(con.conkey, con.confkey) WITH ORDINALITY AS k(col, to_col, ord)
    JOIN pg_catalog.pg_attribute a ON a.attrelid = con.conrelid AND a.attnum = k.col
    JOIN pg_catalog.pg_attribute f ON f.attrelid = con.confrelid AND f.attnum = k.to_col
    WHERE con.contype = 'f' ORDER BY con.oid, k.ord";
const RULES_QUERY: &str = "
    SELECT r.ev_class::oid::text, (r.rulename = '_RETURN')::text, r.ev_action::text
    FROM pg_catalog.pg_rewrite r JOIN pg_catalog.pg_class c ON c.oid = r.ev_class
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE ";
const TRIGGERS_QUERY: &str = "
    SELECT t.tgrelid::text, t.tgtype::text, p.proname::text FROM pg_catalog.pg_trigger t
    JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid WHERE NOT t.tgisinternal";
/// The indexes and sequences that belong to a table.
const OWNED_QUERY: &str = "
    SELECT n.nspname::text, c.relname::text, i.indrelid::text FROM pg_catalog.pg_index i
    JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    UNION ALL
    SELECT n.nspname::text, c.relname::text, d.refobjid::text FROM pg_catalog.pg_depend d
    JOIN pg_catalog.pg_class c ON c.oid = d.objid AND c.relkind = 'S'
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.refclassid = d.classid AND d.deptype IN ('a', 'i')";
const FUNCTION_NAMES_QUERY: &str = "
    SELECT lower(p.proname), bool_and(n.nspname = 'pg_catalog')::text, bool_and(p.provolatile = 'i')::text
    FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace GROUP BY 1";

const COMMENTS_QUERY: &str = "
    SELECT c.oid::text, d.objsubid::text, d.description
    FROM pg_catalog.pg_description d JOIN pg_catalog.pg_class c ON c.oid = d.objoid
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE d.classoid = 'pg_catalog.pg_class'::pg_catalog.regclass AND ";

/// The content of a database.
#[derive(Debug, Default)]
pub(super) struct DatabaseContent {
    pub(super) catalog: Catalog,
    /// The relations of the schema, by object id.
    pub(super) relations: BTreeMap<u32, Relation>,
    /// The relations by the object ids of the types of their rows, and of arrays of rows.
    pub(super) row_types: BTreeMap<u32, u32>,
    /// The quoted form of the names of tables outside of `public`.
    pub(super) quoted_names: BTreeMap<String, String>,
    /// The names of all functions, in lower case.
    pub(super) functions: BTreeSet<String>,
    /// The functions that access nothing but their arguments.
    pub(super) harmless_functions: BTreeSet<String>,
    /// The keys whose changes change rows of other tables.
    pub(super) cascades: Vec<Cascade>,
    /// The tables to which indexes and sequences belong, by the names of these.
    pub(super) owners: BTreeMap<String, u32>,
}

/// A table, a view or a sequence.
#[derive(Debug, Default)]
pub(super) struct Relation {
    /// The name; outside of `public` with its schema.
    pub(super) name: String,
    pub(super) kind: RelationKind,
    /// The names of the columns, by number.
    pub(super) columns: BTreeMap<i32, String>,
    /// The object ids of the tables that inherit from this one.
    pub(super) children: Vec<u32>,
    /// The numbers of the columns that each generated column is computed from.
    pub(super) generated: BTreeMap<i32, BTreeSet<i32>>,
    /// The objects that the definition of a view uses; `None` if it cannot be read.
    pub(super) definition: Option<StatementFacts>,
    /// True if a rule replaces changes of the rows.
    pub(super) has_rules: bool,
    /// The triggers: the events as bits of `tgtype`, and the name of the function.
    pub(super) triggers: Vec<(u32, String)>,
}

/// The kind of a relation.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum RelationKind {
    #[default]
    Table,
    View,
    /// A table of another server.
    Foreign,
    Sequence,
}

/// A foreign key that changes rows of the referencing table.
#[derive(Debug)]
pub(super) struct Cascade {
    pub(super) referenced: u32,
    pub(super) referencing: u32,
    /// The referencing column.
    pub(super) column: String,
    pub(super) on_delete: bool,
    pub(super) on_update: bool,
}

/// A function that a statement calls.
#[derive(Debug)]
pub(super) struct CalledFunction {
    /// The name; outside of `pg_catalog` and `public` with its schema.
    pub(super) name: String,
}

impl DatabaseContent {
    /// Reads everything.
    pub(super) fn read(session: &Session, deadline: Instant) -> Result<Self, SessionError> {
        let mut content = Self::default();
        content.read_relations(session, deadline)?;
        content.read_keys(session, deadline)?;
        content.read_rules(session, deadline)?;
        for row in session.query_texts(OWNED_QUERY, deadline)? {
            let [schema, name, table] = fields(&row);
            content.owners.insert(qualified_name(schema, name), table.parse().unwrap_or_default());
        }
        for row in session.query_texts(FUNCTION_NAMES_QUERY, deadline)? {
            let [name, is_builtin, is_immutable] = fields(&row);
            let is_listed = builtin_allowlist::is_harmless(name);
            let is_pure = is_immutable == "true" && !builtin_allowlist::is_of_server(name);
            if is_builtin == "true" && (is_listed || is_pure) {
                content.harmless_functions.insert(name.to_owned());
            }
            content.functions.insert(name.to_owned());
        }
        Ok(content)
    }

    /// Reads the comments of tables and columns.
    pub(super) fn read_comments(
        &self,
        session: &Session,
        deadline: Instant,
    ) -> Result<Vec<SchemaComment>, SessionError> {
        let rows = session.query_texts(&format!("{COMMENTS_QUERY}{OWN_SCHEMAS}"), deadline)?;
        let comment = |row: &Vec<Option<String>>| {
            let [oid, number, text] = fields(row);
            let relation = self.relations.get(&oid.parse().ok()?)?;
            let number: i32 = number.parse().ok()?;
            let column = if number == 0 { None } else { Some(relation.columns.get(&number)?.clone()) };
            Some(SchemaComment { table: relation.name.clone(), column, text: text.to_owned() })
        };
        Ok(rows.iter().filter_map(comment).collect())
    }

    fn read_relations(&mut self, session: &Session, deadline: Instant) -> Result<(), SessionError> {
        let query = format!("{RELATIONS_QUERY}{OWN_SCHEMAS} ORDER BY c.oid, a.attnum");
        let mut tables: BTreeMap<u32, CatalogTable> = BTreeMap::new();
        for row in session.query_texts(&query, deadline)? {
            let [
                oid,
                schema,
                name,
                kind,
                number,
                column,
                declared_type,
                is_not_null,
                is_generated,
                row_type,
                array_type,
            ] = fields(&row);
            let oid = oid.parse().unwrap_or_default();
            let full_name = qualified_name(schema, name);
            if full_name != name {
                let quoted = format!("{}.{}", quote_identifier(schema), quote_identifier(name));
                self.quoted_names.insert(full_name.clone(), quoted);
            }
            let relation = self.relations.entry(oid).or_insert_with(|| Relation {
                name: full_name.clone(),
                kind: relation_kind(kind),
                ..Relation::default()
            });
            for kind in [row_type, array_type].iter().filter_map(|oid| oid.parse().ok()).filter(|oid| *oid != 0) {
                self.row_types.insert(kind, oid);
            }
            let is_view = relation.kind == RelationKind::View;
            if relation.kind != RelationKind::Sequence {
                tables.entry(oid).or_insert_with(|| CatalogTable {
                    name: full_name,
                    is_view,
                    ..CatalogTable::default()
                });
            }
            if column.is_empty() {
                continue;
            }
            relation.columns.insert(number.parse().unwrap_or_default(), column.to_owned());
            tables.entry(oid).and_modify(|table| {
                table.columns.push(CatalogColumn {
                    name: column.to_owned(),
                    declared_type: declared_type.to_owned(),
                    is_not_null: is_not_null == "true",
                    primary_key_position: 0,
                    is_generated: is_generated == "true",
                });
            });
        }
        self.catalog.tables = tables.into_values().collect();
        for row in session.query_texts(CHILDREN_QUERY, deadline)? {
            let [parent, child] = fields(&row);
            if let (Ok(parent), Ok(child)) = (parent.parse::<u32>(), child.parse())
                && let Some(relation) = self.relations.get_mut(&parent)
            {
                relation.children.push(child);
            }
        }
        for row in session.query_texts(GENERATED_QUERY, deadline)? {
            let [oid, column, source] = fields(&row);
            if let (Ok(oid), Ok(column), Ok(source)) = (oid.parse::<u32>(), column.parse(), source.parse())
                && let Some(relation) = self.relations.get_mut(&oid)
            {
                relation.generated.entry(column).or_default().insert(source);
            }
        }
        Ok(())
    }

    fn read_keys(&mut self, session: &Session, deadline: Instant) -> Result<(), SessionError> {
        for row in session.query_texts(KEYS_QUERY, deadline)? {
            let [table, column, position] = fields(&row);
            if let Some(table) = self.table_mut(table)
                && let Some(column) = table.columns.iter_mut().find(|known| known.name == column)
            {
                column.primary_key_position = position.parse().unwrap_or_default();
            }
        }
        for row in session.query_texts(FOREIGN_KEYS_QUERY, deadline)? {
            let [referencing, referenced, column, to, on_delete, on_update] = fields(&row);
            let name_of = |oid: &str| oid.parse().ok().and_then(|oid: u32| self.relations.get(&oid));
            let Some(referenced_table) = name_of(referenced).map(|relation| relation.name.clone()) else { continue };
            let changes = |action: &str| matches!(action, "c" | "n" | "d");
            if changes(on_delete) || changes(on_update) {
                self.cascades.push(Cascade {
                    referenced: referenced.parse().unwrap_or_default(),
                    referencing: referencing.parse().unwrap_or_default(),
                    column: column.to_owned(),
                    on_delete: changes(on_delete),
                    on_update: changes(on_update),
                });
            }
            let key =
                ForeignKey { column: column.to_owned(), referenced_table, referenced_column: Some(to.to_owned()) };
            if let Some(table) = self.table_mut(referencing) {
                table.foreign_keys.push(key);
            }
        }
        Ok(())
    }

    fn read_rules(&mut self, session: &Session, deadline: Instant) -> Result<(), SessionError> {
        for row in session.query_texts(&format!("{RULES_QUERY}{OWN_SCHEMAS}"), deadline)? {
            let [oid, is_definition, action] = fields(&row);
            let Some(relation) = oid.parse().ok().and_then(|oid: u32| self.relations.get_mut(&oid)) else { continue };
            if is_definition == "true" {
                relation.definition = node_tree::read(action);
            } else {
                relation.has_rules = true;
            }
        }
        for row in session.query_texts(TRIGGERS_QUERY, deadline)? {
            let [oid, events, function] = fields(&row);
            if let Some(relation) = oid.parse().ok().and_then(|oid: u32| self.relations.get_mut(&oid)) {
                relation.triggers.push((events.parse().unwrap_or(u32::MAX), function.to_owned()));
            }
        }
        Ok(())
    }

    fn table_mut(&mut self, oid: &str) -> Option<&mut CatalogTable> {
        let name = &self.relations.get(&oid.parse().ok()?)?.name;
        self.catalog.tables.iter_mut().find(|table| table.name == *name)
    }
}

/// Reads the names of functions by their object ids.
pub(super) fn read_functions(
    session: &Session,
    oids: &BTreeSet<u32>,
    deadline: Instant,
) -> Result<Vec<CalledFunction>, SessionError> {
    if oids.is_empty() {
        return Ok(Vec::new());
    }
    let query = format!(
        "SELECT n.nspname::text, p.proname::text FROM pg_catalog.pg_proc p
        JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace WHERE p.oid IN ({})",
        join_numbers(oids)
    );
    let rows = session.query_texts(&query, deadline)?;
    let mut found: Vec<CalledFunction> = rows
        .iter()
        .map(|row| {
            let [schema, name] = fields(row);
            let is_plain = matches!(schema, "pg_catalog" | "public");
            CalledFunction { name: if is_plain { name.to_owned() } else { format!("{schema}.{name}") } }
        })
        .collect();
    // The object id of an operator of the schema is not that of a function.
    if found.len() < oids.len() {
        found.push(CalledFunction { name: "an operator of the schema".to_owned() });
    }
    Ok(found)
}

/// Reads the names of relations of the server itself: schema and name, by object id.
pub(super) fn read_system_relations(
    session: &Session,
    oids: &BTreeSet<u32>,
    deadline: Instant,
) -> Result<BTreeMap<u32, (String, String)>, SessionError> {
    if oids.is_empty() {
        return Ok(BTreeMap::new());
    }
    let query = format!(
        "SELECT c.oid::text, n.nspname::text, c.relname::text FROM pg_catalog.pg_class c
        JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid IN ({})",
        join_numbers(oids)
    );
    let rows = session.query_texts(&query, deadline)?;
    Ok(rows
        .iter()
        .map(|row| {
            let [oid, schema, name] = fields(row);
            (oid.parse().unwrap_or_default(), (schema.to_owned(), name.to_owned()))
        })
        .collect())
}

fn join_numbers(numbers: &BTreeSet<u32>) -> String {
    numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

fn relation_kind(letter: &str) -> RelationKind {
    match letter {
        "v" | "m" => RelationKind::View,
        "f" => RelationKind::Foreign,
        "S" => RelationKind::Sequence,
        _ => RelationKind::Table,
    }
}

/// Returns the first fields of a row; a missing field or NULL is empty.
fn fields<const N: usize>(row: &[Option<String>]) -> [&str; N] {
    std::array::from_fn(|at| row.get(at).and_then(Option::as_deref).unwrap_or_default())
}

/// Returns the name of a relation; outside of `public` with its schema.
pub(super) fn qualified_name(schema: &str, name: &str) -> String {
    match schema {
        "public" => joined_name(&[name]),
        _ => joined_name(&[schema, name]),
    }
}

pub(super) fn quote_identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
