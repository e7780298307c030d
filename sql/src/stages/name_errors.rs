//! Finds every name that the engine refuses. An engine stops at its first error, so the name is replaced and the engine
//! is asked again. One judgement then reports all of them.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Instant;

use proctor_core::sql::{Applicability, Dialect, SqlCode, SqlDiagnostic, SqlFix, StageName};

use crate::allow_lists;
use crate::catalog::{Catalog, CatalogTable};
use crate::engine::EngineRefusal;
use crate::lexer::{self, SqlTokenKind};
use crate::name_suggestions::suggest_names;
use crate::stage::{ChainContext, execution_bounds};
use crate::stages::edited_text::EditedText;
use crate::stages::table_references::{TableReference, table_references};
use crate::stages::{foreign_constructs, foreign_functions, misspelt_keywords};

/// The maximum number of findings about one statement.
const MAX_FINDINGS: usize = 12;
/// The maximum number of replaced names in one statement; some of them are not reported.
const MAX_REPLACEMENTS: usize = 24;
/// An expression without a type that every engine accepts wherever an expression is allowed.
const UNTYPED_NULL: &str = "coalesce(NULL, NULL)";

/// The search for wrong names in one statement.
struct NameErrorSearch<'s> {
    /// The position of the statement in the text.
    offset: usize,
    original: &'s str,
    dialect: Dialect,
    /// Missing tables without a similar table in the schema. Their columns are unknown.
    missing_tables: BTreeSet<String>,
    /// The reported columns, without their qualifiers.
    reported_columns: BTreeSet<String>,
}

/// Returns everything that the engine refuses about the names of a statement, in the current state of the database.
pub(super) fn find_name_errors(case: &mut ChainContext<'_>, index: usize, first: EngineRefusal) -> Vec<SqlDiagnostic> {
    let original = case.statement_text(&case.statements[index]).to_owned();
    let mut search = NameErrorSearch {
        offset: case.statements[index].range.start,
        original: &original,
        dialect: case.request.dialect,
        missing_tables: BTreeSet::new(),
        reported_columns: BTreeSet::new(),
    };
    let mut edited = EditedText::new(&original);
    let mut refusal = with_location(first, &edited, search.dialect);
    let mut all = Vec::new();
    for _ in 0..MAX_REPLACEMENTS {
        let mut candidates = Vec::new();
        if !search.is_follow_up(case, &edited, &refusal) {
            let found = search.create_finding(case, &edited, &refusal);
            candidates.clone_from(&found.candidates);
            all.push(found);
        }
        if all.len() >= MAX_FINDINGS || Instant::now() > case.deadline {
            break;
        }
        match search.rebind_without(case, &edited, &refusal, &candidates) {
            Some((next, replaced)) => (refusal, edited) = (next, replaced),
            None => break,
        }
    }
    all
}

/// Reports whether a refusal is about a name.
fn is_name_error(code: SqlCode) -> bool {
    matches!(
        code,
        SqlCode::UnknownTable
            | SqlCode::UnknownColumn
            | SqlCode::UnknownFunction
            | SqlCode::AmbiguousColumn
            | SqlCode::MisspeltIdentifier
    )
}

/// Adds a position to a refusal without one if the text contains the name: a table where tables are named, any other
/// name where it has the same qualifier. Replacements of earlier edits are skipped.
fn with_location(refusal: EngineRefusal, edited: &EditedText, dialect: Dialect) -> EngineRefusal {
    let (None, Some(subject), true) = (&refusal.range, refusal.subject.as_deref(), is_name_error(refusal.code)) else {
        return refusal;
    };
    let sql = edited.text();
    let place = if refusal.code == SqlCode::UnknownTable {
        let is_it = |relation: &TableReference| relation.name.eq_ignore_ascii_case(split_qualifier(subject).1);
        table_references(sql, dialect).into_iter().filter(is_it).map(|relation| relation.name_range).next()
    } else {
        let names = lexer::tokenize(sql, dialect).into_iter();
        let names = names
            .filter(|(piece, _)| matches!(piece, SqlTokenKind::Word | SqlTokenKind::Quoted))
            .map(|(_, range)| range);
        names
            .map(|range| qualified_range(sql, &range, dialect))
            .find(|whole| is_same_name(&sql[whole.clone()], subject, dialect) && edited.original_range(whole).is_some())
    };
    EngineRefusal { range: place, ..refusal }
}

/// Reports whether a name of a text is the one that an engine names without quotes.
fn is_same_name(written: &str, subject: &str, dialect: Dialect) -> bool {
    let parts = lexer::tokenize(written, dialect).into_iter().map(|(_, range)| lexer::unquote(&written[range]));
    written.eq_ignore_ascii_case(subject) || parts.collect::<String>().eq_ignore_ascii_case(subject)
}

/// Splits `t.a` into `t` and `a`.
fn split_qualifier(subject: &str) -> (Option<&str>, &str) {
    subject.rsplit_once('.').map_or((None, subject), |(table, name)| (Some(table), name))
}

impl NameErrorSearch<'_> {
    /// Reports whether a refusal only results from a name that was replaced before: a column of a missing table, or a
    /// column that a subquery would have returned.
    fn is_follow_up(&self, case: &ChainContext<'_>, edited: &EditedText, refusal: &EngineRefusal) -> bool {
        let (SqlCode::UnknownColumn, Some(subject)) = (refusal.code, refusal.subject.as_deref()) else { return false };
        let (qualifier, name) = split_qualifier(subject);
        let qualifier = qualifier.map(str::to_owned).or_else(|| {
            let place = refusal.range.clone()?;
            let whole = qualified_range(edited.text(), &place, self.dialect);
            let before = edited.text().get(whole.start..place.start)?.trim_end().strip_suffix('.')?;
            Some(lexer::unquote(before.rsplit('.').next()?.trim()))
        });
        let lower = |text: &str| text.to_ascii_lowercase();
        let is_lost = match &qualifier {
            Some(qualifier) => self.missing_tables.contains(&lower(qualifier)),
            None => !self.missing_tables.is_empty(),
        };
        if is_lost {
            return true;
        }
        // A subquery may have returned this column before its name was replaced there.
        let of_table = qualifier.is_some_and(|qualifier| {
            let all = table_references(self.original, self.dialect);
            let is_it = |relation: &&TableReference| relation.qualifier().eq_ignore_ascii_case(&qualifier);
            all.iter().filter(is_it).any(|relation| case.engine.catalog().table(&relation.name).is_some())
        });
        let has_inner = lexer::tokenize(self.original, self.dialect)
            .iter()
            .filter(|(piece, range)| {
                *piece == SqlTokenKind::Word && self.original[range.clone()].eq_ignore_ascii_case("select")
            })
            .count()
            > 1;
        has_inner && !of_table && self.reported_columns.contains(&lower(name))
    }

    /// Converts a refusal to a finding at its position in the original text.
    fn create_finding(
        &mut self,
        case: &mut ChainContext<'_>,
        edited: &EditedText,
        refusal: &EngineRefusal,
    ) -> SqlDiagnostic {
        let place = refusal.range.as_ref().and_then(|place| edited.original_range(place));
        let found =
            case.refusal_finding(StageName::Bind, &EngineRefusal { range: place, ..refusal.clone() }, self.offset);
        if let Some(subject) = &refusal.subject {
            self.reported_columns.insert(split_qualifier(subject).1.to_ascii_lowercase());
        }
        if let Some(found) = self.alias_finding(case, edited, refusal, &found) {
            return found;
        }
        let found = with_candidates(case, found, refusal, edited.text());
        let (found, fix) = match self.find_fix(case, edited, &found, refusal) {
            Some(fix) => (found, Some(fix)),
            None => self.keyword_finding(case, edited, found, refusal),
        };
        foreign_constructs::explain_foreign_construct(found.with_fix(fix), self.original, self.dialect)
    }

    /// Returns a finding if a column is qualified by the name of a table that has an alias.
    fn alias_finding(
        &self,
        case: &mut ChainContext<'_>,
        edited: &EditedText,
        refusal: &EngineRefusal,
        found: &SqlDiagnostic,
    ) -> Option<SqlDiagnostic> {
        let (qualifier, alias) = self.alias_of(edited, refusal)?;
        let written = edited.text().get(qualifier.clone())?;
        let table = lexer::unquote(written);
        let message = format!("`{table}` has the alias `{alias}` here, so only `{alias}` refers to it");
        let advice = format!("Write `{alias}` before the column, instead of `{table}`.");
        let quoted = if is_unquoted_name(&alias) { alias.clone() } else { case.engine.quote_name(&alias) };
        let fix = self.verified_fix(case, edited, &qualifier, &quoted, refusal);
        let found = found.clone().with_candidates(vec![alias]).with_advice(advice).with_fix(fix);
        Some(SqlDiagnostic { message, ..found })
    }

    /// Returns the range of a qualifier that is the name of an aliased table, and the alias.
    fn alias_of(&self, edited: &EditedText, refusal: &EngineRefusal) -> Option<(Range<usize>, String)> {
        if !matches!(refusal.code, SqlCode::UnknownColumn | SqlCode::UnknownTable) {
            return None;
        }
        let sql = edited.text();
        let whole = qualified_range(sql, refusal.range.as_ref()?, self.dialect);
        let pieces = lexer::tokenize(&sql[whole.clone()], self.dialect);
        let names: Vec<Range<usize>> = pieces
            .into_iter()
            .filter(|(piece, _)| matches!(piece, SqlTokenKind::Word | SqlTokenKind::Quoted))
            .map(|(_, range)| whole.start + range.start..whole.start + range.end)
            .collect();
        let qualifier = names.len().checked_sub(2).map(|at| names[at].clone())?;
        let table = lexer::unquote(&sql[qualifier.clone()]);
        let all = table_references(sql, self.dialect);
        if all.iter().any(|relation| relation.qualifier().eq_ignore_ascii_case(&table)) {
            return None;
        }
        let mut hidden = all.iter().filter(|relation| relation.name.eq_ignore_ascii_case(&table));
        let alias = hidden.next()?.alias.clone()?;
        // If the table occurs twice, it is unknown which one is meant.
        hidden.next().is_none().then_some((qualifier, alias))
    }

    /// Returns the finding and its fix if a misspelt keyword reads as a column: `SELECT DISTNCT name`.
    fn keyword_finding(
        &self,
        case: &mut ChainContext<'_>,
        edited: &EditedText,
        found: SqlDiagnostic,
        refusal: &EngineRefusal,
    ) -> (SqlDiagnostic, Option<SqlFix>) {
        let (SqlCode::UnknownColumn, Some(place)) = (refusal.code, refusal.range.clone()) else { return (found, None) };
        let written = edited.text().get(place.clone()).unwrap_or_default().to_owned();
        if !found.candidates.is_empty() || !is_unquoted_name(&written) {
            return (found, None);
        }
        for keyword in misspelt_keywords::similar_keywords(&written) {
            if let Some(fix) = self.verified_fix(case, edited, &place, &keyword, refusal) {
                let message = format!("there is no column `{written}`, but the keyword `{keyword}` is similar");
                let advice = format!("Write `{keyword}`.");
                let found = found.with_candidates(vec![keyword]).with_advice(advice);
                return (SqlDiagnostic { message, ..found }, Some(fix));
            }
        }
        (found, None)
    }

    /// Returns the fix for a name that has only one candidate.
    fn find_fix(
        &self,
        case: &mut ChainContext<'_>,
        edited: &EditedText,
        found: &SqlDiagnostic,
        refusal: &EngineRefusal,
    ) -> Option<SqlFix> {
        let is_slip =
            matches!(refusal.code, SqlCode::UnknownTable | SqlCode::UnknownColumn | SqlCode::MisspeltIdentifier);
        let ([only], Some(place), true) = (found.candidates.as_slice(), refusal.range.clone(), is_slip) else {
            return None;
        };
        let written = edited.text().get(place.clone())?.to_owned();
        let names = [is_unquoted_name(only).then(|| only.clone()), Some(case.engine.quote_name(only))];
        // Engines report the range of a name with or without its qualifier.
        let qualifier = refusal.subject.as_deref().and_then(|subject| split_qualifier(subject).0);
        let qualified = |name: &String| qualifier.map(|qualifier| format!("{qualifier}.{name}"));
        let variants = names.into_iter().flatten().flat_map(|name| [qualified(&name), Some(name)]).flatten();
        let variants: Vec<String> = variants.filter(|variant| *variant != written).collect();
        variants.iter().find_map(|variant| self.verified_fix(case, edited, &place, variant, refusal))
    }

    /// Returns the fix that replaces `place` if the engine then accepts the text or refuses another name.
    fn verified_fix(
        &self,
        case: &mut ChainContext<'_>,
        edited: &EditedText,
        place: &Range<usize>,
        replacement: &str,
        refusal: &EngineRefusal,
    ) -> Option<SqlFix> {
        let was = edited.original_range(place)?;
        let corrected = edited.with_replacement(place, replacement)?;
        let here = place.start..place.start + replacement.len();
        let bounds = case.limits_and_deadline();
        let is_mended = match case.engine.bind(corrected.text(), execution_bounds(&bounds)) {
            Ok(_) => true,
            Err(next) => {
                let next = with_location(next, &corrected, self.dialect);
                let is_elsewhere =
                    next.range.as_ref().is_some_and(|next| next.end <= here.start || next.start >= here.end);
                is_elsewhere && is_name_error(next.code) && next.subject != refusal.subject
            }
        };
        is_mended.then(|| SqlFix {
            start: self.offset + was.start,
            end: self.offset + was.end,
            replacement: replacement.to_owned(),
            applicability: Applicability::Likely,
        })
    }

    /// Returns the text with the refused name replaced, and the engine's next refusal.
    fn rebind_without(
        &mut self,
        case: &mut ChainContext<'_>,
        edited: &EditedText,
        refusal: &EngineRefusal,
        candidates: &[String],
    ) -> Option<(EngineRefusal, EditedText)> {
        let place = refusal.range.clone().filter(|_| is_name_error(refusal.code))?;
        let variants = self.replacements(case, edited, refusal, &place, candidates);
        let bounds = case.limits_and_deadline();
        for (part, replacement) in variants {
            let Some(replaced) = edited.with_replacement(&part, &replacement) else { continue };
            match case.engine.bind(replaced.text(), execution_bounds(&bounds)) {
                Ok(_) => return None,
                // A refusal that the replacement itself causes does not count.
                Err(next) if is_name_error(next.code) => {
                    let next = with_location(next, &replaced, self.dialect);
                    let is_there = next.range.as_ref().is_some_and(|place| replaced.original_range(place).is_some());
                    if is_there {
                        return Some((next, replaced));
                    }
                }
                Err(_) => {}
            }
        }
        None
    }

    /// Returns replacements for a refused name with which the engine can continue: ranges of the text and their
    /// replacements, the best first.
    fn replacements(
        &mut self,
        case: &ChainContext<'_>,
        edited: &EditedText,
        refusal: &EngineRefusal,
        place: &Range<usize>,
        candidates: &[String],
    ) -> Vec<(Range<usize>, String)> {
        let sql = edited.text();
        let quoted = |name: &String| if is_unquoted_name(name) { name.clone() } else { case.engine.quote_name(name) };
        if let Some((qualifier, alias)) = self.alias_of(edited, refusal) {
            return vec![
                (qualifier, quoted(&alias)),
                (qualified_range(sql, place, self.dialect), UNTYPED_NULL.to_owned()),
            ];
        }
        match refusal.code {
            SqlCode::UnknownTable => {
                let all = table_references(sql, self.dialect);
                let at = |relation: &&TableReference| {
                    relation.name_range.start <= place.start && place.end <= relation.name_range.end
                };
                let Some(relation) = all.iter().find(at) else {
                    return vec![(qualified_range(sql, place, self.dialect), UNTYPED_NULL.to_owned())];
                };
                self.table_replacements(relation, candidates, &quoted)
            }
            SqlCode::UnknownFunction => {
                let call = sql[place.end..].find('(').map_or(place.end, |at| place.end + at + 1);
                let is_empty = sql[call..].trim_start().starts_with(')');
                let nothing = if is_empty { "coalesce(NULL, NULL" } else { "coalesce(NULL, " };
                vec![(place.start..call, nothing.to_owned()), (place.clone(), "max".to_owned())]
            }
            _ => {
                let whole = qualified_range(sql, place, self.dialect);
                let mut all = vec![(whole.clone(), UNTYPED_NULL.to_owned())];
                // A name is allowed where an expression is not, such as after SET and in USING.
                if let [only] = candidates {
                    let bare = split_qualifier(only).1.to_owned();
                    all.push((last_part_range(sql, &whole, self.dialect), quoted(&bare)));
                }
                all
            }
        }
    }

    /// Returns replacements for a missing table.
    fn table_replacements(
        &mut self,
        relation: &TableReference,
        candidates: &[String],
        quoted: &dyn Fn(&String) -> String,
    ) -> Vec<(Range<usize>, String)> {
        let exposed = relation.qualifier().to_owned();
        let alias = quoted(&exposed);
        match candidates {
            [only] if relation.is_read => vec![
                // The old name becomes the alias, so that columns qualified by it are found.
                (relation.full_range.clone(), format!("{} AS {alias}", quoted(only))),
                (relation.name_range.clone(), quoted(only)),
            ],
            [only] => vec![(relation.name_range.clone(), quoted(only))],
            _ if relation.is_read => {
                self.missing_tables.insert(exposed.to_ascii_lowercase());
                vec![(relation.full_range.clone(), format!("(SELECT NULL) AS {alias}"))]
            }
            _ => Vec::new(),
        }
    }
}

/// Reports whether a name needs no quotes.
fn is_unquoted_name(name: &str) -> bool {
    !name.is_empty()
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        && !name.starts_with(|c: char| c.is_ascii_digit())
}

/// Returns the range of the whole name that contains a part: `c.name` for `name` or `c`.
fn qualified_range(sql: &str, part: &Range<usize>, dialect: Dialect) -> Range<usize> {
    let solid: Vec<(SqlTokenKind, Range<usize>)> = lexer::tokenize(sql, dialect)
        .into_iter()
        .filter(|(piece, _)| !matches!(piece, SqlTokenKind::Whitespace | SqlTokenKind::Comment))
        .collect();
    let is_name = |at: usize| matches!(solid.get(at), Some((SqlTokenKind::Word | SqlTokenKind::Quoted, _)));
    let is_dot = |at: usize| solid.get(at).is_some_and(|(_, range)| &sql[range.clone()] == ".");
    let Some(mut first) = solid.iter().position(|(_, range)| range.end > part.start) else { return part.clone() };
    let Some(mut last) = solid.iter().rposition(|(_, range)| range.start < part.end) else { return part.clone() };
    while first >= 2 && is_dot(first - 1) && is_name(first - 2) {
        first -= 2;
    }
    while is_dot(last + 1) && is_name(last + 2) {
        last += 2;
    }
    if first > last { part.clone() } else { solid[first].1.start..solid[last].1.end }
}

/// Returns the range of the last part of a qualified name.
fn last_part_range(sql: &str, whole: &Range<usize>, dialect: Dialect) -> Range<usize> {
    let pieces = lexer::tokenize(&sql[whole.clone()], dialect);
    let last = pieces.into_iter().rfind(|(piece, _)| matches!(piece, SqlTokenKind::Word | SqlTokenKind::Quoted));
    last.map_or_else(|| whole.clone(), |(_, range)| whole.start + range.start..whole.start + range.end)
}

/// Adds candidates and advice to a finding.
fn with_candidates(
    case: &ChainContext<'_>,
    mut found: SqlDiagnostic,
    refusal: &EngineRefusal,
    text: &str,
) -> SqlDiagnostic {
    let Some(subject) = refusal.subject.as_deref() else { return found };
    let (qualifier, name) = subject.rsplit_once('.').map_or((None, subject), |(table, name)| (Some(table), name));
    let catalog = &*case.visible_catalog();
    if found.candidates.is_empty() {
        found.candidates = match refusal.code {
            SqlCode::UnknownTable => suggest_names(name, catalog.tables.iter().map(|table| table.name.as_str())),
            SqlCode::UnknownColumn => {
                let in_scope = match qualifier.and_then(|qualifier| qualified_table(case, catalog, text, qualifier)) {
                    Some(table) => vec![table],
                    None => mentioned_tables(case, catalog, text),
                };
                let of: Vec<&str> =
                    in_scope.iter().flat_map(|table| table.columns.iter().map(|column| column.name.as_str())).collect();
                suggest_names(name, of)
            }
            SqlCode::UnknownFunction => foreign_functions::equivalent_function(name, case.request.dialect)
                .map(|instead| vec![instead.to_owned()])
                .unwrap_or_else(|| suggest_names(name, case.engine.functions().iter().map(String::as_str))),
            SqlCode::AmbiguousColumn => catalog
                .tables_with(name)
                .filter(|table| mentioned_tables(case, catalog, text).iter().any(|named| named.name == table.name))
                .map(|table| format!("{}.{name}", table.name))
                .collect(),
            _ => Vec::new(),
        };
    }
    // A name can be right and still be missing in its place, as in USING.
    found.candidates.retain(|candidate| candidate != name);
    if refusal.code == SqlCode::UnknownColumn && allow_lists::has_name_lists(&case.lists) {
        // An engine suggests columns of any table in scope.
        let named = mentioned_tables(case, catalog, text);
        found.candidates.retain(|name| named.iter().any(|table| table.column(split_qualifier(name).1).is_some()));
    }
    if let Some(own) = name_advice(case.request.dialect, catalog, refusal.code, subject, &found.candidates) {
        found.advice = Some(own);
    }
    found
}

fn name_advice(
    dialect: Dialect,
    catalog: &Catalog,
    code: SqlCode,
    subject: &str,
    candidates: &[String],
) -> Option<String> {
    let (qualifier, name) = split_qualifier(subject);
    match code {
        SqlCode::UnknownColumn => {
            let has: Vec<String> = catalog.tables_with(name).take(4).map(|table| format!("`{}`", table.name)).collect();
            let of = qualifier.map_or(String::new(), |qualifier| format!(" `{qualifier}` has no column of that name."));
            match (has.is_empty(), candidates.is_empty()) {
                (false, _) => {
                    Some(format!("The column `{name}` belongs to {}: join it, or use its alias.{of}", has.join(", ")))
                }
                (true, false) => Some("Use the name from the schema.".to_owned()),
                (true, true) => Some(format!("No table has a column `{name}`; see the schema.")),
            }
        }
        SqlCode::UnknownTable if candidates.is_empty() && catalog.tables.is_empty() => None,
        SqlCode::UnknownTable if candidates.is_empty() => {
            let names: Vec<&str> = catalog.tables.iter().take(12).map(|table| table.name.as_str()).collect();
            Some(format!("The tables are: {}.", names.join(", ")))
        }
        SqlCode::UnknownTable => Some("Use the name from the schema.".to_owned()),
        SqlCode::AmbiguousColumn => Some("Write the table or its alias before the column.".to_owned()),
        SqlCode::UnknownFunction => Some(format!("Use a function of {}.", dialect.display_name())),
        SqlCode::MisspeltIdentifier => Some("Write the column's name; a string needs single quotes.".to_owned()),
        _ => None,
    }
}

/// Returns the table of the schema that a qualifier refers to.
fn qualified_table<'c>(
    case: &ChainContext<'_>,
    catalog: &'c Catalog,
    text: &str,
    qualifier: &str,
) -> Option<&'c CatalogTable> {
    let all = table_references(text, case.request.dialect);
    let mut of = all.iter().filter(|relation| relation.qualifier().eq_ignore_ascii_case(qualifier));
    let relation = of.next().filter(|_| of.next().is_none())?;
    catalog.table(&relation.name)
}

/// Returns the tables that a text mentions.
fn mentioned_tables<'c>(case: &ChainContext<'_>, catalog: &'c Catalog, text: &str) -> Vec<&'c CatalogTable> {
    let dialect: Dialect = case.request.dialect;
    let words: std::collections::BTreeSet<String> = lexer::tokenize(text, dialect)
        .into_iter()
        .filter(|(piece, _)| matches!(piece, lexer::SqlTokenKind::Word | lexer::SqlTokenKind::Quoted))
        .map(|(_, range)| lexer::unquote(&text[range]).to_ascii_lowercase())
        .collect();
    catalog.tables.iter().filter(|table| words.contains(&table.name.to_ascii_lowercase())).collect()
}
