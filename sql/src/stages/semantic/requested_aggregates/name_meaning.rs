//! Derives the meaning of words and column names from their form.

use crate::stages::semantic::query_shape::ColumnReference;
use crate::stages::semantic::question::ParsedQuestion;
use crate::stages::semantic::semantic_finding::SemanticInput;
use crate::stages::semantic::word_forms::{are_related, name_words};

/// Reports whether a word has the form of a superlative.
pub(super) fn is_superlative(word: &str) -> bool {
    const NOT_SUPERLATIVES: [&str; 22] = [
        "request",
        "interest",
        "test",
        "west",
        "forest",
        "guest",
        "contest",
        "rest",
        "latest",
        "invest",
        "suggest",
        "harvest",
        "midwest",
        "northwest",
        "southwest",
        "protest",
        "arrest",
        "quest",
        "interest",
        "priest",
        "honest",
        "est",
    ];
    word.len() > 5 && word.ends_with("est") && !NOT_SUPERLATIVES.contains(&word)
}

/// Reports whether a part of a name describes the content of the column.
pub(super) fn is_descriptive(part: &str) -> bool {
    part.len() > 2 && !matches!(part, "id" | "name" | "code" | "number" | "num" | "key" | "type" | "the")
}

/// Reports whether the question names a column.
pub(super) fn is_column_named(question: &ParsedQuestion, column: &ColumnReference) -> bool {
    let parts = name_words(&column.column);
    let is_mentioned = |part: &String| {
        question.words.iter().any(|word| are_related(part, &word.stem) || are_related(part, &word.lower))
    };
    // `lat` is a latitude, and `temp` is a temperature.
    let is_cut = |part: &String| question.words.iter().any(|word| word.lower.starts_with(part.as_str()));
    parts.iter().filter(|part| is_descriptive(part)).any(|part| is_mentioned(part) || is_cut(part))
}

/// Reports whether a column stores a number of things.
pub(in crate::stages::semantic) fn stores_count(column: &ColumnReference) -> bool {
    const COUNTS: [&str; 14] = [
        "count",
        "num",
        "number",
        "total",
        "quantity",
        "qty",
        "stock",
        "no",
        "unit",
        "amount",
        "n",
        "sum",
        "times",
        "population",
    ];
    name_words(&column.column).iter().any(|part| COUNTS.contains(&part.as_str()))
}

/// Reports whether a column is a key of a table that the query reads.
pub(super) fn is_key(input: &SemanticInput<'_>, name: &ColumnReference) -> bool {
    let is_named_so = name_words(&name.column).last().is_some_and(|last| {
        matches!(last.as_str(), "id" | "uuid" | "key" | "code") || (last.ends_with("id") && last.len() > 3)
    });
    let mut tables = input
        .catalog
        .tables_with(&name.column)
        .filter(|table| input.shape.tables.contains(&table.name.to_lowercase()))
        .peekable();
    let is_there = tables.peek().is_some();
    let is_declared = is_there
        && tables.all(|table| {
            let is_primary = table.column(&name.column).is_some_and(|column| column.primary_key_position > 0);
            is_primary || table.foreign_keys.iter().any(|key| key.column.eq_ignore_ascii_case(&name.column))
        });
    is_named_so || is_declared
}

/// Reports whether the declared type of a column is numeric.
pub(super) fn is_numeric_column(input: &SemanticInput<'_>, name: &ColumnReference) -> bool {
    let columns = input.catalog.tables_with(&name.column).filter_map(|table| table.column(&name.column));
    columns.map(|column| column.declared_type.to_ascii_uppercase()).any(|kind| {
        ["INT", "REAL", "NUM", "DOUB", "FLOA", "DEC"].iter().any(|part| kind.contains(part)) || kind.is_empty()
    })
}
