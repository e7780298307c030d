//! Names the two users of a database.

/// Returns the user who owns a database.
pub(super) fn owner_of(database: &str) -> String {
    format!("owner_{database}")
}

/// Returns the user who gets the privileges that a statement needs.
pub(super) fn probe_of(database: &str) -> String {
    format!("probe_{database}")
}
