//! Implements `proctor sql run`: the rows on standard output, and the findings of the judgement on standard error.

use std::path::Path;

use proctor_core::sql::{Judgement, ResultRows, SqlRequest, SqlRunAnswer, SqlRunRequest, SqlVerdict, VERSION};
use proctor_sql::external::ExternalDatabase;
use serde_json::Value;

use super::judged_text::Judged;
use super::sql_backend::SqlBackend;
use super::{human_judgement, request_input, result_table};
use crate::args::{SqlResultFormat, SqlRunArgs};
use crate::caller::Caller;
use crate::error::CliError;
use crate::installation::show;
use crate::screen::Screen;
use crate::style;
use crate::text::{count, escape_line};

/// Runs the subcommand.
///
/// # Errors
/// A file cannot be read, a limit is not valid, or no sandbox can be set up.
pub(super) async fn run(args: &SqlRunArgs, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    let source = request_input::source(&args.request.source, caller).await?;
    let template = request_input::request(&args.request, &source)?;
    let file = args.file.as_deref().unwrap_or(Path::new("-"));
    let sql = request_input::read_text(file, caller)?;
    let request = SqlRunRequest { request: SqlRequest { sql: sql.clone(), ..template }, commit: args.commit };
    let mut backend = SqlBackend::new(&source, &args.backend, caller, screen).await?;
    let answer = match &source.external {
        Some(external) => {
            let judgement = backend.judge(&request.request, screen).await?;
            external_run(external.clone(), request, judgement).await
        }
        None => backend.run(&request, screen).await?,
    };
    let code = exit_code(&answer);
    if args.format == SqlResultFormat::Json {
        screen.out_canonical(&answer);
        return Ok(code);
    }
    match &answer.result {
        Some(result) if args.format == SqlResultFormat::Csv => {
            let is_terminal = screen.layout().wraps;
            screen.out_raw(&csv(result, is_terminal)?);
        }
        Some(result) => screen.out(&result_table::render(result)),
        None => {}
    }
    report(answer, &sql, file, screen);
    Ok(code)
}

/// Runs a statement on an external server if its verdict is `ok`.
pub(super) async fn external_run(
    external: ExternalDatabase,
    request: SqlRunRequest,
    judgement: Judgement,
) -> SqlRunAnswer {
    let mut answer = SqlRunAnswer { version: VERSION, judgement: judgement.clone(), result: None, error: None };
    if judgement.verdict == SqlVerdict::Ok {
        let ran = tokio::task::spawn_blocking(move || external.run(request, judgement)).await;
        match ran {
            Ok(Ok(result)) => answer.result = Some(result),
            Ok(Err(error)) => answer.error = Some(error.to_string()),
            Err(broken) => answer.error = Some(format!("an internal task of proctor failed: {broken}")),
        }
    }
    answer
}

/// Returns the exit code: that of the verdict, and that of `error` if a statement that was judged `ok` failed.
fn exit_code(answer: &SqlRunAnswer) -> u8 {
    match answer.judgement.verdict {
        SqlVerdict::Ok if answer.result.is_none() => SqlVerdict::Error.exit_code(),
        verdict => verdict.exit_code(),
    }
}

/// Reports the findings, and the effects of a write, on standard error.
fn report(answer: SqlRunAnswer, sql: &str, file: &Path, screen: &mut Screen) {
    let has_findings = !answer.judgement.diagnostics.is_empty() || answer.judgement.verdict != SqlVerdict::Ok;
    if let Some(result) = &answer.result {
        let effects = if result.committed { "kept" } else { "undone" };
        if result.changed != Some(0) || result.committed {
            let rows = result.changed.map_or_else(
                || "an unknown number of changed rows".to_owned(),
                |changed| count(usize::try_from(changed).unwrap_or(usize::MAX), "changed row"),
            );
            screen.err(&format!("{rows}, {effects}\n"));
        }
        if result.truncated {
            screen.err(&style::warning("the result has more rows than the limits `rows` and `result` permit"));
        }
    }
    let error = answer.error.clone();
    if has_findings {
        let judged = Judged { file: show(file), judgement: answer.judgement, text: sql.to_owned() };
        screen.err(&human_judgement::render(&[judged]));
    }
    if let Some(error) = error {
        screen.err(&style::plain_error(&format!("the statement failed: {}", escape_line(&error))));
    }
}

/// Returns a result as CSV. On a terminal, the values are escaped.
fn csv(result: &ResultRows, is_terminal: bool) -> Result<Vec<u8>, CliError> {
    let shown = |text: String| if is_terminal { escape_line(&text) } else { text };
    let mut writer = csv::Writer::from_writer(Vec::new());
    let write = |writer: &mut csv::Writer<Vec<u8>>, fields: Vec<String>| {
        writer.write_record(fields).map_err(|error| CliError::Internal(format!("the CSV cannot be written: {error}")))
    };
    if !result.columns.is_empty() {
        write(&mut writer, result.columns.iter().map(|column| shown(column.name.clone())).collect())?;
    }
    for row in &result.rows {
        write(&mut writer, row.iter().map(|value| shown(csv_text(value))).collect())?;
    }
    writer.into_inner().map_err(|error| CliError::Internal(format!("the CSV cannot be written: {error}")))
}

/// Returns a value for CSV: NULL is empty, bytes are in base64, and nested values are JSON.
fn csv_text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Object(fields) if fields.len() == 1 && fields.get("base64").is_some_and(Value::is_string) => {
            fields["base64"].as_str().unwrap_or_default().to_owned()
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use proctor_core::sql::SqlColumn;
    use serde_json::json;

    use super::*;

    #[test]
    fn writes_csv_with_quotes() {
        let column = |name: &str| SqlColumn { name: name.to_owned(), kind: None };
        let result = ResultRows {
            columns: ["a", "b, c"].map(column).into(),
            rows: vec![
                vec![json!("x\"y\nz"), json!(null)],
                vec![json!({"base64": "AP8="}), json!([1, "a"])],
                vec![json!("=1+1"), json!("\u{1b}[2J")],
            ],
            ..ResultRows::default()
        };
        let text = |is_terminal| String::from_utf8(csv(&result, is_terminal).expect("CSV")).expect("UTF-8");
        let expected = "a,\"b, c\"\n\"x\"\"y\nz\",\nAP8=,\"[1,\"\"a\"\"]\"\n=1+1,\u{1b}[2J\n";
        assert_eq!(text(false), expected);
        assert!(text(true).ends_with("=1+1,\\x1b[2J\n"), "{}", text(true));
        assert!(csv(&ResultRows::default(), false).expect("CSV").is_empty());
    }
}
