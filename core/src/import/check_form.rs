//! The form of a tool's command that looks and does not write. A hook may mend files, since a person commits
//! them afterwards; a step must say what is wrong, and leave the tree as it is.

/// A tool that mends files, and how it is told not to.
struct Tool {
    /// Its program, and the words after it that make it mend files.
    command: &'static [&'static str],
    /// What takes the place of `command`; the same where it is empty.
    instead: &'static [&'static str],
    /// Options that are left out; one that ends in `=` takes its value in the next word, too.
    drop: &'static [&'static str],
    /// What is added behind `command`, unless it stands there.
    add: &'static [&'static str],
    /// Whether it mends files although all of this is done.
    writes: bool,
}

const fn tool(command: &'static [&'static str]) -> Tool {
    Tool { command, instead: &[], drop: &[], add: &[], writes: false }
}

impl Tool {
    const fn instead(self, instead: &'static [&'static str]) -> Self {
        Self { instead, ..self }
    }
    const fn without(self, drop: &'static [&'static str]) -> Self {
        Self { drop, ..self }
    }
    const fn with(self, add: &'static [&'static str]) -> Self {
        Self { add, ..self }
    }
    const fn writes(self) -> Self {
        Self { writes: true, ..self }
    }
}

const RUFF: &[&str] = &["--fix", "--fix-only", "--unsafe-fixes", "--exit-non-zero-on-fix", "--exit-zero", "-e"];
const RUBOCOP: &[&str] = &[
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
const BIOME: &[&str] = &["--write", "--apply", "--apply-unsafe", "--fix", "--unsafe", "--staged"];
const CLIPPY: &[&str] = &["--fix", "--allow-dirty", "--allow-staged", "--allow-no-vcs"];

/// What each tool is told. Where two begin alike, the longer one comes first.
const TOOLS: &[Tool] = &[
    tool(&["add-trailing-comma"]).writes(),
    tool(&["alejandra"]).with(&["--check"]),
    tool(&["autoflake"]).without(&["-i", "--in-place"]).with(&["--check"]),
    tool(&["autopep8"]).without(&["-i", "--in-place"]).with(&["--diff", "--exit-code"]),
    tool(&["biome", "check"]).without(BIOME),
    tool(&["biome", "format"]).without(BIOME),
    tool(&["biome", "lint"]).without(BIOME),
    tool(&["black"]).without(&["-q", "--quiet"]).with(&["--check"]),
    tool(&["buf", "format"]).without(&["-w", "--write"]).with(&["--diff", "--exit-code"]),
    tool(&["cargo", "clippy"]).without(CLIPPY),
    tool(&["cargo", "fix"]).writes(),
    tool(&["cargo", "fmt"]).with(&["--check"]),
    tool(&["clang-format"]).without(&["-i"]).with(&["--dry-run", "-Werror"]),
    tool(&["codespell"]).without(&["-w", "--write-changes", "-i=", "--interactive="]),
    tool(&["dart", "format"]).with(&["--output=none", "--set-exit-if-changed"]),
    tool(&["deno", "fmt"]).with(&["--check"]),
    tool(&["djlint"]).without(&["--reformat"]).with(&["--check"]),
    tool(&["docformatter"]).without(&["-i", "--in-place"]).with(&["--check"]),
    tool(&["dprint", "fmt"]).instead(&["dprint", "check"]),
    tool(&["eslint"]).without(&["--fix", "--cache"]),
    tool(&["gofmt"]).without(&["-w"]).with(&["-l"]),
    tool(&["gofumpt"]).without(&["-w"]).with(&["-l"]),
    tool(&["goimports"]).without(&["-w"]).with(&["-l"]),
    tool(&["golangci-lint", "run"]).without(&["--fix", "--new", "--new-from-rev="]),
    tool(&["isort"]).without(&["--overwrite-in-place"]).with(&["--check-only"]),
    tool(&["ktlint"]).without(&["-F", "--format"]),
    tool(&["markdownlint"]).without(&["--fix", "-f"]),
    tool(&["markdownlint-cli2"]).without(&["--fix"]),
    tool(&["mdformat"]).with(&["--check"]),
    tool(&["mix", "format"]).with(&["--check-formatted"]),
    tool(&["nixfmt"]).with(&["--check"]),
    tool(&["oxlint"]).without(&["--fix", "--fix-suggestions", "--fix-dangerously"]),
    tool(&["prettier"]).without(&["--write", "-w", "--list-different", "-l"]).with(&["--check"]),
    tool(&["pyproject-fmt"]).with(&["--check"]),
    tool(&["pyupgrade"]).writes(),
    tool(&["reorder-python-imports"]).writes(),
    tool(&["rubocop"]).without(RUBOCOP),
    tool(&["ruff", "check"]).without(RUFF).with(&["--no-fix"]),
    tool(&["ruff", "format"]).with(&["--check"]),
    tool(&["rustfmt"]).with(&["--check"]),
    tool(&["setup-cfg-fmt"]).writes(),
    tool(&["shfmt"]).without(&["-w", "--write"]).with(&["-d"]),
    tool(&["sqlfluff", "fix"]).instead(&["sqlfluff", "lint"]).without(&["--force", "-f"]),
    tool(&["standardrb"]).without(&["--fix", "--fix-unsafely"]),
    tool(&["stylelint"]).without(&["--fix"]),
    tool(&["stylua"]).with(&["--check"]),
    tool(&["swiftformat"]).with(&["--lint"]),
    tool(&["swiftlint"]).without(&["--fix", "--autocorrect"]),
    tool(&["taplo", "fmt"]).with(&["--check"]),
    tool(&["taplo", "format"]).with(&["--check"]),
    tool(&["terraform", "fmt"]).without(&["-write=true"]).with(&["-check"]),
    tool(&["tofu", "fmt"]).without(&["-write=true"]).with(&["-check"]),
    tool(&["typos"]).without(&["-w", "--write-changes"]),
    tool(&["xo"]).without(&["--fix"]),
    tool(&["yapf"]).without(&["-i", "--in-place"]).with(&["--diff"]),
];

/// Options of all tools that say already what would be added. One that only prints what would be changed is none:
/// `black --diff` and `isort --diff` are content with any file.
const SAME: [(&str, &[&str]); 6] = [
    ("--check", &["-c", "--check-only"]),
    ("--check-only", &["--check", "-c"]),
    ("--no-fix", &["--diff"]),
    ("-check", &["--check", "-check=true"]),
    ("--diff", &["-d"]),
    ("-d", &["--diff"]),
];

/// What starts a tool of a project, before the tool's own name. Where two begin alike, the longer one comes first.
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

/// Words of those that may stand before the tool's own name, and take no word of their own.
const BEFORE: &[&str] = &[
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

/// A command that looks and does not write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CheckForm {
    /// Its words.
    pub(super) argv: Vec<String>,
    /// What is no longer as it was, for people; `None` where all of it is.
    pub(super) changed: Option<String>,
    /// Whether what it says on standard output is all that tells a fault.
    pub(super) prints_faults: bool,
}

/// The form of a command that looks and does not write, as far as its tool is known and has one.
pub(super) fn check_form(argv: &[String]) -> CheckForm {
    let start = program_at(argv);
    let own = &argv[start..];
    let Some(tool) = TOOLS.iter().find(|tool| is_called(own, tool.command)) else {
        let changed = argv.iter().any(|word| mends(word)).then(|| MENDS.to_owned());
        return CheckForm { argv: argv.to_vec(), changed, prints_faults: false };
    };
    let head = if tool.instead.is_empty() { tool.command } else { tool.instead };
    let rest = kept(&own[tool.command.len()..], tool.drop);
    let stands = |wanted: &&&str| rest.iter().any(|word| word == *wanted || says_the_same(wanted, word));
    let added: Vec<&str> = tool.add.iter().filter(|wanted| !stands(wanted)).copied().collect();
    // The program stays as it is named: it may have a path before it, or a version behind.
    let mut form: Vec<String> = argv[..=start].to_vec();
    form.extend(head.iter().skip(1).chain(&added).map(|word| (*word).to_owned()));
    form.extend(rest);
    let changed = match (tool.writes, form == argv) {
        (true, _) => {
            Some(format!("`{}` can only fix files: its changes count as drift and fail the step", tool.command[0]))
        }
        (false, true) => None,
        (false, false) => Some("checks only: files that the hook would fix fail the step".to_owned()),
    };
    let prints_faults = ["gofmt", "gofumpt", "goimports"].contains(&tool.command[0]);
    CheckForm { argv: form, changed, prints_faults }
}

/// What is said of a command that mends files and has no other form here.
pub(super) const MENDS: &str = "it mends files: what it would change is drift, and fails the step";

/// Whether a word tells a tool to mend files, as most of them have it.
pub(super) fn mends(word: &str) -> bool {
    ["--fix", "--fix-only", "--write", "--write-changes", "--in-place", "--autocorrect", "--auto-correct"]
        .contains(&word)
}

/// Where the tool's own name stands, behind what starts it.
pub(super) fn program_at(argv: &[String]) -> usize {
    let Some(runner) = RUNNERS.iter().find(|runner| argv.len() > runner.len() && is_called(argv, runner)) else {
        return 0;
    };
    let rest = &argv[runner.len()..];
    let before = rest.iter().take_while(|word| BEFORE.contains(&word.as_str())).count();
    if before < rest.len() { runner.len() + before } else { 0 }
}

/// The name of a program: `black` of `.venv/bin/black`, `prettier` of `prettier@3`.
pub(super) fn program_name(word: &str) -> &str {
    let name = word.rsplit('/').next().unwrap_or(word);
    match name.split_once('@') {
        Some((name, _)) if !name.is_empty() => name,
        _ => name,
    }
}

/// Whether a command is this one, wherever its program lies.
fn is_called(argv: &[String], words: &[&str]) -> bool {
    let [program, rest @ ..] = words else { return false };
    argv.first().is_some_and(|word| program_name(word) == *program) && begins(&argv[1..], rest)
}

fn begins(argv: &[String], words: &[&str]) -> bool {
    argv.len() >= words.len() && argv.iter().zip(words).all(|(have, want)| have == want)
}

fn says_the_same(wanted: &str, word: &str) -> bool {
    SAME.iter().any(|(option, others)| *option == wanted && others.contains(&word))
}

/// `words` without those that are dropped.
fn kept(words: &[String], drop: &[&str]) -> Vec<String> {
    let mut kept = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        // What stands behind `--` is not the tool's own.
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
    fn tools_that_mend_files_are_told_to_look() {
        let cases = [
            ("black", "black --check"),
            ("black --check -S", "black --check -S"),
            ("black --diff -l 100", "black --check --diff -l 100"),
            ("isort --diff", "isort --check-only --diff"),
            ("isort -c --diff", "isort -c --diff"),
            ("mix format --dry-run", "mix format --check-formatted --dry-run"),
            ("gofmt -s -w", "gofmt -l -s"),
            ("goimports -l", "goimports -l"),
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
            let form = check_form(&words);
            assert_eq!(form.argv.join(" "), step);
            assert_eq!(form.changed.is_some(), hook != step, "{hook}");
        }
    }

    #[test]
    fn one_that_can_only_mend_says_so() {
        let form = check_form(&["pyupgrade".to_owned(), "--py39-plus".to_owned()]);
        assert!(form.changed.expect("a note").contains("drift"));
        assert_eq!(form.argv, ["pyupgrade", "--py39-plus"]);
    }
}
