//! Checks that comments and pages are written in plain English: at most a small part of their sentences may
//! contain one of the phrases that make a text hard to read. Text without these phrases may still be unclear.

use std::collections::BTreeMap;

use super::source_texts::{SourceTexts, TidyFindings};

/// Words that begin a sentence without a main clause, unless it is a question.
const CLAUSE_STARTERS: [&str; 8] = ["what", "whether", "where", "which", "who", "whose", "whoever", "whom"];
/// Phrases that have a plainer equivalent.
const MARKED_PHRASES: [&str; 48] = [
    "nobody",
    "somebody",
    "whoever",
    "anybody",
    "everybody",
    "of ours",
    "of theirs",
    "of its own",
    "of their own",
    "is said",
    "is told",
    "are told",
    "was told",
    "were told",
    "be told",
    "be said",
    "tells of",
    "told of",
    "stands",
    "stood",
    "becomes of",
    "became of",
    "comes of",
    "comes to",
    "come to",
    "as good as",
    "by then",
    "beside",
    "is none",
    "are none",
    "was none",
    "be had",
    "goes on",
    "meanwhile",
    "mend",
    "mends",
    "mended",
    "mending",
    "that is no",
    "that are no",
    "let go",
    "lets go",
    "taken for",
    "on record",
    "looked at",
    "looked through",
    "what is there",
    "what it was",
];
/// Shorter sentences are labels.
const MIN_WORDS: usize = 4;
/// Pages that are generated from comments and messages.
pub(super) const GENERATED_PAGES: [&str; 2] = ["docs/errors.md", "docs/spec-reference.md"];
/// Examples that a finding quotes.
const MAX_EXAMPLES: usize = 5;

/// The kinds of text, each with the largest permitted part of sentences with a phrase, in per mille.
const LIMITS: [(ProseKind, usize); 2] = [(ProseKind::Comment, 20), (ProseKind::Page, 15)];

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ProseKind {
    Comment,
    Page,
}

impl ProseKind {
    fn name(self) -> &'static str {
        match self {
            Self::Comment => "comments",
            Self::Page => "pages",
        }
    }
}

/// The sentences of one kind in one top-level folder.
#[derive(Default)]
struct SentenceCounts {
    count: usize,
    marked: Vec<String>,
}

/// Checks each top-level folder.
pub(super) fn plain_language(texts: &SourceTexts) -> TidyFindings {
    let mut found: BTreeMap<(&str, ProseKind), SentenceCounts> = BTreeMap::new();
    for (path, text) in texts {
        let folder = path.split('/').next().unwrap_or(path);
        let (kind, prose) = match path.rsplit_once('.').map(|(_, extension)| extension) {
            _ if path.starts_with("fixtures/") || GENERATED_PAGES.contains(&path.as_str()) => continue,
            Some("rs") => (ProseKind::Comment, comment_paragraphs(text)),
            Some("md") => (ProseKind::Page, page_paragraphs(text)),
            _ => continue,
        };
        let sentences = found.entry((folder, kind)).or_default();
        for sentence in prose.iter().flat_map(|paragraph| split_sentences(paragraph)) {
            sentences.count += 1;
            if has_marked_phrase(&sentence) {
                sentences.marked.push(format!("{path}: {sentence}"));
            }
        }
    }
    LIMITS.iter().flat_map(|(kind, limit)| folders_over_limit(&found, *kind, *limit)).collect()
}

fn folders_over_limit(
    found: &BTreeMap<(&str, ProseKind), SentenceCounts>,
    wanted: ProseKind,
    limit: usize,
) -> TidyFindings {
    let of_kind = found.iter().filter(|((_, kind), _)| *kind == wanted);
    let exceeding = of_kind.filter(|(_, sentences)| sentences.marked.len() * 1000 > sentences.count * limit);
    let finding = |((folder, kind), SentenceCounts { count, marked }): (&(&str, ProseKind), &SentenceCounts)| {
        let examples: Vec<&str> = marked.iter().take(MAX_EXAMPLES).map(String::as_str).collect();
        format!(
            "{folder}: {} of {count} sentences in {} contain a phrase from {} (limit: {limit} per mille); rephrase:\n  {}",
            marked.len(),
            kind.name(),
            "xtask/src/tidy/prose.rs",
            examples.join("\n  ")
        )
    };
    exceeding.map(finding).collect()
}

/// Returns the comments of a source, each block of lines of one kind as a paragraph.
fn comment_paragraphs(text: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let (mut block, mut last) = (String::new(), "");
    for line in text.lines().map(str::trim_start).chain([""]) {
        let kind = ["//!", "///", "//"].into_iter().find(|kind| line.starts_with(kind)).unwrap_or_default();
        let words = line.get(kind.len()..).unwrap_or_default().trim();
        if kind != last || words.is_empty() || words.starts_with('#') {
            blocks.push(std::mem::take(&mut block));
        }
        if !kind.is_empty() && !words.starts_with('#') {
            block.push_str(words);
            block.push('\n');
        }
        last = kind;
    }
    blocks.push(block);
    blocks
}

/// Returns the paragraphs of a page without its code blocks and headings.
fn page_paragraphs(text: &str) -> Vec<String> {
    let lines = |part: &str| part.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n");
    let outside: Vec<String> = text.split("```").step_by(2).map(lines).collect();
    outside.iter().flat_map(|part| part.split("\n\n")).map(str::to_owned).collect()
}

/// Splits a paragraph into sentences and cells of tables. Labels are left out.
fn split_sentences(paragraph: &str) -> Vec<String> {
    let words: Vec<&str> = paragraph.split_whitespace().collect();
    let ends = |word: &&str| word.ends_with(['.', '!', '?', ':']) || *word == "|";
    let sentences = words.split_inclusive(ends).map(|words| words.join(" "));
    sentences
        .filter(|sentence| normalized_words(sentence).split(' ').filter(|word| word.len() > 1).count() >= MIN_WORDS)
        .collect()
}

fn has_marked_phrase(sentence: &str) -> bool {
    let words = normalized_words(sentence);
    let first = words.split_whitespace().next().unwrap_or_default();
    let is_riddle = CLAUSE_STARTERS.contains(&first) && !sentence.ends_with('?');
    is_riddle || MARKED_PHRASES.iter().any(|phrase| words.contains(&format!(" {phrase} ")))
}

/// Returns the words in lower case, each with a space on both sides.
fn normalized_words(sentence: &str) -> String {
    let plain = sentence.chars().map(|c| if c.is_alphanumeric() { c.to_ascii_lowercase() } else { ' ' });
    let plain: String = plain.collect();
    let words: Vec<&str> = plain.split_whitespace().collect();
    format!(" {} ", words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::source_texts::texts;

    #[test]
    fn finds_clause_starters_and_phrases() {
        for marked in include_str!("../../../fixtures/prose/marked.txt").lines() {
            assert!(has_marked_phrase(marked), "{marked}");
        }
        for plain in include_str!("../../../fixtures/prose/plain.txt").lines() {
            assert!(!has_marked_phrase(plain), "{plain}");
        }
    }

    #[test]
    fn counts_by_folder_and_kind() {
        let plain = "/// Returns the number of open files.\n".repeat(100);
        let marked = "fn a() {}\n// What is to be done with it now.\n";
        let check = |source: &str, page: &str| {
            check_texts(source, page)
                .iter()
                .map(|finding| finding.split(':').next().map(str::to_owned))
                .collect::<Vec<_>>()
        };
        let separated = plain.replace('\n', "\nfn a() {}\n");
        assert_eq!(check(&separated, "Run the tests before a commit.\n"), []);
        assert_eq!(check(&format!("{separated}{}", marked.repeat(3)), "Run the tests.\n"), [Some("core".to_owned())]);
        assert_eq!(check(&separated, "Somebody must run the tests first.\n"), [Some("docs".to_owned())]);
        assert_eq!(check(&separated, "```sh\nsomebody else runs these tests\n```\n"), []);
    }

    fn check_texts(source: &str, page: &str) -> TidyFindings {
        plain_language(&texts(&[
            ("core/src/a.rs", source),
            ("docs/a.md", page),
            ("fixtures/a.rs", "// Nobody reads this text.\n"),
        ]))
    }
}
