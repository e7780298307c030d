//! Implements `proctor schema` and `proctor completions`, which print texts for other programs.

use clap::{CommandFactory as _, ValueEnum as _};

use crate::args::{Cli, CompletionsArgs, SchemaArgs, SchemaName};
use crate::error::CliError;
use crate::schema;
use crate::screen::Screen;

/// Prints a schema, or the names and descriptions of all of them.
///
/// # Errors
/// A schema cannot be serialised, which would be a bug in proctor.
pub(crate) fn schema(args: &SchemaArgs, screen: &mut Screen) -> Result<u8, CliError> {
    match args.name {
        Some(name) => screen.out(&schema::schema_text(name).map_err(|error| CliError::Internal(error.to_string()))?),
        None => {
            let lines = SchemaName::value_variants()
                .iter()
                .map(|name| format!("{:<20}{}\n", name.as_str(), name.description()));
            screen.out(&lines.collect::<String>());
        }
    }
    Ok(0)
}

/// Prints a completion script.
pub(crate) fn completions(args: &CompletionsArgs, screen: &mut Screen) -> u8 {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "proctor", &mut script);
    screen.out_bytes(&script);
    0
}
