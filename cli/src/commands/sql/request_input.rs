//! Reads the texts, the database and the limits that the options of a command name.

use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

use proctor_ask::secret::read_key;
use proctor_core::spec::KeySource;
use proctor_core::sql::{Dialect, SqlAllow, SqlRequest, SqlResourceLimits};
use proctor_sql::external::ExternalDatabase;
use proctor_sql::external::dsn::Dsn;

use crate::args::{SqlRequestArgs, SqlSourceArgs};
use crate::caller::Caller;
use crate::error::CliError;
use crate::installation::{helpers, show};

/// Largest text that is read, in bytes, even if the request sets a higher limit.
const MAX_TEXT_BYTES: u64 = 64 << 20;
/// The time in which the schema of an external database must be read.
const SCHEMA_TIMEOUT: Duration = Duration::from_secs(60);
/// The hint for an external database that cannot be used.
pub(super) const EXTERNAL_HINT: &str =
    "check the host, the user and the password; `sslmode` and `sslrootcert` in the URL control TLS";

/// The schema or database that the options of a command name.
pub(super) struct SqlSource {
    /// The dialect.
    pub dialect: Dialect,
    /// The texts that create the schema.
    pub schema: Vec<String>,
    /// The path of a database file.
    pub database: Option<String>,
    /// The database on an external server whose schema `schema` is.
    pub external: Option<ExternalDatabase>,
}

/// Returns the request of some options, without the statement.
///
/// # Errors
/// A limit is not valid.
pub(super) fn request(args: &SqlRequestArgs, source: &SqlSource) -> Result<SqlRequest, CliError> {
    Ok(SqlRequest {
        schema: source.schema.clone(),
        database: source.database.clone(),
        policy: args.policy,
        allow: SqlAllow {
            tables: args.tables.clone(),
            columns: args.columns.clone(),
            functions: args.functions.clone(),
        },
        limits: limits(&args.limit)?,
        batch: args.batch,
        question: args.question.clone(),
        stages: (!args.stages.is_empty()).then(|| args.stages.clone()),
        reject_at: args.reject_at,
        ..SqlRequest::new(source.dialect, "")
    })
}

/// Reads the schema or finds the database that some options name.
///
/// # Errors
/// A file cannot be read, or the external database cannot be used.
pub(super) async fn source(args: &SqlSourceArgs, caller: &Caller) -> Result<SqlSource, CliError> {
    if let Some(external) = external_database(args, caller)? {
        let reader = external.clone();
        let read = tokio::task::spawn_blocking(move || reader.read_schema(SCHEMA_TIMEOUT));
        let schema = read.await.map_err(|error| CliError::Internal(error.to_string()))?;
        let schema = schema
            .map_err(|error| CliError::Environment { message: error.to_string(), hint: EXTERNAL_HINT.to_owned() })?;
        return Ok(SqlSource { dialect: external.dialect(), schema, database: None, external: Some(external) });
    }
    let schema = args.schema.iter().map(|file| read_text(file, caller)).collect::<Result<_, _>>()?;
    let database = args.db.as_ref().map(|file| database_path(file, caller)).transpose()?;
    Ok(SqlSource { dialect: args.dialect.unwrap_or(Dialect::Sqlite), schema, database, external: None })
}

/// Returns the database on an external server that some options name.
fn external_database(args: &SqlSourceArgs, caller: &Caller) -> Result<Option<ExternalDatabase>, CliError> {
    let url = match (&args.dsn, &args.dsn_file) {
        (Some(url), _) => url.clone(),
        (None, Some(file)) => {
            let path = caller.cwd.join(file).to_string_lossy().into_owned();
            let read = read_key(&KeySource::File(path), &caller.env);
            let secret = read.map_err(|error| CliError::Usage {
                message: error.to_string(),
                hint: "write the URL into a file, and run `chmod 600` on it".to_owned(),
            })?;
            secret.expose().to_owned()
        }
        (None, None) => return Ok(None),
    };
    let dsn = Dsn::parse(&url, |name| caller.var(name).map(str::to_owned)).map_err(|error| CliError::Usage {
        message: format!("the URL of the database is wrong: {error}"),
        hint: "write it like `postgres://USER@HOST:5432/DATABASE` or `mysql://USER@HOST:3306/DATABASE`".to_owned(),
    })?;
    match args.dialect {
        Some(dialect) if dialect != dsn.dialect() => Err(CliError::Usage {
            message: format!("`--dialect {}` contradicts the URL of the database", dialect.as_str()),
            hint: format!("omit `--dialect`, or write `--dialect {}`", dsn.dialect().as_str()),
        }),
        _ => Ok(Some(ExternalDatabase::new(dsn, helpers(caller)?.sql))),
    }
}

/// Refuses sample values of an external database: its rows are read only by statements that were judged.
///
/// # Errors
/// Sample values of an external database are requested.
pub(super) fn refuse_samples(samples: u32, source: &SqlSource) -> Result<(), CliError> {
    if samples == 0 || source.external.is_none() {
        return Ok(());
    }
    Err(CliError::Usage {
        message: "a database on a server shows no sample values".to_owned(),
        hint: "omit `--samples`".to_owned(),
    })
}

/// Returns the absolute path of a database.
///
/// # Errors
/// The file does not exist, or its path is not UTF-8.
pub(super) fn database_path(file: &Path, caller: &Caller) -> Result<String, CliError> {
    let path = caller.cwd.join(file).canonicalize().map_err(|error| unreadable_error(file, &error))?;
    path.into_os_string().into_string().map_err(|path| CliError::Usage {
        message: format!("the path of the database, `{}`, is not UTF-8", show(Path::new(&path))),
        hint: "move it, or use a link to it".to_owned(),
    })
}

fn unreadable_error(file: &Path, error: &std::io::Error) -> CliError {
    CliError::Usage {
        message: format!("`{}` cannot be read: {error}", show(file)),
        hint: "name an existing file; `-` is standard input".to_owned(),
    }
}

/// Reads a text; `-` is standard input.
///
/// # Errors
/// The file cannot be read, is too large, or is not UTF-8.
pub(super) fn read_text(file: &Path, caller: &Caller) -> Result<String, CliError> {
    let mut bytes = Vec::new();
    let done = if file == Path::new("-") {
        std::io::stdin().lock().take(MAX_TEXT_BYTES + 1).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(caller.cwd.join(file))
            .and_then(|open| open.take(MAX_TEXT_BYTES + 1).read_to_end(&mut bytes))
    };
    done.map_err(|error| unreadable_error(file, &error))?;
    if bytes.len() as u64 > MAX_TEXT_BYTES {
        return Err(CliError::Usage {
            message: format!("`{}` is larger than {} MiB", show(file), MAX_TEXT_BYTES >> 20),
            hint: "split it".to_owned(),
        });
    }
    String::from_utf8(bytes).map_err(|error| CliError::Usage {
        message: format!("`{}` is not UTF-8 at byte {}", show(file), error.utf8_error().valid_up_to()),
        hint: "convert it, for instance with `iconv -t UTF-8`".to_owned(),
    })
}

/// Returns the limits with some of them set.
///
/// # Errors
/// A limit is not valid.
pub(super) fn limits(given: &[String]) -> Result<SqlResourceLimits, CliError> {
    let mut limits = SqlResourceLimits::default();
    for one in given {
        limits.set(one).map_err(|wrong| CliError::Usage {
            message: format!("`--limit {one}`: {wrong}"),
            hint: "write limits such as `--limit time=10s,memory=1GiB,rows=100`".to_owned(),
        })?;
    }
    Ok(limits)
}
