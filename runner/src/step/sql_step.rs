//! Locates our program that judges SQL in a step, and the DuckDB library that it loads. The operator or the system
//! provides the library. A repository can influence neither of them, not even through `PATH` or a variable.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use proctor_core::model::plan::{Argv, PlannedStep};
use proctor_core::sql::Dialect;
use proctor_sandbox::{AccessRights, ToolKind, ToolMount};
use proctor_snapshot::TreeView;
use proctor_sql::check::CheckError;
use proctor_sql::mysql::MariadbPrograms;
use proctor_sql::postgres::PostgresPrograms;
use proctor_sql::{duckdb_places, find_duckdb};

use crate::run::request::EngineConfig;

/// The program that runs the steps that judge SQL.
#[derive(Debug, Clone)]
pub(crate) struct SqlProgram {
    program: ToolMount,
    /// DuckDB's shared library, if there is one.
    library: Option<ToolMount>,
    /// Path of the library to pass to a check. The check itself reports a path that does not exist.
    library_argument: Option<PathBuf>,
    /// Paths at which the library is looked up.
    library_candidates: Vec<PathBuf>,
    /// The programs of the PostgreSQL and the MariaDB server, if there are any. They are looked up when a step needs them.
    postgres: Arc<OnceLock<Option<PathBuf>>>,
    mariadb: Arc<OnceLock<Option<PathBuf>>>,
}

impl SqlProgram {
    /// Locates the program and the library of this installation; `home` is the home of the user who runs us, which
    /// may contain libraries.
    pub(crate) fn locate(config: &EngineConfig, home: &Path) -> Self {
        let given = config.duckdb.as_deref();
        let found = find_duckdb(given, Some(home)).ok().map(|library| resolve_links(&library));
        Self {
            program: read_only_mount(resolve_links(&config.helpers.sql)),
            library: found.clone().map(read_only_mount),
            library_argument: found.or_else(|| config.duckdb.clone()),
            library_candidates: duckdb_places(given, Some(home)),
            postgres: Arc::default(),
            mariadb: Arc::default(),
        }
    }

    /// Returns the command of a step that judges SQL, to which the caller appends the files to check.
    pub(crate) fn command(&self, step: &PlannedStep) -> Option<Argv> {
        let dialect = step.sql?;
        let own = std::iter::once(path_text(&self.program.at));
        let library = self.library_argument.as_deref().filter(|_| dialect == Dialect::Duckdb);
        let library = library.map(|library| format!("--duckdb={}", path_text(library)));
        let end = std::iter::once("--".to_owned());
        Argv::new(own.chain(step.cmd.words().iter().skip(1).cloned()).chain(library).chain(end).collect()).ok()
    }

    /// Returns the files for a step that judges SQL to check, relative to its working directory, among the files
    /// that git sees before the step.
    ///
    /// # Errors
    /// The step has no valid check.
    pub(crate) fn checked_files(step: &PlannedStep, view: &TreeView) -> Result<Vec<String>, CheckError> {
        let Some(check) = step.cmd.words().get(2).filter(|_| step.sql.is_some()) else { return Ok(Vec::new()) };
        let workdir = Some(step.workdir.as_str()).filter(|workdir| *workdir != ".").map(|dir| format!("{dir}/"));
        // A name that is not valid text is passed on anyway, so that the check reports the file as unreadable.
        let names = view.files().map(|path| String::from_utf8_lossy(&path).into_owned());
        let below = names.filter_map(|name| match &workdir {
            None => Some(name),
            Some(dir) => name.strip_prefix(dir.as_str()).map(str::to_owned),
        });
        proctor_sql::check::matching_paths(check, below)
    }

    /// Returns the additional mounts of a step that judges SQL.
    pub(crate) fn mounts(&self, dialect: Dialect) -> impl Iterator<Item = &ToolMount> {
        std::iter::once(&self.program).chain(self.library.iter().filter(move |_| dialect == Dialect::Duckdb))
    }

    /// Returns the files that affect the results of a step that judges SQL.
    pub(crate) fn files(&self, dialect: Dialect) -> impl Iterator<Item = &PathBuf> {
        let server = match dialect {
            Dialect::Postgres => {
                self.postgres.get_or_init(|| PostgresPrograms::find().ok().map(|found| found.server()))
            }
            Dialect::Mysql => self.mariadb.get_or_init(|| MariadbPrograms::find().ok().map(|found| found.server())),
            Dialect::Sqlite | Dialect::Duckdb => &None,
        };
        std::iter::once(&self.program.at)
            .chain(self.library_candidates.iter().filter(move |_| dialect == Dialect::Duckdb))
            .chain(server)
    }
}

fn read_only_mount(file: PathBuf) -> ToolMount {
    ToolMount { source: file.clone(), at: file, kind: ToolKind::ReadOnly, rights: AccessRights::Ours }
}

/// Resolves links, because the sandbox cannot mount over a link.
fn resolve_links(file: &Path) -> PathBuf {
    file.canonicalize().unwrap_or_else(|_| file.to_path_buf())
}

fn path_text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
