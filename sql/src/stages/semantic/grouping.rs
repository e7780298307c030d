//! Checks that the query groups its rows if the question asks for an aggregate for each of something.

use proctor_core::sql::SqlCode;

use super::query_shape::{Aggregate, AggregateKind, RowLimit, SelectBlock};
use super::question::ParsedQuestion;
use super::semantic_finding::{SemanticFinding, SemanticInput};
use super::word_forms::{are_related, name_words};

const GROUP_WORDS: [&str; 12] = [
    "each",
    "per",
    "every",
    "respectively",
    "grouped",
    "group",
    "monthly",
    "daily",
    "yearly",
    "annual",
    "weekly",
    "respective",
];

pub(super) fn check(input: &SemanticInput<'_>, question: &ParsedQuestion) -> Vec<SemanticFinding> {
    let mut found: Vec<SemanticFinding> =
        input.shape.blocks.iter().filter_map(|block| ungrouped_column(block, question)).collect();
    found.extend(missing_grouping(input, question));
    found
}

/// Reports a column next to an aggregate over all rows: its value comes from an arbitrary row.
fn ungrouped_column(block: &SelectBlock, question: &ParsedQuestion) -> Option<SemanticFinding> {
    let figures: Vec<&Aggregate> = block.aggregates().filter(|aggregate| !aggregate.is_windowed).collect();
    let later = block.later_aggregates().find(|aggregate| !aggregate.is_windowed);
    let bare: Vec<_> = block.items.iter().flat_map(|item| &item.plain_columns).collect();
    let free =
        bare.iter().find(|name| !block.fixed_columns.iter().any(|pinned| pinned.eq_ignore_ascii_case(&name.column)));
    if block.groups > 0 || (figures.is_empty() && later.is_none()) {
        return None;
    }
    // With a single MAX or MIN, SQLite takes the other columns from the row that has the extreme.
    let is_of_extreme = later.is_none()
        && figures.len() == 1
        && figures.iter().all(|figure| matches!(figure.kind, AggregateKind::Max | AggregateKind::Min))
        && block.items.iter().all(|item| item.aggregates.is_empty() || item.plain_columns.is_empty());
    let has_star = block.items.iter().any(|item| item.is_wildcard);
    let is_each = question.has_word(&GROUP_WORDS) || question.has_phrase(&["by"]);
    let (confidence, message) = match (free, later) {
        (None, Some(_)) if !has_star && block.order.is_empty() => return None,
        (None, Some(later))
            if figures.is_empty() || block.later_aggregates().count() > 1 || !block.order.is_empty() =>
        {
            (80, format!("the rows are sorted by {}, but without GROUP BY there is only one row", later.kind.as_sql()))
        }
        (None, _) => return None,
        _ if is_of_extreme => return None,
        (Some(name), _) => {
            let figure = figures.first().copied().or(later)?.kind.as_sql();
            let is_by_it = question.find_word(&["by"]).and_then(|by| question.words.get(by + 1)).is_some_and(|word| {
                name_words(&name.column).iter().any(|part| are_related(part, &word.stem)) && question.words.len() <= 8
            });
            let is_plain = (question.has_word(&["each", "per", "every"]) || is_by_it)
                && question.words.len() <= 14
                && later.is_none()
                && block.limit == RowLimit::All;
            let confidence = match is_each || later.is_some() || figures.len() > 1 {
                _ if is_plain => 96,
                // Several equalities, such as those of a first and a last name, may leave one row.
                _ if block.fixed_columns.len() > 1 => 66,
                true => 88,
                // An equality may leave one value of the column.
                false if !block.fixed_columns.is_empty() => 66,
                false => 72,
            };
            (
                confidence,
                format!(
                    "`{}` is selected with {figure} without GROUP BY: the result is one row with an arbitrary `{}`",
                    name.column, name.column
                ),
            )
        }
    };
    Some(
        SemanticFinding::new(SqlCode::GroupingExpected, confidence, message)
            .at(&block.range)
            .advice("Group by the columns that are not aggregated."),
    )
}

/// Reports a single aggregate where the question asks for one for each of something.
fn missing_grouping(input: &SemanticInput<'_>, question: &ParsedQuestion) -> Option<SemanticFinding> {
    let shape = input.shape;
    let top = shape.top();
    let is_grouped = shape.blocks.iter().any(|block| block.groups > 0 || block.is_distinct);
    let is_figure = !top.items.is_empty()
        && top.items.iter().all(|item| {
            item.plain_columns.is_empty() && !item.is_wildcard && !item.aggregates.is_empty() && !item.has_window
        });
    if is_grouped || !is_figure || shape.has_division || shape.has_set_operation {
        return None;
    }
    let is_average = question.has_word(&["average", "avg", "mean", "rate"]);
    let column = |at: usize| question.words.get(at).is_some_and(|word| is_column_word(input, &word.stem));
    let at = question.find_word(&["each", "per", "every"]).or_else(|| {
        let by = question.find_word(&["by"]).filter(|at| column(at + 1))?;
        // `posted by users` does not ask for groups.
        let is_of_things = question.words[..by].last().is_some_and(|word| {
            let is_added = top.aggregates().any(|figure| {
                figure
                    .columns
                    .iter()
                    .any(|name| name_words(&name.column).iter().any(|part| are_related(part, &word.stem)))
            });
            word.lower != word.stem || word.lower == "count" || (is_added && question.words.len() <= 5)
        });
        if !is_of_things {
            return None;
        }
        let is_head = (0..by)
            .take(4)
            .any(|at| matches!(question.word_at(at), "count" | "number" | "total" | "sum" | "average" | "many"));
        is_head.then_some(by)
    })?;
    let before = question.word_at(at.wrapping_sub(1));
    let is_for_each = match question.word_at(at) {
        "each" => matches!(before, "for" | "in" | "by" | "of" | "does" | "did" | "at" | "to" | "with" | "from"),
        "per" | "by" => column(at + 1),
        _ => false,
    };
    let is_plain =
        question.word_at(at) == "each" && before == "for" && shape.blocks.len() == 1 && question.words.len() <= 14;
    let is_head = matches!(question.word_at(0), "total" | "number" | "count")
        || (question.word_at(0) == "how" && question.word_at(1) == "many");
    let is_short = matches!(question.word_at(at), "per" | "each")
        && is_head
        && question.words.len() <= 6
        && shape.blocks.len() == 1
        && (column(at + 1) || question.words.get(at + 1).is_some_and(|word| is_table_word(input, &word.stem)));
    // `at least 250 per account` limits rows.
    let is_bound = question.word_at(at) == "per" && question.number_at(at.wrapping_sub(1)).is_some()
        || before.starts_with(|first: char| first.is_ascii_digit());
    let confidence = match (is_for_each, is_average, top.items.len()) {
        _ if is_bound => 55,
        (true, false, 1) if is_plain || is_short => 96,
        (true, true, 1) if question.words.len() <= 5 && question.word_at(at) == "by" => 76,
        (true, false, 1) => 78,
        (_, false, 1) => 62,
        _ => 55,
    };
    let words = question.quote(at.saturating_sub(1), at + 2);
    let message = format!("the question asks for a value \"{words}\", but the query returns one value over all rows");
    Some(
        SemanticFinding::new(SqlCode::GroupingExpected, confidence, message)
            .at(&top.range)
            .advice("Add GROUP BY, and the columns that it groups by."),
    )
}

/// Reports whether a word names a table.
fn is_table_word(input: &SemanticInput<'_>, stem: &str) -> bool {
    input.catalog.tables.iter().any(|table| name_words(&table.name).last().is_some_and(|last| last == stem))
}

/// Reports whether a word names a column of a table that the query reads.
fn is_column_word(input: &SemanticInput<'_>, stem: &str) -> bool {
    let tables = input.catalog.tables.iter().filter(|table| input.shape.tables.contains(&table.name.to_lowercase()));
    let mut names = tables.flat_map(|table| &table.columns).flat_map(|column| name_words(&column.name));
    stem.len() > 2 && names.any(|part| are_related(&part, stem))
}
