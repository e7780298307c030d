//! Defines the errors of DuckDB and of its library.

use std::ffi::NulError;
use std::path::PathBuf;

/// The cause of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The text, the parameter or the file that the caller gave.
    Input,
    /// The library, or the resources of the machine.
    Environment,
    /// An invalid call of a function of this crate.
    Internal,
}

/// A failure of DuckDB or of its library.
#[derive(Debug, thiserror::Error)]
pub enum DuckDbError {
    /// The shared library cannot be loaded.
    #[error(transparent)]
    Load(libloading::Error),
    /// The shared library lacks a function.
    #[error("it has no `{name}`")]
    MissingFunction {
        /// The name of the function.
        name: &'static str,
        /// The error of the loader.
        source: libloading::Error,
    },
    /// DuckDB cannot allocate a configuration.
    #[error("it could not allocate its configuration")]
    NoConfiguration,
    /// DuckDB does not accept a setting.
    #[error("it does not accept the setting `{name}` = `{value}`")]
    Setting {
        /// The name of the setting.
        name: String,
        /// The value.
        value: String,
    },
    /// DuckDB refuses a connection.
    #[error("the database accepts no connection")]
    NoConnection,
    /// A text contains a NUL byte. The message has the format of DuckDB's own.
    #[error("Parser Error: the text contains a NUL byte")]
    NulByte(#[from] NulError),
    /// There is no statement with this number.
    #[error("there is no statement {0}")]
    NoStatement(u64),
    /// There is no parameter with this number.
    #[error("there is no parameter {0}")]
    NoParameter(u64),
    /// DuckDB reports an error, with this message.
    #[error("{0}")]
    Reported(String),
}

impl DuckDbError {
    /// Returns the cause of the error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Load(_) | Self::MissingFunction { .. } | Self::NoConfiguration | Self::Setting { .. } => {
                ErrorKind::Environment
            }
            Self::NoConnection => ErrorKind::Environment,
            Self::NulByte(_) | Self::Reported(_) => ErrorKind::Input,
            Self::NoStatement(_) | Self::NoParameter(_) => ErrorKind::Internal,
        }
    }
}

/// The reason why DuckDB's library is not available.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LibraryNotFound {
    /// The given path contains no library.
    #[error("there is no DuckDB at `{}`", .0.display())]
    AtPath(PathBuf),
    /// No directory that is searched contains the library.
    #[error(
        "there is no `libduckdb.so` in the directories of the system, `~/.local/lib` or `~/.cache/proctor/duckdb`; \
         take it from a release of DuckDB (libduckdb-linux-amd64.zip) or out of the npm package \
         `@duckdb/node-bindings-linux-x64`, and put it there or name it in `PROCTOR_DUCKDB`"
    )]
    InSearchedDirectories,
    /// The parent process passed no library to the worker.
    #[error("the worker did not get a DuckDB library")]
    NotPassed,
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;

    use super::*;

    #[test]
    fn errors_keep_kind_source_and_message() {
        use std::error::Error as _;
        let nul = DuckDbError::from(CString::new("a\0b").expect_err("a NUL byte"));
        assert_eq!((nul.kind(), nul.source().is_some()), (ErrorKind::Input, true));
        assert_eq!(nul.to_string(), "Parser Error: the text contains a NUL byte");
        let load = crate::Library::load("/proc/self/maps".as_ref()).err().expect("no library");
        assert_eq!(load.kind(), ErrorKind::Environment);
        assert_eq!(DuckDbError::NoParameter(3).kind(), ErrorKind::Internal);
    }
}
