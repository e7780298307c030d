//! Rewrites a tool's command so that it checks files instead of changing them. A hook may fix files, because the
//! user commits the result; a step must report problems and leave the tree unchanged. The original command becomes the
//! `fix` of the step.

use super::shell_words::in_shell;

/// A tool that fixes files, and the options that turn that off.
struct FixingTool {
    /// The program, and the following arguments that make it fix files.
    command: &'static [&'static str],
    /// Replacement for `command`; empty if `command` stays.
    replacement: &'static [&'static str],
    /// Options to remove. An option that ends in `=` may also take its value from the next argument.
    removed: &'static [&'static str],
    /// Options to add after `command`, unless they are already present.
    added: &'static [&'static str],
    /// True if the tool still fixes files after these changes.
    is_fix_only: bool,
    /// Options of which the tool needs one to fix files; empty if it fixes them by default.
    fix_options: &'static [&'static str],
    /// Exit code after fixes, or if problems remain after them; 0 if there is none.
    fix_exit: u8,
}

const fn tool(command: &'static [&'static str]) -> FixingTool {
    FixingTool {
        command,
        replacement: &[],
        removed: &[],
        added: &[],
        is_fix_only: false,
        fix_options: &[],
        fix_exit: 0,
    }
}

impl FixingTool {
    const fn replaced_by(self, instead: &'static [&'static str]) -> Self {
        Self { replacement: instead, ..self }
    }
    const fn without(self, drop: &'static [&'static str]) -> Self {
        Self { removed: drop, ..self }
    }
    const fn with(self, add: &'static [&'static str]) -> Self {
        Self { added: add, ..self }
    }
    const fn fix_only(self) -> Self {
        Self { is_fix_only: true, fix_exit: 1, ..self }
    }
    const fn fixes_with(self, options: &'static [&'static str]) -> Self {
        Self { fix_options: options, ..self }
    }
    const fn fix_exits(self, code: u8) -> Self {
        Self { fix_exit: code, ..self }
    }
}

const RUFF_FIX_OPTIONS: &[&str] =
    &["--fix", "--fix-only", "--unsafe-fixes", "--exit-non-zero-on-fix", "--exit-zero", "-e"];
const RUBOCOP_FIX_OPTIONS: &[&str] = &[
    "-a",
    "-A",
    "-x",
    "--fix-layout",
    "--autocorrect",
    "--autocorrect-all",
    "--auto-correct",
    "--auto-correct-all",
    "--safe-auto-correct",
];
const BIOME_FIX_OPTIONS: &[&str] = &["--write", "--apply", "--apply-unsafe", "--fix", "--unsafe", "--staged"];
const BIOME_WRITE_OPTIONS: &[&str] = &["--write", "--apply", "--apply-unsafe", "--fix"];
const CLIPPY_FIX_OPTIONS: &[&str] = &["--fix", "--allow-dirty", "--allow-staged", "--allow-no-vcs"];

/// The known tools. If one command is a prefix of another, the longer one comes first.
const FIXING_TOOLS: &[FixingTool] = &[
    tool(&["add-trailing-comma"]).fix_only(),
    tool(&["alejandra"]).with(&["--check"]),
    tool(&["autoflake"]).without(&["-i", "--in-place"]).with(&["--check"]).fixes_with(&["-i", "--in-place"]),
    tool(&["autopep8"])
        .without(&["-i", "--in-place"])
        .with(&["--diff", "--exit-code"])
        .fixes_with(&["-i", "--in-place"]),
    tool(&["biome", "check"]).without(BIOME_FIX_OPTIONS).fixes_with(BIOME_WRITE_OPTIONS).fix_exits(1),
    tool(&["biome", "format"]).without(BIOME_FIX_OPTIONS).fixes_with(BIOME_WRITE_OPTIONS).fix_exits(1),
    tool(&["biome", "lint"]).without(BIOME_FIX_OPTIONS).fixes_with(BIOME_WRITE_OPTIONS).fix_exits(1),
    tool(&["black"]).without(&["-q", "--quiet"]).with(&["--check"]),
    tool(&["blacken-docs"]).fix_only(),
    tool(&["buf", "format"])
        .without(&["-w", "--write"])
        .with(&["--diff", "--exit-code"])
        .fixes_with(&["-w", "--write"]),
    tool(&["cargo", "clippy"]).without(CLIPPY_FIX_OPTIONS).fixes_with(&["--fix"]),
    tool(&["cargo", "fix"]).fix_only(),
    tool(&["cargo", "fmt"]).with(&["--check"]),
    tool(&["clang-format"]).without(&["-i"]).with(&["--dry-run", "-Werror"]).fixes_with(&["-i"]),
    tool(&["codespell"])
        .without(&["-w", "--write-changes", "-i=", "--interactive="])
        .fixes_with(&["-w", "--write-changes"])
        .fix_exits(65),
    tool(&["dart", "format"]).with(&["--output=none", "--set-exit-if-changed"]),
    tool(&["deno", "fmt"]).with(&["--check"]),
    tool(&["djlint"]).without(&["--reformat"]).with(&["--check"]).fixes_with(&["--reformat"]).fix_exits(1),
    tool(&["docformatter"])
        .without(&["-i", "--in-place"])
        .with(&["--check"])
        .fixes_with(&["-i", "--in-place"])
        .fix_exits(3),
    tool(&["dprint", "fmt"]).replaced_by(&["dprint", "check"]),
    tool(&["eslint"]).without(&["--fix", "--cache"]).fixes_with(&["--fix"]).fix_exits(1),
    tool(&["gofmt"]).without(&["-w"]).with(&["-l"]).fixes_with(&["-w"]),
    tool(&["gofumpt"]).without(&["-w"]).with(&["-l"]).fixes_with(&["-w"]),
    tool(&["goimports"]).without(&["-w"]).with(&["-l"]).fixes_with(&["-w"]),
    tool(&["golangci-lint", "run"]).without(&["--fix", "--new", "--new-from-rev="]).fixes_with(&["--fix"]).fix_exits(1),
    tool(&["isort"]).without(&["--overwrite-in-place"]).with(&["--check-only"]),
    tool(&["ktlint"]).without(&["-F", "--format"]).fixes_with(&["-F", "--format"]).fix_exits(1),
    tool(&["markdownlint"]).without(&["--fix", "-f"]).fixes_with(&["--fix", "-f"]).fix_exits(1),
    tool(&["markdownlint-cli2"]).without(&["--fix"]).fixes_with(&["--fix"]).fix_exits(1),
    tool(&["mdformat"]).with(&["--check"]),
    tool(&["mix", "format"]).with(&["--check-formatted"]),
    tool(&["nixfmt"]).with(&["--check"]),
    tool(&["oxlint"])
        .without(&["--fix", "--fix-suggestions", "--fix-dangerously"])
        .fixes_with(&["--fix", "--fix-suggestions", "--fix-dangerously"])
        .fix_exits(1),
    tool(&["prettier"])
        .without(&["--write", "-w", "--list-different", "-l"])
        .with(&["--check"])
        .fixes_with(&["--write", "-w"]),
    tool(&["pyproject-fmt"]).with(&["--check"]).fix_exits(1),
    tool(&["pyupgrade"]).fix_only(),
    tool(&["reorder-python-imports"]).fix_only(),
    tool(&["rubocop"]).without(RUBOCOP_FIX_OPTIONS).fixes_with(RUBOCOP_FIX_OPTIONS).fix_exits(1),
    tool(&["ruff", "check"])
        .without(RUFF_FIX_OPTIONS)
        .with(&["--no-fix"])
        .fixes_with(&["--fix", "--fix-only"])
        .fix_exits(1),
    tool(&["ruff", "format"]).with(&["--check"]),
    tool(&["rustfmt"]).with(&["--check"]),
    tool(&["setup-cfg-fmt"]).fix_only(),
    tool(&["shfmt"]).without(&["-w", "--write"]).with(&["-d"]).fixes_with(&["-w", "--write"]),
    tool(&["sqlfluff", "fix"]).replaced_by(&["sqlfluff", "lint"]).without(&["--force", "-f"]).fix_exits(1),
    tool(&["standardrb"]).without(&["--fix", "--fix-unsafely"]).fixes_with(&["--fix", "--fix-unsafely"]).fix_exits(1),
    tool(&["stylelint"]).without(&["--fix"]).fixes_with(&["--fix"]).fix_exits(2),
    tool(&["stylua"]).with(&["--check"]),
    tool(&["swiftformat"]).with(&["--lint"]),
    tool(&["swiftlint"]).without(&["--fix", "--autocorrect"]).fixes_with(&["--fix", "--autocorrect"]).fix_exits(2),
    tool(&["taplo", "fmt"]).with(&["--check"]),
    tool(&["taplo", "format"]).with(&["--check"]),
    tool(&["terraform", "fmt"]).without(&["-write=true"]).with(&["-check"]),
    tool(&["tofu", "fmt"]).without(&["-write=true"]).with(&["-check"]),
    tool(&["typos"]).without(&["-w", "--write-changes"]).fixes_with(&["-w", "--write-changes"]).fix_exits(2),
    tool(&["uv", "export"]).fix_only().fix_exits(0),
    tool(&["uv", "lock"]).with(&["--locked"]),
    tool(&["xo"]).without(&["--fix"]).fixes_with(&["--fix"]).fix_exits(1),
    tool(&["yapf"]).without(&["-i", "--in-place"]).with(&["--diff"]).fixes_with(&["-i", "--in-place"]),
];

/// Options that make a tool print changes or only report files; with one of them, the tool fixes no file.
const PRINT_OPTIONS: &[&str] = &[
    "--check",
    "--check-formatted",
    "--check-only",
    "--diff",
    "--dry-run",
    "--list-different",
    "--set-exit-if-changed",
    "-c",
    "-check",
    "-d",
    "-l",
    "-write=false",
];

/// Options that have the same effect as an option to add. Options that only print the changes do not count: `black
/// --diff` and `isort --diff` succeed on every file.
const EQUIVALENT_OPTIONS: [(&str, &[&str]); 7] = [
    ("--check", &["-c", "--check-only"]),
    ("--check-only", &["--check", "-c"]),
    ("--no-fix", &["--diff"]),
    ("-check", &["--check", "-check=true"]),
    ("--diff", &["-d"]),
    ("-d", &["--diff"]),
    ("--locked", &["--check"]),
];

/// Commands that start a tool of a project and come before the tool's name. If one is a prefix of another, the
/// longer one comes first.
const RUNNERS: &[&[&str]] = &[
    &["npx"],
    &["npm", "exec"],
    &["pnpm", "exec"],
    &["pnpm", "dlx"],
    &["pnpm"],
    &["yarn", "run"],
    &["yarn"],
    &["bunx"],
    &["bun", "x"],
    &["bun", "run"],
    &["bundle", "exec"],
    &["poetry", "run"],
    &["uv", "tool", "run"],
    &["uv", "run"],
    &["uvx"],
    &["pipx", "run"],
    &["pipenv", "run"],
    &["pdm", "run"],
    &["hatch", "run"],
    &["rye", "run"],
    &["python", "-m"],
    &["python3", "-m"],
    &["mise", "exec"],
];

/// Options of these commands that may come before the tool's name and take no value.
const RUNNER_FLAGS: &[&str] = &[
    "--",
    "--frozen",
    "--isolated",
    "--locked",
    "--no",
    "--no-install",
    "--no-sync",
    "--offline",
    "--quiet",
    "--silent",
    "--yes",
    "-q",
    "-s",
    "-y",
];

/// A command that checks files without changing them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CheckModeCommand {
    /// The arguments, starting with the program.
    pub(super) argv: Vec<String>,
    /// The command that fixes the files, if the original command does so.
    pub(super) fix: Option<Vec<String>>,
    /// Human-readable difference from the original command, apart from the fix.
    pub(super) difference: Option<String>,
}

/// Rewrites a command so that it only checks. Leaves it unchanged if the tool is unknown or has no such mode.
pub(super) fn to_check_mode(argv: &[String]) -> CheckModeCommand {
    let start = program_index(argv);
    let tool_argv = &argv[start..];
    let Some(tool) = FIXING_TOOLS.iter().find(|tool| starts_with_command(tool_argv, tool.command)) else {
        let changed = argv.iter().any(|word| is_fix_option(word)).then(|| FIXES_FILES_NOTE.to_owned());
        return CheckModeCommand { argv: argv.to_vec(), fix: None, difference: changed };
    };
    let head = if tool.replacement.is_empty() { tool.command } else { tool.replacement };
    let rest = without_options(&tool_argv[tool.command.len()..], tool.removed);
    let is_present = |wanted: &&&str| rest.iter().any(|word| word == *wanted || is_equivalent_option(wanted, word));
    let added: Vec<&str> = tool.added.iter().filter(|wanted| !is_present(wanted)).copied().collect();
    // The program keeps its spelling, which may have a directory before the name or a version after it.
    let mut form: Vec<String> = argv[..=start].to_vec();
    form.extend(head.iter().skip(1).chain(&added).map(|word| (*word).to_owned()));
    form.extend(rest);
    let fix = tool.fix_command(argv, start);
    let changed = tool
        .is_fix_only
        .then(|| format!("`{}` can only fix files: its changes count as drift and fail the step", tool.command[0]));
    if ["gofmt", "gofumpt", "goimports"].contains(&tool.command[0]) {
        // These tools print the files and exit with 0.
        form = in_shell(&form, "out=$(", ") && echo \"$out\" && [ -z \"$out\" ]");
    }
    CheckModeCommand { argv: form, fix, difference: changed }
}

/// Options of checks that list files, which a fix must not have if the tool has them.
const LISTING_OPTIONS: &[&str] = &["--list-different", "-l"];

/// Returns the command that fixes what a check finds; `None` if the tool is unknown or only fixes or only checks. The
/// command succeeds even if problems remain.
pub(crate) fn to_fix_mode(check: &[String]) -> Option<Vec<String>> {
    let start = program_index(check);
    let tool = FIXING_TOOLS.iter().find(|tool| starts_with_command(&check[start..], tool.command))?;
    let options = &check[start + tool.command.len()..];
    let is_check_option = |word: &String| {
        tool.added.iter().any(|added| word == added || is_equivalent_option(added, word))
            || tool.removed.iter().any(|removed| LISTING_OPTIONS.contains(removed) && word == removed)
            || word == "--diff"
    };
    let is_check = tool.added.is_empty() || options.iter().any(is_check_option);
    // `cargo clippy --fix` compiles, and refuses a worktree with changes.
    if !is_check || tool.is_fix_only || !tool.replacement.is_empty() || tool.command == ["cargo", "clippy"] {
        return None;
    }
    let mut fix: Vec<String> = check[..start + tool.command.len()].to_vec();
    fix.extend(tool.fix_options.first().map(|option| (*option).to_owned()));
    fix.extend(options.iter().filter(|word| !is_check_option(word)).cloned());
    // `cargo fmt -- --check`
    fix.pop_if(|word| word == "--");
    Some(tool.succeeding_fix(&fix, start))
}

impl FixingTool {
    /// Returns the command that fixes the files, or `None` if the original command does not. It succeeds even if
    /// problems remain, since the changes of a failing command are discarded.
    fn fix_command(&self, argv: &[String], start: usize) -> Option<Vec<String>> {
        let options = argv.get(start + self.command.len()..)?;
        let has = |wanted: &[&str]| options.iter().any(|word| wanted.contains(&word.as_str()));
        let prints = self.fix_options.is_empty() && has(PRINT_OPTIONS);
        if prints || !(self.fix_options.is_empty() || has(self.fix_options)) {
            return None;
        }
        Some(self.succeeding_fix(argv, start))
    }

    /// Returns the form of a fixing command that succeeds even if problems remain.
    fn succeeding_fix(&self, argv: &[String], start: usize) -> Vec<String> {
        match (self.command, self.fix_exit) {
            (["ruff", "check"], _) => {
                let is_exit_option =
                    |word: &&String| !["--exit-non-zero-on-fix", "--exit-zero", "-e"].contains(&word.as_str());
                let mut fix: Vec<String> = argv.iter().filter(is_exit_option).cloned().collect();
                fix.insert(start + self.command.len(), "--exit-zero".to_owned());
                fix
            }
            (_, 0) => argv.to_vec(),
            (_, code) => in_shell(argv, "", &format!(" || [ $? = {code} ]")),
        }
    }
}

/// Note for a command that fixes files and has no known check mode.
pub(super) const FIXES_FILES_NOTE: &str = "it fixes files: each change would be drift and fails the step";

/// Returns whether an argument makes most tools fix files.
pub(super) fn is_fix_option(word: &str) -> bool {
    ["--fix", "--fix-only", "--write", "--write-changes", "--in-place", "--autocorrect", "--auto-correct"]
        .contains(&word)
}

/// Returns the index of the tool's own name, after the command that starts it.
pub(super) fn program_index(argv: &[String]) -> usize {
    let Some(runner) = RUNNERS.iter().find(|runner| argv.len() > runner.len() && starts_with_command(argv, runner))
    else {
        return 0;
    };
    let rest = &argv[runner.len()..];
    let before = rest.iter().take_while(|word| RUNNER_FLAGS.contains(&word.as_str())).count();
    if before < rest.len() { runner.len() + before } else { 0 }
}

/// Returns the name of a program: `black` for `.venv/bin/black`, `prettier` for `prettier@3`.
pub(super) fn program_name(word: &str) -> &str {
    let name = word.rsplit('/').next().unwrap_or(word);
    match name.split_once('@') {
        Some((name, _)) if !name.is_empty() => name,
        _ => name,
    }
}

/// Returns whether a command begins with these words; ignores the program's directory.
fn starts_with_command(argv: &[String], words: &[&str]) -> bool {
    let [program, rest @ ..] = words else { return false };
    argv.first().is_some_and(|word| program_name(word) == *program) && starts_with_words(&argv[1..], rest)
}

fn starts_with_words(argv: &[String], words: &[&str]) -> bool {
    argv.len() >= words.len() && argv.iter().zip(words).all(|(have, want)| have == want)
}

fn is_equivalent_option(wanted: &str, word: &str) -> bool {
    EQUIVALENT_OPTIONS.iter().any(|(option, others)| *option == wanted && others.contains(&word))
}

/// Returns `words` without the dropped options.
fn without_options(words: &[String], drop: &[&str]) -> Vec<String> {
    let mut kept = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        // Arguments after `--` are not options of the tool.
        if word == "--" {
            kept.push(word.clone());
            kept.extend(words.cloned());
            break;
        }
        let option = drop.iter().find(|option| match option.strip_suffix('=') {
            Some(name) => word == name || word.starts_with(**option),
            None => word == *option,
        });
        match option {
            Some(option) if option.ends_with('=') && !word.contains('=') => {
                words.next();
            }
            Some(_) => {}
            None => kept.push(word.clone()),
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rewrites_fixing_tools_to_check_mode() {
        let cases = [
            ("black", "black --check"),
            ("black --check -S", "black --check -S"),
            ("black --diff -l 100", "black --check --diff -l 100"),
            ("isort --diff", "isort --check-only --diff"),
            ("isort -c --diff", "isort -c --diff"),
            ("mix format --dry-run", "mix format --check-formatted --dry-run"),
            ("gofmt -s -w", "sh -c out=$(gofmt -l -s) && echo \"$out\" && [ -z \"$out\" ]"),
            ("goimports {files}", "sh -c out=$(goimports -l \"$@\") && echo \"$out\" && [ -z \"$out\" ] sh {files}"),
            ("shfmt --diff", "shfmt --diff"),
            ("yapf -d", "yapf -d"),
            ("ruff check --fix --exit-non-zero-on-fix", "ruff check --no-fix"),
            ("ruff format", "ruff format --check"),
            ("isort --profile black", "isort --check-only --profile black"),
            ("npx prettier --write --ignore-unknown", "npx prettier --check --ignore-unknown"),
            ("yarn eslint --fix --max-warnings 0", "yarn eslint --max-warnings 0"),
            ("cargo fmt --all", "cargo fmt --check --all"),
            ("cargo fmt -- --config x=1", "cargo fmt --check -- --config x=1"),
            ("cargo clippy --fix --allow-dirty -- -D warnings", "cargo clippy -- -D warnings"),
            ("bundle exec rubocop -A", "bundle exec rubocop"),
            ("golangci-lint run --new-from-rev HEAD --fix", "golangci-lint run"),
            ("dprint fmt", "dprint check"),
            ("python -m black .", "python -m black --check ."),
            (".venv/bin/black .", ".venv/bin/black --check ."),
            ("./node_modules/.bin/eslint --fix", "./node_modules/.bin/eslint"),
            (".venv/bin/python -m isort", ".venv/bin/python -m isort --check-only"),
            ("npx --yes prettier@3.1 --write", "npx --yes prettier@3.1 --check"),
            ("uv run --frozen ruff format", "uv run --frozen ruff format --check"),
            ("uvx black@24.1.0", "uvx black@24.1.0 --check"),
            ("uv run --with x black", "uv run --with x black"),
            ("npx --yes", "npx --yes"),
            ("bin/dprint fmt", "bin/dprint check"),
            ("shfmt -w -i 2", "shfmt -d -i 2"),
            ("make lint", "make lint"),
            ("npx", "npx"),
        ];
        for (hook, step) in cases {
            let words: Vec<String> = hook.split(' ').map(str::to_owned).collect();
            assert_eq!(to_check_mode(&words).argv.join(" "), step, "{hook}");
        }
    }

    #[test]
    fn original_command_becomes_fix() {
        let cases = [
            ("black {files}", "black {files}"),
            ("black --diff", ""),
            ("isort --check-only", ""),
            ("ruff check {files}", ""),
            ("ruff check --fix --exit-non-zero-on-fix {files}", "ruff check --exit-zero --fix {files}"),
            ("eslint --fix a.js", "sh -c eslint --fix a.js || [ $? = 1 ]"),
            ("npx eslint --fix {files} -f x", "sh -c npx eslint --fix \"$@\" -f x || [ $? = 1 ] sh {files}"),
            ("gofmt -l", ""),
            ("gofmt -s -w {files}", "gofmt -s -w {files}"),
            ("pyupgrade {files}", "sh -c pyupgrade \"$@\" || [ $? = 1 ] sh {files}"),
            ("autoflake --check -i", "autoflake --check -i"),
            ("yapf -d", ""),
            ("make fix", ""),
        ];
        for (hook, fix) in cases {
            let words: Vec<String> = hook.split(' ').map(str::to_owned).collect();
            let form = to_check_mode(&words);
            assert_eq!(form.fix.map(|fix| fix.join(" ")).unwrap_or_default(), fix, "{hook}");
        }
    }

    #[test]
    fn finds_the_fix_of_a_check() {
        let cases = [
            (".venv/bin/ruff check --no-cache --no-fix .", ".venv/bin/ruff check --exit-zero --fix --no-cache ."),
            ("ruff format --check --force-exclude {files}", "ruff format --force-exclude {files}"),
            ("black --check --diff -l 100 .", "black -l 100 ."),
            ("cargo fmt --all --check", "cargo fmt --all"),
            ("cargo fmt --all -- --check", "cargo fmt --all"),
            ("node_modules/.bin/prettier --check .", "node_modules/.bin/prettier --write ."),
            ("prettier -l src", "prettier --write src"),
            ("eslint .", "sh -c eslint --fix . || [ $? = 1 ]"),
            ("cargo fmt", ""),
            ("pyupgrade a.py", ""),
            ("mypy .", ""),
            ("make lint", ""),
        ];
        for (check, fix) in cases {
            let words: Vec<String> = check.split(' ').map(str::to_owned).collect();
            assert_eq!(to_fix_mode(&words).map(|fix| fix.join(" ")).unwrap_or_default(), fix, "{check}");
        }
    }

    #[test]
    fn notes_drift_for_fix_only_tools() {
        let form = to_check_mode(&["pyupgrade".to_owned(), "--py39-plus".to_owned()]);
        assert!(form.difference.expect("a note").contains("drift"));
        assert_eq!(form.argv, ["pyupgrade", "--py39-plus"]);
    }
}
