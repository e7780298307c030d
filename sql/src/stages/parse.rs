//! Checks that the text has the syntax of statements. The engine decides; later stages use the parser's tree.
//! Constructs of other engines are named in the findings.

use proctor_core::sql::{SqlCode, SqlDiagnostic, StageName};

use crate::engine::EngineRefusal;
use crate::stage::{ChainContext, SqlStage, StageError};
use crate::stages::misspelt_keywords::{self, is_syntax_code};
use crate::stages::statement_tree::parse_tree;
use crate::stages::{foreign_constructs, safety, statement_binding};

/// The stage `parse`.
pub(super) struct ParseStage;

impl SqlStage for ParseStage {
    fn name(&self) -> StageName {
        StageName::Parse
    }

    fn run(&self, case: &mut ChainContext<'_>) -> Result<(), StageError> {
        if let Err(refusal) = statement_binding::split_statements(case) {
            let text = case.text().to_owned();
            report_syntax_error(case, &text, &refusal, 0);
            // A text that this engine refuses to parse may be a write for another engine.
            let written = safety::hidden_write_finding(case);
            written.into_iter().for_each(|found| case.add_finding(found));
            return Ok(());
        }
        statement_binding::bind_statements(case, StageName::Parse)?;
        for index in 0..case.statements.len() {
            if case.check_deadline(StageName::Parse) {
                break;
            }
            let range = case.statements[index].range.clone();
            let text = case.text()[range.clone()].to_owned();
            let tree = parse_tree(&text, case.request.dialect);
            match &case.statements[index].prepared {
                Some(Err(refusal)) if is_syntax_code(refusal.code) => {
                    let refusal = refusal.clone();
                    report_syntax_error(case, &text, &refusal, range.start);
                }
                Some(Ok(_)) if tree.is_none() => {
                    let message = format!(
                        "{} accepts this statement, but Proctor's parser does not support its syntax",
                        case.engine.version()
                    );
                    let found = SqlDiagnostic::note(StageName::Parse, SqlCode::ParserDisagrees, message);
                    let found = found.with_span(Some(case.span(range)));
                    case.add_finding(found);
                }
                _ => {}
            }
            case.statements[index].tree = tree;
        }
        Ok(())
    }
}

/// Reports why the engine refuses the syntax of a statement that starts at `from`: misspelt keywords if they are the
/// cause, or else the engine's message, with the construct of another engine if there is one.
fn report_syntax_error(case: &mut ChainContext<'_>, text: &str, refusal: &EngineRefusal, from: usize) {
    let misspelt = misspelt_keywords::find_misspelt_keywords(case, text, refusal, from);
    if !misspelt.is_empty() {
        misspelt.into_iter().for_each(|found| case.add_finding(found));
        return;
    }
    let found = case.refusal_finding(StageName::Parse, refusal, from);
    let found = misspelt_keywords::with_end_position(found, case, text, refusal, from);
    case.add_finding(foreign_constructs::explain_foreign_construct(found, text, case.request.dialect));
}
