//! Checks that comments and pages are written in plain English: at most a small part of their sentences may
//! contain one of the phrases that make a text hard to read. This is a thermometer, not a definition of good prose.

use std::collections::BTreeMap;

use super::{Findings, Texts};

/// Words that begin a sentence without a main clause, unless it is a question.
const RIDDLES: [&str; 8] = ["what", "whether", "where", "which", "who", "whose", "whoever", "whom"];
/// Phrases that have a plainer equivalent.
const PHRASES: [&str; 48] = [
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
const GENERATED: [&str; 2] = ["docs/errors.md", "docs/spec-reference.md"];
/// Examples that a finding quotes.
const EXAMPLES: usize = 5;

/// The kinds of text, each with the largest permitted part of sentences with a phrase, in per mille.
const LIMITS: [(Kind, usize); 2] = [(Kind::Comment, 20), (Kind::Page, 15)];

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Comment,
    Page,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Comment => "comments",
            Self::Page => "pages",
        }
    }
}

/// The sentences of one kind in one top-level folder.
#[derive(Default)]
struct Sentences {
    count: usize,
    marked: Vec<String>,
}

/// Checks each top-level folder.
pub(super) fn plain(texts: &Texts) -> Findings {
    let mut found: BTreeMap<(&str, Kind), Sentences> = BTreeMap::new();
    for (path, text) in texts {
        let folder = path.split('/').next().unwrap_or(path);
        let (kind, prose) = match path.rsplit_once('.').map(|(_, extension)| extension) {
            _ if path.starts_with("fixtures/") || GENERATED.contains(&path.as_str()) => continue,
            Some("rs") => (Kind::Comment, comments(text)),
            Some("md") => (Kind::Page, page(text)),
            _ => continue,
        };
        let sentences = found.entry((folder, kind)).or_default();
        for sentence in prose.iter().flat_map(|paragraph| sentences_of(paragraph)) {
            sentences.count += 1;
            if is_marked(&sentence) {
                sentences.marked.push(format!("{path}: {sentence}"));
            }
        }
    }
    LIMITS.iter().flat_map(|(kind, limit)| exceeding(&found, *kind, *limit)).collect()
}

fn exceeding(found: &BTreeMap<(&str, Kind), Sentences>, wanted: Kind, limit: usize) -> Findings {
    let of_kind = found.iter().filter(|((_, kind), _)| *kind == wanted);
    let exceeding = of_kind.filter(|(_, sentences)| sentences.marked.len() * 1000 > sentences.count * limit);
    let finding = |((folder, kind), Sentences { count, marked }): (&(&str, Kind), &Sentences)| {
        let examples: Vec<&str> = marked.iter().take(EXAMPLES).map(String::as_str).collect();
        format!(
            "{folder}: {} of {count} sentences in {} have a phrase of {}, more than {limit} per mille; write plainly:\n  {}",
            marked.len(),
            kind.name(),
            "xtask/src/tidy/prose.rs",
            examples.join("\n  ")
        )
    };
    exceeding.map(finding).collect()
}

/// Returns the comments of a source, each block of lines of one kind as a paragraph.
fn comments(text: &str) -> Vec<String> {
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
fn page(text: &str) -> Vec<String> {
    let lines = |part: &str| part.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n");
    let outside: Vec<String> = text.split("```").step_by(2).map(lines).collect();
    outside.iter().flat_map(|part| part.split("\n\n")).map(str::to_owned).collect()
}

/// Splits a paragraph into sentences and cells of tables. Labels are left out.
fn sentences_of(paragraph: &str) -> Vec<String> {
    let words: Vec<&str> = paragraph.split_whitespace().collect();
    let ends = |word: &&str| word.ends_with(['.', '!', '?', ':']) || *word == "|";
    let sentences = words.split_inclusive(ends).map(|words| words.join(" "));
    sentences
        .filter(|sentence| letters(sentence).split(' ').filter(|word| word.len() > 1).count() >= MIN_WORDS)
        .collect()
}

fn is_marked(sentence: &str) -> bool {
    let words = letters(sentence);
    let first = words.split_whitespace().next().unwrap_or_default();
    let is_riddle = RIDDLES.contains(&first) && !sentence.ends_with('?');
    is_riddle || PHRASES.iter().any(|phrase| words.contains(&format!(" {phrase} ")))
}

/// Returns the words in lower case, each with a space on both sides.
fn letters(sentence: &str) -> String {
    let plain = sentence.chars().map(|c| if c.is_alphanumeric() { c.to_ascii_lowercase() } else { ' ' });
    let plain: String = plain.collect();
    let words: Vec<&str> = plain.split_whitespace().collect();
    format!(" {} ", words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::texts;

    #[test]
    fn finds_riddles_and_phrases() {
        for marked in [
            "What is left of it when all has ended.",
            "Nobody else may open this file.",
            "The file stands at this path.",
            "A lock of its own is held.",
            "It cannot be had without root.",
        ] {
            assert!(is_marked(marked), "{marked}");
        }
        for plain in [
            "Returns the path of the file.",
            "What happens if the daemon stops?",
            "Standard output is closed before the process exits.",
            "It came to a stop.",
        ] {
            assert!(!is_marked(plain), "{plain}");
        }
    }

    #[test]
    fn counts_by_folder_and_kind() {
        let plain = "/// Returns the number of open files.\n".repeat(100);
        let marked = "fn a() {}\n// What is to be done with it now.\n";
        let check = |source: &str, page: &str| {
            plain_texts(source, page)
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

    fn plain_texts(source: &str, page: &str) -> Findings {
        plain(&texts(&[
            ("core/src/a.rs", source),
            ("docs/a.md", page),
            ("fixtures/a.rs", "// Nobody reads this text.\n"),
        ]))
    }
}
