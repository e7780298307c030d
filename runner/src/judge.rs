//! The program that judges SQL as a step, and the engine that it loads: ours, and the one that the operator names or the
//! system has. Nothing of it is a repository's to choose: not the program by a `PATH`, not the library by a variable.

use std::path::{Path, PathBuf};

use proctor_core::plan::{Argv, PlannedStep};
use proctor_core::sql::Dialect;
use proctor_sandbox::{Rights, ToolKind, ToolMount};
use proctor_sql::{duckdb_places, find_duckdb};

use crate::request::EngineConfig;

/// What carries out the steps that judge SQL.
#[derive(Debug, Clone)]
pub(crate) struct Judge {
    program: ToolMount,
    /// DuckDB's shared library, where there is one.
    library: Option<ToolMount>,
    /// What a check is told of where that lies: it says itself what is wrong with a name that leads nowhere.
    named: Option<PathBuf>,
    /// Where it may lie.
    places: Vec<PathBuf>,
}

impl Judge {
    /// The one of this installation; `home` is where whoever runs us has libraries of their own.
    pub(crate) fn of(config: &EngineConfig, home: &Path) -> Self {
        let given = config.duckdb.as_deref();
        let found = find_duckdb(given, Some(home)).ok();
        let source = |at: &PathBuf| at.canonicalize().unwrap_or_else(|_| at.clone());
        Self {
            program: mount(config.helpers.sql.clone(), config.helpers.sql.clone()),
            library: found.as_ref().map(|at| mount(source(at), at.clone())),
            named: found.or_else(|| config.duckdb.clone()),
            places: duckdb_places(given, Some(home)),
        }
    }

    /// The command of a step, where it judges SQL.
    pub(crate) fn command(&self, step: &PlannedStep) -> Option<Argv> {
        let dialect = step.sql?;
        let own = std::iter::once(text(&self.program.at));
        let library = self.named.as_deref().map(text).filter(|_| dialect == Dialect::Duckdb);
        Argv::new(own.chain(step.cmd.words().iter().skip(1).cloned()).chain(library).collect()).ok()
    }

    /// What such a step sees beside what every step sees.
    pub(crate) fn mounts(&self, dialect: Dialect) -> impl Iterator<Item = &ToolMount> {
        std::iter::once(&self.program).chain(self.library.iter().filter(move |_| dialect == Dialect::Duckdb))
    }

    /// The files that make its judgements what they are.
    pub(crate) fn files(&self, dialect: Dialect) -> impl Iterator<Item = &PathBuf> {
        std::iter::once(&self.program.at).chain(self.places.iter().filter(move |_| dialect == Dialect::Duckdb))
    }
}

fn mount(source: PathBuf, at: PathBuf) -> ToolMount {
    ToolMount { source, at, kind: ToolKind::ReadOnly, rights: Rights::Ours }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
