//! Combines a spec with the files that it includes. A caller reads the files.

use std::borrow::Borrow;
use std::collections::BTreeSet;
use std::fmt;

use super::decode::decode_file;
use super::diagnostic::{Code, Diagnostic, Severity};
use super::diagnostic_collector::DiagnosticCollector;
use super::span::Spanned;
use super::spec_types::{Defaults, IncludedSpec, Profile, SpannedMap, Spec};
use super::yaml::{self, YamlValue};
use super::{ParsedSpec, rules};
use crate::model::drift::is_evidence_path;
use crate::model::names::{ProfileName, SkillName};
use crate::text::digest::Sha256Hex;
use crate::text::escape::quoted;

/// Maximum number of included files.
const MAX_FILES: usize = 32;
/// The profile of a spec without profiles, which is the default of `--profile`.
pub const IMPLICIT_PROFILE: &str = "pr";
/// The key of the list of included files.
const INCLUDE: &str = "include";

/// One file of a spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpecSource {
    /// The path, relative to the repository.
    pub path: String,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// The reason why a file cannot be included.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IncludeError {
    /// The path does not exist.
    #[error("does not exist")]
    Missing,
    /// The path is not a regular file, or leads out of the repository.
    #[error("is not a regular file in the repository that can be read")]
    Unreadable,
}

/// The problems of the includes of a spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IncludeProblems {
    /// The files that could be read, which contain the problems.
    pub included: Vec<SpecSource>,
    /// The problems.
    pub diagnostics: Vec<Diagnostic>,
}

/// Reads the files that a spec includes, and the files that these include, each one once. `read` returns the content of
/// a path that is relative to the repository.
///
/// # Errors
/// A file cannot be included.
pub fn read_includes(
    main: &SpecSource,
    mut read: impl FnMut(&str) -> Result<Vec<u8>, IncludeError>,
) -> Result<Vec<SpecSource>, IncludeProblems> {
    let mut report = DiagnosticCollector::default();
    let mut included: Vec<SpecSource> = Vec::new();
    let mut known = BTreeSet::from([main.path.clone()]);
    let mut size = main.bytes.len();
    let mut at = 0_u16;
    loop {
        let source = match at {
            0 => main.clone(),
            number => match included.get(usize::from(number) - 1) {
                Some(source) => source.clone(),
                None => break,
            },
        };
        for named in include_list(&source.bytes) {
            let span = named.span.in_file(at);
            let refuse = |why: &dyn fmt::Display| {
                Diagnostic::error(Code::BadInclude, span, format!("the included file {} {why}", quoted(&named.value)))
            };
            let path = match resolve_include(&source.path, &named.value) {
                Ok(path) => path,
                Err(why) => {
                    report.add(refuse(&why));
                    continue;
                }
            };
            if !known.insert(path.clone()) {
                continue;
            }
            match read(&path) {
                Ok(bytes) => {
                    size += bytes.len();
                    included.push(SpecSource { path, bytes });
                }
                Err(error) => report.add(refuse(&error)),
            }
            if included.len() > MAX_FILES || size > yaml::MAX_BYTES {
                let message =
                    format!("a spec includes at most {MAX_FILES} files, with {} bytes together", yaml::MAX_BYTES);
                report.add(Diagnostic::error(Code::TooLarge, span, message));
                return Err(IncludeProblems { included, diagnostics: report.finish() });
            }
        }
        at += 1;
    }
    match report.has_errors() {
        true => Err(IncludeProblems { included, diagnostics: report.finish() }),
        false => Ok(included),
    }
}

/// Returns the paths that a file includes. Problems of the file itself are reported when it is parsed.
fn include_list(bytes: &[u8]) -> Vec<Spanned<String>> {
    let Some(tree) = yaml::parse_spec(bytes, &mut DiagnosticCollector::default()) else { return Vec::new() };
    let YamlValue::Map(entries) = tree.root.value else { return Vec::new() };
    let list = entries.into_iter().find(|(key, _)| key.text == INCLUDE).map(|(_, list)| list.value);
    let Some(YamlValue::Seq(items)) = list else { return Vec::new() };
    let text = |item: yaml::Node<'_>| match item.value {
        YamlValue::Scalar { text, .. } => Some(Spanned::new(text.into_owned(), item.span)),
        _ => None,
    };
    items.into_iter().filter_map(text).collect()
}

/// Returns the path of an included file relative to the repository, or the reason why it cannot be included. `named` is
/// relative to the file `from`.
fn resolve_include(from: &str, named: &str) -> Result<String, &'static str> {
    if named.is_empty() || named.starts_with('/') || named.contains('\0') {
        return Err("is not a path relative to the file that includes it");
    }
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in named.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop().ok_or("is outside of the repository")?;
            }
            part => parts.push(part),
        }
    }
    let path = parts.join("/");
    if parts.contains(&".git") || is_evidence_path(path.as_bytes()) {
        return Err("does not belong to the tree");
    }
    Ok(path)
}

/// Parses a spec with the files that it includes.
///
/// # Errors
/// Returns all errors and warnings of all files.
pub fn parse_with_includes(main: &[u8], included: &[SpecSource]) -> Result<ParsedSpec, Vec<Diagnostic>> {
    let mut report = DiagnosticCollector::default();
    let mut spec: Option<Spec> = decode_file(main, 0, &mut report);
    for (source, number) in included.iter().zip(1..) {
        let part: Option<IncludedSpec> = decode_file(&source.bytes, number, &mut report);
        if let (Some(spec), Some(part)) = (&mut spec, part) {
            add_part(spec, part, &mut report);
        }
    }
    if let Some(spec) = spec.as_mut().filter(|spec| spec.profiles.0.is_empty() && !report.has_errors()) {
        add_implicit_profile(spec);
    }
    // A name that is missing may be in a file with an error.
    let is_complete = included.is_empty() || !report.has_errors();
    if let Some(spec) = spec.as_ref().filter(|_| is_complete) {
        let mut rule_problems = DiagnosticCollector::default();
        rules::check(spec, &mut rule_problems);
        report.add_independent(rule_problems);
    }
    let diagnostics = report.finish();
    match spec {
        Some(spec) if diagnostics.iter().all(|problem| problem.severity == Severity::Warning) => {
            Ok(ParsedSpec { spec, warnings: diagnostics })
        }
        _ => Err(diagnostics),
    }
}

/// Adds the profile of a spec without profiles: all skills, in order.
fn add_implicit_profile(spec: &mut Spec) {
    let Ok(name) = ProfileName::new(IMPLICIT_PROFILE) else { return };
    let skills: Vec<Spanned<SkillName>> = spec.skills.iter().map(|(name, _)| name.clone()).collect();
    let Some(span) = skills.first().map(|name| name.span) else { return };
    let profile = Profile { include: Spanned::new(skills, span), parallel: None };
    spec.profiles.0.push((Spanned::new(name, span), profile));
}

/// Returns the digest of a spec with the files that it includes; without included files, the digest of its bytes.
pub fn digest_sources(main: &[u8], included: &[SpecSource]) -> Sha256Hex {
    let own = Sha256Hex::digest(main);
    if included.is_empty() {
        return own;
    }
    let others = included.iter().map(|source| format!("{} {}\n", Sha256Hex::digest(&source.bytes), source.path));
    Sha256Hex::digest(format!("{own}\n{}", others.collect::<String>()).as_bytes())
}

/// Adds the content of an included file to a spec.
fn add_part(spec: &mut Spec, part: IncludedSpec, report: &mut DiagnosticCollector) {
    if let Some(version) = part.version.filter(|version| *version != spec.version) {
        let message = format!("version {} of the format is not that of the spec", version.value);
        report.add(Diagnostic::error(Code::UnsupportedVersion, version.span, message));
    }
    add_map("toolchain", spec.toolchains.get_or_insert_default(), part.toolchains.unwrap_or_default(), report);
    add_map("profile", &mut spec.profiles, part.profiles.unwrap_or_default(), report);
    add_map("skill", &mut spec.skills, part.skills.unwrap_or_default(), report);
    if let Some(defaults) = part.defaults {
        add_defaults(spec.defaults.get_or_insert_default(), defaults, report);
    }
}

fn add_map<K: Borrow<str>, V>(
    what: &str,
    all: &mut SpannedMap<K, V>,
    part: SpannedMap<K, V>,
    report: &mut DiagnosticCollector,
) {
    for (key, value) in part.0 {
        match all.0.iter().find(|(known, _)| known.value.borrow() == key.value.borrow()) {
            Some((known, _)) => {
                let message = format!("the {what} {} is defined in two files", quoted(key.value.borrow()));
                let problem = Diagnostic::error(Code::DuplicateDefinition, key.span, message);
                report.add(problem.label(known.span, "first here"));
            }
            None => all.0.push((key, value)),
        }
    }
}

fn add_defaults(all: &mut Defaults, part: Defaults, report: &mut DiagnosticCollector) {
    let Defaults { determinism, tier, workdir, timeout_ms, network, read_only, leaks, env_allowlist, env, needs_paths } =
        part;
    add_setting("determinism", &mut all.determinism, determinism, report);
    add_setting("tier", &mut all.tier, tier, report);
    add_setting("workdir", &mut all.workdir, workdir, report);
    add_setting("timeout_ms", &mut all.timeout_ms, timeout_ms, report);
    add_setting("network", &mut all.network, network, report);
    add_setting("read_only", &mut all.read_only, read_only, report);
    add_setting("leaks", &mut all.leaks, leaks, report);
    add_setting("env_allowlist", &mut all.env_allowlist, env_allowlist, report);
    add_setting("needs_paths", &mut all.needs_paths, needs_paths, report);
    if let Some(env) = env {
        add_map("default of the variable", all.env.get_or_insert_default(), env, report);
    }
}

fn add_setting<T>(key: &str, all: &mut Option<Spanned<T>>, part: Option<Spanned<T>>, report: &mut DiagnosticCollector) {
    match (&all, part) {
        (Some(known), Some(second)) => {
            let message = format!("the default of `{key}` is defined in two files");
            let problem = Diagnostic::error(Code::DuplicateDefinition, second.span, message);
            report.add(problem.label(known.span, "first here"));
        }
        (None, Some(value)) => *all = Some(value),
        (_, None) => {}
    }
}

/// Selects the file whose problems are shown with its text: the first one with an error. Problems of other files become
/// messages that begin with their path and position. Returns the number of the file, and all problems.
pub fn select_file(main: &str, included: &[SpecSource], problems: Vec<Diagnostic>) -> (usize, Vec<Diagnostic>) {
    let is_error = |problem: &&Diagnostic| problem.severity == Severity::Error;
    let with_span = |problem: &Diagnostic| problem.span.map(|span| span.file);
    let first = problems.iter().filter(is_error).find_map(with_span).or_else(|| problems.iter().find_map(with_span));
    let shown = first.unwrap_or(0);
    let name = |file: u16| match usize::from(file).checked_sub(1) {
        None => main,
        Some(at) => included.get(at).map_or(main, |source| source.path.as_str()),
    };
    let moved = problems.into_iter().map(|mut problem| {
        if let Some(span) = problem.span.filter(|span| span.file != shown) {
            problem.message = format!("{}:{}:{}: {}", name(span.file), span.line, span.column, problem.message);
            problem.span = None;
        }
        let is_shown = problem.span.is_some();
        let (near, far): (Vec<_>, Vec<_>) =
            problem.labels.drain(..).partition(|label| is_shown && label.span.file == shown);
        problem.labels = near;
        problem.hints.extend(far.into_iter().map(|label| {
            format!("{}: {}:{}:{}", label.text, name(label.span.file), label.span.line, label.span.column)
        }));
        problem.labels.iter_mut().for_each(|label| label.span = label.span.in_file(0));
        problem.span = problem.span.map(|span| span.in_file(0));
        problem
    });
    (usize::from(shown), moved.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec;

    const MAIN: &str = "version: 1
include: [lint.yaml, ../common/tools.yaml]
defaults: { env: { A: x } }
profiles: { pr: { include: [build, lint] } }
skills: { build: { steps: [{ name: make, cmd: make }] } }
";
    const LINT: &str = "include: [../common/tools.yaml]
defaults: { timeout_ms: 5, env: { B: y } }
skills: { lint: { steps: [{ name: check, cmd: [lint] }] } }
";
    const TOOLS: &str = "version: 1
toolchains: { make: { required: [{ cmd: [make, --version] }] } }
";

    /// Parses [`MAIN`] with files in place of [`LINT`] and [`TOOLS`].
    fn parse(lint: &str, tools: &str) -> Result<ParsedSpec, (String, Vec<Diagnostic>)> {
        let main = SpecSource { path: "spec/verification.yaml".into(), bytes: MAIN.into() };
        let included = read_includes(&main, |path| match path {
            "spec/lint.yaml" => Ok(lint.into()),
            "common/tools.yaml" => Ok(tools.into()),
            _ => Err(IncludeError::Missing),
        });
        let shown = |included: &[SpecSource], problems| {
            let (file, problems) = select_file(&main.path, included, problems);
            let path = file.checked_sub(1).map_or(&main.path, |at| &included[at].path);
            (path.clone(), problems)
        };
        let included = included.map_err(|problems| shown(&problems.included, problems.diagnostics))?;
        parse_with_includes(&main.bytes, &included).map_err(|problems| shown(&included, problems))
    }

    fn first_problem(lint: &str, tools: &str) -> (String, Diagnostic) {
        let (path, problems) = parse(lint, tools).expect_err("invalid");
        (path, problems[0].clone())
    }

    #[test]
    fn merges_files_and_reads_each_once() {
        let spec = parse(LINT, TOOLS).expect("valid").spec;
        assert_eq!(spec.skills.keys().collect::<Vec<_>>(), ["build", "lint"]);
        assert_eq!(spec.toolchains.expect("merged").keys().collect::<Vec<_>>(), ["make"]);
        let defaults = spec.defaults.expect("merged");
        assert_eq!(defaults.timeout_ms.map(|value| value.value), Some(5));
        assert_eq!(defaults.env.expect("merged").keys().collect::<Vec<_>>(), ["A", "B"]);
    }

    #[test]
    fn declarations_of_included_defaults_apply_to_all_skills() {
        let declared = |main: &str, lint: &str| {
            let included = [SpecSource { path: "spec/lint.yaml".into(), bytes: lint.into() }];
            let main = main.replace("[lint.yaml, ../common/tools.yaml]", "[lint.yaml]");
            let spec = parse_with_includes(main.as_bytes(), &included)?.spec;
            let profile = ProfileName::new("pr").expect("a name");
            let digest = Sha256Hex::digest(b"");
            let plan = spec::resolve(&spec, &profile, &spec::OperatorConfig::default(), digest, 1)?.plan;
            let skills = plan.skills.iter().map(|skill| format!("{:?} {}", skill.determinism, skill.declared_tier));
            Ok::<_, Vec<Diagnostic>>(skills.collect::<Vec<_>>())
        };
        let lint = LINT.replace("timeout_ms: 5", "determinism: D1, tier: 1");
        assert_eq!(declared(MAIN, &lint), Ok(vec!["D1 1".to_owned(), "D1 1".to_owned()]));
        let own = MAIN.replace("{ build: {", "{ build: { determinism: D0, tier: 2,");
        assert_eq!(declared(&own, &lint), Ok(vec!["D0 2".to_owned(), "D1 1".to_owned()]));
        let twice = MAIN.replace("env: { A: x }", "tier: 2");
        let problems = declared(&twice, &lint).expect_err("defined twice");
        assert_eq!(problems[0].message, "the default of `tier` is defined in two files");
    }

    #[test]
    fn cycle_of_includes_ends() {
        assert!(parse(&LINT.replace("../common/tools.yaml", "./lint.yaml, verification.yaml"), TOOLS).is_ok());
    }

    #[test]
    fn reports_duplicates_with_both_places() {
        let (path, problem) = first_problem(&LINT.replace("lint:", "build:"), TOOLS);
        assert_eq!((path.as_str(), problem.code), ("spec/lint.yaml", Code::DuplicateDefinition));
        assert_eq!(problem.hints, ["first here: spec/verification.yaml:5:11"]);
        let (_, problem) = first_problem(LINT, "defaults: { timeout_ms: 7 }\n");
        assert_eq!(problem.message, "the default of `timeout_ms` is defined in two files");
        assert_eq!(problem.hints, ["first here: spec/lint.yaml:2:25"]);
    }

    #[test]
    fn reports_problems_in_their_own_file() {
        let (path, problem) = first_problem(LINT, "toolchain: {}\n");
        assert_eq!((path.as_str(), problem.code), ("common/tools.yaml", Code::UnknownKey));
        assert_eq!(problem.span.map(|span| (span.line, span.column, span.file)), Some((1, 1, 0)));
        let (path, problems) = parse("skills: [\n", "toolchain: {}\n").expect_err("invalid");
        assert_eq!((path.as_str(), problems[0].code), ("spec/lint.yaml", Code::Syntax));
        assert!(problems.iter().any(|problem| problem.message.starts_with("common/tools.yaml:1:1: ")), "{problems:#?}");
    }

    #[test]
    fn refuses_paths_outside_of_the_tree() {
        for path in ["../../x.yaml", "/etc/passwd", "../.git/config", "../changes/1/verify/x.yaml", "absent.yaml"] {
            let (file, problem) = first_problem(&LINT.replace("../common/tools.yaml", path), TOOLS);
            assert_eq!(problem.code, Code::BadInclude, "{path}: {file}: {problem}");
        }
    }

    #[test]
    fn digest_covers_every_file() {
        let source = |path: &str, text: &str| SpecSource { path: path.into(), bytes: text.into() };
        let digests = [
            digest_sources(MAIN.as_bytes(), &[]),
            digest_sources(MAIN.as_bytes(), &[source("a", LINT)]),
            digest_sources(MAIN.as_bytes(), &[source("b", LINT)]),
            digest_sources(MAIN.as_bytes(), &[source("a", TOOLS)]),
        ];
        assert_eq!(digests[0], Sha256Hex::digest(MAIN.as_bytes()));
        assert_eq!(digests.iter().collect::<BTreeSet<_>>().len(), 4);
    }

    #[test]
    fn spec_without_profiles_has_one_with_all_skills() {
        let text =
            "version: 1\nskills:\n  b: { steps: [{ name: x, cmd: y }] }\n  a: { steps: [{ name: x, cmd: y }] }\n";
        let parsed = spec::parse(text.as_bytes()).expect("valid");
        assert!(parsed.warnings.is_empty(), "{:?}", parsed.warnings);
        let (name, profile) = &parsed.spec.profiles.0[0];
        let skills: Vec<&str> = profile.include.value.iter().map(|skill| skill.value.as_str()).collect();
        assert_eq!((name.value.as_str(), skills), ("pr", vec!["b", "a"]));
        assert!(spec::parse(b"version: 1\nskills: {}\n").expect("valid").spec.profiles.0.is_empty());
    }

    #[test]
    fn spec_without_includes_is_parsed_as_before() {
        let text = MAIN.replace("include: [lint.yaml, ../common/tools.yaml]\n", "").replace(", lint]", "]");
        assert_eq!(
            parse_with_includes(text.as_bytes(), &[]).expect("valid").spec,
            spec::parse(text.as_bytes()).expect("valid").spec
        );
    }
}
