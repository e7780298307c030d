//! Distinguishes the products that speak MySQL's protocol.

use std::time::Duration;

/// A product that speaks MySQL's protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServerFlavor {
    Mariadb,
    Mysql,
    Tidb,
}

impl ServerFlavor {
    /// Returns the product of a version such as `10.11.6-MariaDB` or `8.0.11-TiDB-v8.5.0`.
    pub(super) fn from_version(version: &str) -> Self {
        let version = version.to_lowercase();
        if version.contains("mariadb") {
            Self::Mariadb
        } else if version.contains("tidb") {
            Self::Tidb
        } else {
            Self::Mysql
        }
    }

    /// Returns the setting that limits the time of a statement.
    pub(super) fn time_setting(self, time: Duration) -> String {
        match self {
            Self::Mariadb => format!("max_statement_time = {:.3}", time.as_secs_f64()),
            // MySQL limits only queries. The client ends other statements.
            Self::Mysql | Self::Tidb => format!("max_execution_time = {}", time.as_millis()),
        }
    }

    /// Returns the statement that begins a transaction.
    pub(super) fn begin(self, is_readonly: bool) -> &'static str {
        match self {
            Self::Mariadb | Self::Mysql if is_readonly => "START TRANSACTION READ ONLY",
            // TiDB has no transactions that only read.
            _ => "START TRANSACTION",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinguishes_products_by_version() {
        let versions = ["10.11.6-MariaDB-0+deb12u1", "8.0.36-0ubuntu0.22.04.1", "8.0.11-TiDB-v8.5.0", ""];
        let expected = [ServerFlavor::Mariadb, ServerFlavor::Mysql, ServerFlavor::Tidb, ServerFlavor::Mysql];
        assert_eq!(versions.map(ServerFlavor::from_version), expected);
        assert_eq!(ServerFlavor::Mariadb.time_setting(Duration::from_millis(1500)), "max_statement_time = 1.500");
        assert_eq!(ServerFlavor::Tidb.time_setting(Duration::from_millis(1500)), "max_execution_time = 1500");
    }
}
