//! Equivalents for the small checks of `pre-commit/pre-commit-hooks`. Most are programs that use Python's standard
//! library and read the file names from standard input. The others are commands that the package `pre-commit-hooks`
//! installs.
//!
//! The programs make the same decisions as the hooks. If a hook fixes a file, the program reports it instead.

use super::shell_words::quote;
use crate::spec::quoted;

/// An equivalent for one of the checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BuiltinCheck {
    /// The last command of the pipeline, which gets the file names.
    pub(super) program: CheckProgram,
    /// File tags; a file must have all of them.
    pub(super) types: &'static [&'static str],
    /// Difference from the original hook; `None` if they are equivalent.
    pub(super) note: Option<&'static str>,
}

/// The program that makes the check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CheckProgram {
    /// A program for `python3 -c`.
    Python {
        /// The program; contains no single quotes.
        program: String,
        /// A required module that is not in every Python 3.
        module: Option<&'static str>,
    },
    /// A command of the package; gets the file names as arguments.
    Command {
        /// The name of the command.
        name: &'static str,
    },
}

/// A check of one file. `body` is the body of a Python generator over the file name `f`; it yields the problems as
/// texts.
struct PythonCheck {
    id: &'static str,
    imports: &'static str,
    /// Code before the loop over the files; `%ARG%` is replaced by the value of the option.
    before: &'static str,
    body: &'static str,
    types: &'static [&'static str],
    module: Option<&'static str>,
    note: Option<&'static str>,
    /// The only supported option, with its default value.
    option: Option<(&'static str, &'static str)>,
}

const DEFAULT_CHECK: PythonCheck =
    PythonCheck { id: "", imports: "", before: "", body: "", types: &["text"], module: None, note: None, option: None };

const PYTHON_CHECKS: &[PythonCheck] = &[
    PythonCheck {
        id: "trailing-whitespace",
        before: "endings = tuple(\".\" + e.strip(\". \").lower() for e in \"%ARG%\".split(\",\") if e.strip(\". \"))",
        body: "for n, line in enumerate(open(f, \"rb\"), 1):\n    text = line.rstrip(b\"\\r\\n\")\n    if endings and \
               f.lower().endswith(endings) and text.strip() and text.endswith(b\"  \"):\n        text = text[:-2]\n    if \
               text != text.rstrip():\n        yield f\"{f}:{n}: whitespace at the end of the line\"",
        option: Some(("--markdown-linebreak-ext=", "")),
        ..DEFAULT_CHECK
    },
    PythonCheck {
        id: "end-of-file-fixer",
        body: "data = open(f, \"rb\").read()\nend = data[len(data.rstrip(b\"\\r\\n\")):]\nif data and (end == data or end not in \
               (b\"\\n\", b\"\\r\\n\", b\"\\r\")):\n    yield f\"{f}: does not end with one line break\"",
        ..DEFAULT_CHECK
    },
    PythonCheck {
        id: "mixed-line-ending",
        before: "wanted = \"%ARG%\"",
        body: "data = open(f, \"rb\").read()\ncrlf = data.count(b\"\\r\\n\")\nfound = {\"crlf\": crlf, \"lf\": data.count(b\"\\n\") - \
               crlf, \"cr\": data.count(b\"\\r\") - crlf}\nkinds = [k for k, n in found.items() if n]\nif len(kinds) > 1 or \
               (wanted in found and kinds not in ([], [wanted])):\n    yield f\"{f}: line endings are {kinds}\"",
        option: Some(("--fix=", "auto")),
        ..DEFAULT_CHECK
    },
    PythonCheck {
        id: "check-merge-conflict",
        body: "for n, line in enumerate(open(f, \"rb\"), 1):\n    if line.startswith((b\"<<<<<<< \", b\">>>>>>> \")):\n        yield \
               f\"{f}:{n}: merge conflict\"",
        note: Some(
            "searches every tree for `<<<<<<<` and `>>>>>>>`, not only during a merge, and ignores `=======`, which underlines headings",
        ),
        ..DEFAULT_CHECK
    },
    PythonCheck {
        id: "check-added-large-files",
        imports: "math, os, subprocess",
        before: "limit = int(\"%ARG%\")",
        body: "size = math.ceil(os.stat(f).st_size / 1024)\nif size > limit:\n    lfs = subprocess.run([\"git\", \"check-attr\", \
               \"-z\", \"filter\", \"--\", f], capture_output=True, check=True)\n    if b\"\\0lfs\\0\" not in lfs.stdout:\n        yield \
               f\"{f}: {size} KB are more than {limit}\"",
        types: &["file"],
        note: Some("checks every tracked file, not only new ones: use `exclude` for files that are large on purpose"),
        option: Some(("--maxkb=", "500")),
        ..DEFAULT_CHECK
    },
    PythonCheck {
        id: "check-case-conflict",
        imports: "collections",
        before: "names = collections.defaultdict(set)\nfor f in files:\n    while f:\n        names[f.lower()].add(f)\n        f = \
                 f.rpartition(\"/\")[0]",
        body: "if len(names[f.lower()]) > 1:\n    yield f\"{f}: another name differs only in case\"",
        types: &["file"],
        ..DEFAULT_CHECK
    },
    PythonCheck {
        id: "check-json",
        imports: "json",
        before: "def once(pairs):\n    keys = [k for k, _ in pairs]\n    for k in keys:\n        if keys.count(k) > 1:\n            raise \
                 ValueError(f\"the key {k} occurs twice\")\n    return dict(pairs)",
        body: "try:\n    json.load(open(f, encoding=\"utf-8\"), object_pairs_hook=once)\nexcept (ValueError, RecursionError) as \
               e:\n    yield f\"{f}: {e}\"",
        types: &["json"],
        ..DEFAULT_CHECK
    },
    PythonCheck {
        id: "check-toml",
        imports: "tomllib",
        body: "try:\n    tomllib.load(open(f, \"rb\"))\nexcept (ValueError, RecursionError) as e:\n    yield f\"{f}: {e}\"",
        types: &["toml"],
        module: Some("tomllib"),
        ..DEFAULT_CHECK
    },
    PythonCheck {
        id: "check-xml",
        imports: "xml.sax",
        body: "try:\n    xml.sax.parse(open(f, \"rb\"), xml.sax.ContentHandler())\nexcept xml.sax.SAXException as e:\n    yield \
               f\"{f}: {e}\"",
        types: &["xml"],
        ..DEFAULT_CHECK
    },
    PythonCheck {
        id: "check-ast",
        imports: "ast",
        body: "try:\n    ast.parse(open(f, \"rb\").read(), f)\nexcept (SyntaxError, ValueError, RecursionError) as e:\n    yield \
               f\"{f}: {e}\"",
        types: &["python"],
        ..DEFAULT_CHECK
    },
    PythonCheck {
        id: "debug-statements",
        imports: "ast",
        before: "debuggers = \"bpdb ipdb pdb pdbr pudb pydevd_pycharm q rdb rpdb wdb\".split()",
        body: "try:\n    tree = ast.parse(open(f, \"rb\").read(), f)\nexcept (SyntaxError, ValueError, RecursionError) as e:\n    \
               yield f\"{f}: {e}\"\n    return\nfor node in ast.walk(tree):\n    if isinstance(node, ast.Import):\n        names = \
               [a.name.split(\".\")[0] for a in node.names]\n    elif isinstance(node, ast.ImportFrom):\n        names = \
               [(node.module or \"\").split(\".\")[0]]\n    elif isinstance(node, ast.Call):\n        names = [\"pdb\"] if \
               getattr(node.func, \"id\", \"\") == \"breakpoint\" else []\n    else:\n        continue\n    for name in names:\n        \
               if name in debuggers:\n            yield f\"{f}:{node.lineno}: a debugger\"",
        types: &["python"],
        ..DEFAULT_CHECK
    },
    PythonCheck {
        id: "check-illegal-windows-names",
        imports: "re",
        before: "parts = r\"(^|/)(con|prn|aux|nul|(com|lpt)[\\d\\u00b9\\u00b2\\u00b3])(\\.|/|$)|[<>:\\x22\\\\|?*\\x00-\\x1f]|[.\\s](/|$)\"\n\
                 illegal = re.compile(parts, re.IGNORECASE)",
        body: "if illegal.search(f):\n    yield f\"{f}: Windows has no file of this name\"",
        types: &["file"],
        ..DEFAULT_CHECK
    },
    PythonCheck {
        id: "check-symlinks",
        imports: "os",
        body: "if not os.path.exists(f):\n    yield f\"{f}: the link leads nowhere\"",
        types: &["symlink"],
        ..DEFAULT_CHECK
    },
    PythonCheck {
        id: "check-executables-have-shebangs",
        body: "if open(f, \"rb\").read(2) != b\"#!\":\n    yield f\"{f}: is executable and has no shebang\"",
        types: &["text", "executable"],
        ..DEFAULT_CHECK
    },
    PythonCheck {
        id: "check-shebang-scripts-are-executable",
        body: "if open(f, \"rb\").read(2) == b\"#!\":\n    yield f\"{f}: has a shebang and is not executable\"",
        types: &["text", "non-executable"],
        ..DEFAULT_CHECK
    },
    PythonCheck {
        id: "detect-private-key",
        // The marks are concatenated so that a spec that contains this program does not match it.
        before: "kinds = (b\"PRIVATE KEY\", b\"RSA PRIVATE KEY\", b\"DSA PRIVATE KEY\", b\"EC PRIVATE KEY\", b\"OPENSSH PRIVATE \
                 KEY\", b\"ENCRYPTED PRIVATE KEY\", b\"SSH2 ENCRYPTED PRIVATE KEY\", b\"PGP PRIVATE KEY BLOCK\", b\"OpenVPN Static \
                 key V1\")\nmarks = [b\"BEGIN \" + kind for kind in kinds] + [b\"PuTTY-User-Key\" + b\"-File-2\"]",
        body: "data = open(f, \"rb\").read()\nif any(mark in data for mark in marks):\n    yield f\"{f}: a private key\"",
        ..DEFAULT_CHECK
    },
    PythonCheck {
        id: "fix-byte-order-marker",
        body: "if open(f, \"rb\").read(3) == b\"\\xef\\xbb\\xbf\":\n    yield f\"{f}: has a byte order mark\"",
        ..DEFAULT_CHECK
    },
    PythonCheck {
        id: "check-byte-order-marker",
        body: "if open(f, \"rb\").read(3) == b\"\\xef\\xbb\\xbf\":\n    yield f\"{f}: has a byte order mark\"",
        ..DEFAULT_CHECK
    },
];

/// Checks for which the package's own commands are used, with the file tags that they apply to.
const PACKAGE_COMMANDS: &[(&str, &[&str])] = &[
    ("check-builtin-literals", &["python"]),
    ("check-docstring-first", &["python"]),
    ("check-json", &["json"]),
    ("check-toml", &["toml"]),
    ("check-vcs-permalinks", &["text"]),
    ("check-yaml", &["yaml"]),
    ("detect-aws-credentials", &["text"]),
    ("double-quote-string-fixer", &["python"]),
    ("file-contents-sorter", &["file"]),
    ("fix-encoding-pragma", &["python"]),
    ("name-tests-test", &["python"]),
    ("pretty-format-json", &["json"]),
    ("requirements-txt-fixer", &["file"]),
    ("sort-simple-yaml", &["file"]),
    ("trailing-whitespace", &["text"]),
    ("end-of-file-fixer", &["text"]),
    ("mixed-line-ending", &["text"]),
    ("check-added-large-files", &["file"]),
    ("debug-statements", &["python"]),
    ("check-ast", &["python"]),
];

/// Commands whose name differs from that of the hook.
const RENAMED_COMMANDS: [(&str, &str); 2] =
    [("trailing-whitespace", "trailing-whitespace-fixer"), ("debug-statements", "debug-statement-hook")];

/// Returns the equivalent of a check with these options. `None` if the check is unknown.
pub(super) fn find(id: &str, args: &[String]) -> Option<BuiltinCheck> {
    let check = PYTHON_CHECKS.iter().find(|check| check.id == id);
    if let Some(builtin) = check.and_then(|check| python_equivalent(check, args)) {
        return Some(builtin);
    }
    let (name, types) = PACKAGE_COMMANDS.iter().find(|(name, _)| *name == id)?;
    let name = RENAMED_COMMANDS.iter().find(|(hook, _)| hook == name).map_or(*name, |(_, command)| *command);
    Some(BuiltinCheck { program: CheckProgram::Command { name }, types, note: None })
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

fn python_equivalent(check: &PythonCheck, args: &[String]) -> Option<BuiltinCheck> {
    let mut value = check.option.map_or("", |(_, default)| default);
    // With this option the hook checks every file, which the program does in any case.
    let ignored = |arg: &&String| check.id == "check-added-large-files" && *arg == "--enforce-all";
    for arg in args.iter().filter(|arg| !ignored(arg)) {
        let (name, _) = check.option?;
        value = arg.strip_prefix(name).filter(|value| is_safe_value(check.id, value))?;
    }
    let program = python_program(check.imports, &check.before.replace("%ARG%", value), check.body);
    let way = CheckProgram::Python { program, module: check.module };
    Some(BuiltinCheck { program: way, types: check.types, note: check.note })
}

/// Returns a Python program that reads file names, prints the problems that `body` finds in each file, and fails if
/// there are any.
fn python_program(imports: &str, before: &str, body: &str) -> String {
    let imports = if imports.is_empty() { String::new() } else { format!(", {imports}") };
    let before = if before.is_empty() { String::new() } else { format!("{before}\n") };
    let body: Vec<String> = body.lines().map(|line| format!("    {line}")).collect();
    format!(
        "import os, sys{imports}\nfiles = [os.fsdecode(f) for f in sys.stdin.buffer.read().split(b\"\\0\") if \
         f]\n{before}def faults(f):\n{}\nfound = [fault for f in files for fault in faults(f)]\nfor fault in \
         found:\n    print(fault.encode(errors=\"backslashreplace\").decode())\nsys.exit(bool(found))",
        body.join("\n")
    )
}

/// An option that pre-commit's language `pygrep` does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`pygrep` has no option {}", quoted(.option))]
pub(super) struct UnknownPygrepOption {
    option: String,
}

/// Returns the last command of a pipeline that works like pre-commit's language `pygrep`. It searches each line for
/// a Python regular expression, or each file as a whole with `--multiline`; `--negate` inverts the result.
///
/// # Errors
/// An option is unknown.
pub(super) fn pygrep(expression: &str, args: &[String]) -> Result<String, UnknownPygrepOption> {
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
    let flags = if flags.is_empty() { "0".to_owned() } else { flags.join(" | ") };
    let body = match (multiline, negate) {
        (false, false) => {
            "for n, line in enumerate(open(f, \"rb\"), 1):\n    if pattern.search(line):\n        yield \
             f\"{f}:{n}:\" + line.decode(errors=\"backslashreplace\").rstrip()"
        }
        (false, true) => "if not any(pattern.search(line) for line in open(f, \"rb\")):\n    yield f",
        (true, false) => "if pattern.search(open(f, \"rb\").read()):\n    yield f",
        (true, true) => "if not pattern.search(open(f, \"rb\").read()):\n    yield f",
    };
    let before = format!("pattern = re.compile(os.fsencode(sys.argv[1]), {flags})");
    Ok(format!("{} {}", python_command(&python_program("re", &before, body)), quote(expression)))
}

/// Returns whether an option's value can be inserted into a program without escaping.
fn is_safe_value(id: &str, value: &str) -> bool {
    match id {
        "check-added-large-files" => value.parse::<u32>().is_ok(),
        "mixed-line-ending" => ["auto", "no", "lf", "crlf", "cr"].contains(&value),
        _ => value.chars().all(|c| c.is_ascii_alphanumeric() || ".,".contains(c)),
    }
}

/// Returns the last command of a pipeline, which runs a Python program.
pub(super) fn python_command(program: &str) -> String {
    format!("python3 -I -c {}", quote(program))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_contain_no_single_quotes() {
        for check in PYTHON_CHECKS {
            let Some(BuiltinCheck { program: CheckProgram::Python { program, .. }, .. }) = find(check.id, &[]) else {
                panic!("{}", check.id)
            };
            assert!(!program.contains('\'') && !program.contains("%ARG%"), "{program}");
        }
    }

    #[test]
    fn uses_package_command_for_unsupported_options() {
        let find_check =
            |id: &str, args: &[&str]| find(id, &args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>());
        let python = |found: Option<BuiltinCheck>| matches!(found.expect("known").program, CheckProgram::Python { .. });
        assert!(python(find_check("check-added-large-files", &["--maxkb=900", "--enforce-all"])));
        assert!(!python(find_check("check-added-large-files", &["--maxkb=1)"])));
        assert!(!python(find_check("trailing-whitespace", &["--chars=x"])));
        let name = find_check("trailing-whitespace", &["--chars=x"]).expect("known").program;
        assert_eq!(name, CheckProgram::Command { name: "trailing-whitespace-fixer" });
        assert_eq!(find_check("no-such-hook", &[]), None);
    }
}
