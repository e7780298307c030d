//! Generates changes of rows for SQLite and DuckDB.

use super::Grammar;

impl Grammar {
    pub(super) fn insert(&mut self) -> String {
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
    pub(super) fn copy(&mut self) -> String {
        let (one, two) =
            (self.numbers.pick(&["orders", "items", "secret"]), self.numbers.pick(&["orders", "items", "secret"]));
        let or = self.numbers.pick(&["", "OR IGNORE "]);
        format!("INSERT {or}INTO {one} SELECT * FROM {two}")
    }

    pub(super) fn update(&mut self) -> String {
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

    pub(super) fn delete(&mut self) -> String {
        let (table, columns) = self.table();
        let other = columns[self.numbers.below(columns.len())];
        let returning = self.returning(&columns);
        let inner = self.one_column(1);
        match self.numbers.below(3) {
            0 => format!("DELETE FROM {table} WHERE {other} IN ({inner}){returning}"),
            _ => format!("DELETE FROM {table} WHERE {other} = '1'{returning}"),
        }
    }
}
