//! Tests the reports of steps whose results are reused.

use crate::cases::report_formats::assert_valid_junit;
use crate::cases::reuse::{ReuseRepo, print_file, text};
use crate::environment::TestEnvironment;
use crate::needs::{CaseDefinition, Needs, case};
use crate::test_spec::TestStep;

pub(super) const CASES: &[CaseDefinition] = &[
    case("reused_reports::report_of_a_cached_step_is_that_of_its_execution", cached_report_is_that_of_execution)
        .needs(&[Needs::Sandbox, Needs::Views]),
    case("reused_reports::step_with_reports_ignores_per_file", reports_ignore_per_file)
        .needs(&[Needs::Sandbox, Needs::Views]),
];

/// Returns the test cases of the tool in the JUnit report of a run.
fn reported_cases(env: &TestEnvironment, reuse: &ReuseRepo<'_>) -> Vec<String> {
    let report = reuse.repo.run_with(&["--format", "junit"]).exits(0).stdout;
    assert_valid_junit(env, &report);
    report.lines().map(str::trim).filter(|line| line.contains("case-of-tool")).map(str::to_owned).collect()
}

fn cached_report_is_that_of_execution(env: &TestEnvironment) {
    // Each execution writes another report.
    let script = "id=$(od -An -N8 -tx1 /dev/urandom | tr -d ' \\n'); read line < README.md
        printf '<testsuite name=\"t\"><testcase name=\"case-of-tool-%s\" time=\"7\"/></testsuite>' $id > junit.xml";
    let step = TestStep::sh("it", script).with_field("reports: { junit: junit.xml, sarif: absent.sarif }");
    let reuse = ReuseRepo::new(env, [step, print_file("later", "README.md")]);
    let first = reported_cases(env, &reuse);
    let found = reuse.repo.step("it")["found_reports"].clone();
    assert_eq!((reuse.executed().len(), first.len(), &found[1]["state"]), (2, 1, &"missing".into()), "{found:#}");
    assert_eq!(reported_cases(env, &reuse), first);
    assert_eq!((reuse.executed(), reuse.repo.step("it")["found_reports"].clone()), (vec![], found.clone()));
    assert_eq!(reuse.repo.changes_seen_by_git(), [""; 0]);
    reuse.repo.write("README.md", "edited\n");
    let second = reported_cases(env, &reuse);
    assert!(second.len() == 1 && second != first, "{second:?}");
    // The report of the newest result is removed.
    let sha256 = text(&reuse.repo.step("it")["found_reports"][0]["sha256"]);
    let object = env.state_dir().join("objects").join(&sha256[..2]).join(format!("{}.zst", &sha256[2..]));
    std::fs::remove_file(object).expect("removes");
    let explained = reuse.explain("verify.it/it");
    assert!(explained.contains("would be executed: its report `junit.xml` is no longer stored"), "{explained}");
    assert_ne!(reported_cases(env, &reuse), second);
    assert!(reuse.executed().contains(&"it".to_owned()));
}

fn reports_ignore_per_file(env: &TestEnvironment) {
    let script = "for file; do cat \"$file\" > copy; echo \"$file\"; done > report; printf '<testsuite name=\"t\"/>' > junit.xml; cat report";
    let step = TestStep::argv("it", &["sh", "-c", script, "sh", "{files}"])
        .with_field("files: { include: ['src/**'] }")
        .with_field("per_file: true")
        .with_field("reports: { junit: junit.xml }");
    let reuse = ReuseRepo::new(env, [step]);
    reuse.repo.write(".gitignore", "report\ncopy\n");
    reuse.repo.write("src/other.rs", "// other\n");
    reuse.pass();
    reuse.pass();
    assert_eq!(reuse.executed(), [""; 0]);
    reuse.repo.write("src/other.rs", "// edited\n");
    reuse.pass();
    assert_eq!(
        (reuse.executed(), reuse.stdout("it")),
        (vec!["it".to_owned()], "src/lib.rs\nsrc/other.rs\n".to_owned())
    );
}
