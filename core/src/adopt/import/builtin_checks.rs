//! Equivalents for the small checks of `pre-commit/pre-commit-hooks`. Most are short programs that get the file names
//! as arguments, and use `grep` or Python's standard library. The others are commands that the package
//! `pre-commit-hooks` installs.
//!
//! The programs make the same decisions as the hooks. If a hook fixes a file, the program reports it instead.

use super::shell_words::{in_shell, shell_command};
use crate::model::plan::FILES_PLACEHOLDER;
use crate::spec::quoted;

/// An equivalent for one of the checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BuiltinCheck {
    /// The command.
    pub(super) cmd: Vec<String>,
    /// The command that fixes the files, if there is an easy one.
    pub(super) fix: Option<Vec<String>>,
    /// The program that must be installed; `None` if every system has it.
    pub(super) program: Option<CheckProgram>,
    /// File types; a file must have all of them.
    pub(super) types: &'static [&'static str],
    /// Difference from the original hook; `None` if they are equivalent.
    pub(super) note: Option<&'static str>,
}

/// A program that must be installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CheckProgram {
    /// Python, and a module that is not in every Python 3.
    Python(Option<&'static str>),
    /// A command of the package.
    PackageCommand(&'static str),
}

/// The way in which a check finds the faulty files.
#[derive(Clone, Copy)]
enum FaultSearch {
    /// A command of a shell that prints the faulty lines and succeeds, or exits with 1 if there are none.
    Lines(&'static str),
    /// A Python expression that lists what is faulty in the files of `sys.argv`, and the imported modules.
    List(&'static str, &'static str),
    /// A Python statement that raises an exception for the faulty file `f`, the exceptions, and the imported modules.
    /// Definitions can come before the statement, separated by a line break.
    Raises(&'static str, &'static str, &'static str),
    /// A Python program.
    Program(&'static str),
    /// The check of line endings, whose program depends on the option.
    LineEndings,
}

/// A check of files. `%ARG%` in its text is replaced by the value of the option.
struct InlineCheck {
    id: &'static str,
    search: FaultSearch,
    fix: Option<&'static [&'static str]>,
    types: &'static [&'static str],
    module: Option<&'static str>,
    note: Option<&'static str>,
    /// The only supported option, with its default value.
    option: Option<(&'static str, &'static str)>,
}

const fn check(id: &'static str, types: &'static [&'static str], search: FaultSearch) -> InlineCheck {
    InlineCheck { id, search, fix: None, types, module: None, note: None, option: None }
}

impl InlineCheck {
    const fn fixed_by(self, fix: &'static [&'static str]) -> Self {
        Self { fix: Some(fix), ..self }
    }
    const fn module(self, module: &'static str) -> Self {
        Self { module: Some(module), ..self }
    }
    const fn note(self, note: &'static str) -> Self {
        Self { note: Some(note), ..self }
    }
    const fn option(self, name: &'static str, default: &'static str) -> Self {
        Self { option: Some((name, default)), ..self }
    }
}

const TEXT: &[&str] = &["text"];
const PYTHON: &[&str] = &["python"];
const FILE: &[&str] = &["file"];
const BYTE_ORDER_MARK: FaultSearch =
    FaultSearch::List(r#"f for f in sys.argv[1:] if open(f, "rb").read(3) == b"\xef\xbb\xbf""#, "sys");

const INLINE_CHECKS: &[InlineCheck] = &[
    check(
        "trailing-whitespace",
        TEXT,
        // A carriage return before the line break is part of it. At the end of a file without a line break, it is white
        // space, for which the file is searched as one line.
        FaultSearch::Lines(
            r#"LC_ALL=C grep -lazP "\r\z" "$@"; [ $? = 1 ] || exit 1; LC_ALL=C grep -nHaP "[ \t\f\x0b]\r?$|\r\r$""#,
        ),
    )
    .fixed_by(&[
        "sed",
        "-i",
        "-E",
        "-z",
        "-e",
        r"s/[ \t\r\f\v]+\r\n/\r\n/g",
        "-e",
        r"s/[ \t\f\v\r]*[ \t\f\v]\n/\n/g",
        "-e",
        r"s/[ \t\r\f\v]+$//",
    ]),
    check(
        "end-of-file-fixer",
        TEXT,
        FaultSearch::List(
            r#"f for f in sys.argv[1:] if not re.fullmatch(rb"|(?s:.*[^\r\n])(\r\n?|\n)", open(f, "rb").read())"#,
            "re, sys",
        ),
    )
    .fixed_by(&["sed", "-i", "-e", ":a", "-e", r"/^[\r\n]*$/{$d;N;ba", "-e", "}", "-e", r"$a\"]),
    check("check-merge-conflict", TEXT, FaultSearch::Lines(r#"grep -nHaE "^(<{7}|>{7}) ""#))
        .note("searches every tree for `<<<<<<<` and `>>>>>>>`, not only during a merge, and ignores `=======`"),
    check(
        "check-added-large-files",
        FILE,
        FaultSearch::Program(
            r#"import os, subprocess, sys
def is_large(f):
    if os.stat(f).st_size <= %ARG% * 1024:
        return False
    lfs = subprocess.run(["git", "check-attr", "-z", "filter", "--", f], capture_output=True, check=True)
    return b"\0lfs\0" not in lfs.stdout
sys.exit("\n".join(filter(is_large, sys.argv[1:])) or 0)"#,
        ),
    )
    .note("checks every tracked file, not only new ones: use `exclude` for files that are large on purpose")
    .option("--maxkb=", "500"),
    check(
        "check-case-conflict",
        FILE,
        FaultSearch::Program(
            r#"import collections, os, subprocess, sys
names = collections.defaultdict(set)
listed = subprocess.run(["git", "ls-files", "-zco", "--exclude-standard"], capture_output=True, check=True)
for f in filter(os.path.lexists, os.fsdecode(listed.stdout).split("\0")):
    while f:
        names[f.lower()].add(f)
        f = os.path.dirname(f)
def conflicts(f):
    return f and (len(names[f.lower()]) > 1 or conflicts(os.path.dirname(f)))
sys.exit("\n".join(f for f in sys.argv[1:] if conflicts(os.path.normpath(f))) or 0)"#,
        ),
    ),
    check(
        "check-json",
        &["json"],
        FaultSearch::Raises(
            "def unique(pairs):
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError(\"a key occurs twice\")
    return dict(pairs)
json.load(open(f, \"rb\"), object_pairs_hook=unique)",
            "ValueError, RecursionError",
            "json, sys",
        ),
    ),
    check(
        "check-toml",
        &["toml"],
        FaultSearch::Raises("tomllib.load(open(f, \"rb\"))", "ValueError, RecursionError", "sys, tomllib"),
    )
    .module("tomllib"),
    check(
        "check-xml",
        &["xml"],
        FaultSearch::Raises(
            "xml.sax.parse(open(f, \"rb\"), xml.sax.ContentHandler())",
            "xml.sax.SAXException",
            "sys, xml.sax",
        ),
    ),
    check(
        "check-ast",
        PYTHON,
        FaultSearch::Raises(
            "ast.parse(open(f, \"rb\").read(), f)",
            "SyntaxError, ValueError, RecursionError",
            "ast, sys",
        ),
    ),
    check(
        "debug-statements",
        PYTHON,
        FaultSearch::Program(
            r#"import ast, sys
debuggers = "bpdb ipdb pdb pdbr pudb pydevd_pycharm q rdb rpdb wdb".split()
bad = [f"{f}:{n.lineno}" for f in sys.argv[1:] for n in ast.walk(ast.parse(open(f, "rb").read(), f)) if
  isinstance(n, ast.Import) and any(a.name in debuggers for a in n.names) or
  isinstance(n, ast.ImportFrom) and n.module in debuggers or isinstance(n, ast.Call) and getattr(n.func, "id", "") == "breakpoint"]
sys.exit("\n".join(bad) or 0)"#,
        ),
    ),
    check(
        "check-illegal-windows-names",
        FILE,
        FaultSearch::List(
            r#"f for f in sys.argv[1:] if re.search(r"(?i)(^|/)(con|prn|aux|nul|(com|lpt)[\d\u00b9\u00b2\u00b3])(\.|/|$)|[<>:\x22\\|?*\x00-\x1f]|[.\s](/|$)", f.removeprefix("./"))"#,
            "re, sys",
        ),
    ),
    check(
        "check-symlinks",
        &["symlink"],
        FaultSearch::List("f for f in sys.argv[1:] if not os.path.exists(f)", "os, sys"),
    ),
    check(
        "check-executables-have-shebangs",
        &["text", "executable"],
        FaultSearch::List(r##"f for f in sys.argv[1:] if open(f, "rb").read(2) != b"#!""##, "sys"),
    ),
    check(
        "check-shebang-scripts-are-executable",
        &["text", "non-executable"],
        FaultSearch::List(r##"f for f in sys.argv[1:] if open(f, "rb").read(2) == b"#!""##, "sys"),
    ),
    check(
        "detect-private-key",
        TEXT,
        // The marks are split so that a spec that contains this program does not match it.
        FaultSearch::Program(
            r#"import sys
kinds = b"|RSA |DSA |EC |OPENSSH |ENCRYPTED |SSH2 ENCRYPTED ".split(b"|")
marks = [b"BEGIN " + kind + b"PRIVATE " + b"KEY" for kind in kinds]
marks += [b"BEGIN PGP PRIVATE " + b"KEY BLOCK", b"BEGIN OpenVPN Static " + b"key V1", b"PuTTY-User-Key" + b"-File-2"]
bad = [f for f in sys.argv[1:] for data in [open(f, "rb").read()] if any(mark in data for mark in marks)]
sys.exit("\n".join(bad) or 0)"#,
        ),
    ),
    check("mixed-line-ending", TEXT, FaultSearch::LineEndings).option("--fix=", "auto"),
    check("fix-byte-order-marker", TEXT, BYTE_ORDER_MARK),
    check("check-byte-order-marker", TEXT, BYTE_ORDER_MARK),
];

/// Checks for which the package's own commands are used, with the file types that they apply to.
const PACKAGE_COMMANDS: &[(&str, &[&str])] = &[
    ("check-builtin-literals", PYTHON),
    ("check-docstring-first", PYTHON),
    ("check-json", &["json"]),
    ("check-toml", &["toml"]),
    ("check-vcs-permalinks", TEXT),
    ("check-yaml", &["yaml"]),
    ("detect-aws-credentials", TEXT),
    ("double-quote-string-fixer", PYTHON),
    ("file-contents-sorter", FILE),
    ("fix-encoding-pragma", PYTHON),
    ("name-tests-test", PYTHON),
    ("pretty-format-json", &["json"]),
    ("requirements-txt-fixer", FILE),
    ("sort-simple-yaml", FILE),
    ("trailing-whitespace", TEXT),
    ("end-of-file-fixer", TEXT),
    ("mixed-line-ending", TEXT),
    ("check-added-large-files", FILE),
    ("debug-statements", PYTHON),
    ("check-ast", PYTHON),
];

/// Commands whose name differs from that of the hook.
const RENAMED_COMMANDS: [(&str, &str); 2] =
    [("trailing-whitespace", "trailing-whitespace-fixer"), ("debug-statements", "debug-statement-hook")];

/// Commands of the package that change files: in a step, a change is drift and fails it.
const FIXING_COMMANDS: [&str; 8] = [
    "double-quote-string-fixer",
    "end-of-file-fixer",
    "file-contents-sorter",
    "fix-encoding-pragma",
    "mixed-line-ending",
    "requirements-txt-fixer",
    "sort-simple-yaml",
    "trailing-whitespace-fixer",
];

/// Returns the equivalent of a check with these options. `None` if the check is unknown.
pub(super) fn find(id: &str, args: &[String]) -> Option<BuiltinCheck> {
    let check = INLINE_CHECKS.iter().find(|check| check.id == id);
    if let Some(builtin) = check.and_then(|check| inline_equivalent(check, args)) {
        return Some(builtin);
    }
    let (name, types) = PACKAGE_COMMANDS.iter().find(|(name, _)| *name == id)?;
    let name = RENAMED_COMMANDS.iter().find(|(hook, _)| hook == name).map_or(*name, |(_, command)| *command);
    let mut cmd = vec![name.to_owned()];
    cmd.extend(args.iter().cloned());
    cmd.push(FILES_PLACEHOLDER.to_owned());
    // These programs exit with 1 after a fix.
    let fix = FIXING_COMMANDS.contains(&name).then(|| in_shell(&cmd, "", " || [ $? = 1 ]"));
    Some(BuiltinCheck { cmd, fix, program: Some(CheckProgram::PackageCommand(name)), types, note: None })
}

/// Returns the path pattern from the hook's own manifest, or an empty pattern if it has none.
pub(super) fn files_pattern(id: &str) -> &'static str {
    match id {
        "name-tests-test" => "(^|/)tests/.+\\.py$",
        "requirements-txt-fixer" => "(requirements|constraints).*\\.txt$",
        // These hooks match no file unless a configuration says otherwise.
        "file-contents-sorter" | "sort-simple-yaml" => "^$",
        _ => "",
    }
}

fn inline_equivalent(check: &InlineCheck, args: &[String]) -> Option<BuiltinCheck> {
    // With this option the hook checks every file, which the program always does.
    let ignored = |arg: &&String| check.id == "check-added-large-files" && *arg == "--enforce-all";
    let args: Vec<&String> = args.iter().filter(|arg| !ignored(arg)).collect();
    if check.id == "trailing-whitespace" && !args.is_empty() {
        return markdown_whitespace_check(check, &args);
    }
    let mut value = check.option.map_or("", |(_, default)| default);
    for arg in args {
        let (name, _) = check.option?;
        value = arg.strip_prefix(name).filter(|value| is_safe_value(check.id, value))?;
    }
    Some(match check.search {
        FaultSearch::Lines(command) => BuiltinCheck {
            cmd: shell_command(&format!("{command} \"$@\"; [ $? = 1 ]"), true),
            fix: check.fix.map(with_files),
            program: None,
            types: check.types,
            note: check.note,
        },
        FaultSearch::LineEndings => {
            let fix: Option<&[&str]> = if value == "lf" { Some(&["sed", "-i", r"s/\r$//"]) } else { None };
            python_check(check, &line_endings_program(value), fix)
        }
        FaultSearch::List(list, modules) => python_check(check, &list_program(list, modules), check.fix),
        FaultSearch::Raises(text, errors, modules) => {
            python_check(check, &exception_program(text, errors, modules), check.fix)
        }
        FaultSearch::Program(program) => python_check(check, &program.replace("%ARG%", value), check.fix),
    })
}

fn python_check(check: &InlineCheck, program: &str, fix: Option<&[&str]>) -> BuiltinCheck {
    BuiltinCheck {
        cmd: python_command(program, &[FILES_PLACEHOLDER]),
        fix: fix.map(with_files),
        program: Some(CheckProgram::Python(check.module)),
        types: check.types,
        note: check.note,
    }
}

/// Returns a command with the word for the files at the end.
fn with_files(words: &[&str]) -> Vec<String> {
    words.iter().chain([&FILES_PLACEHOLDER]).map(|word| (*word).to_owned()).collect()
}

/// Returns the program that fails with the elements of a list, if there are any.
fn list_program(list: &str, modules: &str) -> String {
    format!("import {modules}; sys.exit(\"\\n\".join({list}) or 0)")
}

/// Returns the program that fails with the exceptions that the last line of `text` raises.
fn exception_program(text: &str, errors: &str, modules: &str) -> String {
    let (definitions, statement) = text.rsplit_once('\n').unwrap_or(("", text));
    let definitions = if definitions.is_empty() { String::new() } else { format!("{definitions}\n") };
    format!(
        r#"import {modules}
{definitions}bad = 0
for f in sys.argv[1:]:
    try:
        {statement}
    except ({errors}) as e:
        bad = 1
        print(f"{{f}}: {{e}}", file=sys.stderr)
sys.exit(bad)"#
    )
}

/// Returns the program for mixed line endings: the files must have only one kind, or only the wanted kind.
fn line_endings_program(wanted: &str) -> String {
    let found = r#"{*re.findall(rb"\r\n|\n|\r", open(f, "rb").read())}"#;
    let is_bad = match wanted {
        "lf" => format!("{found} - {{b\"\\n\"}}"),
        "crlf" => format!("{found} - {{b\"\\r\\n\"}}"),
        "cr" => format!("{found} - {{b\"\\r\"}}"),
        _ => format!("len({found}) > 1"),
    };
    list_program(&format!("f for f in sys.argv[1:] if {is_bad}"), "re, sys")
}

/// Returns the check for whitespace at the end of lines that keeps line breaks of Markdown.
fn markdown_whitespace_check(check: &InlineCheck, args: &[&String]) -> Option<BuiltinCheck> {
    let mut endings = Vec::new();
    for arg in args {
        let value = arg.strip_prefix("--markdown-linebreak-ext=").filter(|value| is_safe_value(check.id, value))?;
        let value = value.split(',').map(|ending| ending.trim_matches('.').to_ascii_lowercase());
        endings.extend(value.filter(|ending| !ending.is_empty()).map(|ending| format!("\".{ending}\"")));
    }
    let program = format!(
        r#"import re, sys
bad = []
for f in sys.argv[1:]:
    for n, line in enumerate(open(f, "rb"), 1):
        text = re.sub(rb"\r?\n\Z", b"", line)
        if f.lower().endswith(({},)) and text.strip() and text.endswith(b"  "):
            text = text[:-2]
        if text != text.rstrip():
            bad.append(f"{{f}}:{{n}}")
sys.exit("\n".join(bad) or 0)"#,
        endings.join(", ")
    );
    (!endings.is_empty()).then(|| python_check(check, &program, None))
}

/// An option that pre-commit's language `pygrep` does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`pygrep` has no option {}", quoted(.option))]
pub(super) struct UnknownPygrepOption {
    option: String,
}

/// Returns a command that works like pre-commit's language `pygrep`. It searches each line for a Python regular
/// expression, or each file as a whole with `--multiline`; `--negate` inverts the result.
///
/// # Errors
/// An option is unknown.
pub(super) fn pygrep(expression: &str, args: &[String]) -> Result<Vec<String>, UnknownPygrepOption> {
    let (mut flags, mut multiline, mut negate) = (Vec::new(), false, false);
    for arg in args {
        match arg.as_str() {
            "-i" | "--ignore-case" => flags.push("re.IGNORECASE"),
            "--multiline" => multiline = true,
            "--negate" => negate = true,
            _ => return Err(UnknownPygrepOption { option: arg.clone() }),
        }
    }
    if multiline {
        flags.extend(["re.MULTILINE", "re.DOTALL"]);
    }
    let flags = if flags.is_empty() { String::new() } else { format!(", {}", flags.join(" | ")) };
    let list = match (multiline, negate) {
        (false, false) => {
            "f\"{f}:{n}\" for f in sys.argv[2:] for n, line in enumerate(open(f, \"rb\"), 1) if pattern.search(line)"
        }
        (false, true) => "f for f in sys.argv[2:] if not any(map(pattern.search, open(f, \"rb\")))",
        (true, false) => "f for f in sys.argv[2:] if pattern.search(open(f, \"rb\").read())",
        (true, true) => "f for f in sys.argv[2:] if not pattern.search(open(f, \"rb\").read())",
    };
    let program = format!(
        "import os, re, sys\npattern = re.compile(os.fsencode(sys.argv[1]){flags})\nsys.exit(\"\\n\".join({list}) or 0)"
    );
    Ok(python_command(&program, &[expression, FILES_PLACEHOLDER]))
}

/// Returns whether an option's value can be inserted into a program without escaping.
fn is_safe_value(id: &str, value: &str) -> bool {
    match id {
        "check-added-large-files" => value.parse::<u32>().is_ok(),
        "mixed-line-ending" => ["auto", "no", "lf", "crlf", "cr"].contains(&value),
        _ => value.chars().all(|c| c.is_ascii_alphanumeric() || ".,".contains(c)),
    }
}

/// Returns the command that runs a Python program. The isolated mode ignores modules of the repository.
fn python_command(program: &str, args: &[&str]) -> Vec<String> {
    let program = if program.contains('\n') { format!("\n{program}") } else { program.to_owned() };
    ["python3", "-I", "-c", &program].iter().chain(args).map(|word| (*word).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_contain_no_single_quotes() {
        for check in INLINE_CHECKS {
            let found = find(check.id, &[]).expect(check.id);
            let program = found.cmd.iter().find(|word| word.contains("sys")).cloned().unwrap_or_default();
            assert!(!program.contains('\'') && !program.contains("%ARG%"), "{program}");
            assert_eq!(found.cmd.last().map(String::as_str), Some(FILES_PLACEHOLDER));
        }
    }

    #[test]
    fn uses_package_command_for_unsupported_options() {
        let find_check =
            |id: &str, args: &[&str]| find(id, &args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>());
        let python =
            |found: Option<BuiltinCheck>| matches!(found.expect("known").program, Some(CheckProgram::Python(_)));
        assert!(python(find_check("check-added-large-files", &["--maxkb=900", "--enforce-all"])));
        assert!(!python(find_check("check-added-large-files", &["--maxkb=1)"])));
        assert!(!python(find_check("trailing-whitespace", &["--chars=x"])));
        assert!(python(find_check("trailing-whitespace", &["--markdown-linebreak-ext=md"])));
        let name = find_check("trailing-whitespace", &["--chars=x"]).expect("known").program;
        assert_eq!(name, Some(CheckProgram::PackageCommand("trailing-whitespace-fixer")));
        assert_eq!(find_check("no-such-hook", &[]), None);
    }
}
