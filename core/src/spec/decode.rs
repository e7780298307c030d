//! Decodes the YAML tree of a spec to a [`Spec`] and reports all problems on the way.
//!
//! Scalars are interpreted as serde_yaml does. Afterwards serde_yaml itself parses the same bytes, and a spec with a
//! different result is rejected. [`super::rules`] checks constraints between values.

use std::str::FromStr;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::caches::{CacheMap, WrittenCache};
use super::command::SpecCommand;
use super::diagnostic::{Code, Diagnostic};
use super::diagnostic_collector::DiagnosticCollector;
use super::needed_paths::{NeededPathMap, Prepare, WrittenPath};
use super::size::ByteSize;
use super::span::{Span, Spanned};
use super::spec_types::{
    Defaults, Expect, IncludedSpec, Profile, Reports, Skill, SpannedMap, Spec, SqlLimits, SqlStep, Step, StepFiles,
    StepLimits, ToolCheck, Toolchain,
};
use super::yaml::{self, Node, SpecTree, YamlKey, YamlValue};
use super::yaml_agreement;
use crate::model::names::{BadName, EnvName, ProfileName, SkillName, StepName, ToolchainName, VarName};
use crate::model::plan::{Determinism, Ignored, Leaks, Network, ReadOnly, RelPath};
use crate::model::tier::Tier;
use crate::spec::spec_text::SpecText;
use crate::sql::sql_policy::{Dialect, SqlPolicy};
use crate::text::escape::quoted;

/// Decodes as much of a file as possible, and compares the result with that of serde_yaml. The result is complete if
/// `report` has no errors. All positions are in the file with this number.
pub(super) fn decode_file<T: SpecFileContent>(bytes: &[u8], file: u16, report: &mut DiagnosticCollector) -> Option<T> {
    let mut own = DiagnosticCollector::default();
    let decoded = yaml::parse_spec(bytes, &mut own).and_then(|SpecTree { mut root, has_merges }| {
        root.set_file(file);
        let decoded = T::decode(&root, &mut own)?;
        if !own.has_errors() && has_merges {
            yaml_agreement::compare_merged_tree(bytes, &root, &mut own);
        } else if !own.has_errors() {
            compare_with_serde_yaml(bytes, &decoded, &root, &mut own);
        }
        Some(decoded)
    });
    report.add_file(own, file);
    decoded
}

/// The content of a whole file.
pub(super) trait SpecFileContent: Decode + DeserializeOwned + Serialize + PartialEq {}
impl SpecFileContent for Spec {}
impl SpecFileContent for IncludedSpec {}

/// Parses the same bytes with serde_yaml and reports an error if the result differs.
fn compare_with_serde_yaml<T: SpecFileContent>(
    bytes: &[u8],
    decoded: &T,
    root: &Node<'_>,
    report: &mut DiagnosticCollector,
) {
    // serde_yaml treats a byte order mark as content; without it, the text is the same.
    match serde_yaml::from_slice::<T>(bytes.strip_prefix(yaml::BOM).unwrap_or(bytes)) {
        Ok(other) if other == *decoded => {}
        Ok(other) => report.add(yaml_agreement::disagreement(difference_span(root, decoded, &other))),
        Err(error) => report.add(yaml_agreement::second_parser_error(bytes, root, &error)),
    }
}

/// Returns the position of the first value that differs between the two results.
fn difference_span(root: &Node<'_>, ours: &impl Serialize, theirs: &impl Serialize) -> Span {
    match (serde_json::to_value(ours), serde_json::to_value(theirs)) {
        (Ok(ours), Ok(theirs)) => first_difference(root, &ours, &theirs),
        _ => root.head,
    }
}

fn first_difference(node: &Node<'_>, ours: &serde_json::Value, theirs: &serde_json::Value) -> Span {
    use serde_json::Value as Json;
    match (&node.value, ours, theirs) {
        (YamlValue::Map(entries), Json::Object(ours), Json::Object(theirs)) => entries
            .iter()
            .find_map(|(key, value)| match (ours.get(key.text.as_ref()), theirs.get(key.text.as_ref())) {
                (Some(a), Some(b)) if a != b => Some(first_difference(value, a, b)),
                (a, b) if a != b => Some(key.span),
                _ => None,
            })
            .unwrap_or(node.head),
        (YamlValue::Seq(items), Json::Array(ours), Json::Array(theirs)) if ours.len() == theirs.len() => items
            .iter()
            .zip(ours.iter().zip(theirs))
            .find_map(|(item, (a, b))| (a != b).then(|| first_difference(item, a, b)))
            .unwrap_or(node.head),
        (YamlValue::Scalar { .. }, ..) => node.span,
        _ => node.head,
    }
}

/// A type that can be decoded from a node of the tree.
pub(super) trait Decode: Sized {
    /// Decodes the node. Returns `None` and adds an error to `report` if that fails.
    fn decode(node: &Node<'_>, report: &mut DiagnosticCollector) -> Option<Self>;
}

impl<T: Decode> Decode for Spanned<T> {
    fn decode(node: &Node<'_>, report: &mut DiagnosticCollector) -> Option<Self> {
        T::decode(node, report).map(|value| Self::new(value, node.span))
    }
}

impl<T: Decode> Decode for Vec<T> {
    fn decode(node: &Node<'_>, report: &mut DiagnosticCollector) -> Option<Self> {
        match &node.value {
            YamlValue::Seq(items) => Some(items.iter().filter_map(|item| T::decode(item, report)).collect()),
            _ => {
                wrong_type(node, "a list", report);
                None
            }
        }
    }
}

/// A key of a table; keys are always text.
trait TableKey: Sized {
    fn parse(text: &str) -> Result<Self, BadName>;
}

macro_rules! names {
    ($($name:ident),*) => {$(
        impl TableKey for $name {
            fn parse(text: &str) -> Result<Self, BadName> {
                Self::new(text)
            }
        }
        impl Decode for $name {
            fn decode(node: &Node<'_>, report: &mut DiagnosticCollector) -> Option<Self> {
                parse_scalar(node, Code::BadName, report)
            }
        }
    )*};
}
names!(EnvName, ProfileName, SkillName, StepName, ToolchainName, VarName);

impl TableKey for SpecText {
    fn parse(text: &str) -> Result<Self, BadName> {
        Ok(Self(text.to_owned()))
    }
}

impl<K: TableKey, V: Decode> Decode for SpannedMap<K, V> {
    fn decode(node: &Node<'_>, report: &mut DiagnosticCollector) -> Option<Self> {
        let YamlValue::Map(entries) = &node.value else {
            wrong_type(node, "a map", report);
            return None;
        };
        let mut table = Self::default();
        for (key, value) in entries {
            let value = V::decode(value, report);
            match (K::parse(&key.text), value) {
                (Ok(name), Some(value)) => table.0.push((Spanned::new(name, key.span), value)),
                (Ok(_), None) => {}
                (Err(bad), _) => report.add(bad_name(key.span, &bad)),
            }
        }
        Some(table)
    }
}

fn bad_name(span: Span, bad: &BadName) -> Diagnostic {
    let article = if bad.kind.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
    let message = format!("{} is not {article} {}", quoted(&bad.text), bad.kind);
    Diagnostic::error(Code::BadName, span, message).hint(bad.rule)
}

/// Decodes a scalar from its text, quoted or not.
fn parse_scalar<T: FromStr>(node: &Node<'_>, code: Code, report: &mut DiagnosticCollector) -> Option<T>
where
    T::Err: ScalarProblem,
{
    let YamlValue::Scalar { text, .. } = &node.value else {
        wrong_type(node, "text", report);
        return None;
    };
    match text.parse() {
        Ok(value) => Some(value),
        Err(bad) => {
            report.add(T::Err::diagnostic(&bad, code, node.span));
            None
        }
    }
}

/// A parse error of a scalar that can be converted to a diagnostic.
trait ScalarProblem {
    fn diagnostic(&self, code: Code, span: Span) -> Diagnostic;
}

impl ScalarProblem for BadName {
    fn diagnostic(&self, _: Code, span: Span) -> Diagnostic {
        bad_name(span, self)
    }
}

impl Decode for RelPath {
    fn decode(node: &Node<'_>, report: &mut DiagnosticCollector) -> Option<Self> {
        let text = scalar_text(node, report)?;
        match Self::new(text) {
            Ok(path) => Some(path),
            Err(bad) => {
                let message = format!("the path {} {}", quoted(&bad.path), bad.problem);
                report.add(Diagnostic::error(Code::BadPath, node.span, message));
                None
            }
        }
    }
}

impl Decode for bool {
    fn decode(node: &Node<'_>, report: &mut DiagnosticCollector) -> Option<Self> {
        match &node.value {
            YamlValue::Scalar { text, plain: true } if text == "true" => Some(true),
            YamlValue::Scalar { text, plain: true } if text == "false" => Some(false),
            _ => {
                wrong_type(node, "`true` or `false`", report);
                None
            }
        }
    }
}

impl Decode for SpecText {
    fn decode(node: &Node<'_>, report: &mut DiagnosticCollector) -> Option<Self> {
        scalar_text(node, report).map(Self)
    }
}

impl Decode for String {
    fn decode(node: &Node<'_>, report: &mut DiagnosticCollector) -> Option<Self> {
        scalar_text(node, report)
    }
}

/// Returns the text of a scalar as written, even if YAML would give it another type.
fn scalar_text(node: &Node<'_>, report: &mut DiagnosticCollector) -> Option<String> {
    match &node.value {
        YamlValue::Scalar { text, .. } if text.contains('\0') => {
            let message = "a text cannot contain a NUL character";
            report.add(Diagnostic::error(Code::BadValue, node.span, message));
            None
        }
        YamlValue::Scalar { text, .. } => Some(text.clone().into_owned()),
        _ => {
            wrong_type(node, "text", report);
            None
        }
    }
}

/// Implements [`Decode`] for an enum from a list of allowed words.
macro_rules! words {
    ($name:ident, $what:literal, [$($text:literal => $value:expr),*]) => {
        impl Decode for $name {
            fn decode(node: &Node<'_>, report: &mut DiagnosticCollector) -> Option<Self> {
                one_of(node, $what, &[$(($text, $value)),*], report)
            }
        }
    };
}
words!(Network, "`deny` or `allow`", ["deny" => Self::Deny, "allow" => Self::Allow]);
words!(ReadOnly, "`off`, `tracked` or `strict`",
    ["off" => Self::Off, "tracked" => Self::Tracked, "strict" => Self::Strict]);
words!(Leaks, "`ignore`, `warn` or `fail`",
    ["ignore" => Self::Ignore, "warn" => Self::Warn, "fail" => Self::Fail]);
words!(Ignored, "`worktree` or `hidden`", ["worktree" => Self::Worktree, "hidden" => Self::Hidden]);
words!(
    Dialect,
    "`sqlite`, `duckdb`, `postgres` or `mysql`",
    ["sqlite" => Self::Sqlite, "duckdb" => Self::Duckdb, "postgres" => Self::Postgres, "mysql" => Self::Mysql]
);
words!(SqlPolicy, "`read`, `write` or `migrate`",
    ["read" => Self::Read, "write" => Self::Write, "migrate" => Self::Migrate]);
words!(Determinism, "`D0`, `D1` or `D2`", ["D0" => Self::D0, "D1" => Self::D1, "D2" => Self::D2]);

fn one_of<T: Copy>(node: &Node<'_>, what: &str, words: &[(&str, T)], report: &mut DiagnosticCollector) -> Option<T> {
    let YamlValue::Scalar { text, .. } = &node.value else {
        wrong_type(node, what, report);
        return None;
    };
    let found = words.iter().find(|(word, _)| word == text);
    if found.is_none() {
        let message = format!("{} is not one of {what}", quoted(text));
        let problem = Diagnostic::error(Code::BadValue, node.span, message);
        report.add(problem.did_you_mean(text, words.iter().map(|(word, _)| *word)));
    }
    found.map(|(_, value)| *value)
}

impl Decode for Tier {
    fn decode(node: &Node<'_>, report: &mut DiagnosticCollector) -> Option<Self> {
        let number = decode_integer(node, u64::from(u8::MAX), report)?;
        let tier = u8::try_from(number).ok().and_then(|number| Self::try_from(number).ok());
        if tier.is_none() {
            let message = format!("{number} is not a tier; 1 or 2 is expected");
            report.add(Diagnostic::error(Code::BadValue, node.span, message));
        }
        tier
    }
}

macro_rules! integers {
    ($($name:ident),*) => {$(
        impl Decode for $name {
            fn decode(node: &Node<'_>, report: &mut DiagnosticCollector) -> Option<Self> {
                decode_integer(node, $name::MAX.into(), report).and_then(|number| Self::try_from(number).ok())
            }
        }
    )*};
}
integers!(u8, u32, u64);

/// Decodes a whole number from 0 to `most`.
fn decode_integer(node: &Node<'_>, max: u64, report: &mut DiagnosticCollector) -> Option<u64> {
    let number = match &node.value {
        YamlValue::Scalar { text, plain: true } => parse_unsigned(text),
        YamlValue::Scalar { text, plain: false } if parse_unsigned(text).is_some() => {
            let message = format!("expected a whole number, found the text {}", quoted(text));
            report.add(Diagnostic::error(Code::WrongType, node.span, message).hint("write it without quotes"));
            return None;
        }
        _ => None,
    };
    let Some(number) = number else {
        wrong_type(node, "a whole number", report);
        return None;
    };
    if number > max {
        let message = format!("{number} is too large; the maximum is {max}");
        report.add(Diagnostic::error(Code::BadValue, node.span, message));
        return None;
    }
    Some(number)
}

/// Parses a plain scalar as serde_yaml parses a whole number: decimal without leading zeros, or with the prefix `0x`,
/// `0o` or `0b`; with an optional leading `+`.
fn parse_unsigned(text: &str) -> Option<u64> {
    let digits = text.strip_prefix('+').unwrap_or(text);
    for (prefix, radix) in [("0x", 16), ("0o", 8), ("0b", 2)] {
        if let Some(rest) = digits.strip_prefix(prefix) {
            return if rest.starts_with(['+', '-']) { None } else { u64::from_str_radix(rest, radix).ok() };
        }
    }
    let leading_zero = digits.len() > 1 && digits.starts_with('0');
    if leading_zero || digits.starts_with(['+', '-']) { None } else { digits.parse().ok() }
}

impl Decode for ByteSize {
    fn decode(node: &Node<'_>, report: &mut DiagnosticCollector) -> Option<Self> {
        let YamlValue::Scalar { text, plain } = &node.value else {
            wrong_type(node, "a size", report);
            return None;
        };
        if let (true, Some(bytes)) = (*plain, parse_unsigned(text)) {
            return Some(Self(bytes));
        }
        match text.parse() {
            Ok(size) => Some(size),
            Err(bad) => {
                let bad: super::size::SizeParseError = bad;
                let problem = Diagnostic::error(Code::BadValue, node.span, format!("{} is not a size", quoted(text)));
                report.add(problem.hint(bad.to_string()));
                None
            }
        }
    }
}

impl Decode for SpecCommand {
    fn decode(node: &Node<'_>, report: &mut DiagnosticCollector) -> Option<Self> {
        match &node.value {
            YamlValue::Seq(_) => Vec::decode(node, report).map(Self::Words),
            YamlValue::Scalar { .. } if !node.is_null() => SpecText::decode(node, report).map(Self::Line),
            _ => {
                wrong_type(node, "a string or a list of words", report);
                None
            }
        }
    }
}

impl Decode for WrittenCache {
    fn decode(node: &Node<'_>, report: &mut DiagnosticCollector) -> Option<Self> {
        let YamlValue::Map(_) = &node.value else { return RelPath::decode(node, report).map(Self::Path) };
        CacheMap::decode(node, report).map(Self::Map)
    }
}

impl Decode for WrittenPath {
    fn decode(node: &Node<'_>, report: &mut DiagnosticCollector) -> Option<Self> {
        let YamlValue::Map(_) = &node.value else { return RelPath::decode(node, report).map(Self::Path) };
        NeededPathMap::decode(node, report).map(|map| Self::Map(Box::new(map)))
    }
}

fn wrong_type(node: &Node<'_>, expected: &str, report: &mut DiagnosticCollector) {
    let (span, found) = match &node.value {
        YamlValue::Invalid => return,
        _ if node.is_null() => (node.head, "nothing".to_owned()),
        YamlValue::Scalar { text, .. } => (node.span, quoted(text)),
        YamlValue::Seq(_) => (node.head, "a list".to_owned()),
        YamlValue::Map(_) => (node.head, "a map".to_owned()),
    };
    report.add(Diagnostic::error(Code::WrongType, span, format!("expected {expected}, found {found}")));
}

/// The keys of one map, during the decoding of a record.
struct RecordFields<'n, 'a> {
    head: Span,
    /// `None` if the node is not a map, which has already been reported.
    entries: Option<&'n [(YamlKey<'a>, Node<'a>)]>,
}

impl<'n, 'a> RecordFields<'n, 'a> {
    fn open(node: &'n Node<'a>, what: &'static str, known: &[&str], report: &mut DiagnosticCollector) -> Self {
        let entries = match &node.value {
            YamlValue::Map(entries) => Some(entries.as_slice()),
            _ => {
                wrong_type(node, what, report);
                None
            }
        };
        for (key, _) in entries.unwrap_or_default().iter().filter(|(key, _)| !known.contains(&key.text.as_ref())) {
            report.add_with(|| unknown_key(key, what, known));
        }
        let fields = Self { head: node.head, entries };
        // A step without a command and SQL would do nothing and pass.
        let is_set = |name: &str| fields.get(name).is_some_and(|node| !node.is_null());
        if what == Step::NOUN && !is_set("cmd") && !is_set("sql") {
            fields.missing("cmd", report);
        }
        fields
    }

    fn get(&self, name: &str) -> Option<&'n Node<'a>> {
        self.entries.unwrap_or_default().iter().find(|(key, _)| key.text == name).map(|(_, value)| value)
    }

    /// Decodes an optional value; a null value counts as absent.
    fn optional<T: Decode>(&self, name: &str, report: &mut DiagnosticCollector) -> Option<T> {
        let node = self.get(name)?;
        if node.is_null() { None } else { T::decode(node, report) }
    }

    fn required<T: Decode>(&self, name: &str, report: &mut DiagnosticCollector) -> Option<T> {
        match self.get(name) {
            Some(node) => T::decode(node, report),
            None => {
                self.missing(name, report);
                None
            }
        }
    }

    fn missing(&self, name: &str, report: &mut DiagnosticCollector) {
        if self.entries.is_some() {
            let problem = Diagnostic::error(Code::MissingKey, self.head, format!("the key `{name}` is missing"));
            report.add(problem);
        }
    }
}

fn unknown_key(key: &YamlKey<'_>, what: &str, known: &[&str]) -> Diagnostic {
    let message = format!("{what} has no key {}", quoted(&key.text));
    Diagnostic::error(Code::UnknownKey, key.span, message)
        .did_you_mean(&key.text, known.iter().copied())
        .hint(format!("its keys are {}", known.join(", ")))
}

/// A struct that is written as a map with known keys.
pub(super) trait SpecRecord {
    /// The name of the type in messages.
    const NOUN: &'static str;
    /// The allowed keys.
    const KEYS: &'static [&'static str];
}

/// Implements [`Decode`] for a struct by the names of its fields. A field that is not listed causes a compile error. If
/// a `required` key is missing, decoding returns `None`. A missing `kept` key is an error too, but decoding continues
/// with an empty value; otherwise references to the names in it would be reported as unknown. A missing
/// `defaulted` key is an empty value.
macro_rules! record {
    ($name:ident, $what:literal, required [$($required:ident),*], kept [$($kept:ident),*], optional [$($optional:ident),*] $(, defaulted [$($defaulted:ident),*])?) => {
        impl SpecRecord for $name {
            const NOUN: &'static str = $what;
            const KEYS: &'static [&'static str] =
                &[$(stringify!($required),)* $(stringify!($kept),)* $($(stringify!($defaulted),)*)? $(stringify!($optional),)*];
        }
        impl Decode for $name {
            fn decode(node: &Node<'_>, report: &mut DiagnosticCollector) -> Option<Self> {
                let fields = RecordFields::open(node, Self::NOUN, Self::KEYS, report);
                $(let $required = fields.required(stringify!($required), report);)*
                $(let $kept = fields.required(stringify!($kept), report);)*
                $(let $optional = fields.optional(stringify!($optional), report);)*
                $($(let $defaulted: Option<_> = fields.optional(stringify!($defaulted), report);)*)?
                Some(Self {
                    $($required: $required?,)*
                    $($kept: $kept.unwrap_or_default(),)*
                    $($($defaulted: $defaulted.unwrap_or_default(),)*)?
                    $($optional,)*
                })
            }
        }
    };
}

record!(Spec, "a spec", required [], kept [version, skills], optional [include, toolchains, ignored, defaults],
    defaulted [profiles]);
record!(IncludedSpec, "an included file", required [], kept [],
    optional [version, include, toolchains, defaults, profiles, skills]);
record!(Toolchain, "a toolchain", required [], kept [], optional [required]);
record!(ToolCheck, "a toolchain check", required [cmd], kept [], optional [version]);
record!(Defaults, "`defaults`", required [], kept [],
    optional [determinism, tier, workdir, timeout_ms, network, read_only, leaks, env_allowlist, env, needs_paths]);
record!(Profile, "a profile", required [], kept [include], optional [parallel]);
record!(Skill, "a skill", required [], kept [steps],
    optional [description, determinism, tier, needs, caches, needs_paths, toolchains, container, platform, workdir,
        timeout_ms, network, read_only, leaks, env_allowlist, env]);
record!(Step, "a step", required [name], kept [],
    optional [cmd, sql, workdir, timeout_ms, grace_ms, network, read_only, leaks, env_allowlist, env, limits, retries, files, parallel,
        per_file, fix, inputs, needs_paths, reports, expect]);
record!(StepFiles, "`files`", required [], kept [], optional [include, exclude, types, types_or, exclude_types]);
record!(NeededPathMap, "a needed path", required [path], kept [], optional [key, prepare]);
record!(CacheMap, "a cache", required [path], kept [], optional [transparent]);
record!(Prepare, "`prepare`", required [cmd], kept [],
    optional [key, workdir, timeout_ms, network, env_allowlist, env]);
record!(SqlStep, "`sql`", required [dialect], kept [],
    optional [files, query, schema, database, policy, question, tables, columns, functions, limits, reject_at]);
record!(SqlLimits, "`limits` of `sql`", required [], kept [], optional [time_ms, steps, rows, memory, result]);
record!(StepLimits, "`limits`", required [], kept [], optional [memory, pids, disk, output, cpu_seconds, open_files]);
record!(Reports, "`reports`", required [], kept [], optional [junit, sarif]);
record!(Expect, "`expect`", required [], kept [], optional [exit]);

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "version: 1\nprofiles: { p: { include: [s] } }\nskills:\n  s:\n    env: { A: x }\n    \
        steps:\n      - { name: a, cmd: make, timeout_ms: 5 }\n";

    /// Returns the reported position of the difference between two results for [`TEXT`], one of which `change`
    /// modified.
    fn difference_position(change: impl FnOnce(&mut Spec)) -> String {
        let mut report = DiagnosticCollector::default();
        let root = yaml::parse_spec(TEXT.as_bytes(), &mut report).expect("a tree").root;
        let ours = Spec::decode(&root, &mut report).expect("a spec");
        assert!(!report.has_errors());
        let mut theirs = ours.clone();
        change(&mut theirs);
        assert_ne!(ours, theirs);
        difference_span(&root, &ours, &theirs).to_string()
    }

    #[test]
    fn locates_first_difference_between_parsers() {
        assert_eq!(difference_position(|spec| spec.version.value = 2), "1:10");
        assert_eq!(difference_position(|spec| spec.skills.0[0].1.steps.value[0].timeout_ms = None), "7:43");
        let other_env =
            |spec: &mut Spec| spec.skills.0[0].1.env.as_mut().expect("env").0[0].1 = SpecText("y".to_owned());
        assert_eq!(difference_position(other_env), "5:15");
        assert_eq!(difference_position(|spec| spec.skills.0[0].1.steps.value.clear()), "6:5");
        assert_eq!(difference_position(|spec| spec.skills.0.clear()), "4:3");
    }

    #[test]
    fn parses_integers_like_serde_yaml() {
        let texts = [
            "0",
            "+7",
            "0x1F",
            "0o17",
            "0b11",
            "017",
            "00",
            "-1",
            "1_000",
            "1e3",
            "",
            "0x",
            "0x+1",
            "++1",
            "18446744073709551616",
            "1.0",
        ];
        for text in texts {
            let theirs = serde_yaml::from_str::<std::collections::BTreeMap<String, u64>>(&format!("a: {text}"));
            assert_eq!(parse_unsigned(text), theirs.ok().map(|map| map["a"]), "{text:?}");
        }
    }
}
