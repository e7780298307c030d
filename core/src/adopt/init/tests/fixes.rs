//! Tests the fixes of drafted steps.

use super::*;

/// Returns the fixes of a draft, in the order of its steps.
fn fixes(tree: &RepoScan) -> Vec<String> {
    let text = draft_spec(tree).expect("a draft").text;
    let spec = crate::spec::parse(text.as_bytes()).expect("valid").spec;
    let steps = spec.skills.iter().flat_map(|(_, skill)| &skill.steps.value);
    let fixes = steps.filter_map(|step| step.fix.as_ref());
    fixes.map(|fix| fix.value.argv().expect("words").words().join(" ")).collect()
}

#[test]
fn formatters_and_linters_have_fixes() {
    let project = "[tool.ruff.format]\n[tool.black]\n[tool.mypy]\n";
    assert_eq!(
        fixes(&scan_with_programs(&[("pyproject.toml", project)])),
        ["ruff format --no-cache .", "black .", "ruff check --exit-zero --fix --no-cache ."]
    );
    let ci = workflow(&["cargo fmt --all -- --check", "cargo clippy"]);
    let files = [("Cargo.toml", "[workspace]\n"), ("Cargo.lock", ""), (".github/workflows/ci.yml", ci.as_str())];
    assert_eq!(fixes(&scan_with_programs(&files)), ["cargo fmt --all"]);
    let go = fixes(&scan_with_programs(&[("go.mod", "module a\n")]));
    assert!(go.len() == 1 && go[0].contains("gofmt -w"), "{go:?}");
}

#[test]
fn scripts_of_packages_have_fixes() {
    let package = |scripts: &str| {
        let manifest =
            format!(r#"{{ "scripts": {{ {scripts} }}, "devDependencies": {{ "eslint": "9", "prettier": "3" }} }}"#);
        fixes(&scan_with_programs(&[("package.json", &manifest), ("package-lock.json", "{}")]))
    };
    assert_eq!(
        package(
            r#""lint": "eslint src", "lint:fix": "eslint src --fix", "format:check": "prettier --check .", "format": "prettier --write .""#
        ),
        ["sh -c npm run format || [ $? = 1 ]", "sh -c npm run lint:fix || [ $? = 1 ]"]
    );
    assert_eq!(
        package(r#""lint": "eslint src", "format:check": "prettier --check .""#),
        ["node_modules/.bin/prettier --write .", "sh -c node_modules/.bin/eslint --fix src || [ $? = 1 ]"]
    );
    // Another tool, or a script that does more.
    assert_eq!(
        package(
            r#""lint": "node lint.js", "lint:fix": "eslint --fix .", "format:check": "prettier --check . && node x""#
        ),
        [""; 0]
    );
}
