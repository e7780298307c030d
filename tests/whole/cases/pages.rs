//! Tests the HTML report in a browser: its content, what it loads, and that text from a step or a repository stays
//! plain text.

use serde_json::Value;

use crate::environment::{Repo, TestEnvironment};
use crate::machine;
use crate::needs::{Case, Needs, case};
use crate::process::Running;
use crate::spec::{Skill, Spec, Step};

/// Inspects a page with headless Chromium.
const BROWSER: &str = include_str!("../../../scripts/browser.py");
const CHROMIUM: &[Needs] = &[Needs::Sandbox, Needs::Program("python3"), Needs::Works(&["chromium", "--version"])];

pub(super) const CASES: &[Case] = &[
    case("pages::a_failed_run_is_one_file_that_needs_nothing_else", failed).needs(CHROMIUM),
    case("pages::a_pass_is_one_too", passed).needs(CHROMIUM),
    case("pages::text_of_others_stays_text", hostile).needs(CHROMIUM),
];

/// Runs the profile, and inspects the report in a browser, searching for each of `words`.
fn look(env: &TestEnvironment, repo: &Repo<'_>, code: i32, words: &[&str]) -> Value {
    let page = env.home().join("page.html");
    repo.run_with(&["--report", &format!("html={}", page.display())]).exits(code);
    let mut command = machine::command("python3");
    command.args(["-c", BROWSER, "look"]).arg(&page).args(words).env("HOME", env.home());
    let seen = Running::start(command).wait().exits(0);
    serde_json::from_str(&seen.stdout).unwrap_or_else(|error| panic!("{error}: {seen}"))
}

/// Asserts the properties that each page must have.
#[track_caller]
fn demand_sound(seen: &Value) {
    let text = seen["text"].as_str().expect("text");
    for nothing in ["requests", "complaints", "broken"] {
        assert_eq!(seen[nothing], serde_json::json!([]), "{nothing}\n{text}");
    }
    assert_eq!((&seen["overflow"], &seen["handlers"], &seen["scripts"]), (&0.into(), &0.into(), &1.into()), "{text}");
    assert_eq!(seen["policy_holds"], true, "a style that is not the page's own took hold");
    let ids: Vec<&Value> = seen["ids"].as_array().expect("a list").iter().collect();
    assert!(ids.iter().enumerate().all(|(at, id)| !ids[..at].contains(id)), "{ids:?}");
    let (light, dark) = (&seen["colours"]["light"], &seen["colours"]["dark"]);
    assert!(light[0] != dark[0] && light[1] != dark[1], "{light} {dark}");
    // Without scripts there is no search field, but all content is shown.
    assert_eq!(seen["without_scripts"]["filter"], true);
    assert!(seen["without_scripts"]["text"].as_u64() > Some(200), "{text}");
}

#[track_caller]
fn demand_text(seen: &Value, words: &[&str]) {
    let text = seen["text"].as_str().expect("text");
    let missing: Vec<_> = words.iter().filter(|word| !text.contains(**word)).collect();
    assert!(missing.is_empty(), "{missing:?} in\n{text}");
}

/// Runs tests of which one fails, and writes a report.
const TESTED: &str = "mkdir out; echo '<testsuite name=\"unit\"><testcase name=\"adds\"/><testcase name=\"subtracts\" \
     file=\"src/lib.rs\" line=\"3\"><failure message=\"1 is not 2\">&lt;img src=x>\nleft: 1</failure></testcase></testsuite>' \
     > out/tests.xml; exit 1";

fn failed(env: &TestEnvironment) {
    let compile =
        "for i in $(seq 60); do echo \"line $i\" >&2; done; echo 'error[E0425]: no value `total`' >&2; exit 1";
    let repo = env.repo(&Spec::new([
        Skill::new("verify.build", [Step::sh("compile", compile), Step::sh("after", "true")]),
        Skill::new("verify.unit", [Step::sh("test", TESTED).with("reports: { junit: out/tests.xml }")]),
        Skill::new("verify.docs", [Step::sh("write", "echo drifted-line >> src/lib.rs")]),
        Skill::new("verify.slow", [Step::sh("wait", "exec sleep 100").with("timeout_ms: 300")]),
        Skill::new("verify.good", [Step::sh("fine", "echo a-quiet-word")]),
    ]));
    let seen = look(env, &repo, 3, &["a-quiet-word", "verify.slow", "nowhere-at-all"]);
    demand_sound(&seen);
    assert_eq!((&seen["verdict"], &seen["title"]), (&"failed".into(), &"failed · pr · Proctor".into()));
    demand_text(
        &seen,
        &[
            "3 people only",
            "changed what it must not: verify.docs/write",
            "error[E0425]: no value `total`",
            "57 lines before",
        ],
    );
    demand_text(&seen, &["1 of 2 cases failed", "subtracts src/lib.rs:3", "1 is not 2", "<img src=x>"]);
    demand_text(&seen, &["+drifted-line", "did not end within 300 ms", "Timeline", "1 skipped", "sha256sum --check"]);
    let searches = &seen["searches"];
    assert_eq!(searches["a-quiet-word"]["shown"], serde_json::json!(["fine"]));
    assert!(searches["a-quiet-word"]["marks"].as_u64() > Some(0), "{searches}");
    assert_eq!(searches["verify.slow"]["shown"], serde_json::json!(["verify.slow/wait"]));
    assert_eq!(searches["nowhere-at-all"]["said"], "0 of 6 steps");
}

fn passed(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("echo ok"));
    let seen = look(env, &repo, 0, &[]);
    demand_sound(&seen);
    assert_eq!(seen["verdict"], "passed");
    assert!(!seen["ids"].as_array().expect("a list").contains(&"why".into()));
    let branch = repo.git(&["branch", "--show-current"]);
    let head = repo.git(&["rev-parse", "HEAD"]);
    demand_text(&seen, &["1 passed of 1 step", branch.trim(), &head.trim()[..12]]);
}

/// Puts markup wherever a step or a repository can put text: output, paths, diffs, commands.
fn hostile(env: &TestEnvironment) {
    let evil =
        "</pre></details><script>document.title='taken'</script><img src=https://example.org/x onerror=alert(1)>";
    let script = format!(
        "echo \"{evil}\"; echo \"{evil}\" > '<b>file<script>'; echo \"{evil}\" >> src/lib.rs; printf '\\342\\200\\256\\033[31m'; exit 1"
    );
    let repo = env.repo(&Spec::of_script(&script));
    let seen = look(env, &repo, 3, &["onerror"]);
    demand_sound(&seen);
    assert_eq!(seen["title"], "failed · pr · Proctor");
    let tags = seen["tags"].as_array().expect("a list");
    assert!(!tags.contains(&"img".into()), "{tags:?}");
    demand_text(&seen, &[evil, "<b>file<script>", "\\u{202e}"]);
}
