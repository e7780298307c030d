//! Finds every name that the engine refuses. An engine stops at its first error, so the name is replaced and the engine
//! is asked again. One judgement then reports all of them.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Instant;

use proctor_core::sql::{Applicability, Diagnostic, Dialect, Fix, SqlCode, StageName};

use crate::catalog::{Catalog, Table};
use crate::engine::Refusal;
use crate::lists;
use crate::nearest::nearest;
use crate::stage::{Case, on};
use crate::stages::edited::Edited;
use crate::stages::relations::{Relation, relations};
use crate::stages::{dialects, slips};
use crate::text::{self, Piece};

/// The maximum number of findings about one statement.
const MOST: usize = 12;
/// The maximum number of replaced names in one statement; some of them are not reported.
const MOST_REPLACED: usize = 24;
/// An expression without a type that every engine accepts wherever an expression is allowed.
const NOTHING: &str = "coalesce(NULL, NULL)";

/// The search for wrong names in one statement.
struct Search<'s> {
    /// The position of the statement in the text.
    from: usize,
    original: &'s str,
    dialect: Dialect,
    /// Missing tables without a similar table in the schema. Their columns are unknown.
    lost: BTreeSet<String>,
    /// The reported columns, without their qualifiers.
    reported: BTreeSet<String>,
}

/// Returns everything that the engine refuses about the names of a statement, in the current state of the database.
pub(super) fn names(case: &mut Case<'_>, index: usize, first: Refusal) -> Vec<Diagnostic> {
    let original = case.text_of(&case.statements[index]).to_owned();
    let mut search = Search {
        from: case.statements[index].range.start,
        original: &original,
        dialect: case.request.dialect,
        lost: BTreeSet::new(),
        reported: BTreeSet::new(),
    };
    let mut edited = Edited::new(&original);
    let mut refusal = located(first, &edited, search.dialect);
    let mut all = Vec::new();
    for _ in 0..MOST_REPLACED {
        let mut candidates = Vec::new();
        if !search.follows_from_another(case, &edited, &refusal) {
            let found = search.finding(case, &edited, &refusal);
            candidates.clone_from(&found.candidates);
            all.push(found);
        }
        if all.len() >= MOST || Instant::now() > case.deadline {
            break;
        }
        match search.without(case, &edited, &refusal, &candidates) {
            Some((next, replaced)) => (refusal, edited) = (next, replaced),
            None => break,
        }
    }
    all
}

/// Reports whether a refusal is about a name.
fn is_of_names(code: SqlCode) -> bool {
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
fn located(refusal: Refusal, edited: &Edited, dialect: Dialect) -> Refusal {
    let (None, Some(subject), true) = (&refusal.place, refusal.subject.as_deref(), is_of_names(refusal.code)) else {
        return refusal;
    };
    let sql = edited.text();
    let place = if refusal.code == SqlCode::UnknownTable {
        let is_it = |relation: &Relation| relation.name.eq_ignore_ascii_case(parts(subject).1);
        relations(sql, dialect).into_iter().filter(is_it).map(|relation| relation.place).next()
    } else {
        let names = text::pieces(sql, dialect).into_iter();
        let names = names.filter(|(piece, _)| matches!(piece, Piece::Word | Piece::Quoted)).map(|(_, range)| range);
        names
            .map(|range| dotted(sql, &range, dialect))
            .find(|whole| sql[whole.clone()].eq_ignore_ascii_case(subject) && edited.original(whole).is_some())
    };
    Refusal { place, ..refusal }
}

/// Splits `t.a` into `t` and `a`.
fn parts(subject: &str) -> (Option<&str>, &str) {
    subject.rsplit_once('.').map_or((None, subject), |(table, name)| (Some(table), name))
}

impl Search<'_> {
    /// Reports whether a refusal only results from a name that was replaced before: a column of a missing table, or a
    /// column that a subquery would have returned.
    fn follows_from_another(&self, case: &Case<'_>, edited: &Edited, refusal: &Refusal) -> bool {
        let (SqlCode::UnknownColumn, Some(subject)) = (refusal.code, refusal.subject.as_deref()) else { return false };
        let (qualifier, name) = parts(subject);
        let qualifier = qualifier.map(str::to_owned).or_else(|| {
            let place = refusal.place.clone()?;
            let whole = dotted(edited.text(), &place, self.dialect);
            let before = edited.text().get(whole.start..place.start)?.trim_end().strip_suffix('.')?;
            Some(text::unquoted(before.rsplit('.').next()?.trim()))
        });
        let lower = |text: &str| text.to_ascii_lowercase();
        let is_lost = match &qualifier {
            Some(qualifier) => self.lost.contains(&lower(qualifier)),
            None => !self.lost.is_empty(),
        };
        if is_lost {
            return true;
        }
        // A subquery may have returned this column before its name was replaced there.
        let of_table = qualifier.is_some_and(|qualifier| {
            let all = relations(self.original, self.dialect);
            let is_it = |relation: &&Relation| relation.exposed().eq_ignore_ascii_case(&qualifier);
            all.iter().filter(is_it).any(|relation| case.engine.catalog().table(&relation.name).is_some())
        });
        let has_inner = text::pieces(self.original, self.dialect)
            .iter()
            .filter(|(piece, range)| {
                *piece == Piece::Word && self.original[range.clone()].eq_ignore_ascii_case("select")
            })
            .count()
            > 1;
        has_inner && !of_table && self.reported.contains(&lower(name))
    }

    /// Converts a refusal to a finding at its position in the original text.
    fn finding(&mut self, case: &mut Case<'_>, edited: &Edited, refusal: &Refusal) -> Diagnostic {
        let place = refusal.place.as_ref().and_then(|place| edited.original(place));
        let found = case.refused(StageName::Bind, &Refusal { place, ..refusal.clone() }, self.from);
        if let Some(subject) = &refusal.subject {
            self.reported.insert(parts(subject).1.to_ascii_lowercase());
        }
        if let Some(found) = self.hidden_by_alias(case, edited, refusal, &found) {
            return found;
        }
        let found = completed(case, found, refusal, edited.text());
        let (found, fix) = match self.fix(case, edited, &found, refusal) {
            Some(fix) => (found, Some(fix)),
            None => self.keyword(case, edited, found, refusal),
        };
        dialects::explained(found.fix(fix), self.original, self.dialect)
    }

    /// Returns a finding if a column is qualified by the name of a table that has an alias.
    fn hidden_by_alias(
        &self,
        case: &mut Case<'_>,
        edited: &Edited,
        refusal: &Refusal,
        found: &Diagnostic,
    ) -> Option<Diagnostic> {
        let (qualifier, alias) = self.alias_of(edited, refusal)?;
        let written = edited.text().get(qualifier.clone())?;
        let table = text::unquoted(written);
        let message = format!("`{table}` has the alias `{alias}` here, and only `{alias}` names it");
        let advice = format!("Write `{alias}` before the column, in place of `{table}`.");
        let quoted = if is_plain(&alias) { alias.clone() } else { case.engine.quoted(&alias) };
        let fix = self.verified(case, edited, &qualifier, &quoted, refusal);
        let found = found.clone().candidates(vec![alias]).advice(advice).fix(fix);
        Some(Diagnostic { message, ..found })
    }

    /// Returns the range of a qualifier that is the name of an aliased table, and the alias.
    fn alias_of(&self, edited: &Edited, refusal: &Refusal) -> Option<(Range<usize>, String)> {
        if !matches!(refusal.code, SqlCode::UnknownColumn | SqlCode::UnknownTable) {
            return None;
        }
        let sql = edited.text();
        let whole = dotted(sql, refusal.place.as_ref()?, self.dialect);
        let pieces = text::pieces(&sql[whole.clone()], self.dialect);
        let names: Vec<Range<usize>> = pieces
            .into_iter()
            .filter(|(piece, _)| matches!(piece, Piece::Word | Piece::Quoted))
            .map(|(_, range)| whole.start + range.start..whole.start + range.end)
            .collect();
        let qualifier = names.len().checked_sub(2).map(|at| names[at].clone())?;
        let table = text::unquoted(&sql[qualifier.clone()]);
        let all = relations(sql, self.dialect);
        if all.iter().any(|relation| relation.exposed().eq_ignore_ascii_case(&table)) {
            return None;
        }
        let mut hidden = all.iter().filter(|relation| relation.name.eq_ignore_ascii_case(&table));
        let alias = hidden.next()?.alias.clone()?;
        // If the table occurs twice, it is unknown which one is meant.
        hidden.next().is_none().then_some((qualifier, alias))
    }

    /// Returns the finding and its fix if a misspelt keyword reads as a column: `SELECT DISTNCT name`.
    fn keyword(
        &self,
        case: &mut Case<'_>,
        edited: &Edited,
        found: Diagnostic,
        refusal: &Refusal,
    ) -> (Diagnostic, Option<Fix>) {
        let (SqlCode::UnknownColumn, Some(place)) = (refusal.code, refusal.place.clone()) else { return (found, None) };
        let written = edited.text().get(place.clone()).unwrap_or_default().to_owned();
        if !found.candidates.is_empty() || !is_plain(&written) {
            return (found, None);
        }
        for keyword in slips::keywords_near(&written) {
            if let Some(fix) = self.verified(case, edited, &place, &keyword, refusal) {
                let message = format!("there is no column `{written}`, but the keyword `{keyword}` is similar");
                let advice = format!("Write `{keyword}`.");
                let found = found.candidates(vec![keyword]).advice(advice);
                return (Diagnostic { message, ..found }, Some(fix));
            }
        }
        (found, None)
    }

    /// Returns the fix for a name that has only one candidate.
    fn fix(&self, case: &mut Case<'_>, edited: &Edited, found: &Diagnostic, refusal: &Refusal) -> Option<Fix> {
        let is_slip =
            matches!(refusal.code, SqlCode::UnknownTable | SqlCode::UnknownColumn | SqlCode::MisspeltIdentifier);
        let ([only], Some(place), true) = (found.candidates.as_slice(), refusal.place.clone(), is_slip) else {
            return None;
        };
        let written = edited.text().get(place.clone())?.to_owned();
        let names = [is_plain(only).then(|| only.clone()), Some(case.engine.quoted(only))];
        // Engines report the range of a name with or without its qualifier.
        let qualifier = refusal.subject.as_deref().and_then(|subject| parts(subject).0);
        let qualified = |name: &String| qualifier.map(|qualifier| format!("{qualifier}.{name}"));
        let variants = names.into_iter().flatten().flat_map(|name| [qualified(&name), Some(name)]).flatten();
        let variants: Vec<String> = variants.filter(|variant| *variant != written).collect();
        variants.iter().find_map(|variant| self.verified(case, edited, &place, variant, refusal))
    }

    /// Returns the fix that replaces `place` if the engine then accepts the text or refuses another name.
    fn verified(
        &self,
        case: &mut Case<'_>,
        edited: &Edited,
        place: &Range<usize>,
        replacement: &str,
        refusal: &Refusal,
    ) -> Option<Fix> {
        let was = edited.original(place)?;
        let mended = edited.with(place, replacement)?;
        let here = place.start..place.start + replacement.len();
        let bounds = case.bounds();
        let is_mended = match case.engine.bind(mended.text(), on(&bounds)) {
            Ok(_) => true,
            Err(next) => {
                let is_elsewhere =
                    next.place.as_ref().is_some_and(|next| next.end <= here.start || next.start >= here.end);
                is_elsewhere && is_of_names(next.code) && next.subject != refusal.subject
            }
        };
        is_mended.then(|| Fix {
            start: self.from + was.start,
            end: self.from + was.end,
            replacement: replacement.to_owned(),
            applicability: Applicability::Likely,
        })
    }

    /// Returns the text with the refused name replaced, and the engine's next refusal.
    fn without(
        &mut self,
        case: &mut Case<'_>,
        edited: &Edited,
        refusal: &Refusal,
        candidates: &[String],
    ) -> Option<(Refusal, Edited)> {
        let place = refusal.place.clone().filter(|_| is_of_names(refusal.code))?;
        let variants = self.replacements(case, edited, refusal, &place, candidates);
        let bounds = case.bounds();
        for (part, replacement) in variants {
            let Some(replaced) = edited.with(&part, &replacement) else { continue };
            match case.engine.bind(replaced.text(), on(&bounds)) {
                Ok(_) => return None,
                // A refusal that the replacement itself causes does not count.
                Err(next) if is_of_names(next.code) => {
                    let next = located(next, &replaced, self.dialect);
                    let is_there = next.place.as_ref().is_some_and(|place| replaced.original(place).is_some());
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
        case: &Case<'_>,
        edited: &Edited,
        refusal: &Refusal,
        place: &Range<usize>,
        candidates: &[String],
    ) -> Vec<(Range<usize>, String)> {
        let sql = edited.text();
        let quoted = |name: &String| if is_plain(name) { name.clone() } else { case.engine.quoted(name) };
        if let Some((qualifier, alias)) = self.alias_of(edited, refusal) {
            return vec![(qualifier, quoted(&alias)), (dotted(sql, place, self.dialect), NOTHING.to_owned())];
        }
        match refusal.code {
            SqlCode::UnknownTable => {
                let all = relations(sql, self.dialect);
                let at = |relation: &&Relation| relation.place.start <= place.start && place.end <= relation.place.end;
                let Some(relation) = all.iter().find(at) else {
                    return vec![(dotted(sql, place, self.dialect), NOTHING.to_owned())];
                };
                self.tables(relation, candidates, &quoted)
            }
            SqlCode::UnknownFunction => {
                let call = sql[place.end..].find('(').map_or(place.end, |at| place.end + at + 1);
                let is_empty = sql[call..].trim_start().starts_with(')');
                let nothing = if is_empty { "coalesce(NULL, NULL" } else { "coalesce(NULL, " };
                vec![(place.start..call, nothing.to_owned()), (place.clone(), "max".to_owned())]
            }
            _ => {
                let whole = dotted(sql, place, self.dialect);
                let mut all = vec![(whole.clone(), NOTHING.to_owned())];
                // A name is allowed where an expression is not, such as after SET and in USING.
                if let [only] = candidates {
                    let bare = parts(only).1.to_owned();
                    all.push((last_name(sql, &whole, self.dialect), quoted(&bare)));
                }
                all
            }
        }
    }

    /// Returns replacements for a missing table.
    fn tables(
        &mut self,
        relation: &Relation,
        candidates: &[String],
        quoted: &dyn Fn(&String) -> String,
    ) -> Vec<(Range<usize>, String)> {
        let exposed = relation.exposed().to_owned();
        let alias = quoted(&exposed);
        match candidates {
            [only] if relation.is_read => vec![
                // The old name becomes the alias, so that columns qualified by it are found.
                (relation.whole.clone(), format!("{} AS {alias}", quoted(only))),
                (relation.place.clone(), quoted(only)),
            ],
            [only] => vec![(relation.place.clone(), quoted(only))],
            _ if relation.is_read => {
                self.lost.insert(exposed.to_ascii_lowercase());
                vec![(relation.whole.clone(), format!("(SELECT NULL) AS {alias}"))]
            }
            _ => Vec::new(),
        }
    }
}

/// Reports whether a name needs no quotes.
fn is_plain(name: &str) -> bool {
    !name.is_empty()
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        && !name.starts_with(|c: char| c.is_ascii_digit())
}

/// Returns the range of the whole name that contains a part: `c.name` for `name` or `c`.
fn dotted(sql: &str, part: &Range<usize>, dialect: Dialect) -> Range<usize> {
    let solid: Vec<(Piece, Range<usize>)> = text::pieces(sql, dialect)
        .into_iter()
        .filter(|(piece, _)| !matches!(piece, Piece::Space | Piece::Comment))
        .collect();
    let is_name = |at: usize| matches!(solid.get(at), Some((Piece::Word | Piece::Quoted, _)));
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
fn last_name(sql: &str, whole: &Range<usize>, dialect: Dialect) -> Range<usize> {
    let pieces = text::pieces(&sql[whole.clone()], dialect);
    let last = pieces.into_iter().rfind(|(piece, _)| matches!(piece, Piece::Word | Piece::Quoted));
    last.map_or_else(|| whole.clone(), |(_, range)| whole.start + range.start..whole.start + range.end)
}

/// Adds candidates and advice to a finding.
fn completed(case: &Case<'_>, mut found: Diagnostic, refusal: &Refusal, text: &str) -> Diagnostic {
    let Some(subject) = refusal.subject.as_deref() else { return found };
    let (qualifier, name) = subject.rsplit_once('.').map_or((None, subject), |(table, name)| (Some(table), name));
    let catalog = &*case.visible();
    if found.candidates.is_empty() {
        found.candidates = match refusal.code {
            SqlCode::UnknownTable => nearest(name, catalog.tables.iter().map(|table| table.name.as_str())),
            SqlCode::UnknownColumn => {
                let in_scope = match qualifier.and_then(|qualifier| qualified_table(case, catalog, text, qualifier)) {
                    Some(table) => vec![table],
                    None => named_tables(case, catalog, text),
                };
                let of: Vec<&str> =
                    in_scope.iter().flat_map(|table| table.columns.iter().map(|column| column.name.as_str())).collect();
                nearest(name, of)
            }
            SqlCode::UnknownFunction => dialects::instead_of(name, case.request.dialect)
                .map(|instead| vec![instead.to_owned()])
                .unwrap_or_else(|| nearest(name, case.engine.functions().iter().map(String::as_str))),
            SqlCode::AmbiguousColumn => catalog
                .tables_with(name)
                .filter(|table| named_tables(case, catalog, text).iter().any(|named| named.name == table.name))
                .map(|table| format!("{}.{name}", table.name))
                .collect(),
            _ => Vec::new(),
        };
    }
    if refusal.code == SqlCode::UnknownColumn && lists::are_given(&case.request.allow) {
        // An engine suggests columns of any table in scope.
        let named = named_tables(case, catalog, text);
        found.candidates.retain(|name| named.iter().any(|table| table.column(parts(name).1).is_some()));
    }
    if let Some(own) = advice(case.request.dialect, catalog, refusal.code, subject, &found.candidates) {
        found.advice = Some(own);
    }
    found
}

fn advice(dialect: Dialect, catalog: &Catalog, code: SqlCode, subject: &str, candidates: &[String]) -> Option<String> {
    let (qualifier, name) = parts(subject);
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
        SqlCode::UnknownTable if candidates.is_empty() && catalog.tables.is_empty() => None,
        SqlCode::UnknownTable if candidates.is_empty() => {
            let names: Vec<&str> = catalog.tables.iter().take(12).map(|table| table.name.as_str()).collect();
            Some(format!("The tables are: {}.", names.join(", ")))
        }
        SqlCode::UnknownTable => Some("Use the name as the schema has it.".to_owned()),
        SqlCode::AmbiguousColumn => Some("Write the table or its alias before the column.".to_owned()),
        SqlCode::UnknownFunction => Some(format!("Use a function of {}.", dialect.title())),
        SqlCode::MisspeltIdentifier => Some("Write the column's name; a text belongs into single quotes.".to_owned()),
        _ => None,
    }
}

/// Returns the table of the schema that a qualifier refers to.
fn qualified_table<'c>(case: &Case<'_>, catalog: &'c Catalog, text: &str, qualifier: &str) -> Option<&'c Table> {
    let all = relations(text, case.request.dialect);
    let mut of = all.iter().filter(|relation| relation.exposed().eq_ignore_ascii_case(qualifier));
    let relation = of.next().filter(|_| of.next().is_none())?;
    catalog.table(&relation.name)
}

/// Returns the tables that a text mentions.
fn named_tables<'c>(case: &Case<'_>, catalog: &'c Catalog, text: &str) -> Vec<&'c Table> {
    let dialect: Dialect = case.request.dialect;
    let words: std::collections::BTreeSet<String> = text::pieces(text, dialect)
        .into_iter()
        .filter(|(piece, _)| matches!(piece, text::Piece::Word | text::Piece::Quoted))
        .map(|(_, range)| text::unquoted(&text[range]).to_ascii_lowercase())
        .collect();
    catalog.tables.iter().filter(|table| words.contains(&table.name.to_ascii_lowercase())).collect()
}
