//! Rules for the manifests: each dependency is documented and used, and no crate uses a crate of a higher layer.

use toml::{Table, Value};

use super::source_texts::{SourceTexts, TidyFindings};

/// The crates of the workspace that each crate may use; `core` is the lowest layer.
const ALLOWED_DEPENDENCIES: [(&str, &[&str]); 17] = [
    ("core", &[]),
    ("client", &["core"]),
    ("view", &["core"]),
    ("sandbox", &["core", "view"]),
    ("git", &["core"]),
    ("snapshot", &["core", "git"]),
    ("duckdb", &[]),
    ("sql", &["core", "sandbox", "snapshot", "duckdb"]),
    ("remote", &["core"]),
    ("runner", &["core", "sandbox", "git", "snapshot", "sql", "remote"]),
    ("ask", &["core", "sandbox", "snapshot", "sql", "runner"]),
    ("daemon", &["core", "client", "sandbox", "git", "snapshot", "sql", "runner", "ask"]),
    ("cli", &["core", "client", "sandbox", "git", "snapshot", "sql", "runner", "ask", "daemon"]),
    ("launcher", &["core", "client", "sandbox"]),
    ("tests", &["core", "client", "sandbox", "git", "snapshot", "sql", "remote", "runner", "ask", "daemon"]),
    ("bench", &["core", "sandbox", "git", "snapshot", "sql", "runner", "ask", "daemon"]),
    ("xtask", &["core", "daemon"]),
];

/// The document with a row for each dependency.
const DOCUMENT: &str = "docs/dependencies.md";

/// The sections of a manifest that list dependencies.
const SECTIONS: [&str; 3] = ["dependencies", "dev-dependencies", "build-dependencies"];

/// Checks that each dependency has a row in `docs/dependencies.md`, and each row a dependency.
pub(super) fn dependencies_documented(texts: &SourceTexts) -> TidyFindings {
    let document = texts.get(DOCUMENT).map_or("", String::as_str);
    let rows: Vec<&str> = document.lines().filter_map(row_name).collect();
    let names = external_dependencies(texts);
    let missing = names.iter().filter(|name| !rows.contains(&name.as_str()));
    let stale = rows.iter().filter(|row| !names.iter().any(|name| name == *row));
    missing
        .map(|name| format!("Cargo.toml: `{name}` has no row in {DOCUMENT}"))
        .chain(stale.map(|row| format!("{DOCUMENT}: `{row}` is not a dependency of the workspace")))
        .collect()
}

/// Reports dependencies that no crate lists, and those whose crate never uses them.
pub(super) fn dependencies_used(texts: &SourceTexts) -> TidyFindings {
    let used: Vec<String> = manifests(texts).flat_map(|(_, manifest)| dependency_names(&manifest)).collect();
    let unnamed = external_dependencies(texts).into_iter().filter(|name| !used.contains(name));
    let unused = manifests(texts).flat_map(|(directory, manifest)| {
        let names = dependency_names(&manifest).into_iter().filter(move |name| !is_mentioned(texts, directory, name));
        names.map(move |name| format!("{directory}/Cargo.toml: no source of `{directory}` uses `{name}`"))
    });
    unnamed.map(|name| format!("Cargo.toml: no crate uses `{name}`")).chain(unused).collect()
}

/// Returns whether a source in `directory` uses the crate `name` in a path.
fn is_mentioned(texts: &SourceTexts, directory: &str, name: &str) -> bool {
    let path = format!("{}::", name.replace('-', "_"));
    let prefix = format!("{directory}/");
    texts.iter().any(|(file, text)| file.starts_with(&prefix) && file.ends_with(".rs") && text.contains(&path))
}

/// Checks that dependencies follow the layers: core ← sandbox, git ← snapshot ← runner ← daemon ← cli.
pub(super) fn dependency_directions(texts: &SourceTexts) -> TidyFindings {
    manifests(texts).flat_map(|(directory, manifest)| upward_dependencies(directory, &manifest)).collect()
}

fn upward_dependencies(directory: &str, manifest: &Table) -> TidyFindings {
    let Some((_, below)) = ALLOWED_DEPENDENCIES.iter().find(|(name, _)| *name == directory) else {
        return vec![format!("{directory}/Cargo.toml: xtask/src/tidy/dependencies.rs does not list this crate")];
    };
    dependency_names(manifest)
        .iter()
        .filter_map(|name| name.strip_prefix("proctor-"))
        .filter(|name| !below.contains(name))
        .map(|name| format!("{directory}/Cargo.toml: `{directory}` must not use `proctor-{name}`"))
        .collect()
}

/// Returns the manifests of the crates by directory.
fn manifests(texts: &SourceTexts) -> impl Iterator<Item = (&str, Table)> {
    texts.iter().filter_map(|(path, text)| {
        let directory = path.strip_suffix("/Cargo.toml").filter(|directory| !directory.contains('/'))?;
        Some((directory, text.parse().ok()?))
    })
}

/// Returns all dependencies of a manifest, for every purpose and platform.
fn dependency_names(manifest: &Table) -> Vec<String> {
    let platforms = manifest.get("target").and_then(Value::as_table).into_iter().flat_map(Table::values);
    std::iter::once(manifest)
        .chain(platforms.filter_map(Value::as_table))
        .flat_map(|table| SECTIONS.iter().filter_map(|section| table.get(*section)?.as_table()))
        .flat_map(|section| section.keys().cloned())
        .collect()
}

/// Returns the external dependencies of the workspace.
fn external_dependencies(texts: &SourceTexts) -> Vec<String> {
    let manifest: Option<Table> = texts.get("Cargo.toml").and_then(|text| text.parse().ok());
    let dependencies =
        manifest.as_ref().and_then(|manifest| manifest.get("workspace")?.get("dependencies")?.as_table());
    let is_ours = |value: &Value| value.get("path").is_some();
    dependencies.into_iter().flatten().filter(|(_, value)| !is_ours(value)).map(|(name, _)| name.clone()).collect()
}

/// Returns the crate of a row ``| `name` | …``.
fn row_name(line: &str) -> Option<&str> {
    line.strip_prefix("| `")?.split_once("` |").map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::super::source_texts::texts;
    use super::*;

    const ROOT: &str =
        "[workspace.dependencies]\nproctor-core = { path = \"core\" }\nserde = \"1\"\nnix = { version = \"0.31\" }\n";

    #[test]
    fn reports_missing_and_stale_rows() {
        let table = "| crate | why |\n|---|---|\n| `serde` | x |\n| `gone` | x |\n";
        let found = dependencies_documented(&texts(&[("Cargo.toml", ROOT), (DOCUMENT, table)]));
        assert_eq!(found.len(), 2);
        assert!(found[0].contains("`nix`") && found[1].contains("`gone`"), "{found:?}");
    }

    #[test]
    fn reports_unused_dependency() {
        let core = "[dependencies]\nserde.workspace = true\n";
        let lib = ("core/src/lib.rs", "use serde::Serialize;");
        let found = dependencies_used(&texts(&[("Cargo.toml", ROOT), ("core/Cargo.toml", core), lib]));
        assert_eq!(found, ["Cargo.toml: no crate uses `nix`"]);
        let platform = "[target.'cfg(unix)'.dev-dependencies]\nnix.workspace = true\n";
        let manifests = [("Cargo.toml", ROOT), ("core/Cargo.toml", core), ("cli/Cargo.toml", platform)];
        let sources = [lib, ("cli/src/main.rs", "nix::unistd::getpid();")];
        assert_eq!(dependencies_used(&texts(&[&manifests[..], &sources[..]].concat())), TidyFindings::new());
        let unnamed = dependencies_used(&texts(&[&manifests[..], &sources[..1]].concat()));
        assert_eq!(unnamed, ["cli/Cargo.toml: no source of `cli` uses `nix`"]);
    }

    #[test]
    fn reports_upward_dependency() {
        let core = "[dev-dependencies]\nproctor-runner.workspace = true\n";
        let runner = "[dependencies]\nproctor-core.workspace = true\nproctor-sandbox.workspace = true\n";
        let found = dependency_directions(&texts(&[("core/Cargo.toml", core), ("runner/Cargo.toml", runner)]));
        assert_eq!(found, ["core/Cargo.toml: `core` must not use `proctor-runner`"]);
    }

    #[test]
    fn reports_unlisted_crate() {
        assert_eq!(dependency_directions(&texts(&[("nobody/Cargo.toml", "")])).len(), 1);
    }
}
