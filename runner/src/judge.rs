//! The program that judges SQL as a step, and the engine that it loads: ours, and the one that the operator names or the
//! system has. Nothing of it is a repository's to choose: not the program by a `PATH`, not the library by a variable.

use std::path::{Path, PathBuf};

use proctor_core::plan::{Argv, PlannedStep};
use proctor_core::sql::Dialect;
use proctor_sandbox::{Rights, ToolKind, ToolMount};
use proctor_snapshot::View;
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
        let found = find_duckdb(given, Some(home)).ok().map(|library| behind_links(&library));
        Self {
            program: mount(behind_links(&config.helpers.sql)),
            library: found.clone().map(mount),
            named: found.or_else(|| config.duckdb.clone()),
            places: duckdb_places(given, Some(home)),
        }
    }

    /// The command of a step, where it judges SQL; behind it come the files that it looks at.
    pub(crate) fn command(&self, step: &PlannedStep) -> Option<Argv> {
        let dialect = step.sql?;
        let own = std::iter::once(text(&self.program.at));
        let library = self.named.as_deref().filter(|_| dialect == Dialect::Duckdb);
        let library = library.map(|library| format!("--duckdb={}", text(library)));
        let end = std::iter::once("--".to_owned());
        Argv::new(own.chain(step.cmd.words().iter().skip(1).cloned()).chain(library).chain(end).collect()).ok()
    }

    /// The files that such a step looks at, as its working directory has them: of those that git sees before it.
    ///
    /// # Errors
    /// Its check is none.
    pub(crate) fn looked_at(step: &PlannedStep, view: &View) -> Result<Vec<String>, String> {
        let Some(check) = step.cmd.words().get(2).filter(|_| step.sql.is_some()) else { return Ok(Vec::new()) };
        let workdir = Some(step.workdir.as_str()).filter(|workdir| *workdir != ".").map(|dir| format!("{dir}/"));
        // What is no text is named as one that cannot be read.
        let names = view.files().map(|path| String::from_utf8_lossy(&path).into_owned());
        let below = names.filter_map(|name| match &workdir {
            None => Some(name),
            Some(dir) => name.strip_prefix(dir.as_str()).map(str::to_owned),
        });
        proctor_sql::check::files(check, below)
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

fn mount(file: PathBuf) -> ToolMount {
    ToolMount { source: file.clone(), at: file, kind: ToolKind::ReadOnly, rights: Rights::Ours }
}

/// The file itself: a link is no place that a file can be shown at.
fn behind_links(file: &Path) -> PathBuf {
    file.canonicalize().unwrap_or_else(|_| file.to_path_buf())
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
