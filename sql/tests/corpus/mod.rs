//! Generates statements from a grammar, and lists to judge them with. The same seed gives the same statements.

mod templates;

use std::collections::BTreeMap;

use proctor_core::sql::{Dialect, Judgement, SqlAllow};

/// The tables and views of the corpus, each with its columns. The last column of `customers` is generated from `ssn`.
pub(crate) const OBJECTS: &[(&str, &[&str])] = &[
    ("orders", &["id", "cust", "total", "state"]),
    ("lines", &["id", "cust", "total", "state"]),
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

/// A schema with rows, for both engines.
pub(crate) const SCHEMA: &str = "
    CREATE TABLE orders (id INTEGER PRIMARY KEY, cust INTEGER, total INTEGER, state VARCHAR);
    CREATE TABLE lines (id INTEGER PRIMARY KEY, cust INTEGER, total INTEGER, state VARCHAR);
    CREATE TABLE secret (id INTEGER PRIMARY KEY, cust INTEGER, total INTEGER, state VARCHAR);
    CREATE TABLE customers (id INTEGER PRIMARY KEY, name VARCHAR, ssn VARCHAR, pin VARCHAR, masked VARCHAR AS (substr(ssn, 2)));
    CREATE TABLE vault (pin VARCHAR PRIMARY KEY, cust INTEGER);
    INSERT INTO orders VALUES (1, 1, 10, 'new'), (2, 1, 20, 'old'), (3, 2, 30, 'new'), (4, 3, 40, 'paid');
    INSERT INTO lines VALUES (1, 2, 11, 'new'), (2, 2, 20, 'old'), (5, 2, 30, 'new');
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
pub(crate) fn schema() -> Vec<String> {
    [SCHEMA].into_iter().chain(VIEWS.iter().map(|(_, sql)| *sql)).map(str::to_owned).collect()
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

    fn one_in(&mut self, of: usize) -> bool {
        self.below(of) == 0
    }

    fn pick<'a, T: ?Sized>(&mut self, list: &[&'a T]) -> &'a T {
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

/// An element of FROM: its text, the qualifier of its columns, and its columns.
struct FromItem {
    text: String,
    alias: String,
    columns: Vec<String>,
}

/// A generator of statements in a dialect.
pub(crate) struct Grammar {
    pub(crate) numbers: RandomNumbers,
    pub(crate) dialect: Dialect,
    /// The number of aliases used so far.
    aliases: usize,
}

impl Grammar {
    pub(crate) fn new(seed: u64, dialect: Dialect) -> Self {
        Self { numbers: RandomNumbers::new(seed), dialect, aliases: 0 }
    }

    /// Generates one statement.
    pub(crate) fn statement(&mut self) -> String {
        self.aliases = 0;
        match self.numbers.below(26) {
            20..=25 => self.fill_template(),
            0..=9 => self.query(3),
            10 | 11 => {
                let (inner, outer) = (self.query(1), self.query(2));
                format!("WITH part AS ({inner}) {outer}")
            }
            12 => self.metadata(),
            13..=15 => self.insert(),
            16 | 17 => self.update(),
            18 => self.delete(),
            _ => self.copy(),
        }
    }

    /// Fills in one of the [`shapes`].
    fn fill_template(&mut self) -> String {
        let own =
            if self.dialect == Dialect::Sqlite { templates::SQLITE_TEMPLATES } else { templates::DUCKDB_TEMPLATES };
        let shapes = if self.numbers.one_in(2) { own } else { templates::COMMON_TEMPLATES };
        let shape = self.numbers.pick(shapes);
        let (table, columns) = OBJECTS[self.numbers.below(OBJECTS.len())];
        let (other, _) = OBJECTS[self.numbers.below(OBJECTS.len())];
        let column = columns[self.numbers.below(columns.len())];
        let factor = self.factor(1);
        let of_factor = factor.columns[self.numbers.below(factor.columns.len())].clone();
        let parts = [("%f", factor.text.as_str()), ("%a", &factor.alias), ("%d", &of_factor)];
        let parts = parts.into_iter().chain([("%t", table), ("%c", column), ("%o", other)]);
        parts.fold(shape.to_owned(), |text, (mark, part)| text.replace(mark, part))
    }

    fn query(&mut self, depth: usize) -> String {
        let select = self.select(depth);
        match self.numbers.below(12) {
            0 => {
                let other = self.numbers.pick(&["UNION", "UNION ALL", "EXCEPT", "INTERSECT"]);
                let (one, two) = (self.one_column(depth), self.one_column(depth));
                format!("{one} {other} {two}")
            }
            1 => format!("SELECT count(*) FROM ({select}) AS counted"),
            _ => select,
        }
    }

    fn one_column(&mut self, depth: usize) -> String {
        let factor = self.factor(depth.saturating_sub(1));
        let column = self.column(&factor);
        format!("SELECT {column} FROM {}", factor.text)
    }

    fn select(&mut self, depth: usize) -> String {
        let first = self.factor(depth);
        let mut from = first.text.clone();
        let mut factors = vec![first];
        for _ in 0..self.numbers.below(3) {
            let next = self.factor(depth.saturating_sub(1));
            let common: Vec<String> =
                factors[0].columns.iter().filter(|column| next.columns.contains(column)).cloned().collect();
            let left = self.numbers.pick(&["JOIN", "LEFT JOIN", "INNER JOIN"]);
            from += &match self.numbers.below(6) {
                0 | 1 if !common.is_empty() && factors.len() == 1 => {
                    let column = common[self.numbers.below(common.len())].clone();
                    format!(" {left} {} USING ({column})", next.text)
                }
                2 if !common.is_empty() && factors.len() == 1 => format!(" NATURAL {left} {}", next.text),
                3 => format!(", {}", next.text),
                _ => {
                    let (one, two) = (self.column(&factors[0]), self.column(&next));
                    format!(" {left} {} ON CAST({one} AS VARCHAR) = CAST({two} AS VARCHAR)", next.text)
                }
            };
            factors.push(next);
        }
        let is_joined = from.contains("USING") || from.contains("NATURAL");
        let item = |grammar: &mut Self| {
            let at = grammar.numbers.below(factors.len());
            grammar.column(&factors[at])
        };
        let items = match self.numbers.below(9) {
            0 => "*".to_owned(),
            1 => format!("{}.*", factors[self.numbers.below(factors.len())].alias),
            2 => "count(*)".to_owned(),
            3 => format!("max({})", item(self)),
            4 if !is_joined => format!("row_number() OVER (ORDER BY {}) AS n", item(self)),
            5 => format!("(SELECT {} LIMIT 1) AS inner_value", item(self)),
            6 => "1 AS one".to_owned(),
            _ => format!("{}, {}", item(self), item(self)),
        };
        let filter = match self.numbers.below(7) {
            0 => format!(" WHERE {} IS NOT NULL", item(self)),
            1 => {
                let inner = self.one_column(depth.min(1));
                format!(" WHERE CAST({} AS VARCHAR) IN (SELECT CAST(c AS VARCHAR) FROM ({inner}) AS s(c))", item(self))
                    .replace(" AS s(c))", if self.dialect == Dialect::Sqlite { ")" } else { " AS s(c))" })
            }
            2 => {
                let inner = self.factor(depth.min(1));
                let (one, two) = (self.column(&inner), item(self));
                format!(
                    " WHERE EXISTS (SELECT 1 FROM {} WHERE CAST({one} AS VARCHAR) = CAST({two} AS VARCHAR))",
                    inner.text
                )
            }
            _ => String::new(),
        };
        let filter = if self.dialect == Dialect::Sqlite {
            filter.replace("SELECT CAST(c AS VARCHAR) FROM", "SELECT * FROM")
        } else {
            filter
        };
        format!("SELECT {items} FROM {from}{filter}")
    }

    fn alias(&mut self) -> String {
        self.aliases += 1;
        format!("a{}", self.aliases)
    }

    fn column(&mut self, factor: &FromItem) -> String {
        let column = factor.columns[self.numbers.below(factor.columns.len())].clone();
        format!("{}.{column}", factor.alias)
    }

    fn factor(&mut self, depth: usize) -> FromItem {
        let alias = self.alias();
        let owned = |columns: &[&str]| columns.iter().map(|column| (*column).to_owned()).collect::<Vec<_>>();
        match self.numbers.below(14) {
            0 => FromItem {
                text: format!("(SELECT 1 AS id, 2 AS cust, '4711' AS pin, 10 AS total) AS {alias}"),
                columns: owned(&["id", "cust", "pin", "total"]),
                alias,
            },
            1 | 2 if depth > 0 => {
                let inner = self.factor(depth - 1);
                let some: Vec<String> = inner.columns.iter().take(1 + self.numbers.below(3)).cloned().collect();
                let items: Vec<String> = some.iter().map(|column| format!("{}.{column}", inner.alias)).collect();
                FromItem {
                    text: format!("(SELECT {} FROM {}) AS {alias}", items.join(", "), inner.text),
                    columns: some,
                    alias,
                }
            }
            3 => match self.dialect {
                Dialect::Sqlite => FromItem {
                    text: format!("json_each('[1, 2]') AS {alias}"),
                    columns: owned(&["key", "value"]),
                    alias,
                },
                Dialect::Duckdb | Dialect::Postgres | Dialect::Mysql => {
                    FromItem { text: format!("range(3) AS {alias}(id)"), columns: owned(&["id"]), alias }
                }
            },
            4 if self.numbers.one_in(4) => {
                FromItem { text: format!("sqlite_master AS {alias}"), columns: owned(&["name", "type"]), alias }
            }
            _ => {
                let (table, columns) = OBJECTS[self.numbers.below(OBJECTS.len())];
                let mut columns = owned(columns);
                if self.numbers.one_in(10)
                    && !table.starts_with("v_")
                    && self.dialect == Dialect::Sqlite
                    && table != "vault"
                {
                    columns.push("rowid".to_owned());
                }
                let name = match self.numbers.below(5) {
                    0 => format!("\"{table}\""),
                    1 => format!("main.{table}"),
                    2 => table.to_ascii_uppercase(),
                    _ => table.to_owned(),
                };
                FromItem { text: format!("{name} AS {alias}"), columns, alias }
            }
        }
    }

    fn table(&mut self) -> (&'static str, Vec<&'static str>) {
        let tables = &OBJECTS[..5];
        let (table, columns) = tables[self.numbers.below(tables.len())];
        (table, columns.iter().copied().filter(|column| *column != "masked").collect())
    }

    fn value(&mut self, column: &str) -> String {
        match column {
            "id" => (50 + self.numbers.below(9)).to_string(),
            "cust" | "total" => self.numbers.below(9).to_string(),
            _ => "'v'".to_owned(),
        }
    }

    fn returning(&mut self, columns: &[&str]) -> String {
        match self.numbers.below(6) {
            0 => " RETURNING *".to_owned(),
            1 => format!(" RETURNING {}", columns[self.numbers.below(columns.len())]),
            _ => String::new(),
        }
    }

    fn insert(&mut self) -> String {
        let (table, columns) = self.table();
        let some: Vec<&str> = columns.iter().copied().take(1 + self.numbers.below(columns.len())).collect();
        let values: Vec<String> = some.iter().map(|column| self.value(column)).collect();
        let names = if some.len() == columns.len() && table != "customers" && self.numbers.one_in(3) {
            String::new()
        } else {
            format!(" ({})", some.join(", "))
        };
        let or = self.numbers.pick(&["", "", "", "OR REPLACE ", "OR IGNORE "]);
        let on = match self.numbers.below(5) {
            0 if or.is_empty() => {
                let column = columns[self.numbers.below(columns.len())];
                let value = self.value(column);
                format!(" ON CONFLICT DO UPDATE SET {column} = {value}")
            }
            _ => String::new(),
        };
        let returning = self.returning(&columns);
        match self.numbers.below(4) {
            0 => {
                let factor = self.factor(1);
                let items: Vec<String> = some.iter().map(|_| self.column(&factor)).collect();
                let filter = self.column(&factor);
                format!(
                    "INSERT {or}INTO {table} ({}) SELECT {} FROM {} WHERE {filter} = 1{on}{returning}",
                    some.join(", "),
                    items.join(", "),
                    factor.text
                )
            }
            _ => format!("INSERT {or}INTO {table}{names} VALUES ({}){on}{returning}", values.join(", ")),
        }
    }

    /// Generates a statement that SQLite may execute by copying pages.
    fn copy(&mut self) -> String {
        let (one, two) =
            (self.numbers.pick(&["orders", "lines", "secret"]), self.numbers.pick(&["orders", "lines", "secret"]));
        let or = self.numbers.pick(&["", "OR IGNORE "]);
        format!("INSERT {or}INTO {one} SELECT * FROM {two}")
    }

    fn update(&mut self) -> String {
        let (table, columns) = self.table();
        let column = columns[self.numbers.below(columns.len())];
        let value = self.value(column);
        let key = columns[0];
        let returning = self.returning(&columns);
        match self.numbers.below(3) {
            0 => {
                let factor = self.factor(1);
                let other = self.column(&factor);
                format!(
                    "UPDATE {table} SET {column} = {value} FROM {} WHERE {table}.{key} = '1' AND CAST({other} AS VARCHAR) = '1'{returning}",
                    factor.text
                )
            }
            _ => {
                let other = columns[self.numbers.below(columns.len())];
                format!("UPDATE {table} SET {column} = {value} WHERE {other} = '1'{returning}")
            }
        }
    }

    fn delete(&mut self) -> String {
        let (table, columns) = self.table();
        let other = columns[self.numbers.below(columns.len())];
        let returning = self.returning(&columns);
        let inner = self.one_column(1);
        match self.numbers.below(3) {
            0 => format!("DELETE FROM {table} WHERE {other} IN ({inner}){returning}"),
            _ => format!("DELETE FROM {table} WHERE {other} = '1'{returning}"),
        }
    }

    fn metadata(&mut self) -> String {
        let (table, _) = OBJECTS[self.numbers.below(OBJECTS.len())];
        let shapes: &[&str] = match self.dialect {
            Dialect::Sqlite => &[
                "PRAGMA table_info(%)",
                "PRAGMA table_xinfo(%)",
                "PRAGMA index_list(%)",
                "PRAGMA foreign_key_list(%)",
                "PRAGMA table_list",
                "PRAGMA table_list(%)",
                "SELECT name FROM pragma_table_info('%')",
                "SELECT x.name FROM (SELECT 'id' AS name) AS x JOIN pragma_table_info('%') USING (name)",
                "SELECT sql FROM sqlite_schema",
                "SELECT x.name FROM (SELECT '%' AS name) AS x NATURAL JOIN sqlite_master",
                "EXPLAIN SELECT * FROM %",
                "EXPLAIN QUERY PLAN SELECT * FROM %",
                "SELECT 1 WHERE '%' IN (SELECT name FROM sqlite_temp_master)",
            ],
            Dialect::Duckdb | Dialect::Postgres | Dialect::Mysql => &[
                "PRAGMA table_info('%')",
                "SELECT * FROM pragma_table_info('%')",
                "DESCRIBE %",
                "DESCRIBE SELECT * FROM %",
                "SELECT * FROM (DESCRIBE %)",
                "SUMMARIZE %",
                "SHOW TABLES",
                "SHOW ALL TABLES",
                "SELECT table_name FROM duckdb_tables()",
                "SELECT column_name FROM information_schema.columns",
                "SELECT relname FROM pg_catalog.pg_class",
                "EXPLAIN SELECT * FROM %",
            ],
        };
        self.numbers.pick(shapes).replace('%', table)
    }
}
