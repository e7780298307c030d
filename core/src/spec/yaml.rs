//! Parses YAML to a small tree with spans, in one pass with bounded cost.
//!
//! The parser rejects constructs that YAML readers interpret differently, or whose cost exceeds their size:
//!
//! - ambiguous characters, tags and directives
//! - aliases that expand to too many values
//! - further documents
//! - keys that are not scalars, and duplicate keys
//! - deep nesting
//!
//! The same pass also parses the configurations of other tools (see [`YamlFileKind`]). Aliases are replaced by the
//! values of their anchors, which count towards the limits as if they were written out.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use granit_parser::{ErrorKind, Event, Marker, Parser, ScalarStyle, ScanError, StructureStyle};

use super::diagnostic::{Code, Diagnostic};
use super::diagnostic_collector::DiagnosticCollector;
use super::span::Span;
use crate::text::escape::quoted;

/// Maximum size of a spec, in bytes.
pub const MAX_BYTES: usize = 1 << 20;
/// The UTF-8 byte order mark, which is allowed at the start of a spec.
pub(super) const BOM: &[u8] = "\u{feff}".as_bytes();
/// Maximum nesting depth of values.
pub(super) const MAX_DEPTH: usize = 64;
/// Maximum number of values in a spec: at 1 MiB, a hundred thousand values have ten bytes each.
pub(super) const MAX_NODES: usize = 100_000;
/// Maximum number of bytes of text that all aliases of a file may repeat together.
const MAX_ALIAS_BYTES: usize = 4 * MAX_BYTES;
/// Maximum number of anchors in a file.
const MAX_ANCHORS: usize = 1_000;

/// The kind of file to parse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum YamlFileKind {
    /// A Proctor spec. Merge keys (`<<`) are replaced by the entries of their maps.
    Spec,
    /// The configuration of another tool. Merge keys are entries like others.
    Foreign,
}

impl YamlFileKind {
    /// Returns the noun for messages.
    fn noun(self) -> &'static str {
        match self {
            Self::Spec => "spec",
            Self::Foreign => "file",
        }
    }
}

/// A value with its position.
#[derive(Debug, Clone)]
pub(crate) struct Node<'a> {
    /// The position of the whole value.
    pub(crate) span: Span,
    /// The position of the key of the value, or the start of the value if it has no key. Messages about long values
    /// point to it.
    pub(crate) head: Span,
    pub(crate) value: YamlValue<'a>,
}

#[derive(Debug, Clone)]
pub(crate) enum YamlValue<'a> {
    Scalar {
        text: Cow<'a, str>,
        plain: bool,
    },
    Seq(Vec<Node<'a>>),
    Map(Vec<(YamlKey<'a>, Node<'a>)>),
    /// A value that has already been reported as an error; no further errors are reported for it.
    Invalid,
}

/// The entries of a map, in order.
type MapEntries<'a> = Vec<(YamlKey<'a>, Node<'a>)>;
/// The key whose value is a map, or a list of maps, with further entries.
const MERGE_KEY: &str = "<<";

#[derive(Debug, Clone)]
pub(crate) struct YamlKey<'a> {
    pub(crate) span: Span,
    pub(crate) text: Cow<'a, str>,
}

impl Node<'_> {
    /// Sets the file of all positions.
    pub(super) fn set_file(&mut self, file: u16) {
        (self.span, self.head) = (self.span.in_file(file), self.head.in_file(file));
        match &mut self.value {
            YamlValue::Scalar { .. } | YamlValue::Invalid => {}
            YamlValue::Seq(items) => items.iter_mut().for_each(|item| item.set_file(file)),
            YamlValue::Map(entries) => entries.iter_mut().for_each(|(key, value)| {
                key.span = key.span.in_file(file);
                value.set_file(file);
            }),
        }
    }

    /// Returns whether the value is null: plain and empty, `~` or `null`.
    pub(crate) fn is_null(&self) -> bool {
        match &self.value {
            YamlValue::Scalar { text, plain: true } => matches!(text.as_ref(), "" | "~" | "null" | "Null" | "NULL"),
            _ => false,
        }
    }

    /// Returns the number of values in the node and the number of bytes of their text; `None` if they exceed `nodes` or
    /// `bytes`, or are nested more than `depth` deep.
    fn measure_within(&self, nodes: usize, bytes: usize, depth: usize) -> Option<(usize, usize)> {
        let (mut count, mut size) = (0_usize, 0_usize);
        let mut rest = vec![(self, 0_usize)];
        while let Some((node, level)) = rest.pop() {
            count += 1;
            match &node.value {
                YamlValue::Scalar { text, .. } => size += text.len(),
                YamlValue::Seq(items) => rest.extend(items.iter().map(|item| (item, level + 1))),
                YamlValue::Map(entries) => {
                    count += entries.len();
                    size += entries.iter().map(|(key, _)| key.text.len()).sum::<usize>();
                    rest.extend(entries.iter().map(|(_, value)| (value, level + 1)));
                }
                YamlValue::Invalid => {}
            }
            if count > nodes || size > bytes || level > depth {
                return None;
            }
        }
        Some((count, size))
    }
}

/// The tree of a spec.
pub(super) struct SpecTree<'a> {
    /// The outermost value.
    pub(super) root: Node<'a>,
    /// True if the spec has merge keys, which the tree does not contain.
    pub(super) has_merges: bool,
}

/// Parses a spec to a tree. Adds problems to `report`, and returns `None` if there is no tree.
pub(super) fn parse_spec<'a>(bytes: &'a [u8], report: &mut DiagnosticCollector) -> Option<SpecTree<'a>> {
    parse_tree(YamlFileKind::Spec, bytes, report)
}

/// Parses any kind of file to a tree, like [`parse_spec`].
pub(crate) fn parse_file<'a>(
    kind: YamlFileKind,
    bytes: &'a [u8],
    report: &mut DiagnosticCollector,
) -> Option<Node<'a>> {
    parse_tree(kind, bytes, report).map(|tree| tree.root)
}

fn parse_tree<'a>(kind: YamlFileKind, bytes: &'a [u8], report: &mut DiagnosticCollector) -> Option<SpecTree<'a>> {
    let text = match validate_text(kind, bytes) {
        Ok(text) => text,
        Err(problem) => {
            report.add(*problem);
            return None;
        }
    };
    YamlTreeBuilder::new(kind, text, report).build()
}

/// Checks the bytes and returns them as text. All YAML readers agree on the lines and characters of this text.
fn validate_text(kind: YamlFileKind, bytes: &[u8]) -> Result<&str, Box<Diagnostic>> {
    let noun = kind.noun();
    if bytes.len() > MAX_BYTES {
        let message = format!("the {noun} has {} bytes, but at most {MAX_BYTES} are allowed", bytes.len());
        return Err(Box::new(Diagnostic::without_span(Code::TooLarge, message)));
    }
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let good = bytes.utf8_chunks().next().map_or("", |chunk| chunk.valid());
            let span = span_at(good, error.valid_up_to(), 1);
            return Err(Box::new(Diagnostic::error(
                Code::NotUtf8,
                span,
                format!("the {noun} is not UTF-8 from here on"),
            )));
        }
    };
    match text.char_indices().find(|(at, c)| is_forbidden(*at, *c)) {
        None => Ok(text),
        Some((at, c)) => {
            let message = format!("the character U+{:04X} is not allowed in a {noun}", u32::from(c));
            let problem = Diagnostic::error(Code::ForbiddenCharacter, span_at(text, at, c.len_utf8()), message);
            Err(Box::new(problem.hint("write it as an escape in double quotes, or remove it")))
        }
    }
}

/// Returns whether `c` is a control character, or a line break for some YAML readers only.
fn is_forbidden(at: usize, c: char) -> bool {
    match c {
        '\t' | '\n' | '\r' => false,
        '\u{feff}' => at != 0,
        '\u{2028}' | '\u{2029}' => true,
        c => c.is_control(),
    }
}

/// Returns the span of `length` bytes at byte `at` of `text`.
fn span_at(text: &str, at: usize, length: usize) -> Span {
    let before = text.get(..at).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    Span {
        start: saturating_u32(at),
        end: saturating_u32(at + length),
        line: saturating_u32(before.matches('\n').count() + 1),
        column: saturating_u32(before[line_start..].chars().count() + 1),
        file: 0,
    }
}

fn saturating_u32(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// A collection whose end has not been parsed yet.
struct OpenCollection<'a> {
    start: Span,
    head: Span,
    block: bool,
    /// The ID that aliases refer to; 0 if the collection has no anchor.
    anchor: usize,
    content: CollectionContent<'a>,
}

enum CollectionContent<'a> {
    Seq(Vec<Node<'a>>),
    Map { entries: Vec<(YamlKey<'a>, Node<'a>)>, key: PendingKey<'a>, seen: HashMap<Cow<'a, str>, Span> },
}

/// A key of a map whose value has not been parsed yet.
enum PendingKey<'a> {
    None,
    Key(YamlKey<'a>),
    /// A key that occurred before; its value is dropped.
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

/// Parsing stopped; the problem was reported.
struct ParseStopped;

struct YamlTreeBuilder<'a, 'r> {
    kind: YamlFileKind,
    text: &'a str,
    report: &'r mut DiagnosticCollector,
    open: Vec<OpenCollection<'a>>,
    root: Option<Node<'a>>,
    nodes: usize,
    documents: usize,
    /// The completed values that have an anchor.
    anchored: HashMap<usize, Node<'a>>,
    /// Number of bytes of text that aliases have repeated so far.
    alias_bytes: usize,
    /// True if merge keys were replaced.
    has_merges: bool,
}

impl<'a, 'r> YamlTreeBuilder<'a, 'r> {
    fn new(kind: YamlFileKind, text: &'a str, report: &'r mut DiagnosticCollector) -> Self {
        let (open, anchored) = (Vec::new(), HashMap::new());
        Self {
            kind,
            text,
            report,
            open,
            root: None,
            nodes: 0,
            documents: 0,
            anchored,
            alias_bytes: 0,
            has_merges: false,
        }
    }

    fn build(mut self) -> Option<SpecTree<'a>> {
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
                Ok((event, span)) => self.handle_event(event, span),
                Err(error) => Err(self.syntax_error(&error)),
            };
            if step.is_err() {
                return None;
            }
        }
        if self.root.is_none() {
            let start = span_at(self.text, 0, 0);
            let problem = Diagnostic::error(Code::Empty, start, format!("the {} is empty", self.kind.noun()));
            self.report.add(problem);
        }
        let has_merges = self.has_merges;
        self.root.map(|root| SpecTree { root, has_merges })
    }

    fn handle_event(&mut self, event: Event<'a>, at: granit_parser::Span) -> Result<(), ParseStopped> {
        let span = convert_span(at);
        if event.tag().is_some() {
            let tag = at.tag_span().map_or(span, convert_span);
            self.report_error(Code::Tag, tag, &format!("tags are not allowed in a {}", self.kind.noun()))?;
        }
        match event {
            Event::DocumentStart(..) => self.start_document(span),
            Event::Anchor(..) => Ok(()),
            Event::Alias(id) => self.expand_alias(span, id),
            Event::UnresolvedAlias(_) => {
                self.report_error(Code::Alias, span, "this alias names no anchor before it")?;
                self.add_scalar(span, YamlValue::Invalid, 0)
            }
            Event::Scalar(text, style, anchor, _) => {
                let plain = style == ScalarStyle::Plain;
                // The parser returns an empty value as `~`; serde_yaml reads it as an empty string.
                let nothing = plain && text == "~" && self.text.get(at.byte_range().unwrap_or_default()) != Some("~");
                let text = if nothing { Cow::Borrowed("") } else { text };
                self.add_scalar(span, YamlValue::Scalar { text, plain }, anchor)
            }
            Event::SequenceStart(style, anchor, _) => {
                self.start_collection(span, style == StructureStyle::Block, anchor, CollectionContent::Seq(Vec::new()))
            }
            Event::MappingStart(style, anchor, _) => {
                let content =
                    CollectionContent::Map { entries: Vec::new(), key: PendingKey::None, seen: HashMap::new() };
                self.start_collection(span, style == StructureStyle::Block, anchor, content)
            }
            Event::SequenceEnd | Event::MappingEnd => self.end_collection(span),
            _ => Ok(()),
        }
    }

    /// Reports an error after which parsing can continue, unless the report is full.
    fn report_error(&mut self, code: Code, span: Span, message: &str) -> Result<(), ParseStopped> {
        self.report.add(Diagnostic::error(code, span, message).hint("write the value out in plain YAML"));
        if self.report.is_full() { Err(ParseStopped) } else { Ok(()) }
    }

    fn stop(&mut self, problem: Diagnostic) -> ParseStopped {
        self.report.add(problem);
        ParseStopped
    }

    fn start_document(&mut self, span: Span) -> Result<(), ParseStopped> {
        self.documents += 1;
        if self.documents == 1 {
            return Ok(());
        }
        let message = format!("a second document is not allowed in a {}", self.kind.noun());
        Err(self.stop(Diagnostic::error(Code::SecondDocument, span, message)))
    }

    /// Adds a scalar: as a key if the innermost map expects one, otherwise as a value.
    fn add_scalar(&mut self, span: Span, value: YamlValue<'a>, anchor: usize) -> Result<(), ParseStopped> {
        self.count_nodes(1, span)?;
        self.store_anchor(anchor, || Node { span, head: span, value: value.clone() })?;
        match self.open.last_mut().map(|open| &mut open.content) {
            Some(CollectionContent::Map { key: key @ PendingKey::None, seen, .. }) => {
                let text = match value {
                    YamlValue::Scalar { text, .. } => text,
                    _ => Cow::Borrowed(""),
                };
                match seen.insert(text.clone(), span) {
                    None => *key = PendingKey::Key(YamlKey { span, text }),
                    Some(first) => {
                        *key = PendingKey::Duplicate(span);
                        let message = format!("the key {} occurs twice in one map", quoted(&text));
                        self.report
                            .add(Diagnostic::error(Code::DuplicateKey, span, message).label(first, "first here"));
                        if self.report.is_full() {
                            return Err(ParseStopped);
                        }
                    }
                }
            }
            _ => {
                let head = self.head_span(span);
                self.add_node(Node { span, head, value });
            }
        }
        Ok(())
    }

    /// Replaces an alias with the value of its anchor.
    fn expand_alias(&mut self, span: Span, id: usize) -> Result<(), ParseStopped> {
        let Some(anchored_value) = self.anchored.get(&id) else {
            self.report_error(Code::Alias, span, "this alias is inside the value that it names")?;
            return self.add_scalar(span, YamlValue::Invalid, 0);
        };
        let depth = MAX_DEPTH.saturating_sub(self.open.len());
        let (nodes, bytes) = (MAX_NODES - self.nodes, MAX_ALIAS_BYTES - self.alias_bytes);
        let Some((nodes, bytes)) = anchored_value.measure_within(nodes, bytes, depth) else {
            let problem = "the aliases up to here expand to too many values, or to values that are nested too deep";
            let problem = Diagnostic::error(Code::Alias, span, problem);
            return Err(self.stop(problem.hint("use fewer aliases")));
        };
        let value = anchored_value.value.clone();
        self.alias_bytes += bytes;
        if matches!(value, YamlValue::Scalar { .. }) {
            return self.add_scalar(span, value, 0);
        }
        if let Some(OpenCollection { content: CollectionContent::Map { key: PendingKey::None, .. }, .. }) =
            self.open.last()
        {
            return Err(self.stop(complex_key(span)));
        }
        self.count_nodes(nodes, span)?;
        let head = self.head_span(span);
        self.add_node(Node { span, head, value });
        Ok(())
    }

    /// Keeps a copy of an anchor's value, which counts towards the limits like the value itself.
    fn store_anchor(&mut self, anchor: usize, node: impl FnOnce() -> Node<'a>) -> Result<(), ParseStopped> {
        if anchor == 0 {
            return Ok(());
        }
        let node = node();
        if self.anchored.len() >= MAX_ANCHORS {
            let problem = format!("the {} has more than {MAX_ANCHORS} anchors", self.kind.noun());
            return Err(self.stop(Diagnostic::error(Code::Alias, node.span, problem).hint("use fewer anchors")));
        }
        let nodes = node.measure_within(usize::MAX, usize::MAX, usize::MAX).map_or(0, |(nodes, _)| nodes);
        self.count_nodes(nodes, node.span)?;
        self.anchored.insert(anchor, node);
        Ok(())
    }

    /// Replaces merge keys by the entries of their maps. The keys of the map itself take precedence, then those of
    /// earlier maps.
    fn expand_merges(&mut self, entries: MapEntries<'a>) -> Result<MapEntries<'a>, ParseStopped> {
        if self.kind != YamlFileKind::Spec || entries.iter().all(|(key, _)| key.text != MERGE_KEY) {
            return Ok(entries);
        }
        self.has_merges = true;
        let (merges, mut own): (MapEntries<'_>, MapEntries<'_>) =
            entries.into_iter().partition(|(key, _)| key.text == MERGE_KEY);
        let mut known: HashSet<Cow<'_, str>> = own.iter().map(|(key, _)| key.text.clone()).collect();
        for (key, merged) in merges {
            let sources = match merged.value {
                YamlValue::Seq(items) => items,
                _ => vec![merged],
            };
            for source in sources {
                match source.value {
                    YamlValue::Map(entries) => {
                        own.extend(entries.into_iter().filter(|(key, _)| known.insert(key.text.clone())));
                    }
                    YamlValue::Invalid => {}
                    _ => self.report_error(Code::Alias, key.span, "`<<` needs a map, or a list of maps")?,
                }
            }
        }
        Ok(own)
    }

    fn start_collection(
        &mut self,
        start: Span,
        block: bool,
        anchor: usize,
        content: CollectionContent<'a>,
    ) -> Result<(), ParseStopped> {
        self.count_nodes(1, start)?;
        if let Some(OpenCollection { content: CollectionContent::Map { key: PendingKey::None, .. }, .. }) =
            self.open.last()
        {
            return Err(self.stop(complex_key(start)));
        }
        if self.open.len() == MAX_DEPTH {
            return Err(self.stop(too_deep(start)));
        }
        let head = self.head_span(start);
        self.open.push(OpenCollection { start, head, block, anchor, content });
        Ok(())
    }

    fn end_collection(&mut self, end: Span) -> Result<(), ParseStopped> {
        let Some(OpenCollection { start, head, block, anchor, content }) = self.open.pop() else {
            return Ok(());
        };
        let (value, last) = match content {
            CollectionContent::Seq(items) => {
                let last = items.last().map(|item| item.span.end);
                (YamlValue::Seq(items), last)
            }
            CollectionContent::Map { entries, .. } => {
                let last = entries.last().map(|(key, value)| value.span.end.max(key.span.end));
                (YamlValue::Map(self.expand_merges(entries)?), last)
            }
        };
        // The parser ends a block collection at the start of whatever follows it.
        let end = if block { last.unwrap_or(start.end) } else { end.end };
        let node = Node { span: Span { end: end.max(start.end), ..start }, head, value };
        self.store_anchor(anchor, || node.clone())?;
        self.add_node(node);
        Ok(())
    }

    /// Returns the position for messages about a value that starts at `start`.
    fn head_span(&self, start: Span) -> Span {
        match self.open.last() {
            Some(OpenCollection { content: CollectionContent::Map { key, .. }, .. }) => key.span().unwrap_or(start),
            _ => start,
        }
    }

    fn add_node(&mut self, node: Node<'a>) {
        match self.open.last_mut().map(|open| &mut open.content) {
            None => self.root = Some(node),
            Some(CollectionContent::Seq(items)) => items.push(node),
            Some(CollectionContent::Map { entries, key, .. }) => {
                if let PendingKey::Key(key) = std::mem::replace(key, PendingKey::None) {
                    entries.push((key, node));
                }
            }
        }
    }

    fn count_nodes(&mut self, nodes: usize, span: Span) -> Result<(), ParseStopped> {
        self.nodes += nodes;
        if self.nodes <= MAX_NODES {
            return Ok(());
        }
        let message = format!("the {} has more than {MAX_NODES} values", self.kind.noun());
        Err(self.stop(Diagnostic::error(Code::TooManyValues, span, message)))
    }

    fn syntax_error(&mut self, error: &ScanError) -> ParseStopped {
        let span = span_between(error.marker(), error.marker());
        let problem = match error.kind() {
            ErrorKind::RecursionLimitExceeded => too_deep(span),
            ErrorKind::DirectiveDisallowed => {
                let message = format!("`%` directives are not allowed in a {}", self.kind.noun());
                Diagnostic::error(Code::Directive, span, message)
            }
            _ => Diagnostic::error(Code::Syntax, span, error.info()),
        };
        self.stop(problem)
    }
}

fn complex_key(span: Span) -> Diagnostic {
    Diagnostic::error(Code::ComplexKey, span, "a key must be a scalar, not a list or a map")
}

fn too_deep(span: Span) -> Diagnostic {
    Diagnostic::error(Code::TooDeep, span, format!("values are nested more than {MAX_DEPTH} deep"))
}

fn convert_span(span: granit_parser::Span) -> Span {
    span_between(&span.start, &span.end)
}

fn span_between(start: &Marker, end: &Marker) -> Span {
    let offset = |marker: &Marker| saturating_u32(marker.byte_offset().unwrap_or(0));
    Span {
        start: offset(start),
        end: offset(end),
        line: saturating_u32(start.line()),
        column: saturating_u32(start.col() + 1),
        file: 0,
    }
}
