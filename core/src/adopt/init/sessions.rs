//! Recognizes the environments of tox and the sessions of nox that workflows run. They are used only for checks that no
//! other step covers, because they usually call the tools that the steps call directly.

use super::ci_commands::{CI_COMMENT, MAX_CI_STEPS, check_kind, ci_commands, step_name, tool_commands};
use super::project::{DraftedPath, ProgramRequirement, Project, SkillDraft, SkillKind, StepDraft};
use super::repo_scan::RepoScan;
use crate::adopt::init::detected_project::InitNote;

/// A program that runs named groups of commands, each in a separate environment.
struct SessionRunner {
    program: &'static str,
    /// Options that a step needs.
    options: &'static [&'static str],
    /// Options that name an environment or session.
    selectors: &'static [&'static str],
    /// Directory of the environments.
    directory: &'static str,
    /// Files that declare environments or sessions, with a text that such a file contains.
    configs: &'static [(&'static str, &'static str)],
    /// Command that creates the environments.
    prepare: &'static str,
}

const RUNNERS: [SessionRunner; 2] = [
    SessionRunner {
        program: "tox",
        options: &[],
        selectors: &["-e", "--env"],
        directory: ".tox",
        configs: &[("tox.ini", ""), ("setup.cfg", "[tox"), ("pyproject.toml", "[tool.tox")],
        prepare: "tox run --notest",
    },
    SessionRunner {
        program: "nox",
        // Uses the environments that exist, and installs nothing.
        options: &["-R"],
        selectors: &["-s", "--session", "--sessions"],
        directory: ".nox",
        configs: &[("noxfile.py", "")],
        prepare: "nox --install-only",
    },
];

/// Returns the projects for tox and nox at the top of the repository. `found` are the other projects there.
pub(super) fn detect(tree: &RepoScan, found: &[Project]) -> Vec<Project> {
    RUNNERS.iter().filter_map(|runner| runner.detect(tree, found)).collect()
}

impl SessionRunner {
    fn detect(&self, tree: &RepoScan, found: &[Project]) -> Option<Project> {
        let has_config = |(name, text): &&(&'static str, &str)| {
            tree.file_text("", name).is_some_and(|content| content.contains(text))
        };
        let (config, _) = self.configs.iter().find(has_config)?;
        let declared = tree.file_text("", config)?;
        let mut project = Project::new(self.program, format!("{} environments", self.program), "");
        for session in self.workflow_sessions(tree, declared).into_iter().take(MAX_CI_STEPS) {
            let Some(kind) = session_kind(&session) else { continue };
            if found.iter().any(|project| project.has_kind(kind)) {
                continue;
            }
            let words: Vec<&str> = [self.program]
                .iter()
                .chain(self.options)
                .chain([&self.selectors[0], &session.as_str()])
                .copied()
                .collect();
            let name = format!("{}_{}", self.program, step_name(&session));
            let step = StepDraft::new(name, &words).with_comment(CI_COMMENT);
            project.add_skill(SkillDraft::new(kind, skill_description(kind), vec![step]));
        }
        if project.skills.is_empty() {
            return None;
        }
        project.add_marker(config);
        project.require(ProgramRequirement::on_path(self.program, &[self.program, "--version"]));
        project.needs_paths.push(DraftedPath { path: self.directory.to_owned(), key: vec![(*config).to_owned()] });
        project.notes.extend(self.environments_note(tree));
        Some(project)
    }

    /// Returns the distinct environments or sessions that workflows name and `declared` contains.
    fn workflow_sessions(&self, tree: &RepoScan, declared: &str) -> Vec<String> {
        let commands = ci_commands(tree);
        let mut sessions: Vec<String> = Vec::new();
        for words in tool_commands(&commands, self.program) {
            for session in self.selected_sessions(&words[1..]) {
                if is_declared(session, declared) && !sessions.iter().any(|other| other == session) {
                    sessions.push(session.to_owned());
                }
            }
        }
        sessions
    }

    /// Returns the environments or sessions that a command selects by name.
    fn selected_sessions<'c>(&self, arguments: &'c [String]) -> Vec<&'c str> {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).take_while(|word| *word != "--").collect();
        let mut selected = Vec::new();
        for (at, word) in arguments.iter().enumerate() {
            match word.split_once('=') {
                Some((option, value)) if self.selectors.contains(&option) => selected.push(value),
                None if self.selectors.contains(word) => {
                    selected.extend(arguments[at + 1..].iter().take_while(|word| !word.starts_with('-')));
                }
                _ => {}
            }
        }
        selected.into_iter().flat_map(|list| list.split(',')).filter(|session| !session.is_empty()).collect()
    }

    fn environments_note(&self, tree: &RepoScan) -> Option<InitNote> {
        let message = format!("`{}` installs packages from the network, which steps do not have", self.program);
        let hint = format!(
            "create `{}` with `{}` before the first run, or let the steps call the tools directly",
            self.directory, self.prepare
        );
        (!tree.has_directory("", self.directory)).then(|| InitNote::new(message, hint))
    }
}

/// Returns the purpose of an environment or session. The usual name of one for tests is that of an interpreter.
fn session_kind(session: &str) -> Option<SkillKind> {
    match is_interpreter(session) {
        true => Some(SkillKind::Test),
        false => check_kind(session),
    }
}

/// Returns whether a name begins with an interpreter, such as `py`, `py312` and `pypy3.11-min`.
fn is_interpreter(session: &str) -> bool {
    let rest = session.strip_prefix("pypy").or_else(|| session.strip_prefix("py"));
    rest.is_some_and(|rest| rest.chars().next().is_none_or(|c| c.is_ascii_digit() || c == '-'))
}

/// Returns whether a configuration names an environment or session. tox derives those of interpreters from their names,
/// and nox appends the version of the interpreter to the name.
fn is_declared(session: &str, declared: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let mut names =
        declared.split(|c: char| !is_plain(c)).flat_map(|word| [word, word.rsplit('.').next().unwrap_or(word)]);
    let base = session.rsplit_once('-').filter(|(_, version)| version.starts_with(|c: char| c.is_ascii_digit()));
    let base = base.map_or(session, |(base, _)| base);
    session.chars().all(is_plain)
        && session.starts_with(|c: char| c.is_ascii_alphanumeric())
        && (is_interpreter(session) || names.any(|name| name == session || name == base))
}

fn skill_description(kind: SkillKind) -> &'static str {
    match kind {
        SkillKind::Format => "Formatting",
        SkillKind::Lint => "Lint",
        SkillKind::Types => "Types",
        SkillKind::Check => "Checks",
        SkillKind::Test => "The tests",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn selects_named_sessions() {
        let [tox, nox] = &RUNNERS;
        assert_eq!(tox.selected_sessions(&words("run -e lint,typing -- -x")), ["lint", "typing"]);
        assert_eq!(tox.selected_sessions(&words("-p")), [""; 0]);
        assert_eq!(nox.selected_sessions(&words("-s lint tests-3.12 --force-color")), ["lint", "tests-3.12"]);
        assert_eq!(nox.selected_sessions(&words("--session=lint")), ["lint"]);
    }

    #[test]
    fn accepts_only_declared_sessions() {
        let tox = "[tox]\nenvlist = py3{11,12},lint\n[testenv:type-check]\n";
        for (session, is_known) in
            [("py312", true), ("pypy3", true), ("lint", true), ("type-check", true), ("check", false), ("-x", false)]
        {
            assert_eq!(is_declared(session, tox), is_known, "{session}");
        }
        assert!(is_declared("typing", "[tool.tox.env.typing]\n"));
        let nox = "@nox.session(python=[\"3.12\"])\ndef tests(session):\n    pass\n";
        assert!(is_declared("tests-3.12", nox) && is_declared("tests", nox) && !is_declared("lint", nox));
    }
}
