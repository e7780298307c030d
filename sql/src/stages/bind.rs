//! Checks that every name in a statement exists. The engine decides; [`name_errors`](super::name_errors) finds every
//! name that it refuses.

use proctor_core::sql::{Applicability, SqlCode, SqlDiagnostic, SqlFix, StageName};

use crate::lexer;
use crate::stage::{ChainContext, SqlStage, StageError};
use crate::stages::statement_binding;

/// The stage `bind`.
pub(super) struct BindStage;

impl SqlStage for BindStage {
    fn name(&self) -> StageName {
        StageName::Bind
    }

    fn run(&self, case: &mut ChainContext<'_>) -> Result<(), StageError> {
        if let Err(refusal) = statement_binding::split_statements(case) {
            let found = case.refusal_finding(StageName::Bind, &refusal, 0);
            case.add_finding(found);
            return Ok(());
        }
        statement_binding::bind_statements(case, StageName::Bind)?;
        for index in 0..case.statements.len() {
            if case.check_deadline(StageName::Bind) {
                break;
            }
            match statement_binding::bound_statement(case, index) {
                Ok(bound) => {
                    let places = bound.double_quoted_strings.clone();
                    report_quoted_strings(case, index, &places);
                }
                Err(refusal) if refusal.code.is_engine_problem() => return Err(refusal.into()),
                Err(_) => {
                    let names = std::mem::take(&mut case.statements[index].name_findings);
                    names.into_iter().for_each(|found| case.add_finding(found));
                }
            }
        }
        Ok(())
    }
}

/// Reports double-quoted texts that the engine treats as strings.
fn report_quoted_strings(case: &mut ChainContext<'_>, index: usize, strings: &[std::ops::Range<usize>]) {
    let from = case.statements[index].range.start;
    for place in strings {
        let (start, end) = (from + place.start, from + place.end);
        let string = lexer::unquote(&case.text()[start..end]);
        let message = format!("the string '{}' is in double quotes, which enclose names", shorten(&string));
        let fix = SqlFix {
            start,
            end,
            replacement: format!("'{}'", string.replace('\'', "''")),
            applicability: Applicability::Safe,
        };
        let found = SqlDiagnostic::note(StageName::Bind, SqlCode::StringInDoubleQuotes, message)
            .with_span(Some(case.span(start..end)))
            .with_subject(string)
            .with_fix(Some(fix));
        case.add_finding(found);
    }
}

fn shorten(text: &str) -> &str {
    let end = text.ceil_char_boundary(60.min(text.len()));
    &text[..end]
}
