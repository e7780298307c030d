//! Generates statements from a grammar.

use proctor_core::sql::Dialect;

use super::{OBJECTS, RandomNumbers, server_templates, templates};

/// An element of FROM: its text, the qualifier of its columns, and its columns.
pub(super) struct FromItem {
    pub(super) text: String,
    pub(super) alias: String,
    pub(super) columns: Vec<String>,
}

/// A generator of statements in a dialect.
pub(crate) struct Grammar {
    pub(super) numbers: RandomNumbers,
    pub(super) dialect: Dialect,
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
        let is_server = self.is_server();
        let statement = match self.numbers.below(26) {
            20..=25 => self.fill_template(),
            0..=9 => self.query(3),
            10 | 11 => {
                let (inner, outer) = (self.query(1), self.query(2));
                format!("WITH part AS ({inner}) {outer}")
            }
            12 => self.metadata(),
            13..=18 if is_server => self.server_write(),
            13..=15 => self.insert(),
            16 | 17 => self.update(),
            18 => self.delete(),
            _ => self.copy(),
        };
        match self.dialect {
            Dialect::Sqlite | Dialect::Duckdb => statement,
            Dialect::Postgres => statement.replace("main.", "public."),
            Dialect::Mysql => statement.replace("main.", "").replace(" AS VARCHAR)", " AS CHAR)"),
        }
    }

    /// Reports whether the dialect is that of a database server.
    fn is_server(&self) -> bool {
        matches!(self.dialect, Dialect::Postgres | Dialect::Mysql)
    }

    /// Fills in one of the [`templates`].
    fn fill_template(&mut self) -> String {
        let own = match self.dialect {
            Dialect::Sqlite => templates::SQLITE_TEMPLATES,
            Dialect::Duckdb => templates::DUCKDB_TEMPLATES,
            Dialect::Postgres => server_templates::POSTGRES_TEMPLATES,
            Dialect::Mysql => server_templates::MARIADB_TEMPLATES,
        };
        let is_own = self.numbers.one_in(2) || (self.is_server() && self.numbers.one_in(2));
        let shapes = if is_own { own } else { templates::COMMON_TEMPLATES };
        let shape = self.numbers.pick(shapes);
        let (table, columns) = OBJECTS[self.numbers.below(OBJECTS.len())];
        let (other, _) = OBJECTS[self.numbers.below(OBJECTS.len())];
        let column = columns[self.numbers.below(columns.len())];
        let factor = self.factor(1);
        let of_factor = factor.columns[self.numbers.below(factor.columns.len())].clone();
        let parts = [("%f", factor.text.as_str()), ("%a", &factor.alias), ("%d", &of_factor)];
        let parts = parts.into_iter().chain([("%t", table), ("%c", column), ("%o", other)]);
        let filled = parts.fold(shape.to_owned(), |text, (mark, part)| text.replace(mark, part));
        if !self.is_server() {
            return filled;
        }
        let (changed, columns) = self.table();
        let [one, two] = [(); 2].map(|()| columns[self.numbers.below(columns.len())]);
        let parts = [("%w", changed), ("%k", one), ("%l", two)].into_iter();
        parts.fold(filled, |text, (mark, part)| text.replace(mark, part))
    }

    pub(super) fn query(&mut self, depth: usize) -> String {
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

    pub(super) fn one_column(&mut self, depth: usize) -> String {
        let factor = self.factor(depth.saturating_sub(1));
        let column = self.column(&factor);
        match self.dialect {
            Dialect::Postgres => format!("SELECT CAST({column} AS VARCHAR) FROM {}", factor.text),
            _ => format!("SELECT {column} FROM {}", factor.text),
        }
    }

    fn select(&mut self, depth: usize) -> String {
        let first = self.factor(depth);
        let mut from = first.text.clone();
        let mut factors = vec![first];
        for _ in 0..self.numbers.below(3) {
            let next = self.factor(depth.saturating_sub(1));
            let common: Vec<String> =
                factors[0].columns.iter().filter(|column| next.columns.contains(column)).cloned().collect();
            let joins: &[&str] = match self.dialect {
                Dialect::Sqlite | Dialect::Duckdb => &["JOIN", "LEFT JOIN", "INNER JOIN"],
                Dialect::Postgres => &["JOIN", "LEFT JOIN", "INNER JOIN", "RIGHT JOIN", "FULL JOIN"],
                Dialect::Mysql => &["JOIN", "LEFT JOIN", "INNER JOIN", "RIGHT JOIN"],
            };
            let left = self.numbers.pick(joins);
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
                    .replace(" AS s(c))", self.derived_table_end())
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
        let filter = match self.dialect {
            Dialect::Duckdb | Dialect::Postgres => filter,
            Dialect::Sqlite | Dialect::Mysql => filter.replace("SELECT CAST(c AS VARCHAR) FROM", "SELECT * FROM"),
        };
        format!("SELECT {items} FROM {from}{filter}")
    }

    /// Returns the text after a subquery in FROM. Not every dialect can name its columns.
    fn derived_table_end(&self) -> &'static str {
        match self.dialect {
            Dialect::Sqlite => ")",
            Dialect::Duckdb | Dialect::Postgres => " AS s(c))",
            Dialect::Mysql => " AS s)",
        }
    }

    fn alias(&mut self) -> String {
        self.aliases += 1;
        format!("a{}", self.aliases)
    }

    pub(super) fn column(&mut self, factor: &FromItem) -> String {
        let column = factor.columns[self.numbers.below(factor.columns.len())].clone();
        format!("{}.{column}", factor.alias)
    }

    pub(super) fn factor(&mut self, depth: usize) -> FromItem {
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
                Dialect::Duckdb => {
                    FromItem { text: format!("range(3) AS {alias}(id)"), columns: owned(&["id"]), alias }
                }
                Dialect::Postgres => {
                    FromItem { text: format!("generate_series(1, 3) AS {alias}(id)"), columns: owned(&["id"]), alias }
                }
                Dialect::Mysql => FromItem {
                    text: format!("JSON_TABLE('[1, 2]', '$[*]' COLUMNS (id INT PATH '$')) AS {alias}"),
                    columns: owned(&["id"]),
                    alias,
                },
            },
            4 if self.numbers.one_in(4) => {
                let (catalog, columns) = match self.dialect {
                    Dialect::Sqlite | Dialect::Duckdb => ("sqlite_master", ["name", "type"]),
                    Dialect::Postgres => ("pg_class", ["relname", "relkind"]),
                    Dialect::Mysql => ("information_schema.tables", ["table_name", "table_type"]),
                };
                FromItem { text: format!("{catalog} AS {alias}"), columns: owned(&columns), alias }
            }
            _ => {
                let (table, columns) = OBJECTS[self.numbers.below(OBJECTS.len())];
                let mut columns = owned(columns);
                if self.numbers.one_in(10) && !table.starts_with("v_") && table != "vault" {
                    match self.dialect {
                        Dialect::Sqlite => columns.push("rowid".to_owned()),
                        Dialect::Postgres => columns.push("ctid".to_owned()),
                        Dialect::Duckdb | Dialect::Mysql => {}
                    }
                }
                let is_mysql = self.dialect == Dialect::Mysql;
                let name = match self.numbers.below(5) {
                    0 if is_mysql => format!("`{table}`"),
                    0 => format!("\"{table}\""),
                    1 => format!("main.{table}"),
                    2 if !is_mysql => table.to_ascii_uppercase(),
                    _ => table.to_owned(),
                };
                FromItem { text: format!("{name} AS {alias}"), columns, alias }
            }
        }
    }

    pub(super) fn table(&mut self) -> (&'static str, Vec<&'static str>) {
        let tables = &OBJECTS[..5];
        let (table, columns) = tables[self.numbers.below(tables.len())];
        (table, columns.iter().copied().filter(|column| *column != "masked").collect())
    }

    pub(super) fn value(&mut self, column: &str) -> String {
        match column {
            "id" => (50 + self.numbers.below(9)).to_string(),
            "cust" | "total" => self.numbers.below(9).to_string(),
            _ => "'v'".to_owned(),
        }
    }

    pub(super) fn returning(&mut self, columns: &[&str]) -> String {
        match self.numbers.below(6) {
            0 => " RETURNING *".to_owned(),
            1 => format!(" RETURNING {}", columns[self.numbers.below(columns.len())]),
            _ => String::new(),
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
            Dialect::Postgres => server_templates::POSTGRES_METADATA,
            Dialect::Mysql => server_templates::MARIADB_METADATA,
            Dialect::Duckdb => &[
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
