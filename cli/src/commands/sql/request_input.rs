//! Reads the inputs of SQL commands: texts, the path of a database, and limits.

use std::io::Read as _;
use std::path::Path;

use proctor_core::sql::SqlResourceLimits;

use crate::caller::Caller;
use crate::error::CliError;
use crate::installation::show;

/// Largest text that is read, in bytes, whatever the requested limit.
const MAX_TEXT_BYTES: u64 = 64 << 20;

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
