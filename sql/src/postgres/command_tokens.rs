//! Splits a command into words and signs, without comments.

use std::ops::Range;

use proctor_core::sql::Dialect;

use crate::catalog::joined_name;
use crate::lexer::{self, SqlTokenKind};

/// The tokens of a command.
pub(super) struct CommandTokens<'s> {
    pub(super) sql: &'s str,
    pub(super) all: Vec<(SqlTokenKind, Range<usize>)>,
}

impl<'s> CommandTokens<'s> {
    pub(super) fn new(sql: &'s str) -> Self {
        let mut all = lexer::tokenize(sql, Dialect::Postgres);
        all.retain(|(kind, _)| !matches!(kind, SqlTokenKind::Whitespace | SqlTokenKind::Comment));
        Self { sql, all }
    }

    pub(super) fn text(&self, at: usize) -> &'s str {
        self.all.get(at).map_or("", |(_, range)| &self.sql[range.clone()])
    }

    pub(super) fn is_word(&self, at: usize, word: &str) -> bool {
        matches!(self.all.get(at), Some((SqlTokenKind::Word, _))) && self.text(at).eq_ignore_ascii_case(word)
    }

    pub(super) fn is_any(&self, at: usize, words: &[&str]) -> bool {
        words.iter().any(|word| self.is_word(at, word))
    }

    /// Reports whether a token can be an identifier.
    pub(super) fn is_name(&self, at: usize) -> bool {
        matches!(self.all.get(at), Some((SqlTokenKind::Word | SqlTokenKind::Quoted, _)))
    }

    /// Returns the value of an identifier: unquoted letters are lower case.
    pub(super) fn identifier(&self, at: usize) -> String {
        match self.all.get(at) {
            Some((SqlTokenKind::Quoted, _)) => lexer::unquote(self.text(at)),
            _ => self.text(at).to_ascii_lowercase(),
        }
    }

    /// Returns the name that begins at a token, without the schema `public`, and the index of its last token.
    pub(super) fn object_name(&self, at: usize) -> Option<(String, usize)> {
        let (mut parts, last) = self.name_parts(at)?;
        if parts.len() > 1 && parts[0] == "public" {
            parts.remove(0);
        }
        Some((joined_name(&parts), last))
    }

    /// Returns the parts of the name that begins at a token, and the index of its last token.
    pub(super) fn name_parts(&self, at: usize) -> Option<(Vec<String>, usize)> {
        if !self.is_name(at) {
            return None;
        }
        let (mut parts, mut last) = (vec![self.identifier(at)], at);
        while self.text(last + 1) == "." && self.is_name(last + 2) {
            last += 2;
            parts.push(self.identifier(last));
        }
        Some((parts, last))
    }

    /// Returns the index of the first token outside of brackets that satisfies a condition.
    pub(super) fn find_outside(&self, fits: impl Fn(usize) -> bool) -> Option<usize> {
        let mut depth = 0_usize;
        (0..self.all.len()).find(|at| {
            match self.text(*at) {
                "(" => depth += 1,
                ")" => depth = depth.saturating_sub(1),
                _ => {}
            }
            depth == 0 && fits(*at)
        })
    }
}
