//! Generates changes of rows for PostgreSQL and MariaDB.

use proctor_core::sql::Dialect;

use super::Grammar;
use super::grammar::FromItem;

impl Grammar {
    /// Generates one change of rows; for PostgreSQL, some are in a common table expression.
    pub(super) fn server_write(&mut self) -> String {
        let write = match self.numbers.below(6) {
            0..=2 => self.server_insert(),
            3 | 4 => self.server_update(),
            _ => self.server_delete(),
        };
        if self.dialect != Dialect::Postgres || !self.numbers.one_in(5) {
            return write;
        }
        let write = if write.contains(" RETURNING ") { write } else { format!("{write} RETURNING 1 AS one") };
        let outer = match self.numbers.below(4) {
            0 => self.server_update(),
            1 => self.query(1),
            2 => "INSERT INTO items (id, total) SELECT 78, count(*) FROM changed".to_owned(),
            _ => "SELECT * FROM changed".to_owned(),
        };
        format!("WITH changed AS ({write}) {outer}")
    }

    fn is_postgres(&self) -> bool {
        self.dialect == Dialect::Postgres
    }

    /// Returns an expression of the type of a column that reads another one.
    fn assigned(&mut self, column: &str, from: &str) -> String {
        match column {
            "id" => format!("50 + length(CAST({from} AS VARCHAR))"),
            "cust" | "total" => format!("length(CAST({from} AS VARCHAR))"),
            _ => format!("CAST({from} AS VARCHAR)"),
        }
    }

    /// Returns a new value: a constant, another column, or a subquery.
    fn new_value(&mut self, column: &str, qualifier: &str, columns: &[&str]) -> String {
        match self.numbers.below(5) {
            0 => {
                let other = columns[self.numbers.below(columns.len())];
                self.assigned(column, &format!("{qualifier}{other}"))
            }
            1 => {
                let factor = self.factor(1);
                let other = self.column(&factor);
                self.assigned(column, &format!("(SELECT min({other}) FROM {})", factor.text))
            }
            2 => "DEFAULT".to_owned(),
            _ => self.value(column),
        }
    }

    fn server_insert(&mut self) -> String {
        let (table, columns) = self.table();
        let mut some: Vec<&str> = columns.iter().copied().filter(|_| !self.numbers.one_in(3)).collect();
        if some.is_empty() {
            some.push(columns[0]);
        }
        let verb = match self.dialect {
            Dialect::Mysql => self.numbers.pick(&["INSERT INTO", "INSERT INTO", "INSERT IGNORE INTO", "REPLACE INTO"]),
            _ => "INSERT INTO",
        };
        let rows = match self.numbers.below(7) {
            0 => {
                let factor = self.factor(1);
                let items: Vec<String> = some
                    .iter()
                    .map(|column| {
                        let other = self.column(&factor);
                        self.assigned(column, &other)
                    })
                    .collect();
                let filter = self.column(&factor);
                let filter = format!("CAST({filter} AS VARCHAR) = '1'");
                format!(" ({}) SELECT {} FROM {} WHERE {filter}", some.join(", "), items.join(", "), factor.text)
            }
            1 if self.is_postgres() => " DEFAULT VALUES".to_owned(),
            1 => {
                let sets: Vec<String> =
                    some.iter().map(|column| format!("{column} = {}", self.value(column))).collect();
                format!(" SET {}", sets.join(", "))
            }
            2 if table != "customers" => {
                let values: Vec<String> = columns.iter().map(|column| self.value(column)).collect();
                format!(" VALUES ({})", values.join(", "))
            }
            _ => {
                let mut values: Vec<String> = some.iter().map(|column| self.value(column)).collect();
                if self.numbers.one_in(4) {
                    values[0] = if some[0] == "pin" { "'4711'".to_owned() } else { "1".to_owned() };
                }
                format!(" ({}) VALUES ({})", some.join(", "), values.join(", "))
            }
        };
        let on = if verb == "INSERT INTO" { self.on_conflict(table, &columns) } else { String::new() };
        let returning = self.server_returning(&columns, "");
        format!("{verb} {table}{rows}{on}{returning}")
    }

    fn on_conflict(&mut self, table: &str, columns: &[&str]) -> String {
        if !self.numbers.one_in(2) {
            return String::new();
        }
        let column = columns[self.numbers.below(columns.len())];
        let other = columns[self.numbers.below(columns.len())];
        let key = if self.numbers.one_in(4) { other } else { columns[0] };
        if !self.is_postgres() {
            let value = match self.numbers.below(4) {
                0 => format!("VALUES({column})"),
                1 => self.assigned(column, &format!("VALUES({other})")),
                _ => self.new_value(column, "", columns),
            };
            return format!(" ON DUPLICATE KEY UPDATE {column} = {value}");
        }
        let target = match self.numbers.below(4) {
            0 => format!("ON CONSTRAINT {table}_pkey"),
            _ => format!("({key})"),
        };
        if self.numbers.one_in(4) {
            return if self.numbers.one_in(2) {
                " ON CONFLICT DO NOTHING".to_owned()
            } else {
                format!(" ON CONFLICT {target} DO NOTHING")
            };
        }
        let value = match self.numbers.below(3) {
            0 => format!("excluded.{column}"),
            1 => self.assigned(column, &format!("excluded.{other}")),
            _ => self.new_value(column, &format!("{table}."), columns),
        };
        let filter = match self.numbers.below(3) {
            0 => format!(" WHERE {table}.{other} IS NOT NULL"),
            _ => String::new(),
        };
        format!(" ON CONFLICT {target} DO UPDATE SET {column} = {value}{filter}")
    }

    /// Returns a RETURNING clause, which may read another table.
    fn server_returning(&mut self, columns: &[&str], qualifier: &str) -> String {
        match self.numbers.below(10) {
            0 => " RETURNING *".to_owned(),
            1 => format!(" RETURNING {qualifier}{}", columns[self.numbers.below(columns.len())]),
            2 => {
                let factor = self.factor(1);
                let other = self.column(&factor);
                format!(" RETURNING (SELECT max({other}) FROM {}) AS r", factor.text)
            }
            3 => format!(" RETURNING {}", columns[0]),
            _ => String::new(),
        }
    }

    /// Returns the beginning of a condition that is true for few rows of the changed table `x`.
    fn narrow_filter(&mut self, columns: &[&str]) -> String {
        let other = columns[self.numbers.below(columns.len())];
        let value =
            if matches!(other, "id" | "cust" | "total") { "1" } else { self.numbers.pick(&["'new'", "'4711'"]) };
        format!("x.{other} = {value}")
    }

    /// Returns the condition that joins the changed table `x` with another one.
    fn join_condition(&mut self, columns: &[&str], factor: &FromItem) -> String {
        let (one, two) = (columns[self.numbers.below(columns.len())], self.column(factor));
        format!("CAST(x.{one} AS VARCHAR) = CAST({two} AS VARCHAR)")
    }

    /// Returns a join of the changed table `x` of MariaDB with another one.
    fn changed_join(&mut self, columns: &[&str], factor: &FromItem) -> String {
        let common: Vec<&str> =
            columns.iter().copied().filter(|column| factor.columns.iter().any(|other| other == column)).collect();
        match self.numbers.below(5) {
            0 if !common.is_empty() => {
                let column = common[self.numbers.below(common.len())];
                format!(" JOIN {} USING ({column})", factor.text)
            }
            1 if !common.is_empty() => format!(" NATURAL JOIN {}", factor.text),
            2 => format!(", {}", factor.text),
            _ => {
                let condition = self.join_condition(columns, factor);
                format!(" {} {} ON {condition}", self.numbers.pick(&["JOIN", "LEFT JOIN"]), factor.text)
            }
        }
    }

    fn server_update(&mut self) -> String {
        let (table, columns) = self.table();
        let column = columns[self.numbers.below(columns.len())];
        let value = self.new_value(column, "x.", &columns);
        let mut filter = self.narrow_filter(&columns);
        if self.numbers.one_in(4) {
            let inner = self.one_column(1);
            let other = columns[self.numbers.below(columns.len())];
            filter += &format!(" AND CAST(x.{other} AS VARCHAR) IN ({inner})");
        }
        if !self.numbers.one_in(3) {
            let returning = if self.is_postgres() { self.server_returning(&columns, "x.") } else { String::new() };
            return format!("UPDATE {table} AS x SET {column} = {value} WHERE {filter}{returning}");
        }
        let factor = self.factor(1);
        let value = if self.numbers.one_in(2) {
            let other = self.column(&factor);
            self.assigned(column, &other)
        } else {
            value
        };
        if self.is_postgres() {
            let condition = self.join_condition(&columns, &factor);
            let returning = self.server_returning(&columns, "x.");
            format!(
                "UPDATE {table} AS x SET {column} = {value} FROM {} WHERE {condition} AND {filter}{returning}",
                factor.text
            )
        } else {
            let joined = self.changed_join(&columns, &factor);
            format!("UPDATE {table} AS x{joined} SET x.{column} = {value} WHERE {filter}")
        }
    }

    fn server_delete(&mut self) -> String {
        let (table, columns) = self.table();
        let filter = self.narrow_filter(&columns);
        if !self.numbers.one_in(2) {
            let filter = if self.is_postgres() { filter } else { filter.replace("x.", "") };
            let alias = if self.is_postgres() { " AS x" } else { "" };
            let returning = self.server_returning(&columns, "");
            return format!("DELETE FROM {table}{alias} WHERE {filter}{returning}");
        }
        let factor = self.factor(1);
        if self.is_postgres() {
            let condition = self.join_condition(&columns, &factor);
            let returning = self.server_returning(&columns, "x.");
            return format!("DELETE FROM {table} AS x USING {} WHERE {condition} AND {filter}{returning}", factor.text);
        }
        let joined = self.changed_join(&columns, &factor);
        match self.numbers.below(3) {
            0 => format!("DELETE FROM x USING {table} AS x{joined} WHERE {filter}"),
            _ => format!("DELETE x FROM {table} AS x{joined} WHERE {filter}"),
        }
    }
}
