//! Whether everything that a statement names is there. The engine knows; where it stops at its first finding, the name is
//! replaced and it is asked again, so that one look tells all of them.

use proctor_core::sql::{Applicability, Diagnostic, Dialect, Fix, SqlCode, StageName};

use crate::engine::Refusal;
use crate::nearest::nearest;
use crate::stage::{Case, Stage, on};
use crate::stages::{asked, dialects};
use crate::text;

/// How many findings about one statement are looked for.
const MOST: usize = 12;

/// See the file.
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
                Ok(bound) => strings(case, index, &bound.strings),
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

/// Texts in double quotes that stand for strings.
fn strings(case: &mut Case<'_>, index: usize, strings: &[std::ops::Range<usize>]) {
    let from = case.statements[index].range.start;
    for place in strings {
        let (start, end) = (from + place.start, from + place.end);
        let string = text::unquoted(&case.text()[start..end]);
        let message = format!("the text '{}' stands in double quotes, which are for names", short(&string));
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

/// Everything that the engine has against the names of a statement, where it stands now.
pub(super) fn names(case: &mut Case<'_>, index: usize, first: Refusal) -> Vec<Diagnostic> {
    let from = case.statements[index].range.start;
    let bounds = case.bounds();
    let original = case.text_of(&case.statements[index]).to_owned();
    let mut text = original.clone();
    let mut refusal = first;
    let mut all = Vec::new();
    while all.len() < MOST {
        let found = case.refused(StageName::Bind, &refusal, from);
        let found = completed(case, found, &refusal, &original);
        let fix = fix(case, &found, &refusal, &text, from);
        all.push(dialects::explained(found.fix(fix), &original, case.request.dialect));
        let Some(replaced) = without(&text, &refusal) else { break };
        text = replaced;
        refusal = match case.engine.bind(&text, on(&bounds)) {
            // A finding that only the replacement made is none.
            Err(next) if is_of_names(next.code) && next.place.is_some() && !is_ours(&next, &original) => next,
            _ => break,
        };
    }
    all
}

fn is_of_names(code: SqlCode) -> bool {
    matches!(
        code,
        SqlCode::UnknownColumn | SqlCode::UnknownFunction | SqlCode::AmbiguousColumn | SqlCode::MisspeltIdentifier
    )
}

/// Whether a finding is about what we put there: what its place holds is not the name of the text.
fn is_ours(refusal: &Refusal, original: &str) -> bool {
    let there = refusal.place.clone().and_then(|place| original.get(place));
    refusal.subject.as_deref().is_some_and(|name| {
        let bare = name.rsplit_once('.').map_or(name, |(_, bare)| bare);
        (bare == "max" || bare == "0") && there.is_none_or(|there| !there.to_ascii_lowercase().contains(bare))
    })
}

/// The text with a number in place of the name that was refused, as long as it was.
fn without(text: &str, refusal: &Refusal) -> Option<String> {
    let place = refusal.place.clone().filter(|_| is_of_names(refusal.code))?;
    let name = text.get(place.clone())?;
    let replacement = match refusal.code {
        // A function that takes anything.
        SqlCode::UnknownFunction => "max",
        _ => "0",
    };
    let blanks = name.len().checked_sub(replacement.len())?;
    let replacement = format!("{replacement}{}", " ".repeat(blanks));
    let mut replaced = text.to_owned();
    replaced.replace_range(place, &replacement);
    Some(replaced)
}

/// With what may have been meant.
fn completed(case: &Case<'_>, mut found: Diagnostic, refusal: &Refusal, text: &str) -> Diagnostic {
    let Some(subject) = refusal.subject.as_deref() else { return found };
    let (qualifier, name) = subject.rsplit_once('.').map_or((None, subject), |(table, name)| (Some(table), name));
    let catalog = case.engine.catalog();
    if found.candidates.is_empty() {
        found.candidates = match refusal.code {
            SqlCode::UnknownTable => nearest(name, catalog.tables.iter().map(|table| table.name.as_str())),
            SqlCode::UnknownColumn => {
                let in_scope = named_tables(case, text);
                let of: Vec<&str> =
                    in_scope.iter().flat_map(|table| table.columns.iter().map(|column| column.name.as_str())).collect();
                nearest(name, of)
            }
            SqlCode::UnknownFunction => dialects::instead_of(name, case.request.dialect)
                .map(|instead| vec![instead.to_owned()])
                .unwrap_or_else(|| nearest(name, case.engine.functions().iter().map(String::as_str))),
            SqlCode::AmbiguousColumn => catalog
                .tables_with(name)
                .filter(|table| named_tables(case, text).iter().any(|named| named.name == table.name))
                .map(|table| format!("{}.{name}", table.name))
                .collect(),
            _ => Vec::new(),
        };
    }
    if let Some(own) = advice(case, refusal.code, name, qualifier, &found.candidates) {
        found.advice = Some(own);
    }
    found
}

/// The change that mends a name, where only one thing can have been meant: the engine has taken the text with it, or
/// goes on to another name. `text` has had everything else mended that the engine found before.
fn fix(case: &mut Case<'_>, found: &Diagnostic, refusal: &Refusal, text: &str, from: usize) -> Option<Fix> {
    let is_slip = matches!(refusal.code, SqlCode::UnknownTable | SqlCode::UnknownColumn | SqlCode::MisspeltIdentifier);
    let ([only], Some(place), true) = (found.candidates.as_slice(), refusal.place.clone(), is_slip) else {
        return None;
    };
    let written = text.get(place.clone())?;
    let is_plain = only.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let names = [is_plain.then(|| only.clone()), Some(case.engine.quoted(only))];
    // Engines point at a name with what stands before it, or without.
    let qualifier = refusal.subject.as_deref().and_then(|subject| subject.rsplit_once('.')).map(|(before, _)| before);
    let qualified = |name: &String| qualifier.map(|qualifier| format!("{qualifier}.{name}"));
    let variants = names.into_iter().flatten().flat_map(|name| [qualified(&name), Some(name)]).flatten();
    let bounds = case.bounds();
    let replacement = variants.filter(|variant| variant != written).find(|variant| {
        let mut mended = text.to_owned();
        mended.replace_range(place.clone(), variant);
        let behind = place.start..place.start + variant.len();
        match case.engine.bind(&mended, on(&bounds)) {
            Ok(_) => true,
            Err(next) => {
                let is_elsewhere = next.place.is_some_and(|next| next.end <= behind.start || next.start >= behind.end);
                is_elsewhere && is_of_names(next.code) && next.subject != refusal.subject
            }
        }
    })?;
    let (start, end) = (from + place.start, from + place.end);
    Some(Fix { start, end, replacement, applicability: Applicability::Likely })
}

fn advice(
    case: &Case<'_>,
    code: SqlCode,
    name: &str,
    qualifier: Option<&str>,
    candidates: &[String],
) -> Option<String> {
    let catalog = case.engine.catalog();
    match code {
        SqlCode::UnknownColumn => {
            let has: Vec<String> = catalog.tables_with(name).take(4).map(|table| format!("`{}`", table.name)).collect();
            let of = qualifier.map_or(String::new(), |qualifier| format!(" `{qualifier}` has none of that name."));
            match (has.is_empty(), candidates.is_empty()) {
                (false, _) => {
                    Some(format!("The column `{name}` belongs to {}: join it, or use its alias.{of}", has.join(", ")))
                }
                (true, false) => Some("Use the name as the schema has it.".to_owned()),
                (true, true) => Some(format!("No table has a column `{name}`; look at the schema.")),
            }
        }
        SqlCode::UnknownTable if candidates.is_empty() => {
            let names: Vec<&str> = catalog.tables.iter().take(12).map(|table| table.name.as_str()).collect();
            Some(format!("The tables are: {}.", names.join(", ")))
        }
        SqlCode::UnknownTable => Some("Use the name as the schema has it.".to_owned()),
        SqlCode::AmbiguousColumn => Some("Write the table or its alias before the column.".to_owned()),
        SqlCode::UnknownFunction => Some(format!("Use a function of {}.", case.request.dialect.title())),
        SqlCode::MisspeltIdentifier => Some("Write the column's name; a text belongs into single quotes.".to_owned()),
        _ => None,
    }
}

/// The tables that a text names.
fn named_tables<'a>(case: &'a Case<'_>, text: &str) -> Vec<&'a crate::catalog::Table> {
    let dialect: Dialect = case.request.dialect;
    let words: std::collections::BTreeSet<String> = text::pieces(text, dialect)
        .into_iter()
        .filter(|(piece, _)| matches!(piece, text::Piece::Word | text::Piece::Quoted))
        .map(|(_, range)| text::unquoted(&text[range]).to_ascii_lowercase())
        .collect();
    let catalog = case.engine.catalog();
    catalog.tables.iter().filter(|table| words.contains(&table.name.to_ascii_lowercase())).collect()
}
