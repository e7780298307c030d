//! Tests the HTML report in a browser: its content, what it loads, and that text from a step or a repository stays
//! plain text.

use serde_json::Value;

use crate::environment::{Repo, TestEnvironment};
use crate::machine;
use crate::needs::{CaseDefinition, Needs, case};
use crate::process::RunningProcess;
use crate::test_spec::{TestSkill, TestSpec, TestStep};

/// Inspects a page with headless Chromium.
const BROWSER_SCRIPT: &str = include_str!("../../../scripts/browser.py");
const NEEDS_CHROMIUM: &[Needs] =
    &[Needs::Sandbox, Needs::Program("python3"), Needs::WorkingCommand(&["chromium", "--version"])];

pub(super) const CASES: &[CaseDefinition] = &[
    case("html_report::failed_run_is_one_self_contained_file", failed_run_is_self_contained).needs(NEEDS_CHROMIUM),
    case("html_report::passed_run_is_one_self_contained_file", passed_run_is_self_contained).needs(NEEDS_CHROMIUM),
    case("html_report::markup_from_steps_and_repositories_stays_text", markup_stays_text).needs(NEEDS_CHROMIUM),
];

/// Runs the profile, and inspects the report in a browser, searching for each of `words`.
fn inspect_report(env: &TestEnvironment, repo: &Repo<'_>, code: i32, words: &[&str]) -> Value {
    let page = env.home_dir().join("page.html");
    repo.run_with(&["--report", &format!("html={}", page.display())]).exits(code);
    let mut command = machine::command("python3");
    command.args(["-c", BROWSER_SCRIPT, "look"]).arg(&page).args(words).env("HOME", env.home_dir());
    let browser = RunningProcess::start(command).wait().exits(0);
    serde_json::from_str(&browser.stdout).unwrap_or_else(|error| panic!("{error}: {browser}"))
}

/// Asserts the properties that each page must have.
#[track_caller]
fn assert_page_is_valid(page: &Value) {
    let text = page["text"].as_str().expect("text");
    for key in ["requests", "complaints", "broken"] {
        assert_eq!(page[key], serde_json::json!([]), "{key}\n{text}");
    }
    assert_eq!((&page["overflow"], &page["handlers"], &page["scripts"]), (&0.into(), &0.into(), &1.into()), "{text}");
    assert_eq!(page["policy_holds"], true, "a style that is not the page's own took hold");
    let ids: Vec<&Value> = page["ids"].as_array().expect("a list").iter().collect();
    assert!(ids.iter().enumerate().all(|(at, id)| !ids[..at].contains(id)), "{ids:?}");
    let (light, dark) = (&page["colours"]["light"], &page["colours"]["dark"]);
    assert!(light[0] != dark[0] && light[1] != dark[1], "{light} {dark}");
    // Without scripts there is no search field, but all content is shown.
    assert_eq!(page["without_scripts"]["filter"], true);
    assert!(page["without_scripts"]["text"].as_u64() > Some(200), "{text}");
}

#[track_caller]
fn assert_page_contains(page: &Value, words: &[&str]) {
    let text = page["text"].as_str().expect("text");
    let missing: Vec<_> = words.iter().filter(|word| !text.contains(**word)).collect();
    assert!(missing.is_empty(), "{missing:?} in\n{text}");
}

/// Runs tests of which one fails, and writes a report.
const FAILING_TESTS_SCRIPT: &str = "mkdir out; echo '<testsuite name=\"unit\"><testcase name=\"adds\"/><testcase name=\"subtracts\" \
     file=\"src/lib.rs\" line=\"3\"><failure message=\"1 is not 2\">&lt;img src=x>\nleft: 1</failure></testcase></testsuite>' \
     > out/tests.xml; exit 1";

fn failed_run_is_self_contained(env: &TestEnvironment) {
    let compile =
        "for i in $(seq 60); do echo \"line $i\" >&2; done; echo 'error[E0425]: no value `total`' >&2; exit 1";
    let repo = env.repo(&TestSpec::new([
        TestSkill::new("verify.build", [TestStep::sh("compile", compile), TestStep::sh("after", "true")]),
        TestSkill::new(
            "verify.unit",
            [TestStep::sh("test", FAILING_TESTS_SCRIPT).with_field("reports: { junit: out/tests.xml }")],
        ),
        TestSkill::new("verify.docs", [TestStep::sh("write", "echo drifted-line >> src/lib.rs")]),
        TestSkill::new("verify.slow", [TestStep::sh("wait", "exec sleep 100").with_field("timeout_ms: 300")]),
        TestSkill::new("verify.good", [TestStep::sh("fine", "echo a-quiet-word")]),
    ]));
    let page = inspect_report(env, &repo, 3, &["a-quiet-word", "verify.slow", "nowhere-at-all"]);
    assert_page_is_valid(&page);
    assert_eq!((&page["verdict"], &page["title"]), (&"failed".into(), &"failed · pr · Proctor".into()));
    assert_page_contains(
        &page,
        &[
            "3 needs a person",
            "changed files that it must not change: verify.docs/write",
            "error[E0425]: no value `total`",
            "49 lines",
        ],
    );
    assert_page_contains(&page, &["1 of 2 cases failed", "subtracts src/lib.rs:3", "1 is not 2", "<img src=x>"]);
    assert_page_contains(
        &page,
        &["+drifted-line", "did not end within 300 ms", "Timeline", "1 skipped", "sha256sum --check"],
    );
    let searches = &page["searches"];
    assert_eq!(searches["a-quiet-word"]["shown"], serde_json::json!(["fine"]));
    assert!(searches["a-quiet-word"]["marks"].as_u64() > Some(0), "{searches}");
    assert_eq!(searches["verify.slow"]["shown"], serde_json::json!(["verify.slow/wait"]));
    assert_eq!(searches["nowhere-at-all"]["said"], "0 of 6 steps");
}

fn passed_run_is_self_contained(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("echo ok"));
    let page = inspect_report(env, &repo, 0, &[]);
    assert_page_is_valid(&page);
    assert_eq!(page["verdict"], "passed");
    assert!(!page["ids"].as_array().expect("a list").contains(&"why".into()));
    let branch = repo.git(&["branch", "--show-current"]);
    let head = repo.git(&["rev-parse", "HEAD"]);
    assert_page_contains(&page, &["1 passed of 1 step", branch.trim(), &head.trim()[..12]]);
}

/// Puts markup wherever a step or a repository can put text: output, paths, diffs, commands.
fn markup_stays_text(env: &TestEnvironment) {
    let evil =
        "</pre></details><script>document.title='taken'</script><img src=https://example.org/x onerror=alert(1)>";
    let script = format!(
        "echo \"{evil}\"; echo \"{evil}\" > '<b>file<script>'; echo \"{evil}\" >> src/lib.rs; printf '\\342\\200\\256\\033[31m'; exit 1"
    );
    let repo = env.repo(&TestSpec::from_script(&script));
    let page = inspect_report(env, &repo, 3, &["onerror"]);
    assert_page_is_valid(&page);
    assert_eq!(page["title"], "failed · pr · Proctor");
    let tags = page["tags"].as_array().expect("a list");
    assert!(!tags.contains(&"img".into()), "{tags:?}");
    assert_page_contains(&page, &[evil, "<b>file<script>", "\\u{202e}"]);
}
