//! Describes the content of a database as its engine reports it: tables, columns, keys. Lookups ignore the case of
//! ASCII letters in names, as both dialects do.

/// A table or a view.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CatalogTable {
    /// The name, as written at creation.
    pub name: String,
    /// True if this is a view, not a table.
    pub is_view: bool,
    /// The columns, in order.
    pub columns: Vec<CatalogColumn>,
    /// The foreign keys.
    pub foreign_keys: Vec<ForeignKey>,
}

/// A column of a table or a view.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CatalogColumn {
    /// The name, as written at creation.
    pub name: String,
    /// The declared type; empty if none was declared.
    pub declared_type: String,
    /// True if the column is NOT NULL.
    pub is_not_null: bool,
    /// The position in the primary key, from 1; 0 if the column is not part of it.
    pub primary_key_position: u32,
    /// True if the engine computes the values of the column.
    pub is_generated: bool,
}

/// One column of a foreign key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignKey {
    /// The referencing column.
    pub column: String,
    /// The referenced table.
    pub referenced_table: String,
    /// The referenced column; `None` if it is the primary key of the table.
    pub referenced_column: Option<String>,
}

/// The comment of a table or of one of its columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaComment {
    /// The table or view, named as in the catalog.
    pub table: String,
    /// The column; `None` for the comment of the table.
    pub column: Option<String>,
    /// The comment.
    pub text: String,
}

/// All tables and views of a database.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Catalog {
    /// The tables and views, in the order in which the engine lists them.
    pub tables: Vec<CatalogTable>,
}

impl Catalog {
    /// Returns the table or view with this name.
    pub fn table(&self, name: &str) -> Option<&CatalogTable> {
        let exact = self.tables.iter().find(|table| table.name == name);
        exact.or_else(|| self.tables.iter().find(|table| table.name.eq_ignore_ascii_case(name)))
    }

    /// Inserts a table at its position in the order of names.
    pub(crate) fn insert_sorted(&mut self, table: CatalogTable) {
        let at = self.tables.partition_point(|other| other.name < table.name);
        self.tables.insert(at, table);
    }

    /// Returns the tables and views that have a column with this name.
    pub fn tables_with<'a>(&'a self, column: &'a str) -> impl Iterator<Item = &'a CatalogTable> {
        self.tables.iter().filter(move |table| table.column(column).is_some())
    }
}

impl CatalogTable {
    /// Returns the column with this name.
    pub fn column(&self, name: &str) -> Option<&CatalogColumn> {
        let exact = self.columns.iter().find(|column| column.name == name);
        exact.or_else(|| self.columns.iter().find(|column| column.name.eq_ignore_ascii_case(name)))
    }
}
