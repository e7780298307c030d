//! The programs of JavaScript packages that check something, and the commands that start them.

use super::project::{SkillKind, StepDraft};

/// A program of a package that checks something.
pub(super) struct CheckTool {
    /// The name of the program.
    pub program: &'static str,
    /// The package that contains it.
    pub package: &'static str,
    /// The purpose of the check.
    pub kind: SkillKind,
    /// Words of which one makes the program check; without it, the program changes files or does not end. Empty if no
    /// word is necessary.
    required: &'static [&'static str],
}

impl CheckTool {
    const fn new(program: &'static str, package: &'static str, kind: SkillKind) -> Self {
        Self { program, package, kind, required: &[] }
    }

    const fn requires(self, required: &'static [&'static str]) -> Self {
        Self { required, ..self }
    }

    /// Returns the program with this name.
    pub(super) fn find(program: &str) -> Option<&'static Self> {
        CHECK_TOOLS.iter().find(|known| known.program == program)
    }

    /// Returns whether a command of a script starts the program as a check.
    pub(super) fn is_started_by(&self, script: &str) -> bool {
        script.split(['&', ';', '|']).any(|command| {
            let words: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
            let at = words.iter().position(|word| word.rsplit('/').next() == Some(self.program));
            at.is_some_and(|at| self.checks(&words[at + 1..]))
        })
    }

    /// Returns whether the program with these options checks, ends, and changes no file.
    pub(super) fn checks(&self, options: &[String]) -> bool {
        const CHANGING: [&str; 7] = ["--fix", "--write", "--watch", "-w", "--watchAll", "-u", "--update-snapshot"];
        let has = |word: &str| options.iter().any(|option| option == word);
        (self.required.is_empty() || self.required.iter().any(|word| has(word)))
            && !CHANGING.iter().any(|word| has(word))
    }
}

/// The programs that workflows start by `npx` and the like.
const CHECK_TOOLS: [CheckTool; 10] = [
    CheckTool::new("prettier", "prettier", SkillKind::Format).requires(&["--check", "-c", "--list-different", "-l"]),
    CheckTool::new("biome", "@biomejs/biome", SkillKind::Lint).requires(&["check", "ci", "lint"]),
    CheckTool::new("eslint", "eslint", SkillKind::Lint),
    CheckTool::new("stylelint", "stylelint", SkillKind::Lint),
    CheckTool::new("xo", "xo", SkillKind::Lint),
    CheckTool::new("tsc", "typescript", SkillKind::Types).requires(&["--noEmit", "--build", "-b"]),
    CheckTool::new("ava", "ava", SkillKind::Test),
    CheckTool::new("jest", "jest", SkillKind::Test),
    CheckTool::new("mocha", "mocha", SkillKind::Test),
    CheckTool::new("vitest", "vitest", SkillKind::Test).requires(&["run"]),
];

/// Returns the name of the program that a step starts.
pub(super) fn step_tool(step: &StepDraft) -> Option<&str> {
    step.argv.first().and_then(|program| program.rsplit('/').next())
}

/// Splits a command that starts a program of an installed package: the program, and its options. `None` for all other
/// commands, and for programs with a version, which are downloaded.
pub(super) fn tool_call(words: &[String]) -> Option<(&str, &[String])> {
    let (program, rest) = words.split_first()?;
    let mut call = match (program.as_str(), rest.split_first()?) {
        ("npx" | "bunx", _) => rest,
        ("npm" | "pnpm" | "yarn", (word, rest)) if word == "exec" => rest,
        _ => return None,
    };
    while let Some((option, rest)) = call.split_first() {
        match option.as_str() {
            "--no-install" | "--no" | "--yes" | "-y" | "--" => call = rest,
            _ => break,
        }
    }
    let (tool, options) = call.split_first()?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    (!tool.starts_with('-') && tool.chars().all(is_plain)).then_some((tool.as_str(), options))
}
