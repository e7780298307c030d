//! Reads JUnit XML of other tools: parses the tree of suites as a stream and flattens it. The formats differ
//! between tools; this module reads their common part (<https://github.com/testmoapp/junitxml>) and ignores the
//! rest. It rejects files with a document type or a custom entity, and malformed files.

use std::time::Duration;

use quick_xml::Reader;
use quick_xml::encoding::EncodingError;
use quick_xml::escape::resolve_predefined_entity;
use quick_xml::events::attributes::AttrError;
use quick_xml::events::{BytesRef, BytesStart, Event};

use super::SourceLocation;

/// Maximum number of cases in a file.
const MAX_CASES: usize = 50_000;
/// Maximum nesting of elements.
const MAX_DEPTH: usize = 32;
/// Maximum number of attributes of an element.
const MAX_ATTRIBUTES: usize = 32;
/// Maximum number of bytes that are kept of a text, from its beginning.
const MAX_TEXT: usize = 16 << 10;
/// Maximum number of characters that are kept of an attribute.
const MAX_ATTRIBUTE: usize = 4 << 10;

/// A suite without its nested suites.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::report) struct JunitSuite {
    /// The name, after the names of the enclosing suites.
    pub name: String,
    /// The cases of the suite.
    pub cases: Vec<JunitCase>,
    /// The duration as reported.
    pub time: Option<Duration>,
}

/// A test case.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::report) struct JunitCase {
    /// The name of the case.
    pub name: String,
    /// The class name of the case.
    pub class: Option<String>,
    /// The duration as reported.
    pub time: Option<Duration>,
    /// The location of the case.
    pub location: Option<SourceLocation>,
    /// The results; empty if the case passed.
    pub results: Vec<JunitCaseResult>,
    /// The standard output of the case.
    pub stdout: String,
    /// The standard error of the case.
    pub stderr: String,
}

/// A result of a case. A case without results passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::report) struct JunitCaseResult {
    /// The kind of the result.
    pub kind: JunitResultKind,
    /// The short message.
    pub message: Option<String>,
    /// The type, in the tool's terms.
    pub type_name: Option<String>,
    /// The detailed message.
    pub text: String,
}

/// The kind of a case's result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::report) enum JunitResultKind {
    Skipped,
    Failure,
    Error,
    /// A failed attempt of a case that passed in the end.
    FlakyFailure,
    FlakyError,
    /// A failed attempt of a case that never passed.
    RerunFailure,
    RerunError,
}

impl JunitResultKind {
    fn from_element_name(element: &[u8]) -> Option<Self> {
        Some(match element {
            b"skipped" => Self::Skipped,
            b"failure" => Self::Failure,
            b"error" => Self::Error,
            b"flakyFailure" => Self::FlakyFailure,
            b"flakyError" => Self::FlakyError,
            b"rerunFailure" => Self::RerunFailure,
            b"rerunError" => Self::RerunError,
            _ => return None,
        })
    }
}

impl JunitCase {
    /// Returns the final failure or error of the case, if there is one.
    pub(in crate::report) fn failure(&self) -> Option<&JunitCaseResult> {
        self.results.iter().find(|end| matches!(end.kind, JunitResultKind::Failure | JunitResultKind::Error))
    }
}

/// The reason why a file cannot be read.
#[derive(Debug, Clone, thiserror::Error)]
pub(in crate::report) enum JunitReadError {
    /// The file is not UTF-8.
    #[error("it is not UTF-8: {0}")]
    NotUtf8(#[from] std::str::Utf8Error),
    /// The file is malformed, or contains unsupported or too many elements.
    #[error("line {line}: {source}")]
    Invalid { line: usize, source: JunitSyntaxError },
    /// The root element is missing or not closed.
    #[error("it ends before the end of its root, or has none")]
    Incomplete,
}

/// The reason why a part of a file cannot be read.
#[derive(Debug, Clone, thiserror::Error)]
pub(in crate::report) enum JunitSyntaxError {
    #[error(transparent)]
    Xml(#[from] quick_xml::Error),
    #[error(transparent)]
    Encoding(#[from] EncodingError),
    #[error(transparent)]
    Attribute(#[from] AttrError),
    /// The file has a document type, which could define entities.
    #[error("it has a document type, but entities that a file declares are not supported")]
    DocumentType,
    /// An entity is not predefined.
    #[error("the entity `{name}` is not XML's own")]
    UnknownEntity { name: String },
    /// The declared encoding is not UTF-8.
    #[error("its encoding is {encoding}, and UTF-8 is expected")]
    UnsupportedEncoding { encoding: String },
    /// There is an element after the root.
    #[error("it has a second root")]
    SecondRoot,
    /// The root element does not belong to JUnit XML.
    #[error("its root is `{name}`, and `testsuites` or `testsuite` is expected")]
    UnexpectedRoot { name: String },
    /// There is text before or after the root element.
    #[error("there is text outside of its root")]
    TextOutsideRoot,
    /// Elements are nested too deeply.
    #[error("elements are nested more than {MAX_DEPTH} deep")]
    NestedTooDeep,
    /// There are too many cases.
    #[error("it has more than {MAX_CASES} cases")]
    TooManyCases,
    /// An element has too many attributes.
    #[error("an element has more than {MAX_ATTRIBUTES} attributes")]
    TooManyAttributes,
}

/// Parses a file.
///
/// # Errors
/// The file is invalid.
pub(in crate::report) fn parse(bytes: &[u8]) -> Result<Vec<JunitSuite>, JunitReadError> {
    let text = std::str::from_utf8(bytes)?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut parser = JunitParser::default();
    let mut reader = Reader::from_str(text);
    loop {
        let at = reader.buffer_position();
        let event = reader.read_event();
        let event = event.map_err(|error| error_at(text, reader.error_position(), error.into()))?;
        if matches!(event, Event::Eof) {
            return parser.finish();
        }
        parser.handle_event(event).map_err(|error| error_at(text, at, error))?;
    }
}

/// Returns the error for byte `at` of the text.
fn error_at(text: &str, at: u64, source: JunitSyntaxError) -> JunitReadError {
    let before = text.as_bytes().iter().take(usize::try_from(at).unwrap_or(usize::MAX));
    JunitReadError::Invalid { line: before.filter(|byte| **byte == b'\n').count() + 1, source }
}

/// The kind of an open element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OpenElement {
    TestSuites,
    TestSuite,
    TestCase,
    CaseResult,
    Stdout,
    Stderr,
    /// An ignored element, including its content.
    Ignored,
}

/// The state of the parser.
#[derive(Default)]
struct JunitParser {
    open_elements: Vec<OpenElement>,
    /// The open suites, as indices into `suites`.
    open_suites: Vec<usize>,
    suites: Vec<JunitSuite>,
    case_count: usize,
    is_root_closed: bool,
}

impl JunitParser {
    fn handle_event(&mut self, event: Event<'_>) -> Result<(), JunitSyntaxError> {
        match event {
            Event::Start(element) => self.start_element(&element),
            Event::Empty(element) => self.start_element(&element).map(|()| self.end_element()),
            Event::End(_) => {
                self.end_element();
                Ok(())
            }
            Event::Text(text) => self.add_text(&text.xml10_content()?),
            Event::CData(text) => self.add_text(&text.xml10_content()?),
            Event::GeneralRef(entity) => self.add_entity(&entity),
            Event::DocType(_) => Err(JunitSyntaxError::DocumentType),
            Event::Decl(declaration) => require_utf8(declaration.encoding()),
            Event::Comment(_) | Event::PI(_) | Event::Eof => Ok(()),
        }
    }

    fn start_element(&mut self, element: &BytesStart<'_>) -> Result<(), JunitSyntaxError> {
        if self.open_elements.len() >= MAX_DEPTH {
            return Err(JunitSyntaxError::NestedTooDeep);
        }
        let name = element.local_name();
        let attributes = JunitAttributes::from_element(element)?;
        let open = match (self.open_elements.last(), name.as_ref()) {
            (None, _) if self.is_root_closed => return Err(JunitSyntaxError::SecondRoot),
            (None, b"testsuites") => OpenElement::TestSuites,
            (None | Some(OpenElement::TestSuites | OpenElement::TestSuite), b"testsuite") => {
                self.start_suite(attributes)
            }
            (None, other) => {
                return Err(JunitSyntaxError::UnexpectedRoot { name: String::from_utf8_lossy(other).into_owned() });
            }
            (Some(OpenElement::TestSuite), b"testcase") => self.start_case(attributes)?,
            (Some(OpenElement::TestCase), b"system-out") => OpenElement::Stdout,
            (Some(OpenElement::TestCase), b"system-err") => OpenElement::Stderr,
            (Some(OpenElement::TestCase), other) => self.add_case_result(other, attributes),
            _ => OpenElement::Ignored,
        };
        self.open_elements.push(open);
        Ok(())
    }

    fn start_suite(&mut self, attributes: JunitAttributes) -> OpenElement {
        let parent_name =
            self.open_suites.last().and_then(|index| self.suites.get(*index)).map(|suite| suite.name.clone());
        let name = attributes.name.unwrap_or_default();
        let name = match parent_name.filter(|around| !around.is_empty()) {
            Some(around) => super::super::report_text::truncate_chars(&format!("{around}/{name}"), MAX_ATTRIBUTE),
            None => name,
        };
        self.open_suites.push(self.suites.len());
        self.suites.push(JunitSuite { name, cases: Vec::new(), time: attributes.time });
        OpenElement::TestSuite
    }

    fn start_case(&mut self, attributes: JunitAttributes) -> Result<OpenElement, JunitSyntaxError> {
        self.case_count += 1;
        if self.case_count > MAX_CASES {
            return Err(JunitSyntaxError::TooManyCases);
        }
        let JunitAttributes { name, class, time, file, line, .. } = attributes;
        let path = file.as_deref().and_then(super::normalize_repository_path);
        let place = path.map(|path| SourceLocation { path, line, column: None });
        let case = JunitCase { name: name.unwrap_or_default(), class, time, location: place, ..JunitCase::default() };
        if let Some(suite) = self.open_suites.last().and_then(|index| self.suites.get_mut(*index)) {
            suite.cases.push(case);
        }
        Ok(OpenElement::TestCase)
    }

    fn add_case_result(&mut self, element: &[u8], attributes: JunitAttributes) -> OpenElement {
        let Some((kind, case)) = JunitResultKind::from_element_name(element).zip(self.last_case()) else {
            return OpenElement::Ignored;
        };
        case.results.push(JunitCaseResult {
            kind,
            message: attributes.message,
            type_name: attributes.type_name,
            text: String::new(),
        });
        OpenElement::CaseResult
    }

    fn last_case(&mut self) -> Option<&mut JunitCase> {
        self.open_suites.last().and_then(|index| self.suites.get_mut(*index))?.cases.last_mut()
    }

    fn end_element(&mut self) {
        if self.open_elements.pop() == Some(OpenElement::TestSuite) {
            self.open_suites.pop();
        }
        self.is_root_closed = self.open_elements.is_empty();
    }

    fn add_text(&mut self, text: &str) -> Result<(), JunitSyntaxError> {
        let Some(open) = self.open_elements.last().copied() else {
            let is_blank = text.trim().is_empty();
            return if is_blank { Ok(()) } else { Err(JunitSyntaxError::TextOutsideRoot) };
        };
        let Some(case) = self.last_case() else { return Ok(()) };
        let kept = match open {
            OpenElement::CaseResult => case.results.last_mut().map(|end| &mut end.text),
            OpenElement::Stdout => Some(&mut case.stdout),
            OpenElement::Stderr => Some(&mut case.stderr),
            _ => None,
        };
        if let Some(kept) = kept {
            push_bounded(kept, text, MAX_TEXT);
        }
        Ok(())
    }

    fn add_entity(&mut self, entity: &BytesRef<'_>) -> Result<(), JunitSyntaxError> {
        if let Some(c) = entity.resolve_char_ref()? {
            return self.add_text(c.encode_utf8(&mut [0; 4]));
        }
        let name = entity.decode()?;
        match resolve_predefined_entity(&name) {
            Some(text) => self.add_text(text),
            None => Err(JunitSyntaxError::UnknownEntity { name: name.into_owned() }),
        }
    }

    fn finish(self) -> Result<Vec<JunitSuite>, JunitReadError> {
        match self.is_root_closed {
            true => Ok(self.suites),
            false => Err(JunitReadError::Incomplete),
        }
    }
}

fn push_bounded(kept: &mut String, text: &str, max_bytes: usize) {
    let mut end = text.len().min(max_bytes.saturating_sub(kept.len()));
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    kept.push_str(&text[..end]);
}

/// Rejects declared encodings other than UTF-8, because the file was decoded as UTF-8.
fn require_utf8(declared: Option<Result<std::borrow::Cow<'_, [u8]>, AttrError>>) -> Result<(), JunitSyntaxError> {
    let Some(declared) = declared else { return Ok(()) };
    let declared = declared?;
    match declared.eq_ignore_ascii_case(b"utf-8") || declared.eq_ignore_ascii_case(b"us-ascii") {
        true => Ok(()),
        false => {
            Err(JunitSyntaxError::UnsupportedEncoding { encoding: String::from_utf8_lossy(&declared).into_owned() })
        }
    }
}

/// The supported attributes.
#[derive(Default)]
struct JunitAttributes {
    name: Option<String>,
    class: Option<String>,
    time: Option<Duration>,
    file: Option<String>,
    line: Option<u64>,
    message: Option<String>,
    type_name: Option<String>,
}

impl JunitAttributes {
    fn from_element(element: &BytesStart<'_>) -> Result<Self, JunitSyntaxError> {
        let mut found = Self::default();
        for (index, attribute) in element.attributes().enumerate() {
            // The parser compares each attribute with all earlier ones, which is quadratic without a limit.
            if index == MAX_ATTRIBUTES {
                return Err(JunitSyntaxError::TooManyAttributes);
            }
            let attribute = attribute?;
            let value = attribute.normalized_value(quick_xml::XmlVersion::Implicit1_0)?;
            let text = || super::super::report_text::truncate_chars(&value, MAX_ATTRIBUTE);
            match attribute.key.as_ref() {
                b"name" => found.name = Some(text()),
                b"classname" => found.class = Some(text()),
                b"time" => found.time = parse_seconds(&value),
                b"file" => found.file = Some(text()),
                b"line" => found.line = value.trim().parse().ok().filter(|line| *line > 0),
                b"message" => found.message = Some(text()),
                b"type" => found.type_name = Some(text()),
                _ => {}
            }
        }
        Ok(found)
    }
}

/// Parses seconds as tools write them: `1.5`, `1,234.5`. Returns `None` for other text.
fn parse_seconds(text: &str) -> Option<Duration> {
    let seconds: f64 = text.trim().replace(',', "").parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok().filter(|time| time.as_secs() < 1 << 32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse_error(text: &str) -> String {
        parse(text.as_bytes()).expect_err(text).to_string()
    }

    #[test]
    fn parses_pytest_report() {
        let text = r#"<?xml version="1.0" encoding="utf-8"?><testsuites><testsuite name="pytest" errors="0" failures="1"
            skipped="1" tests="3" time="0.052" timestamp="2026-01-02T03:04:05" hostname="h"><testcase classname="tests.test_a"
            name="test_ok" time="0.001" file="tests/test_a.py" line="3"/><testcase classname="tests.test_a" name="test_bad[&lt;x&gt;]"
            time="0.002"><failure message="assert 1 == 2&#10;x">def test():&#x9;<![CDATA[<&]]> &amp; E   assert</failure>
            <system-out>said</system-out></testcase><testcase name="s"><skipped type="pytest.skip" message="no"/></testcase>
            </testsuite></testsuites>"#;
        let suites = parse(text.as_bytes()).expect("it is one");
        assert_eq!((suites.len(), suites[0].cases.len()), (1, 3));
        let [ok, bad, skipped] = suites[0].cases.as_slice() else { panic!("three") };
        assert_eq!(ok.location, Some(SourceLocation { path: "tests/test_a.py".into(), line: Some(3), column: None }));
        assert_eq!((bad.name.as_str(), bad.stdout.as_str()), ("test_bad[<x>]", "said"));
        let failure = bad.failure().expect("a failure");
        assert_eq!(failure.text, "def test():\t<& & E   assert");
        assert_eq!(skipped.results[0].kind, JunitResultKind::Skipped);
    }

    #[test]
    fn nested_suite_names_include_parents() {
        let text =
            "<testsuite name='a'><testsuite name='b'><testcase name='x'/></testsuite><testcase name='y'/></testsuite>";
        let suites = parse(text.as_bytes()).expect("suites");
        let names: Vec<(&str, &str)> =
            suites.iter().map(|suite| (suite.name.as_str(), suite.cases[0].name.as_str())).collect();
        assert_eq!(names, [("a", "y"), ("a/b", "x")]);
    }

    #[test]
    fn rejects_invalid_reports_with_reason() {
        let laughs =
            "<?xml version='1.0'?><!DOCTYPE a [<!ENTITY b 'ha'><!ENTITY c '&b;&b;'>]><testsuites>&c;</testsuites>";
        let cases = [
            (laughs, "line 1: it has a document type"),
            ("<testsuites>&c;</testsuites>", "the entity `c`"),
            ("<html/>", "its root is `html`"),
            ("", "it ends before the end of its root"),
            ("{}", "there is text outside of its root"),
            ("<testsuites>\n<testsuite></testsuites>", "line 2: "),
            ("<testsuites>", "it ends before the end of its root"),
            ("<testsuites/><testsuites/>", "a second root"),
            ("<?xml version='1.0' encoding='UTF-16'?><testsuites/>", "its encoding is UTF-16"),
            ("<testsuite name='&nope;'/>", "nope"),
        ];
        for (text, expected) in cases {
            let problem = parse_error(text);
            assert!(problem.contains(expected), "{text}: {problem}");
        }
        assert!(parse(b"<testsuites>\xff</testsuites>").expect_err("no text").to_string().contains("not UTF-8"));
        let deep = "<testsuite>".repeat(MAX_DEPTH + 1);
        assert!(parse_error(&deep).contains("nested more than"));
        let many: String = (0..=MAX_ATTRIBUTES).map(|n| format!(" a{n}='1'")).collect();
        assert!(parse_error(&format!("<testsuites{many}/>")).contains("attributes"));
        let many = "<testcase/>".repeat(MAX_CASES + 1);
        assert!(parse_error(&format!("<testsuite>{many}</testsuite>")).contains("more than 50000 cases"));
    }

    #[test]
    fn truncates_long_texts() {
        let text = format!(
            "<testsuite><testcase><failure message='{0}'>{0}é{0}</failure></testcase></testsuite>",
            "x".repeat(MAX_TEXT - 1)
        );
        let suites = parse(text.as_bytes()).expect("a suite");
        let failure = suites[0].cases[0].failure().expect("a failure");
        assert_eq!(failure.text.len(), MAX_TEXT - 1);
        assert_eq!(failure.message.as_ref().map(|message| message.chars().count()), Some(MAX_ATTRIBUTE + 1));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }

        #[test]
        fn arbitrary_markup_never_panics(parts in prop::collection::vec(prop::sample::select(vec![
            "<testsuites>", "</testsuites>", "<testsuite name='a'>", "</testsuite>", "<testcase>", "</testcase>", "<testcase/>",
            "<failure>", "</failure>", "<error/>", "text", "&amp;", "&#0;", "&#xD800;", "<![CDATA[", "]]>", "<!--", "-->", "<", ">", "<?x?>", "'",
        ]), 0..24)) {
            let _ = parse(parts.concat().as_bytes());
        }
    }
}
