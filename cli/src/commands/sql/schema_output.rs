//! Implements `proctor sql schema`.

use proctor_core::sql::{SchemaRequest, SqlAllow, SqlVerdict};

use super::request_input;
use super::sql_backend::SqlBackend;
use crate::args::{SqlSchemaArgs, SqlSchemaFormat};
use crate::caller::Caller;
use crate::error::CliError;
use crate::screen::Screen;
use crate::style;
use crate::text::{escape_line, escape_text};

/// Runs the subcommand.
///
/// # Errors
/// A file cannot be read, a limit is not valid, or no sandbox can be set up.
pub(super) async fn schema(args: &SqlSchemaArgs, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    let source = request_input::source(&args.source, caller).await?;
    if source.schema.is_empty() && source.database.is_none() {
        return Err(CliError::Usage {
            message: "there is nothing to describe".to_owned(),
            hint: "name a database with `--db` or `--dsn`, or statements that create a schema with `--schema`"
                .to_owned(),
        });
    }
    request_input::refuse_samples(args.samples, &source)?;
    let request = SchemaRequest {
        dialect: source.dialect,
        schema: source.schema.clone(),
        database: source.database.clone(),
        allow: SqlAllow { tables: args.tables.clone(), columns: args.columns.clone(), functions: Vec::new() },
        samples: args.samples,
        limits: request_input::limits(&args.limit)?,
    };
    let mut backend = SqlBackend::new(&source, &args.backend, caller, screen).await?;
    let answer = backend.describe(&request, screen).await?;
    let code = if answer.schema.is_some() { 0 } else { SqlVerdict::Error.exit_code() };
    match (args.format, &answer.schema) {
        (SqlSchemaFormat::Json, _) => screen.out_canonical(&answer),
        (SqlSchemaFormat::Text, Some(schema)) => screen.out(&escape_text(&schema.to_text())),
        (SqlSchemaFormat::Ddl, Some(schema)) => screen.out(&escape_text(&schema.to_ddl(request.dialect))),
        (SqlSchemaFormat::Text | SqlSchemaFormat::Ddl, None) => {
            let error = answer.error.unwrap_or_default();
            screen.err(&style::plain_error(&format!("the schema cannot be described: {}", escape_line(&error))));
        }
    }
    Ok(code)
}
