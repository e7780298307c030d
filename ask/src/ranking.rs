//! Chooses the tables that a question needs, if the whole schema is too long for a prompt: BM25 over names and
//! comments, and the neighbours by foreign key.

use std::collections::{BTreeSet, HashMap};

use proctor_core::sql::{DescribedSchema, DescribedTable};
use rust_stemmers::{Algorithm, Stemmer};

/// Saturation of the frequency of a word, the usual value.
const K1: f64 = 1.2;
/// Influence of the length of a document, the usual value.
const B: f64 = 0.75;
/// Weight of a word in the name of a table, relative to its columns and comments.
const NAME_WEIGHT: usize = 3;
/// Maximum number of words of a text that are read.
const MAX_WORDS: usize = 4_000;
/// Number of best tables whose neighbours are included too.
const SEEDS_WITH_NEIGHBOURS: usize = 8;
/// Words of questions that do not identify a table.
const STOP_WORDS: [&str; 52] = [
    "a", "all", "am", "an", "and", "any", "are", "as", "at", "be", "by", "did", "do", "does", "each", "every", "find",
    "for", "from", "get", "give", "had", "has", "have", "how", "i", "in", "is", "it", "list", "many", "me", "much",
    "of", "on", "or", "per", "show", "than", "that", "the", "their", "there", "these", "to", "was", "were", "what",
    "which", "who", "with", "whose",
];

/// Returns the positions of the tables to show, in the order of the schema. The text of all tables has at most
/// `budget` bytes, except that at least one table is shown.
pub(crate) fn choose_tables(schema: &DescribedSchema, question: &str, budget: usize) -> Vec<usize> {
    let sizes: Vec<usize> = schema.tables.iter().map(|table| table.to_text().len()).collect();
    if sizes.iter().sum::<usize>() <= budget {
        return (0..schema.tables.len()).collect();
    }
    let scores = scores(schema, question);
    let mut ranked: Vec<usize> = (0..schema.tables.len()).collect();
    ranked.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
    let mut chosen = BTreeSet::new();
    let mut used = 0;
    let mut add = |at: usize, chosen: &mut BTreeSet<usize>| {
        let fits = chosen.is_empty() || used + sizes[at] <= budget;
        if fits && chosen.insert(at) {
            used += sizes[at];
        }
    };
    // A table without any word of the question is only shown as a neighbour, or if there is room at the end.
    for at in ranked.iter().take(SEEDS_WITH_NEIGHBOURS).copied().filter(|at| scores[*at] > 0.0) {
        add(at, &mut chosen);
        for neighbour in neighbours(schema, at) {
            add(neighbour, &mut chosen);
        }
    }
    for at in ranked {
        add(at, &mut chosen);
    }
    chosen.into_iter().collect()
}

/// Returns the tables that the table references, and those that reference it.
fn neighbours(schema: &DescribedSchema, at: usize) -> Vec<usize> {
    let references = |from: &DescribedTable, to: &DescribedTable| {
        from.foreign_keys.iter().any(|key| key.referenced_table.eq_ignore_ascii_case(&to.name))
    };
    let table = &schema.tables[at];
    let outgoing = schema.tables.iter().enumerate().filter(|(_, other)| references(table, other));
    let incoming = schema.tables.iter().enumerate().filter(|(_, other)| references(other, table));
    outgoing.chain(incoming).map(|(other, _)| other).filter(|other| *other != at).collect()
}

/// Returns the BM25 score of each table for a question.
fn scores(schema: &DescribedSchema, question: &str) -> Vec<f64> {
    let stemmer = Stemmer::create(Algorithm::English);
    let documents: Vec<HashMap<String, usize>> = schema.tables.iter().map(|table| document(table, &stemmer)).collect();
    let lengths: Vec<usize> = documents.iter().map(|document| document.values().sum()).collect();
    let count = documents.len() as f64;
    let mean = (lengths.iter().sum::<usize>() as f64 / count.max(1.0)).max(1.0);
    let terms: BTreeSet<String> =
        words(question, &stemmer).into_iter().filter(|(_, is_stop_word)| !is_stop_word).map(|(stem, _)| stem).collect();
    let mut scores = vec![0.0; documents.len()];
    for term in &terms {
        let containing = documents.iter().filter(|document| document.contains_key(term)).count() as f64;
        let rarity = ((count - containing + 0.5) / (containing + 0.5) + 1.0).ln();
        for (score, (document, length)) in scores.iter_mut().zip(documents.iter().zip(&lengths)) {
            let frequency = document.get(term).copied().unwrap_or(0) as f64;
            let norm = K1 * (1.0 - B + B * *length as f64 / mean);
            *score += rarity * frequency * (K1 + 1.0) / (frequency + norm);
        }
    }
    scores
}

/// Returns the frequency of each word stem of a table.
fn document(table: &DescribedTable, stemmer: &Stemmer) -> HashMap<String, usize> {
    let mut frequencies = HashMap::new();
    let mut add = |text: &str, weight: usize| {
        for (stem, _) in words(text, stemmer) {
            *frequencies.entry(stem).or_default() += weight;
        }
    };
    add(&table.name, NAME_WEIGHT);
    add(table.comment.as_deref().unwrap_or_default(), 1);
    for column in &table.columns {
        add(&column.name, 1);
        add(column.comment.as_deref().unwrap_or_default(), 1);
    }
    frequencies
}

/// Returns the stems of the words of a text, and whether each word is a stop word. Names are split at underscores and
/// in camel case.
fn words(text: &str, stemmer: &Stemmer) -> Vec<(String, bool)> {
    let mut found = Vec::new();
    for run in text.split(|c: char| !c.is_alphanumeric()).filter(|run| !run.is_empty()) {
        for word in split_camel_case(run) {
            let lower = word.to_lowercase();
            let is_stop_word = STOP_WORDS.contains(&lower.as_str());
            found.push((stemmer.stem(&lower).into_owned(), is_stop_word));
            if found.len() >= MAX_WORDS {
                return found;
            }
        }
    }
    found
}

/// Splits `InvoiceLine` and `HTTPServer` into words. A word in capitals stays whole.
fn split_camel_case(text: &str) -> Vec<&str> {
    let chars: Vec<(usize, char)> = text.char_indices().collect();
    let mut starts = vec![0];
    for at in 1..chars.len() {
        let (before, here) = (chars[at - 1].1, chars[at].1);
        let is_next_lower = chars.get(at + 1).is_some_and(|(_, next)| next.is_lowercase());
        let is_start = here.is_uppercase() && (before.is_lowercase() || before.is_numeric())
            || here.is_uppercase() && before.is_uppercase() && is_next_lower
            || here.is_numeric() != before.is_numeric();
        if is_start {
            starts.push(chars[at].0);
        }
    }
    let ends = starts.iter().skip(1).copied().chain([text.len()]);
    starts.iter().zip(ends).map(|(start, end)| &text[*start..end]).collect()
}

#[cfg(test)]
mod tests {
    use proctor_core::sql::{DescribedColumn, DescribedForeignKey};
    use proptest::prelude::*;

    use super::*;

    fn table(name: &str, columns: &[&str], references: &[&str]) -> DescribedTable {
        let column = |name: &&str| DescribedColumn { name: (*name).into(), ..DescribedColumn::default() };
        let key = |to: &&str| DescribedForeignKey {
            column: "x".into(),
            referenced_table: (*to).into(),
            referenced_column: None,
        };
        DescribedTable {
            name: name.into(),
            columns: columns.iter().map(column).collect(),
            foreign_keys: references.iter().map(key).collect(),
            ..DescribedTable::default()
        }
    }

    fn names(schema: &DescribedSchema, question: &str, budget: usize) -> Vec<String> {
        choose_tables(schema, question, budget).iter().map(|at| schema.tables[*at].name.clone()).collect()
    }

    fn shop() -> DescribedSchema {
        let mut tables = vec![
            table("customers", &["customer_id", "city"], &[]),
            table("orders", &["order_id", "total_amount"], &["customers"]),
            table("InvoiceLine", &["InvoiceLineId", "UnitPrice"], &["Invoice"]),
            table("Invoice", &["InvoiceId"], &[]),
        ];
        tables.extend((0..40).map(|n| table(&format!("log{n}"), &["message", "level"], &[])));
        DescribedSchema { tables }
    }

    #[test]
    fn small_schema_is_shown_completely() {
        let schema = shop();
        assert_eq!(names(&schema, "anything", usize::MAX).len(), schema.tables.len());
    }

    #[test]
    fn chooses_tables_by_words_and_their_neighbours() {
        let schema = shop();
        let chosen = names(&schema, "How many orders are there?", 150);
        assert!(chosen.contains(&"orders".to_owned()) && chosen.contains(&"customers".to_owned()), "{chosen:?}");
        let chosen = names(&schema, "the sum of all invoice lines", 150);
        assert!(chosen.contains(&"InvoiceLine".to_owned()) && chosen.contains(&"Invoice".to_owned()), "{chosen:?}");
    }

    #[test]
    fn word_forms_and_comments_count() {
        let mut schema = shop();
        schema.tables[20].comment = Some("each shipment of a parcel".into());
        assert!(names(&schema, "parcels shipped?", 60).contains(&schema.tables[20].name));
        assert!(names(&schema, "Which cities?", 80).contains(&"customers".to_owned()));
    }

    #[test]
    fn splits_names() {
        assert_eq!(split_camel_case("InvoiceLine"), ["Invoice", "Line"]);
        assert_eq!(split_camel_case("HTTPServer2"), ["HTTP", "Server", "2"]);
        assert_eq!(split_camel_case("ÉtatÉtat"), ["État", "État"]);
        assert_eq!(split_camel_case("abc"), ["abc"]);
    }

    proptest! {
        #[test]
        fn stays_within_budget(question in ".{0,60}", names in prop::collection::vec(".{0,20}", 0..12), budget in 0usize..600) {
            let tables = names.iter().map(|name| table(name, &["a_b"], &["x"])).collect();
            let schema = DescribedSchema { tables };
            let chosen = choose_tables(&schema, &question, budget);
            let size: usize = chosen.iter().map(|at| schema.tables[*at].to_text().len()).sum();
            prop_assert!(size <= budget || chosen.len() == 1);
            prop_assert_eq!(chosen.is_empty(), schema.tables.is_empty());
            prop_assert!(chosen.is_sorted());
        }
    }
}
