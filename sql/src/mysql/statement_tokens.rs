//! Splits a statement into words and signs.

use std::ops::Range;

use proctor_core::sql::Dialect;

use crate::lexer::{self, SqlTokenKind};

/// The tokens of a statement: words and symbols, without comments.
pub(super) struct Tokens<'s> {
    pub(super) sql: &'s str,
    pub(super) all: Vec<(SqlTokenKind, Range<usize>)>,
}

impl<'s> Tokens<'s> {
    pub(super) fn new(sql: &'s str) -> Self {
        let mut all = lexer::tokenize(sql, Dialect::Mysql);
        all.retain(|(kind, _)| !matches!(kind, SqlTokenKind::Whitespace | SqlTokenKind::Comment));
        Self { sql, all }
    }

    pub(super) fn text(&self, at: usize) -> &'s str {
        self.all.get(at).map_or("", |(_, range)| &self.sql[range.clone()])
    }

    /// Returns an unquoted word in lower case; anything else is empty.
    pub(super) fn word(&self, at: usize) -> String {
        match self.all.get(at) {
            Some((SqlTokenKind::Word, range)) => self.sql[range.clone()].to_ascii_lowercase(),
            _ => String::new(),
        }
    }

    pub(super) fn is_word(&self, at: usize, word: &str) -> bool {
        matches!(self.all.get(at), Some((SqlTokenKind::Word, _))) && self.text(at).eq_ignore_ascii_case(word)
    }

    pub(super) fn is_any(&self, at: usize, words: &[&str]) -> bool {
        words.iter().any(|word| self.is_word(at, word))
    }

    pub(super) fn is_name(&self, at: usize) -> bool {
        matches!(self.all.get(at), Some((SqlTokenKind::Word | SqlTokenKind::Quoted, _)))
    }

    pub(super) fn name(&self, at: usize) -> String {
        lexer::unquote(self.text(at))
    }

    /// Returns the name at a token, with its qualifiers, and the index of its last token.
    pub(super) fn dotted_name(&self, at: usize) -> Option<(String, usize)> {
        if !self.is_name(at) {
            return None;
        }
        let (mut name, mut last) = (self.name(at), at);
        while self.text(last + 1) == "." && self.is_name(last + 2) {
            name = format!("{name}.{}", self.name(last + 2));
            last += 2;
        }
        Some((name, last))
    }

    /// Returns the text from a token to the end.
    pub(super) fn rest(&self, at: usize) -> Option<&'s str> {
        Some(&self.sql[self.all.get(at)?.1.start..self.all.last()?.1.end])
    }

    /// Returns the index of the first token that is not an opening bracket.
    pub(super) fn first_after_brackets(&self, from: usize) -> usize {
        (from..self.all.len()).find(|at| self.text(*at) != "(").unwrap_or(from)
    }
}
