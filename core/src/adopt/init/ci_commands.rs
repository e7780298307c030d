//! Reads the commands that the workflows of GitHub Actions run at the top of the repository, and separates checks from
//! other commands.

use super::project::SkillKind;
use super::repo_scan::RepoScan;
use crate::spec::diagnostic_collector::DiagnosticCollector;
use crate::spec::yaml::{self, Node, YamlFileKind, YamlValue};
use crate::spec::{SpecCommand, SpecText};

/// Maximum number of commands that are read.
const MAX_COMMANDS: usize = 1_000;

/// Words of commands that need a different toolchain, or a machine other than the caller's.
const FOREIGN_WORDS: [&str; 3] = ["--target", "--git", "--profile"];

/// The comment of steps that a workflow declares.
pub(super) const CI_COMMENT: &str = "The command of the repository's workflow in `.github/workflows`.";

/// Maximum number of commands of one tool that become steps.
pub(super) const MAX_CI_STEPS: usize = 4;

/// Words in the name of a script, target or session that changes files or the world outside.
const OTHER_WORDS: [&str; 17] = [
    "bench", "clean", "deploy", "dev", "docker", "fix", "install", "publish", "push", "release", "serve", "setup",
    "start", "update", "upload", "watch", "write",
];

/// Words in the name of a script, target or session that checks, with the purpose; the first kind with a word wins.
const KIND_WORDS: [(SkillKind, &[&str]); 4] = [
    (SkillKind::Types, &["mypy", "pyright", "tsc", "type", "typecheck", "types", "typing"]),
    (
        SkillKind::Lint,
        &[
            "clippy",
            "eslint",
            "flake8",
            "lint",
            "linter",
            "linting",
            "pylint",
            "ruff",
            "shellcheck",
            "staticcheck",
            "vet",
        ],
    ),
    (SkillKind::Test, &["e2e", "integration", "jest", "mocha", "pytest", "test", "testing", "tests", "unit", "vitest"]),
    (SkillKind::Check, &["check", "checks", "validate", "verify"]),
];

/// Options of `uv run` that take a value as the next word.
const UV_VALUE_OPTIONS: [&str; 8] =
    ["--extra", "--group", "--no-group", "--only-group", "--package", "--python", "--with", "-p"];

/// A line of a job of a workflow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CiLine {
    /// A command that needs no shell and no values of the CI system.
    Command(Vec<String>),
    /// Anything else, which can have any effect on the commands after it.
    Other,
}

/// Returns the commands of all workflows that need no shell and no values of the CI system.
pub(super) fn ci_commands(tree: &RepoScan) -> Vec<Vec<String>> {
    let lines = ci_jobs(tree).into_iter().flatten();
    let mut commands: Vec<Vec<String>> = lines
        .filter_map(|line| match line {
            CiLine::Command(words) => Some(words),
            CiLine::Other => None,
        })
        .collect();
    commands.truncate(MAX_COMMANDS);
    commands
}

/// Returns the lines of each job of all workflows. Jobs in another directory are left out.
pub(super) fn ci_jobs(tree: &RepoScan) -> Vec<Vec<CiLine>> {
    let mut found = Vec::new();
    for text in tree.workflow_texts() {
        let mut report = DiagnosticCollector::default();
        let Some(root) = yaml::parse_file(YamlFileKind::Foreign, text.as_bytes(), &mut report) else { continue };
        let jobs = value(&root, "jobs").into_iter().flat_map(values);
        for job in jobs.filter(|job| !has_default_directory(&root) && !has_default_directory(job)) {
            let steps = value(job, "steps").map(items).unwrap_or_default();
            found.push(steps.iter().flat_map(step_lines).collect());
        }
    }
    found
}

/// Returns the lines of a step; none for a step that uses an action.
fn step_lines(step: &Node<'_>) -> Vec<CiLine> {
    match value(step, "run").and_then(scalar) {
        Some(script) if is_plain_step(step) => script_lines(script),
        Some(_) => vec![CiLine::Other],
        None => Vec::new(),
    }
}

/// Returns whether all commands of a workflow or job run in another directory.
fn has_default_directory(node: &Node<'_>) -> bool {
    let run = value(node, "defaults").and_then(|defaults| value(defaults, "run"));
    run.is_some_and(|run| value(run, "working-directory").is_some())
}

/// Returns whether a step runs at the top of the repository, in a shell, without variables whose values the CI system
/// computes.
fn is_plain_step(step: &Node<'_>) -> bool {
    let shell = value(step, "shell").and_then(scalar).unwrap_or("bash");
    let env = value(step, "env").into_iter().flat_map(values);
    value(step, "working-directory").is_none()
        && (shell.starts_with("bash") || shell.starts_with("sh"))
        && !env.filter_map(scalar).any(|value| value.contains("${{"))
}

/// Returns the distinct commands of a tool, without a prefix such as `uv run` or `python -m`.
pub(super) fn tool_commands<'c>(commands: &'c [Vec<String>], tool: &str) -> Vec<&'c [String]> {
    let mut found: Vec<&[String]> = Vec::new();
    for words in commands.iter().map(|words| strip_runner(words)) {
        if words.first().is_some_and(|first| first == tool) && !found.contains(&words) {
            found.push(words);
        }
    }
    found
}

/// Removes the words that only start a tool of a Python environment.
fn strip_runner(words: &[String]) -> &[String] {
    let texts: Vec<&str> = words.iter().take(3).map(String::as_str).collect();
    match texts[..] {
        ["uv", "run", ..] => strip_runner(strip_uv_options(&words[2..])),
        ["poetry" | "pdm" | "pipenv", "run", ..] | ["python" | "python3", "-m", _, ..] => strip_runner(&words[2..]),
        ["coverage", "run", ..] => match words.iter().position(|word| word == "-m") {
            Some(at) => &words[at + 1..],
            None => words,
        },
        _ => words,
    }
}

fn strip_uv_options(mut words: &[String]) -> &[String] {
    while let Some(option) = words.first().filter(|word| word.starts_with('-')) {
        let count = if UV_VALUE_OPTIONS.contains(&option.as_str()) { 2 } else { 1 };
        words = words.get(count..).unwrap_or_default();
    }
    words
}

/// Returns the purpose of a script, target or session according to its name; `None` if the name is not that of a
/// check.
pub(super) fn check_kind(name: &str) -> Option<SkillKind> {
    const FORMAT_WORDS: [&str; 5] = ["black", "fmt", "format", "formatting", "prettier"];
    let name = name.to_ascii_lowercase();
    let words: Vec<&str> = name.split(|c: char| !c.is_ascii_alphanumeric()).collect();
    let has_any = |list: &[&str]| words.iter().any(|word| list.contains(word));
    if has_any(&OTHER_WORDS) {
        return None;
    }
    if has_any(&FORMAT_WORDS) {
        // A formatter without `check` in its name writes files.
        return has_any(&["check"]).then_some(SkillKind::Format);
    }
    KIND_WORDS.iter().find(|(_, list)| has_any(list)).map(|(kind, _)| *kind)
}

/// Returns the name of a step for a script, target or session.
pub(super) fn step_name(name: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let name: String = name.chars().map(|c| if is_plain(c) { c } else { '-' }).take(60).collect();
    name.trim_matches('-').to_owned()
}

/// Returns the lines of a script, or their parts between `&&`. A script that changes its directory or sets variables has
/// no commands.
fn script_lines(script: &str) -> Vec<CiLine> {
    let script = script.replace("\\\n", " ");
    let changes_state =
        |line: &str| ["cd ", "export ", "pushd ", "if ", "for "].iter().any(|word| line.starts_with(word));
    // A line with quoted `&&` splits into parts that are not commands.
    let commands = script.lines().flat_map(|line| line.split(" && ")).map(str::trim);
    let commands: Vec<&str> = commands.filter(|command| !command.is_empty()).collect();
    if commands.iter().any(|command| changes_state(command)) {
        return vec![CiLine::Other];
    }
    commands.into_iter().map(|command| plain_command(command).map_or(CiLine::Other, CiLine::Command)).collect()
}

fn plain_command(line: &str) -> Option<Vec<String>> {
    let words: Vec<String> = SpecCommand::Line(SpecText(line.to_owned())).argv().ok()?.into();
    let is_foreign = |word: &String| {
        let option = word.split('=').next().unwrap_or_default();
        word.starts_with('+') || word.contains("${{") || FOREIGN_WORDS.contains(&option)
    };
    (!words.iter().any(is_foreign)).then_some(words)
}

fn value<'t, 'a>(node: &'t Node<'a>, key: &str) -> Option<&'t Node<'a>> {
    let YamlValue::Map(entries) = &node.value else { return None };
    entries.iter().find(|(name, _)| name.text == key).map(|(_, value)| value)
}

fn values<'t, 'a>(node: &'t Node<'a>) -> Vec<&'t Node<'a>> {
    match &node.value {
        YamlValue::Map(entries) => entries.iter().map(|(_, value)| value).collect(),
        _ => Vec::new(),
    }
}

fn items<'t, 'a>(node: &'t Node<'a>) -> &'t [Node<'a>] {
    match &node.value {
        YamlValue::Seq(items) => items,
        _ => &[],
    }
}

fn scalar<'t>(node: &'t Node<'_>) -> Option<&'t str> {
    match &node.value {
        YamlValue::Scalar { text, .. } => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adopt::init::ScannedContent;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn recognizes_checks_by_name() {
        let cases = [
            ("lint", Some(SkillKind::Lint)),
            ("lint:fix", None),
            ("test:unit", Some(SkillKind::Test)),
            ("test-types", Some(SkillKind::Types)),
            ("format", None),
            ("format:check", Some(SkillKind::Format)),
            ("check", Some(SkillKind::Check)),
            ("check-release", None),
            ("build", None),
            ("latest", None),
        ];
        for (name, kind) in cases {
            assert_eq!(check_kind(name), kind, "{name}");
        }
    }

    #[test]
    fn finds_tools_behind_runners() {
        let commands = [
            words("uv run --locked --group dev pytest tests"),
            words("poetry run pytest -x"),
            words("python -m pytest tests"),
            words("coverage run --source=a -m pytest"),
            words("pytest-watch"),
            words("uv run --group"),
        ];
        let found: Vec<String> = tool_commands(&commands, "pytest").iter().map(|words| words.join(" ")).collect();
        assert_eq!(found, ["pytest tests", "pytest -x", "pytest"]);
    }

    #[test]
    fn ignores_steps_in_other_places() {
        let workflow = r#"
jobs:
  web:
    defaults: { run: { working-directory: web } }
    steps: [{ run: npm test }]
  tests:
    steps:
      - run: tox run
        env: { TOX_ENV: "${{ matrix.tox }}" }
      - { run: print(1), shell: python }
      - { run: make check, env: { CI: "1" } }
"#;
        let mut tree = RepoScan::default();
        tree.add_file(".github/workflows/ci.yml", ScannedContent::Text(workflow.to_owned()));
        assert_eq!(ci_commands(&tree), [words("make check")]);
    }

    #[test]
    fn reads_plain_commands_of_workflows() {
        let workflow = r#"
on: push
jobs:
  a:
    steps:
      - uses: actions/checkout@v4
      - run: cargo test --workspace
      - run: |
          cargo clippy --all-targets \
            -- -D warnings
          cargo test ${{ matrix.flags }}
          cargo test $FLAGS
          echo a | tee b
          cargo +nightly fmt
          cargo test --target x86_64-pc-windows-gnu
      - { run: cargo doc, working-directory: sub }
      - run: |
          cd sub
          cargo test
      - run: npm ci && npx eslint . && sh -c "a && b"
      - run: true && cd sub && cargo bench
"#;
        let mut tree = RepoScan::default();
        tree.add_file(".github/workflows/ci.yml", ScannedContent::Text(workflow.to_owned()));
        tree.add_file(".github/workflows/bad.yml", ScannedContent::Text("a: [".to_owned()));
        let commands: Vec<String> = ci_commands(&tree).iter().map(|words| words.join(" ")).collect();
        let expected =
            ["cargo test --workspace", "cargo clippy --all-targets -- -D warnings", "npm ci", "npx eslint ."];
        assert_eq!(commands, expected);
    }
}
