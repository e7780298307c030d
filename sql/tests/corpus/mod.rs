//! A corpus of statements, and lists to judge them with. The same seed gives the same statements.

mod grammar;
mod server_templates;
mod server_writes;
mod templates;
mod writes;

use std::collections::BTreeMap;

pub(crate) use grammar::Grammar;
use proctor_core::sql::{Dialect, Judgement, SqlAllow};

/// The tables and views of the corpus, each with its columns. The last column of `customers` is generated from `ssn`.
pub(crate) const OBJECTS: &[(&str, &[&str])] = &[
    ("orders", &["id", "cust", "total", "state"]),
    ("items", &["id", "cust", "total", "state"]),
    ("secret", &["id", "cust", "total", "state"]),
    ("customers", &["id", "name", "ssn", "pin", "masked"]),
    ("vault", &["pin", "cust"]),
    ("v_orders", &["id", "total"]),
    ("v_secret", &["id", "total"]),
    ("v_names", &["id", "name"]),
    ("v_join", &["id", "cust"]),
];

/// Returns the number of statements to judge: `PROCTOR_LISTS_CORPUS`, or a default.
pub(crate) fn count(default: usize) -> usize {
    number("PROCTOR_LISTS_CORPUS").unwrap_or(default)
}

/// Returns the seed of the corpus: `PROCTOR_LISTS_SEED`, or 18.
pub(crate) fn seed() -> u64 {
    number("PROCTOR_LISTS_SEED").unwrap_or(18)
}

#[expect(clippy::disallowed_methods, reason = "a test reads its own environment")]
fn number<N: std::str::FromStr>(variable: &str) -> Option<N> {
    std::env::var(variable).ok().and_then(|number| number.parse().ok())
}

/// Refused statements that are `ok` without lists and whose result does not depend on anything off the lists, by the
/// codes of their errors.
#[derive(Default)]
pub(crate) struct StrictRefusals(BTreeMap<String, Vec<String>>);

impl StrictRefusals {
    pub(crate) fn add(&mut self, judgement: &Judgement, request: &str) {
        let errors =
            judgement.diagnostics.iter().filter(|found| found.severity == proctor_core::sql::SqlSeverity::Error);
        let (codes, messages): (Vec<String>, Vec<&str>) =
            errors.map(|found| (format!("{:?}", found.code), found.message.as_str())).unzip();
        self.0.entry(codes.join(", ")).or_default().push(format!("{request}\n    {}", messages.join("\n    ")));
    }

    pub(crate) fn count(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }

    /// Prints the number of refusals for each combination of codes, and some examples.
    pub(crate) fn print(&self) {
        for (codes, refusals) in &self.0 {
            println!("  {codes}: {}", refusals.len());
            let step = refusals.len().div_ceil(number("PROCTOR_LISTS_EXAMPLES").unwrap_or(1)).max(1);
            refusals.iter().step_by(step).for_each(|refusal| println!("    {refusal}"));
        }
    }
}

/// Tables with the columns that a list of columns may leave out.
const GUARDED: &[(&str, &[&str])] = &[
    ("customers", &["id", "name", "ssn", "pin", "masked"]),
    ("orders", &["id", "cust", "total", "state"]),
    ("secret", &["id", "cust", "total", "state"]),
];

/// A schema with rows, for SQLite and DuckDB.
pub(crate) const SCHEMA: &str = "
    CREATE TABLE orders (id INTEGER PRIMARY KEY, cust INTEGER, total INTEGER, state VARCHAR);
    CREATE TABLE items (id INTEGER PRIMARY KEY, cust INTEGER, total INTEGER, state VARCHAR);
    CREATE TABLE secret (id INTEGER PRIMARY KEY, cust INTEGER, total INTEGER, state VARCHAR);
    CREATE TABLE customers (id INTEGER PRIMARY KEY, name VARCHAR, ssn VARCHAR, pin VARCHAR, masked VARCHAR AS (substr(ssn, 2)));
    CREATE TABLE vault (pin VARCHAR PRIMARY KEY, cust INTEGER);
    INSERT INTO orders VALUES (1, 1, 10, 'new'), (2, 1, 20, 'old'), (3, 2, 30, 'new'), (4, 3, 40, 'paid');
    INSERT INTO items VALUES (1, 2, 11, 'new'), (2, 2, 20, 'old'), (5, 2, 30, 'new');
    INSERT INTO secret VALUES (1, 1, 10, 'new'), (2, 2, 21, 'old'), (6, 3, 60, 'x');
    INSERT INTO customers (id, name, ssn, pin) VALUES (1, 'Ann', 's1', '4711'), (2, 'Bo', 's2', '11'), (3, 'Cy', 's3', 'new');
    INSERT INTO vault VALUES ('4711', 1), ('old', 2);";

/// The views of the corpus.
pub(crate) const VIEWS: &[(&str, &str)] = &[
    ("v_orders", "CREATE VIEW v_orders AS SELECT id, total FROM orders"),
    ("v_secret", "CREATE VIEW v_secret AS SELECT id, total FROM secret"),
    ("v_names", "CREATE VIEW v_names AS SELECT id, name FROM customers"),
    ("v_join", "CREATE VIEW v_join AS SELECT o.id, o.cust FROM orders o JOIN secret USING (id)"),
];

/// Returns the schema and its views as parts.
pub(crate) fn schema(dialect: Dialect) -> Vec<String> {
    let tables = match dialect {
        Dialect::Sqlite | Dialect::Duckdb => SCHEMA.to_owned(),
        Dialect::Postgres => SCHEMA.replace(" AS (substr(ssn, 2))", " GENERATED ALWAYS AS (substr(ssn, 2)) STORED"),
        Dialect::Mysql => SCHEMA.replace("VARCHAR", "VARCHAR(20)"),
    };
    [tables].into_iter().chain(VIEWS.iter().map(|(_, sql)| (*sql).to_owned())).collect()
}

/// Returns statements that change the content of everything off the lists.
pub(crate) fn changes_off_lists(allow: &SqlAllow) -> Vec<String> {
    let mut changes = Vec::new();
    for (table, columns) in OBJECTS.iter().filter(|(table, _)| !table.starts_with("v_")) {
        if !is_listed(allow, table) {
            let values = match *table {
                "vault" => "('4712', 3), ('new', 1)",
                "customers" => "",
                _ => "(2, 3, 99, 'paid'), (3, 1, 10, 'y'), (9, 2, 30, 'new')",
            };
            changes.push(format!("DELETE FROM {table}"));
            match values {
                "" => changes.push(
                    "INSERT INTO customers (id, name, ssn, pin) VALUES (2, 'Zed', 'z', 'old'), (7, 'Ann', 'q', '4711')"
                        .to_owned(),
                ),
                values => changes.push(format!("INSERT INTO {table} VALUES {values}")),
            }
            continue;
        }
        for column in
            columns.iter().filter(|column| is_hidden(allow, table, column) && !matches!(**column, "masked" | "id"))
        {
            let value = match *column {
                "cust" | "total" => format!("{column} * 7 + id"),
                _ => format!("{column} || 'q' || id"),
            };
            changes.push(format!("UPDATE {table} SET {column} = {value}"));
        }
    }
    changes
}

/// Returns statements that remove everything off the lists: they rename columns and drop tables. Views that refer to
/// removed objects may fail to be created.
pub(crate) fn removals_off_lists(allow: &SqlAllow) -> Vec<String> {
    let mut changes: Vec<String> = VIEWS.iter().map(|(name, _)| format!("DROP VIEW {name}")).collect();
    let (mut renames, mut drops) = (Vec::new(), Vec::new());
    for (table, columns) in OBJECTS.iter().filter(|(table, _)| !table.starts_with("v_")) {
        if !is_listed(allow, table) {
            drops.push(format!("DROP TABLE {table}"));
            continue;
        }
        let hidden = columns.iter().filter(|column| is_hidden(allow, table, column));
        renames.extend(hidden.map(|column| format!("ALTER TABLE {table} RENAME COLUMN {column} TO zz_{column}_gone")));
    }
    changes.extend(renames);
    changes.extend(drops);
    changes.extend(VIEWS.iter().filter(|(name, _)| is_listed(allow, name)).map(|(_, sql)| (*sql).to_owned()));
    changes
}

/// Reports whether the list of tables allows a table or a view.
pub(crate) fn is_listed(allow: &SqlAllow, name: &str) -> bool {
    allow.tables.is_empty() || allow.tables.iter().any(|table| table == name)
}

/// Reports whether a column of a table is off the list.
pub(crate) fn is_hidden(allow: &SqlAllow, table: &str, column: &str) -> bool {
    let prefix = format!("{table}.");
    let of_table: Vec<&str> = allow.columns.iter().filter_map(|entry| entry.strip_prefix(&prefix)).collect();
    // `masked` is computed from `ssn`.
    let is_off = |column: &str| !of_table.contains(&column);
    !of_table.is_empty() && (is_off(column) || (column == "masked" && is_off("ssn")))
}

/// A generator of pseudo-random numbers that depends only on its seed.
pub(crate) struct RandomNumbers(u64);

impl RandomNumbers {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap_or(0) % bound.max(1)
    }

    pub(super) fn one_in(&mut self, of: usize) -> bool {
        self.below(of) == 0
    }

    pub(super) fn pick<'a, T: ?Sized>(&mut self, list: &[&'a T]) -> &'a T {
        list[self.below(list.len())]
    }
}

/// Returns random lists of tables, of columns, or of both.
pub(crate) fn random_lists(numbers: &mut RandomNumbers) -> SqlAllow {
    let mut allow = SqlAllow::default();
    let kind = numbers.below(4);
    if kind != 3 {
        allow.tables = OBJECTS.iter().map(|(name, _)| (*name).to_owned()).filter(|_| !numbers.one_in(3)).collect();
    }
    if kind >= 2 || allow.tables.is_empty() {
        let (table, columns) = GUARDED[numbers.below(GUARDED.len())];
        let mut some: Vec<String> =
            columns.iter().filter(|_| numbers.one_in(2)).map(|column| format!("{table}.{column}")).collect();
        if some.is_empty() {
            some.push(format!("{table}.id"));
        }
        allow.columns = some;
    }
    allow
}
