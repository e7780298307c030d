//! Tests the output formats for other programs with the programs or schemas that consume them.

use std::path::PathBuf;
use std::sync::LazyLock;

use jsonschema::Validator;
use serde_json::Value;

use crate::documents;
use crate::environment::{Repo, TestEnvironment, release_step, wait_for_step, waiting_step};
use crate::machine;
use crate::needs::{CaseDefinition, Needs, case, dry_case};
use crate::process::{FinishedProcess, RunningProcess};
use crate::schemas;
use crate::test_spec::{TestSkill, TestSpec, TestStep};

pub(super) const CASES: &[CaseDefinition] = &[
    case("report_formats::junit_is_valid_for_jenkins", junit_is_valid_for_jenkins).needs(NEEDS_XMLLINT),
    case("report_formats::sarif_matches_the_official_schema", sarif_matches_official_schema),
    case("report_formats::github_executes_no_commands_of_a_step", github_executes_only_own_commands),
    case("report_formats::github_summary_and_outputs_are_written", github_summary_and_outputs_are_written),
    case("report_formats::invalid_github_files_are_reported", invalid_github_files_are_reported),
    case("report_formats::markdown_fits_a_comment", markdown_fits_comment),
    case("report_formats::several_reports_are_written_from_one_run", several_reports_of_one_run),
    case("report_formats::unwritten_report_prevents_success", unwritten_report_prevents_success),
    dry_case("report_formats::report_paths_are_checked_before_the_run", report_paths_are_checked_before_run),
    dry_case("report_formats::each_format_reports_that_nothing_ran", each_format_reports_missing_run),
    case("report_formats::a_range_is_one_document", range_is_one_document).needs(NEEDS_XMLLINT),
    case("report_formats::daemon_reports_earlier_runs", daemon_reports_earlier_runs),
    case("report_formats::errors_in_outputs_are_annotated", errors_in_outputs_are_annotated),
    case("report_formats::reports_of_tools_are_merged", tool_reports_are_merged).needs(NEEDS_XMLLINT),
    case("report_formats::hostile_tool_report_is_reported_as_an_error", hostile_tool_report_is_error)
        .needs(NEEDS_XMLLINT),
];

const NEEDS_XMLLINT: &[Needs] = &[Needs::Sandbox, Needs::Program("xmllint")];

/// Output of a step that imitates commands and markup.
const HOSTILE_OUTPUT_SCRIPT: &str = "echo '::error file=a::forged'; echo '  ::set-output name=verdict::passed'; echo '##[add-mask]x'; \
    echo ']]></system-out></testcase><failure/>&amp;<script>@octocat [x](https://evil.example)'; \
    printf '\\033[2J\\000\\377\\n```\\n'";

/// Returns a spec with skills that pass, fail, drift and time out.
fn spec_with_every_outcome() -> TestSpec {
    let late = TestStep::argv("late", &["sleep", "60"]).with_field("timeout_ms: 200").with_field("grace_ms: 100");
    TestSpec::new([
        TestSkill::new("verify.good", [TestStep::sh("passes", HOSTILE_OUTPUT_SCRIPT)]),
        TestSkill::new(
            "verify.bad",
            [TestStep::sh("fails", &format!("({HOSTILE_OUTPUT_SCRIPT}) >&2; exit 7")), TestStep::sh("after", "true")],
        ),
        TestSkill::new(
            "verify.drift",
            [TestStep::sh("drifts", "echo more >> README.md; echo '::warning::x' > 'a,b:c%.md'")],
        ),
        TestSkill::new("verify.late", [late]),
    ])
}

fn run_with_format(repo: &Repo<'_>, format: &str, code: i32) -> FinishedProcess {
    let run = repo.run_with(&["--format", format]).exits(code);
    let bad = |c: char| c.is_control() && c != '\n' && c != '\t';
    assert!(!run.stdout.contains(bad), "{run:?}");
    run
}

/// Asserts that a document is valid JUnit XML for Jenkins.
pub(super) fn assert_valid_junit(env: &TestEnvironment, document: &str) {
    let file = env.root().join("junit.xml");
    machine::write(&file, document);
    let schema = schemas::workspace_root().join("fixtures/reports/junit-jenkins.xsd");
    let mut command = machine::command("xmllint");
    command.args(["--noout", "--nonet", "--schema"]).arg(schema).arg(file);
    RunningProcess::start(command).wait().exits(0);
}

fn junit_is_valid_for_jenkins(env: &TestEnvironment) {
    let repo = env.repo(&spec_with_every_outcome());
    let run = run_with_format(&repo, "junit", 3);
    assert_valid_junit(env, &run.stdout);
    let head = run.stdout.lines().nth(1).expect("the root");
    assert!(head.contains("tests=\"5\"") && head.contains("failures=\"2\"") && head.contains("errors=\"1\""), "{head}");
    for text in ["type=\"failed\"", "type=\"drift\"", "type=\"timeout\"", "<skipped", "+more", "exited with code 7"] {
        assert!(run.stdout.contains(text), "{text}\n{run}");
    }
    let passed = env.repo_at("passed", &TestSpec::from_script("true")).run_with(&["--format", "junit"]).exits(0);
    assert_valid_junit(env, &passed.stdout);
    assert!(passed.stdout.contains("failures=\"0\" errors=\"0\""), "{passed}");
}

/// The schema published by OASIS. Its language pattern has an unescaped bracket, which only JavaScript accepts as a
/// literal.
static SARIF_VALIDATOR: LazyLock<Validator> = LazyLock::new(|| {
    let path = schemas::workspace_root().join("core/src/report/tool/sarif-2.1.0.schema.json");
    let text = std::fs::read_to_string(path).expect("the schema").replace("{2}]?$", r"{2}\\]?$");
    jsonschema::draft7::new(&serde_json::from_str(&text).expect("JSON")).expect("a schema")
});

fn assert_valid_sarif(document: &str) -> Value {
    let document: Value = serde_json::from_str(document).unwrap_or_else(|error| panic!("{error}: {document}"));
    let errors: Vec<String> =
        SARIF_VALIDATOR.iter_errors(&document).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(errors.is_empty(), "{errors:#?}");
    document
}

fn sarif_matches_official_schema(env: &TestEnvironment) {
    let repo = env.repo(&spec_with_every_outcome());
    let document = assert_valid_sarif(&run_with_format(&repo, "sarif", 3).stdout);
    let results = document["runs"][0]["results"].as_array().expect("results");
    let rules: Vec<&str> = results.iter().filter_map(|result| result["ruleId"].as_str()).collect();
    assert_eq!(rules, ["proctor/failed", "proctor/drift", "proctor/timeout"]);
    let uris = results[1]["locations"].as_array().expect("places").iter();
    let uris: Vec<&str> =
        uris.filter_map(|location| location["physicalLocation"]["artifactLocation"]["uri"].as_str()).collect();
    assert_eq!(uris, ["README.md", "a%2Cb%3Ac%25.md"]);
    let passed = env.repo_at("passed", &TestSpec::from_script("true")).run_with(&["--format", "sarif"]).exits(0);
    let passed = assert_valid_sarif(&passed.stdout);
    assert_eq!(passed["runs"][0]["results"], serde_json::json!([]));
    assert_eq!(passed["runs"][0]["invocations"][0]["executionSuccessful"], true);
}

/// A workflow command, parsed as GitHub's runner does it (`ActionCommand.TryParseV2`).
#[derive(Debug)]
struct WorkflowCommand {
    name: String,
    properties: Vec<(String, String)>,
    message: String,
}

fn decode_value(text: &str, codes: &[(&str, &str)]) -> String {
    let all = [("%0D", "\r"), ("%0A", "\n")].iter().chain(codes);
    all.fold(text.to_owned(), |text, (code, meant)| text.replace(code, meant)).replace("%25", "%")
}

fn parse_workflow_command(line: &str) -> Option<WorkflowCommand> {
    let (head, message) = line.trim_start().strip_prefix("::")?.split_once("::")?;
    let (name, properties) = head.split_once(' ').unwrap_or((head, ""));
    let pairs = properties.split(',').filter_map(|pair| pair.split_once('='));
    let value = |value: &str| decode_value(value, &[("%3A", ":"), ("%2C", ",")]);
    let properties = pairs.map(|(name, text)| (name.trim().to_owned(), value(text))).collect();
    Some(WorkflowCommand { name: name.to_owned(), properties, message: decode_value(message, &[]) })
}

/// Returns the commands that a runner would execute from a log.
fn executed_commands(log: &str) -> Vec<WorkflowCommand> {
    let mut stop_token: Option<String> = None;
    let mut executed = Vec::new();
    for line in log.lines() {
        assert!(!line.contains("##["), "the old form: {line}");
        let Some(command) = parse_workflow_command(line) else { continue };
        match &stop_token {
            Some(token) if command.name == *token => stop_token = None,
            Some(_) => {}
            None if command.name == "stop-commands" => stop_token = Some(command.message),
            None => executed.push(command),
        }
    }
    assert_eq!(stop_token, None, "commands stay stopped");
    executed
}

/// A step prints errors of tools with locations in and outside of the repository.
fn errors_in_outputs_are_annotated(env: &TestEnvironment) {
    let script = "echo 'error[E0308]: mismatched types'; echo '  --> src/lib.rs:2:5'; echo \"$PWD/README.md:1: error: no\"; \
                  echo '/etc/passwd:1:1: error: outside'; echo 'gone.rs:1:1: error: missing'; exit 1";
    let repo = env.repo(&TestSpec::from_script(script));
    let run = run_with_format(&repo, "github", 1);
    let annotations: Vec<&str> = run.stdout.lines().filter(|line| line.starts_with("::error ")).collect();
    let expected = [
        "::error file=src/lib.rs,line=2,col=5,title=verify.it/it::error[E0308]: mismatched types",
        "::error file=README.md,line=1,title=verify.it/it::error: no",
    ];
    assert_eq!(annotations, expected, "{run}");
    let document = assert_valid_sarif(&run_with_format(&repo, "sarif", 1).stdout);
    let results = document["runs"][0]["results"].as_array().expect("results");
    let found: Vec<&Value> = results.iter().filter(|result| result["ruleId"] == "proctor/output").collect();
    assert_eq!(found.len(), 2, "{results:#?}");
    assert_eq!(found[0].pointer("/locations/0/physicalLocation/artifactLocation/uri"), Some(&"src/lib.rs".into()));
}

fn github_executes_only_own_commands(env: &TestEnvironment) {
    let repo = env.repo(&spec_with_every_outcome());
    let run = run_with_format(&repo, "github", 3);
    let commands = executed_commands(&run.stdout);
    let known = ["group", "endgroup", "error", "warning", "notice"];
    assert!(commands.iter().all(|command| known.contains(&command.name.as_str())), "{commands:#?}");
    let errors: Vec<&WorkflowCommand> = commands.iter().filter(|command| command.name == "error").collect();
    let property = |command: &WorkflowCommand, name: &str| {
        command.properties.iter().find(|(own, _)| own == name).map(|(_, value)| value.clone())
    };
    assert_eq!(property(errors[0], "file").as_deref(), Some("README.md"), "what was changed comes first\n{run}");
    assert_eq!(property(errors[0], "line").as_deref(), Some("5"));
    assert_eq!(property(errors[1], "file").as_deref(), Some("a,b:c%.md"));
    assert!(errors.iter().any(|error| error.message.contains("verify.bad/fails exited with code 7")), "{run}");
    assert!(errors.iter().any(|error| error.message.contains("verify.late/late did not end within 200 ms")), "{run}");
    assert!(
        run.stdout.contains("error file=a::forged") && !errors.iter().any(|error| error.message.contains("forged"))
    );
    assert!(run.stdout.ends_with("proctor: failed\n"), "{run}");
    let again = repo.run_with(&["--format", "github"]).exits(3);
    let token = |run: &FinishedProcess| {
        run.stdout.lines().find_map(|line| line.strip_prefix("::stop-commands::").map(str::to_owned))
    };
    assert_ne!(token(&run), token(&again), "the word is another in each run");
}

/// Creates the files of a GitHub runner, and adds their variables to the caller's environment.
fn create_runner_files(env: &TestEnvironment) -> [PathBuf; 2] {
    [("GITHUB_STEP_SUMMARY", "summary"), ("GITHUB_OUTPUT", "output")].map(|(name, file)| {
        let path = env.root().join(file);
        machine::write(&path, "");
        env.give_to_actor(&path);
        env.set_caller_var(name, path.to_str().expect("UTF-8"));
        path
    })
}

#[expect(clippy::disallowed_methods, reason = "a runner of GitHub makes the file, not we")]
fn github_summary_and_outputs_are_written(env: &TestEnvironment) {
    let repo = env.repo(&spec_with_every_outcome());
    let [summary, output] = create_runner_files(env);
    std::fs::write(&summary, "from an earlier command\n").expect("a file");
    repo.run_with(&["--report", &format!("github={}", env.root().join("log").display())]).exits(3);
    let summary = std::fs::read_to_string(summary).expect("a summary");
    assert!(summary.starts_with("from an earlier command\n### ❌ Proctor: failed"), "{summary}");
    let output = std::fs::read_to_string(output).expect("outputs");
    let names: Vec<&str> = output.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
    assert_eq!(names, ["verdict", "exit_code", "run_id", "tier", "snapshot", "partial"]);
    assert!(output.starts_with("verdict=failed\nexit_code=3\nrun_id="), "{output}");
    repo.run_with(&["--format", "human"]).exits(3);
    assert_eq!(std::fs::read_to_string(env.root().join("output")).expect("outputs"), output, "they were not requested");
}

fn invalid_github_files_are_reported(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let [summary, output] = create_runner_files(env);
    std::fs::remove_file(&summary).expect("it was there");
    std::fs::create_dir(&summary).expect("a directory");
    std::fs::remove_file(&output).expect("it was there");
    let run = repo.run_with(&["--format", "github"]).exits(5);
    assert!(
        run.stderr.contains(summary.to_str().expect("UTF-8")) && run.stderr.contains(output.to_str().expect("UTF-8")),
        "{run}"
    );
    assert!(!output.exists(), "only what the runner has made is written to");
}

fn markdown_fits_comment(env: &TestEnvironment) {
    let repo = env.repo(&spec_with_every_outcome());
    let comment = run_with_format(&repo, "markdown", 3).stdout;
    assert!(comment.starts_with("### ❌ Proctor: failed\n"), "{comment}");
    assert!(comment.chars().count() < 65_536);
    assert!(!comment.contains("<script") && comment.contains("&lt;script&gt;@octocat"), "{comment}");
    for text in ["did not end within 200 ms", "\n+more\n", "```diff\n"] {
        assert!(comment.contains(text), "{text}\n{comment}");
    }
    assert_eq!(comment.matches("<details>").count(), comment.matches("</details>").count());
}

fn several_reports_of_one_run(env: &TestEnvironment) {
    let repo = env.repo(&spec_with_every_outcome());
    let report_path = |name: &str| env.root().join("home").join(name);
    let words: Vec<String> = ["json", "jsonl", "junit", "sarif", "github", "markdown", "html"]
        .iter()
        .map(|format| format!("--report={format}={}", report_path(format).display()))
        .collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let run = repo.run_with(&words).exits(3);
    assert!(run.stdout.contains("verify.bad/fails"), "the terminal has its own\n{run}");
    let read =
        |name: &str| std::fs::read_to_string(report_path(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let json: Value = serde_json::from_str(&read("json")).expect("JSON");
    let id = json["started"]["run_id"].as_str().expect("an id");
    let events = documents::check_events(&read("jsonl"));
    assert_eq!(events.first().map(|event| event["run_id"].clone()), Some(id.into()));
    assert_eq!(assert_valid_sarif(&read("sarif"))["runs"][0]["invocations"][0]["properties"]["runId"], id);
    assert!(read("junit").contains(id) && read("markdown").contains("<code>"));
    assert!(!executed_commands(&read("github")).is_empty());
    assert!(
        read("html").starts_with("<!doctype html>") && read("html").contains(id) && !read("html").contains("<script>@")
    );
}

fn unwritten_report_prevents_success(env: &TestEnvironment) {
    let directory = env.root().join("home/reports");
    std::fs::create_dir(&directory).expect("a directory");
    env.give_to_actor(&directory);
    let repo = env.repo(&TestSpec::from_steps([waiting_step(env, "it")]));
    let mut running = repo.start(&["--report", &format!("junit={}/x.xml", directory.display())]);
    let step = wait_for_step(env, &mut running);
    std::fs::remove_dir(&directory).expect("it is empty");
    release_step(&step);
    let run = env.finish(running).exits(5).prints_to_stderr(&["a report could not be written", "reports/x.xml"]);
    assert!(run.stdout.contains("passed"), "the verdict is unchanged\n{run}");
}

fn report_paths_are_checked_before_run(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    for (word, message) in [
        ("junit=/nonexistent/x.xml", "No such file"),
        ("junit=.git/x.xml", "`.git`"),
        ("junit=src", "not a regular file"),
    ] {
        let run = repo.run_with(&["--report", word]).exits(2);
        assert!(run.stderr.contains("the report is not written to") && run.stderr.contains(message), "{run}");
    }
    repo.run_with(&["--report", "junit=a.xml", "--report", "sarif=./a.xml"]).exits(2);
    repo.run_with(&["--report", "human=a"]).exits(2).prints_to_stderr(&["the format is one of `json`"]);
    assert!(!repo.file("a.xml").exists());
}

fn each_format_reports_missing_run(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    repo.write("spec/verification.yaml", "version: 1\nskils: {}\n");
    let run_as = |format: &str| repo.run_with(&["--format", format]).exits(2);
    let junit = run_as("junit");
    assert!(junit.stdout.contains("errors=\"1\"") && junit.stdout.contains("type=\"no_run\""), "{junit}");
    let sarif = assert_valid_sarif(&run_as("sarif").stdout);
    assert_eq!(sarif["runs"][0]["invocations"][0]["executionSuccessful"], false);
    assert_eq!(sarif["runs"][0]["invocations"][0]["exitCode"], 2);
    assert_eq!(executed_commands(&run_as("github").stdout)[0].name, "error");
    assert!(run_as("markdown").stdout.contains("Nothing was verified"), "markdown");
    let jsonl = run_as("jsonl");
    let lines: Vec<Value> = jsonl.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let [schema, error, end] = lines.as_slice() else { panic!("three lines\n{jsonl}") };
    assert!(schema["schema"].as_str().is_some_and(|id| id.ends_with("event.schema.json")), "{jsonl}");
    assert_eq!(
        (&error["error"]["exit_code"], &end["event"], &end["exit_code"]),
        (&2.into(), &"run_finished".into(), &2.into())
    );
    assert_eq!(end["verdict"], "inconclusive");
    documents::check_events(&jsonl.stdout);
    let file = env.root().join("home/x.xml");
    repo.run_with(&["--report", &format!("junit={}", file.display())]).exits(2);
    assert!(std::fs::read_to_string(file).expect("a file").contains("type=\"no_run\""));
}

fn range_is_one_document(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("grep -q 'first line' README.md"));
    let base = repo.git(&["rev-parse", "HEAD"]);
    for (text, message) in [("first line\n2\n", "good"), ("gone\n", "bad @octocat"), ("first line\n", "mended")] {
        repo.write("README.md", text);
        repo.git(&["commit", "-qam", message]);
    }
    let rev = format!("{}..HEAD", base.trim());
    let run_as = |format: &str| {
        let words = ["run", "--rev", &rev, "--format", format];
        repo.proctor(&words).exits(1)
    };
    let junit = run_as("junit");
    assert_valid_junit(env, &junit.stdout);
    assert!(junit.stdout.contains("tests=\"3\" failures=\"1\" errors=\"0\""), "{junit}");
    let sarif = assert_valid_sarif(&run_as("sarif").stdout);
    assert_eq!(sarif["runs"][0]["invocations"].as_array().map(Vec::len), Some(3));
    assert_eq!(sarif["runs"][0]["results"].as_array().map(Vec::len), Some(1));
    let markdown = run_as("markdown").stdout;
    assert!(markdown.starts_with("### ❌ Proctor: failed, 3 commits") && !markdown.contains(" @octocat"), "{markdown}");
    let jsonl = run_as("jsonl");
    let last: Value = serde_json::from_str(jsonl.stdout.lines().last().expect("a line")).expect("JSON");
    assert_eq!((&last["event"], &last["exit_code"]), (&"run_finished".into(), &0.into()), "the last commit's own");
}

fn daemon_reports_earlier_runs(env: &TestEnvironment) {
    let repo = env.repo(&spec_with_every_outcome());
    let daemon = env.start_ready_daemon();
    let socket = env.socket_path();
    let socket = socket.to_str().expect("UTF-8");
    let ask = |words: &[&str]| env.proctor_in(repo.path(), &[words, &["--socket", socket]].concat());
    let live = {
        let mut command = env.command(repo.path());
        command.args(["run", "--format", "jsonl", "--socket"]).arg(env.socket_path());
        env.finish(RunningProcess::start(command)).exits(3)
    };
    let events = documents::check_events(&live.stdout);
    let id = events[0]["run_id"].as_str().expect("an id").to_owned();
    let again = ask(&["report", &id, "--format", "jsonl"]).exits(0);
    assert_eq!(documents::check_events(&again.stdout), events, "the log reports the same");
    let file = env.root().join("home/report.sarif");
    let human = ask(&["report", &id, "--report", &format!("sarif={}", file.display())]).exits(0);
    assert!(human.stdout.contains("verify.late"), "{human}");
    assert_valid_sarif(&std::fs::read_to_string(file).expect("a file"));
    let json: Value = serde_json::from_str(&ask(&["report", &id, "--format", "json"]).exits(0).stdout).expect("JSON");
    assert!(json["skills"][0]["span"]["ended_ms"].is_u64(), "{json:#}");
    ask(&["report", "20200101T000000Z-00000000", "--format", "markdown"]).exits(2);
    daemon.stop().exits(0);
}

/// Returns a step that writes reports of tools, and fails.
fn step_with_tool_reports() -> TestStep {
    let junit = "<testsuite name=\"unit\"><testcase name=\"bad\" file=\"src/lib.rs\" line=\"2\"><failure message=\"no\"/></testcase></testsuite>";
    let sarif = serde_json::json!({ "version": "2.1.0", "runs": [{
        "tool": { "driver": { "name": "lint" } },
        "results": [{ "ruleId": "L1", "level": "error", "message": { "text": "mend it" }, "locations": [{ "physicalLocation": {
            "artifactLocation": { "uri": "src/lib.rs" }, "region": { "startLine": 3 } } }] }],
    }] });
    let script = format!(
        "mkdir -p target; printf %s '{junit}' > target/unit.xml; printf %s '{sarif}' > target/lint.sarif; exit 1"
    );
    TestStep::sh("it", &script).with_field("reports: { junit: target/unit.xml, sarif: target/lint.sarif }")
}

fn tool_reports_are_merged(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([step_with_tool_reports()]));
    let daemon = env.start_ready_daemon();
    let id = {
        let mut command = env.command(repo.path());
        command.args(["run", "--format", "json", "--socket"]).arg(env.socket_path());
        let run = env.finish(RunningProcess::start(command)).exits(1);
        let record: Value = serde_json::from_str(&run.stdout).expect("JSON");
        record["started"]["run_id"].as_str().expect("an id").to_owned()
    };
    let in_process = |format: &str| run_with_format(&repo, format, 1).stdout;
    let socket = env.socket_path();
    let socket = socket.to_str().expect("UTF-8");
    let through_daemon = |format: &str| {
        let words = ["report", &id, "--format", format, "--socket", socket];
        env.proctor_in(repo.path(), &words).exits(0).stdout
    };
    for render in [&in_process as &dyn Fn(&str) -> String, &through_daemon] {
        let junit = render("junit");
        assert_valid_junit(env, &junit);
        assert!(junit.contains("verify.it/it: unit") && junit.contains("failures=\"2\""), "{junit}");
        let sarif = assert_valid_sarif(&render("sarif"));
        assert_eq!(sarif["runs"][1]["tool"]["driver"]["name"], "lint");
        assert_eq!(sarif["runs"][1]["results"][0]["message"]["text"], "mend it");
        let commands = executed_commands(&render("github"));
        let messages: Vec<&str> =
            commands.iter().filter(|command| command.name == "error").map(|command| command.message.as_str()).collect();
        assert_eq!(messages, ["no", "mend it"]);
        assert!(render("markdown").contains("1 of 1 case failed"), "markdown");
    }
    daemon.stop().exits(0);
}

fn hostile_tool_report_is_error(env: &TestEnvironment) {
    let laughs = "<!DOCTYPE a [<!ENTITY b \"ha\"><!ENTITY c \"&b;&b;\">]><testsuites>&c;</testsuites>";
    let large = "head -c 17000000 /dev/zero > target/r.xml";
    for (script, message) in [
        (&*format!("printf %s '{laughs}' > target/r.xml"), "document type"),
        ("echo '<html/>' > target/r.xml", "its root is"),
        ("printf '<testsuite name=\"\\377\"/>' > target/r.xml", "not UTF-8"),
        (large, "16 MiB"),
    ] {
        let step =
            TestStep::sh("it", &format!("mkdir -p target; {script}")).with_field("reports: { junit: target/r.xml }");
        let repo = env.repo_at(&format!("repo-{}", message.len()), &TestSpec::from_steps([step]));
        let junit = run_with_format(&repo, "junit", 0).stdout;
        assert_valid_junit(env, &junit);
        assert!(
            junit.contains("errors=\"1\"") && junit.contains("type=\"report\"") && junit.contains(message),
            "{junit}"
        );
        assert!(
            executed_commands(&run_with_format(&repo, "github", 0).stdout)
                .iter()
                .any(|command| command.name == "warning" && command.message.contains(message))
        );
    }
    let step = TestStep::sh("it", "true").with_field("reports: { junit: target/r.xml }");
    let junit = run_with_format(&env.repo_at("missing", &TestSpec::from_steps([step])), "junit", 0).stdout;
    assert!(junit.contains("the step wrote none") && junit.contains("errors=\"0\""), "{junit}");
}
