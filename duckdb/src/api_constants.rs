//! Names the numeric constants of the C API.

/// The type of a statement: `duckdb_statement_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StatementType {
    /// `SELECT`, and statements that DuckDB rewrites to it: `DESCRIBE`, `SHOW`, `SUMMARIZE`, `FROM`, `PIVOT`, some
    /// pragmas.
    Select,
    /// `INSERT`.
    Insert,
    /// `UPDATE`.
    Update,
    /// `EXPLAIN`, with and without `ANALYZE`.
    Explain,
    /// `DELETE` and `TRUNCATE`.
    Delete,
    /// `MERGE INTO`.
    Merge,
    /// `PREPARE`.
    Prepare,
    /// `EXECUTE`.
    Execute,
    /// `CREATE`.
    Create,
    /// `ALTER` and `COMMENT ON`.
    Alter,
    /// `DROP` and `DEALLOCATE`.
    Drop,
    /// `BEGIN`, `COMMIT`, `ROLLBACK`.
    Transaction,
    /// `COPY`.
    Copy,
    /// `EXPORT DATABASE`.
    Export,
    /// `PRAGMA`, unless it is a query.
    Pragma,
    /// `VACUUM` and `ANALYZE`.
    Vacuum,
    /// `CALL` and `CHECKPOINT`.
    Call,
    /// `SET`, `RESET` and `USE`.
    Set,
    /// `LOAD` and `INSTALL`.
    Load,
    /// `ATTACH`.
    Attach,
    /// `DETACH`.
    Detach,
    /// Any other statement, by its number.
    Other(u32),
}

impl StatementType {
    /// Returns the statement type with this number.
    pub fn from_number(number: u32) -> Self {
        match number {
            1 => Self::Select,
            2 => Self::Insert,
            3 => Self::Update,
            4 => Self::Explain,
            5 => Self::Delete,
            6 => Self::Prepare,
            7 | 14 => Self::Create,
            8 => Self::Execute,
            9 => Self::Alter,
            10 => Self::Transaction,
            11 => Self::Copy,
            12 | 18 => Self::Vacuum,
            13 | 20 => Self::Set,
            15 => Self::Drop,
            16 => Self::Export,
            17 => Self::Pragma,
            19 => Self::Call,
            21 => Self::Load,
            25 => Self::Attach,
            26 => Self::Detach,
            30 => Self::Merge,
            other => Self::Other(other),
        }
    }
}

/// Returns the name of a type by its number, `duckdb_type`; `None` for a number without a name.
pub fn type_name(number: u32) -> Option<&'static str> {
    const NAMES: [&str; 40] = [
        "",
        "BOOLEAN",
        "TINYINT",
        "SMALLINT",
        "INTEGER",
        "BIGINT",
        "UTINYINT",
        "USMALLINT",
        "UINTEGER",
        "UBIGINT",
        "FLOAT",
        "DOUBLE",
        "TIMESTAMP",
        "DATE",
        "TIME",
        "INTERVAL",
        "HUGEINT",
        "VARCHAR",
        "BLOB",
        "DECIMAL",
        "TIMESTAMP_S",
        "TIMESTAMP_MS",
        "TIMESTAMP_NS",
        "ENUM",
        "LIST",
        "STRUCT",
        "MAP",
        "UUID",
        "UNION",
        "BIT",
        "TIME WITH TIME ZONE",
        "TIMESTAMP WITH TIME ZONE",
        "UHUGEINT",
        "ARRAY",
        "",
        "BIGNUM",
        "NULL",
        "",
        "",
        "TIME_NS",
    ];
    usize::try_from(number).ok().and_then(|at| NAMES.get(at)).copied().filter(|name| !name.is_empty())
}
