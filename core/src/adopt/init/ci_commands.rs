//! Reads the commands that the workflows of GitHub Actions run at the top of the repository.

use super::repo_scan::RepoScan;
use crate::spec::diagnostic_collector::DiagnosticCollector;
use crate::spec::yaml::{self, Node, YamlFileKind, YamlValue};
use crate::spec::{SpecCommand, SpecText};

/// Maximum number of commands that are read.
const MAX_COMMANDS: usize = 1_000;

/// Words of commands that need another toolchain or another machine than the caller's.
const FOREIGN_WORDS: [&str; 3] = ["--target", "--git", "--profile"];

/// Returns the commands of all workflows that need no shell and no values of the CI system.
pub(super) fn ci_commands(tree: &RepoScan) -> Vec<Vec<String>> {
    let mut commands = Vec::new();
    for text in tree.workflow_texts() {
        let mut report = DiagnosticCollector::default();
        let Some(root) = yaml::parse_file(YamlFileKind::Foreign, text.as_bytes(), &mut report) else { continue };
        let jobs = value(&root, "jobs").into_iter().flat_map(values);
        for step in jobs.filter_map(|job| value(job, "steps")).flat_map(items) {
            if value(step, "working-directory").is_none() {
                commands.extend(value(step, "run").and_then(scalar).into_iter().flat_map(plain_commands));
            }
        }
    }
    commands.truncate(MAX_COMMANDS);
    commands
}

/// Returns the lines of a script that are commands on their own. A script that changes its directory or sets variables
/// has none.
fn plain_commands(script: &str) -> Vec<Vec<String>> {
    let script = script.replace("\\\n", " ");
    let changes_state =
        |line: &str| ["cd ", "export ", "pushd ", "if ", "for "].iter().any(|word| line.starts_with(word));
    let lines: Vec<&str> = script.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    if lines.iter().any(|line| changes_state(line)) {
        return Vec::new();
    }
    lines.into_iter().filter_map(plain_command).collect()
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
"#;
        let mut tree = RepoScan::default();
        tree.add_file(".github/workflows/ci.yml", ScannedContent::Text(workflow.to_owned()));
        tree.add_file(".github/workflows/bad.yml", ScannedContent::Text("a: [".to_owned()));
        let commands: Vec<String> = ci_commands(&tree).iter().map(|words| words.join(" ")).collect();
        assert_eq!(commands, ["cargo test --workspace", "cargo clippy --all-targets -- -D warnings"]);
    }
}
