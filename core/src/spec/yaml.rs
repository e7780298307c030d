//! YAML bytes → a small tree with spans, in one bounded pass.
//!
//! What could be read in two ways, or costs more than it says, is refused here: characters on
//! which YAML readers differ, anchors and aliases, tags, directives, further documents, keys
//! that are no scalars, keys that stand twice, deep nesting. What the tree means is not decided
//! here.

use std::borrow::Cow;
use std::collections::HashMap;

use granit_parser::{ErrorKind, Event, Marker, Parser, ScalarStyle, ScanError, StructureStyle};

use super::diagnostic::{Code, Diagnostic, quoted};
use super::report::Report;
use super::span::Span;

/// How many bytes a spec may have.
pub const MAX_BYTES: usize = 1 << 20;
/// The byte order mark in UTF-8, which may stand at the start of a spec.
pub(super) const BOM: &[u8] = "\u{feff}".as_bytes();
/// How deep values may be nested.
pub(super) const MAX_DEPTH: usize = 64;
/// How many values a spec may have; at 1 MiB a hundred thousand are ten bytes each.
pub(super) const MAX_NODES: usize = 100_000;

/// A value, and where it stands.
#[derive(Debug)]
pub(super) struct Node<'a> {
    /// The whole value.
    pub(super) span: Span,
    /// The key whose value it is, or else its own start: what a message about it points at where
    /// the value is long.
    pub(super) head: Span,
    pub(super) value: Value<'a>,
}

#[derive(Debug)]
pub(super) enum Value<'a> {
    Scalar {
        text: Cow<'a, str>,
        plain: bool,
    },
    Seq(Vec<Node<'a>>),
    Map(Vec<(Key<'a>, Node<'a>)>),
    /// A value that was refused already; nothing more is said about it.
    Refused,
}

#[derive(Debug)]
pub(super) struct Key<'a> {
    pub(super) span: Span,
    pub(super) text: Cow<'a, str>,
}

impl Node<'_> {
    /// Whether it reads as nothing: plain and empty, `~` or `null`.
    pub(super) fn is_null(&self) -> bool {
        match &self.value {
            Value::Scalar { text, plain: true } => matches!(text.as_ref(), "" | "~" | "null" | "Null" | "NULL"),
            _ => false,
        }
    }
}

/// Checks the bytes and builds the tree. `None` where there is none; what is wrong goes to
/// `report`.
pub(super) fn parse<'a>(bytes: &'a [u8], report: &mut Report) -> Option<Node<'a>> {
    let text = match checked_text(bytes) {
        Ok(text) => text,
        Err(problem) => {
            report.add(*problem);
            return None;
        }
    };
    Builder::new(text, report).build()
}

/// The bytes as text on whose lines and characters all readers agree.
fn checked_text(bytes: &[u8]) -> Result<&str, Box<Diagnostic>> {
    if bytes.len() > MAX_BYTES {
        let message = format!("the spec has {} bytes; {MAX_BYTES} are allowed", bytes.len());
        return Err(Box::new(Diagnostic::unplaced(Code::TooLarge, message)));
    }
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let good = bytes.utf8_chunks().next().map_or("", |chunk| chunk.valid());
            let span = position(good, error.valid_up_to(), 1);
            return Err(Box::new(Diagnostic::error(Code::NotUtf8, span, "the spec is not UTF-8 from here on")));
        }
    };
    match text.char_indices().find(|(at, c)| is_forbidden(*at, *c)) {
        None => Ok(text),
        Some((at, c)) => {
            let message = format!("the character U+{:04X} is not allowed in a spec", u32::from(c));
            let problem = Diagnostic::error(Code::ForbiddenCharacter, position(text, at, c.len_utf8()), message);
            Err(Box::new(problem.hint("write it as an escape in double quotes, or remove it")))
        }
    }
}

/// Controls, and what some readers of YAML take for line breaks and others do not.
fn is_forbidden(at: usize, c: char) -> bool {
    match c {
        '\t' | '\n' | '\r' => false,
        '\u{feff}' => at != 0,
        '\u{2028}' | '\u{2029}' => true,
        c => c.is_control(),
    }
}

/// The span of `length` bytes at byte `at` of `text`.
fn position(text: &str, at: usize, length: usize) -> Span {
    let before = text.get(..at).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    Span {
        start: count(at),
        end: count(at + length),
        line: count(before.matches('\n').count() + 1),
        column: count(before[line_start..].chars().count() + 1),
    }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// A collection whose end has not come yet.
struct Open<'a> {
    start: Span,
    head: Span,
    block: bool,
    content: Content<'a>,
}

enum Content<'a> {
    Seq(Vec<Node<'a>>),
    Map { entries: Vec<(Key<'a>, Node<'a>)>, key: PendingKey<'a>, seen: HashMap<Cow<'a, str>, Span> },
}

/// The key of a map whose value has not come yet.
enum PendingKey<'a> {
    None,
    Key(Key<'a>),
    /// It stood there before; its value is dropped.
    Duplicate(Span),
}

impl PendingKey<'_> {
    fn span(&self) -> Option<Span> {
        match self {
            Self::None => None,
            Self::Key(key) => Some(key.span),
            Self::Duplicate(span) => Some(*span),
        }
    }
}

/// The pass can not go on; what is wrong was reported.
struct Stop;

struct Builder<'a, 'r> {
    text: &'a str,
    report: &'r mut Report,
    open: Vec<Open<'a>>,
    root: Option<Node<'a>>,
    nodes: usize,
    documents: usize,
}

impl<'a, 'r> Builder<'a, 'r> {
    fn new(text: &'a str, report: &'r mut Report) -> Self {
        Self { text, report, open: Vec::new(), root: None, nodes: 0, documents: 0 }
    }

    fn build(mut self) -> Option<Node<'a>> {
        let options = granit_parser::options! {
            disallow_directives: true,
            emit_anchor_events: true,
            emit_unresolved_aliases: true,
            emit_comments: false,
            flow_nesting_limit: MAX_DEPTH,
            block_nesting_limit: MAX_DEPTH,
        };
        for event in Parser::new_from_str_with_options(self.text, options) {
            let step = match event {
                Ok((event, span)) => self.event(event, span),
                Err(error) => Err(self.syntax(&error)),
            };
            if step.is_err() {
                return None;
            }
        }
        if self.root.is_none() {
            let start = position(self.text, 0, 0);
            let problem = Diagnostic::error(Code::Empty, start, "the spec is empty");
            self.report.add(problem);
        }
        self.root
    }

    fn event(&mut self, event: Event<'a>, at: granit_parser::Span) -> Result<(), Stop> {
        let span = convert(at);
        if event.tag().is_some() {
            let tag = at.tag_span().map_or(span, convert);
            self.refuse(Code::Tag, tag, "tags are not allowed in a spec")?;
        }
        match event {
            Event::DocumentStart(..) => self.document(span),
            Event::Anchor(_, name) => {
                self.refuse(Code::Alias, span, &format!("anchors such as {} are not allowed in a spec", quoted(&name)))
            }
            Event::Alias(_) | Event::UnresolvedAlias(_) => {
                self.refuse(Code::Alias, span, "aliases are not allowed in a spec")?;
                self.scalar(span, Value::Refused)
            }
            Event::Scalar(text, style, ..) => {
                let plain = style == ScalarStyle::Plain;
                // The parser gives nothing at all as `~`; serde_yaml reads it as an empty text.
                let nothing = plain && text == "~" && self.text.get(at.byte_range().unwrap_or_default()) != Some("~");
                let text = if nothing { Cow::Borrowed("") } else { text };
                self.scalar(span, Value::Scalar { text, plain })
            }
            Event::SequenceStart(style, ..) => {
                self.start(span, style == StructureStyle::Block, Content::Seq(Vec::new()))
            }
            Event::MappingStart(style, ..) => {
                let content = Content::Map { entries: Vec::new(), key: PendingKey::None, seen: HashMap::new() };
                self.start(span, style == StructureStyle::Block, content)
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(span),
            _ => Ok(()),
        }
    }

    /// Reports something beside which the pass can go on, unless there is too much of it.
    fn refuse(&mut self, code: Code, span: Span, message: &str) -> Result<(), Stop> {
        self.report.add(Diagnostic::error(code, span, message).hint("write the value out in plain YAML"));
        if self.report.is_full() { Err(Stop) } else { Ok(()) }
    }

    fn stop(&mut self, problem: Diagnostic) -> Stop {
        self.report.add(problem);
        Stop
    }

    fn document(&mut self, span: Span) -> Result<(), Stop> {
        self.documents += 1;
        if self.documents == 1 {
            return Ok(());
        }
        Err(self.stop(Diagnostic::error(Code::SecondDocument, span, "a second document is not allowed in a spec")))
    }

    /// A scalar: a key where a map waits for one, or else a value.
    fn scalar(&mut self, span: Span, value: Value<'a>) -> Result<(), Stop> {
        self.counted(span)?;
        match self.open.last_mut().map(|open| &mut open.content) {
            Some(Content::Map { key: key @ PendingKey::None, seen, .. }) => {
                let text = match value {
                    Value::Scalar { text, .. } => text,
                    _ => Cow::Borrowed(""),
                };
                match seen.insert(text.clone(), span) {
                    None => *key = PendingKey::Key(Key { span, text }),
                    Some(first) => {
                        *key = PendingKey::Duplicate(span);
                        let message = format!("the key {} stands twice in one map", quoted(&text));
                        self.report
                            .add(Diagnostic::error(Code::DuplicateKey, span, message).label(first, "first here"));
                        if self.report.is_full() {
                            return Err(Stop);
                        }
                    }
                }
            }
            _ => {
                let head = self.head(span);
                self.place(Node { span, head, value });
            }
        }
        Ok(())
    }

    fn start(&mut self, start: Span, block: bool, content: Content<'a>) -> Result<(), Stop> {
        self.counted(start)?;
        if let Some(Open { content: Content::Map { key: PendingKey::None, .. }, .. }) = self.open.last() {
            let problem = Diagnostic::error(Code::ComplexKey, start, "a key must be a scalar, not a list or a map");
            return Err(self.stop(problem));
        }
        if self.open.len() == MAX_DEPTH {
            return Err(self.stop(too_deep(start)));
        }
        let head = self.head(start);
        self.open.push(Open { start, head, block, content });
        Ok(())
    }

    fn end(&mut self, end: Span) -> Result<(), Stop> {
        let Some(Open { start, head, block, content }) = self.open.pop() else {
            return Ok(());
        };
        let (value, last) = match content {
            Content::Seq(items) => {
                let last = items.last().map(|item| item.span.end);
                (Value::Seq(items), last)
            }
            Content::Map { entries, .. } => {
                let last = entries.last().map(|(key, value)| value.span.end.max(key.span.end));
                (Value::Map(entries), last)
            }
        };
        // The end of a block collection is the start of whatever follows it.
        let end = if block { last.unwrap_or(start.end) } else { end.end };
        self.place(Node { span: Span { end: end.max(start.end), ..start }, head, value });
        Ok(())
    }

    /// What a message about a value that starts at `start` points at.
    fn head(&self, start: Span) -> Span {
        match self.open.last() {
            Some(Open { content: Content::Map { key, .. }, .. }) => key.span().unwrap_or(start),
            _ => start,
        }
    }

    fn place(&mut self, node: Node<'a>) {
        match self.open.last_mut().map(|open| &mut open.content) {
            None => self.root = Some(node),
            Some(Content::Seq(items)) => items.push(node),
            Some(Content::Map { entries, key, .. }) => {
                if let PendingKey::Key(key) = std::mem::replace(key, PendingKey::None) {
                    entries.push((key, node));
                }
            }
        }
    }

    fn counted(&mut self, span: Span) -> Result<(), Stop> {
        self.nodes += 1;
        if self.nodes <= MAX_NODES {
            return Ok(());
        }
        let message = format!("the spec has more than {MAX_NODES} values");
        Err(self.stop(Diagnostic::error(Code::TooManyValues, span, message)))
    }

    fn syntax(&mut self, error: &ScanError) -> Stop {
        let span = mark(error.marker(), error.marker());
        let problem = match error.kind() {
            ErrorKind::RecursionLimitExceeded => too_deep(span),
            ErrorKind::DirectiveDisallowed => {
                Diagnostic::error(Code::Directive, span, "`%` directives are not allowed in a spec")
            }
            _ => Diagnostic::error(Code::Syntax, span, error.info()),
        };
        self.stop(problem)
    }
}

fn too_deep(span: Span) -> Diagnostic {
    Diagnostic::error(Code::TooDeep, span, format!("values are nested more than {MAX_DEPTH} deep"))
}

fn convert(span: granit_parser::Span) -> Span {
    mark(&span.start, &span.end)
}

fn mark(start: &Marker, end: &Marker) -> Span {
    let offset = |marker: &Marker| count(marker.byte_offset().unwrap_or(0));
    Span { start: offset(start), end: offset(end), line: count(start.line()), column: count(start.col() + 1) }
}
