//! Reads the texts, the database and the limits that the options of a command name.

use std::io::Read as _;
use std::path::Path;

use proctor_core::sql::{SqlAllow, SqlRequest, SqlResourceLimits};

use crate::args::{SqlRequestArgs, SqlSourceArgs};
use crate::caller::Caller;
use crate::error::CliError;
use crate::installation::show;

/// Largest text that is read, in bytes, whatever the requested limit.
const MAX_TEXT_BYTES: u64 = 64 << 20;

/// Returns the request of some options, without the statement.
///
/// # Errors
/// A file cannot be read, or a limit is not valid.
pub(super) fn request(args: &SqlRequestArgs, caller: &Caller) -> Result<SqlRequest, CliError> {
    let (schema, database) = source(&args.source, caller)?;
    Ok(SqlRequest {
        schema,
        database,
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
        ..SqlRequest::new(args.source.dialect, "")
    })
}

/// Returns the texts of the schema, and the path of the database.
///
/// # Errors
/// A file cannot be read.
pub(super) fn source(args: &SqlSourceArgs, caller: &Caller) -> Result<(Vec<String>, Option<String>), CliError> {
    let schema = args.schema.iter().map(|file| read_text(file, caller)).collect::<Result<_, _>>()?;
    let database = args.db.as_ref().map(|file| database_path(file, caller)).transpose()?;
    Ok((schema, database))
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
