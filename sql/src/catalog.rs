//! What a database holds, as its engine tells: tables, columns, keys. Names are compared as both dialects compare them,
//! without regard to the case of ASCII letters.

/// A table or a view.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Table {
    /// Its name, as it was made.
    pub name: String,
    /// Whether it is a view.
    pub is_view: bool,
    /// Its columns, in order.
    pub columns: Vec<Column>,
    /// Its foreign keys.
    pub foreign_keys: Vec<ForeignKey>,
}

/// A column.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Column {
    /// Its name, as it was made.
    pub name: String,
    /// Its declared type; empty where none was declared.
    pub kind: String,
    /// Whether it takes no NULL.
    pub is_not_null: bool,
    /// Its place in the primary key, from 1; 0 outside of it.
    pub key: u32,
    /// Whether the engine computes it.
    pub is_generated: bool,
}

/// One column that points at another table's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignKey {
    /// The column here.
    pub column: String,
    /// The table that it points at.
    pub table: String,
    /// The column there; `None` where it is its primary key.
    pub to: Option<String>,
}

/// Every table and view, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Catalog {
    /// In the order in which the engine lists them.
    pub tables: Vec<Table>,
}

impl Catalog {
    /// The table or view of that name.
    pub fn table(&self, name: &str) -> Option<&Table> {
        self.tables.iter().find(|table| table.name.eq_ignore_ascii_case(name))
    }

    /// Adds a table where its name has its place.
    pub(crate) fn put(&mut self, table: Table) {
        let at = self.tables.partition_point(|other| other.name < table.name);
        self.tables.insert(at, table);
    }

    /// The tables that have a column of that name.
    pub fn tables_with<'a>(&'a self, column: &'a str) -> impl Iterator<Item = &'a Table> {
        self.tables.iter().filter(move |table| table.column(column).is_some())
    }
}

impl Table {
    /// The column of that name.
    pub fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|column| column.name.eq_ignore_ascii_case(name))
    }
}
