//! Checks that every name in a statement exists. The engine decides; [`names`](super::names) finds every name that it
//! refuses.

use proctor_core::sql::{Applicability, Diagnostic, Fix, SqlCode, StageName};

use crate::stage::{Case, Stage};
use crate::stages::asked;
use crate::text;

/// The stage `bind`.
pub(super) struct Bind;

impl Stage for Bind {
    fn name(&self) -> StageName {
        StageName::Bind
    }

    fn run(&self, case: &mut Case<'_>) -> Result<(), String> {
        if let Err(refusal) = asked::split(case) {
            let found = case.refused(StageName::Bind, &refusal, 0);
            case.found(found);
            return Ok(());
        }
        asked::ask(case, StageName::Bind)?;
        for index in 0..case.statements.len() {
            if case.is_late(StageName::Bind) {
                break;
            }
            match asked::prepared(case, index) {
                Ok(bound) => {
                    let places = bound.strings.clone();
                    strings(case, index, &places);
                }
                Err(refusal) if refusal.code.is_ours() => return Err(refusal.message),
                Err(_) => {
                    let names = std::mem::take(&mut case.statements[index].names);
                    names.into_iter().for_each(|found| case.found(found));
                }
            }
        }
        Ok(())
    }
}

/// Reports double-quoted texts that the engine treats as strings.
fn strings(case: &mut Case<'_>, index: usize, strings: &[std::ops::Range<usize>]) {
    let from = case.statements[index].range.start;
    for place in strings {
        let (start, end) = (from + place.start, from + place.end);
        let string = text::unquoted(&case.text()[start..end]);
        let message = format!("the string '{}' is in double quotes, which are for names", short(&string));
        let fix = Fix {
            start,
            end,
            replacement: format!("'{}'", string.replace('\'', "''")),
            applicability: Applicability::Safe,
        };
        let found = Diagnostic::note(StageName::Bind, SqlCode::StringInDoubleQuotes, message)
            .at(Some(case.span(start..end)))
            .about(string)
            .fix(Some(fix));
        case.found(found);
    }
}

fn short(text: &str) -> &str {
    let end = text.ceil_char_boundary(60.min(text.len()));
    &text[..end]
}
