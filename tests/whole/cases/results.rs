//! Tests the output formats for other programs with the programs or schemas that consume them.

use std::path::PathBuf;
use std::sync::LazyLock;

use jsonschema::Validator;
use serde_json::Value;

use crate::documents;
use crate::environment::{Repo, TestEnvironment, release, wait_for_step, waiting_step};
use crate::machine;
use crate::needs::{Case, Needs, case, dry_case};
use crate::process::{Finished, Running};
use crate::schemas;
use crate::spec::{Skill, Spec, Step};

pub(super) const CASES: &[Case] = &[
    case("results::junit_is_what_jenkins_takes", junit).needs(NEEDS_XMLLINT),
    case("results::sarif_keeps_to_the_official_schema", sarif),
    case("results::github_reads_our_commands_and_none_of_a_step", github),
    case("results::github_has_its_summary_and_outputs", github_files),
    case("results::github_files_that_are_none_are_named", github_bad_files),
    case("results::markdown_is_a_comment", markdown),
    case("results::several_are_written_from_one_run", several),
    case("results::a_pass_whose_report_is_lost_is_none", lost),
    dry_case("results::a_place_for_a_report_is_looked_at_first", places),
    dry_case("results::where_there_is_no_run_each_format_says_so", no_run),
    case("results::a_range_is_one_document", range).needs(NEEDS_XMLLINT),
    case("results::a_daemon_has_them_of_earlier_runs", earlier),
    case("results::reports_of_tools_are_merged", tools).needs(NEEDS_XMLLINT),
    case("results::a_hostile_report_of_a_tool_is_told_and_is_no_pass", hostile).needs(NEEDS_XMLLINT),
];

const NEEDS_XMLLINT: &[Needs] = &[Needs::Sandbox, Needs::Program("xmllint")];

/// Output of a step that imitates commands and markup.
const HOSTILE: &str = "echo '::error file=a::forged'; echo '  ::set-output name=verdict::passed'; echo '##[add-mask]x'; \
    echo ']]></system-out></testcase><failure/>&amp;<script>@octocat [x](https://evil.example)'; \
    printf '\\033[2J\\000\\377\\n```\\n'";

/// Returns a spec with skills that pass, fail, drift and time out.
fn spec() -> Spec {
    let late = Step::argv("late", &["sleep", "60"]).with("timeout_ms: 200").with("grace_ms: 100");
    Spec::new([
        Skill::new("verify.good", [Step::sh("passes", HOSTILE)]),
        Skill::new("verify.bad", [Step::sh("fails", &format!("({HOSTILE}) >&2; exit 7")), Step::sh("after", "true")]),
        Skill::new("verify.drift", [Step::sh("drifts", "echo more >> README.md; echo '::warning::x' > 'a,b:c%.md'")]),
        Skill::new("verify.late", [late]),
    ])
}

fn run(repo: &Repo<'_>, format: &str, code: i32) -> Finished {
    let run = repo.run_with(&["--format", format]).exits(code);
    let bad = |c: char| c.is_control() && c != '\n' && c != '\t';
    assert!(!run.stdout.contains(bad), "{run:?}");
    run
}

/// Asserts that a document is valid JUnit XML for Jenkins.
fn demand_junit(env: &TestEnvironment, document: &str) {
    let file = env.root().join("junit.xml");
    machine::write(&file, document);
    let schema = schemas::project().join("fixtures/reports/junit-jenkins.xsd");
    let mut command = machine::command("xmllint");
    command.args(["--noout", "--nonet", "--schema"]).arg(schema).arg(file);
    Running::start(command).wait().exits(0);
}

fn junit(env: &TestEnvironment) {
    let repo = env.repo(&spec());
    let run = run(&repo, "junit", 3);
    demand_junit(env, &run.stdout);
    let head = run.stdout.lines().nth(1).expect("the root");
    assert!(head.contains("tests=\"5\"") && head.contains("failures=\"2\"") && head.contains("errors=\"1\""), "{head}");
    for said in ["type=\"failed\"", "type=\"drift\"", "type=\"timeout\"", "<skipped", "+more", "exited with code 7"] {
        assert!(run.stdout.contains(said), "{said}\n{run}");
    }
    let passed = env.repo_at("passed", &Spec::of_script("true")).run_with(&["--format", "junit"]).exits(0);
    demand_junit(env, &passed.stdout);
    assert!(passed.stdout.contains("failures=\"0\" errors=\"0\""), "{passed}");
}

/// The schema published by OASIS. Its language pattern has an unescaped bracket, which only JavaScript accepts as a
/// literal.
static SARIF: LazyLock<Validator> = LazyLock::new(|| {
    let path = schemas::project().join("core/src/report/tool/sarif-2.1.0.schema.json");
    let text = std::fs::read_to_string(path).expect("the schema").replace("{2}]?$", r"{2}\\]?$");
    jsonschema::draft7::new(&serde_json::from_str(&text).expect("JSON")).expect("a schema")
});

fn demand_sarif(document: &str) -> Value {
    let document: Value = serde_json::from_str(document).unwrap_or_else(|error| panic!("{error}: {document}"));
    let errors: Vec<String> =
        SARIF.iter_errors(&document).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(errors.is_empty(), "{errors:#?}");
    document
}

fn sarif(env: &TestEnvironment) {
    let repo = env.repo(&spec());
    let document = demand_sarif(&run(&repo, "sarif", 3).stdout);
    let results = document["runs"][0]["results"].as_array().expect("results");
    let rules: Vec<&str> = results.iter().filter_map(|result| result["ruleId"].as_str()).collect();
    assert_eq!(rules, ["proctor/failed", "proctor/drift", "proctor/timeout"]);
    let uris = results[1]["locations"].as_array().expect("places").iter();
    let uris: Vec<&str> =
        uris.filter_map(|place| place["physicalLocation"]["artifactLocation"]["uri"].as_str()).collect();
    assert_eq!(uris, ["README.md", "a%2Cb%3Ac%25.md"]);
    let passed = env.repo_at("passed", &Spec::of_script("true")).run_with(&["--format", "sarif"]).exits(0);
    let passed = demand_sarif(&passed.stdout);
    assert_eq!(passed["runs"][0]["results"], serde_json::json!([]));
    assert_eq!(passed["runs"][0]["invocations"][0]["executionSuccessful"], true);
}

/// A workflow command, parsed as GitHub's runner does it (`ActionCommand.TryParseV2`).
#[derive(Debug)]
struct Command {
    name: String,
    properties: Vec<(String, String)>,
    message: String,
}

fn decoded(text: &str, more: &[(&str, &str)]) -> String {
    let all = [("%0D", "\r"), ("%0A", "\n")].iter().chain(more);
    all.fold(text.to_owned(), |text, (code, meant)| text.replace(code, meant)).replace("%25", "%")
}

fn parsed(line: &str) -> Option<Command> {
    let (head, message) = line.trim_start().strip_prefix("::")?.split_once("::")?;
    let (name, properties) = head.split_once(' ').unwrap_or((head, ""));
    let pairs = properties.split(',').filter_map(|pair| pair.split_once('='));
    let value = |value: &str| decoded(value, &[("%3A", ":"), ("%2C", ",")]);
    let properties = pairs.map(|(name, text)| (name.trim().to_owned(), value(text))).collect();
    Some(Command { name: name.to_owned(), properties, message: decoded(message, &[]) })
}

/// Returns the commands that a runner would execute from a log.
fn obeyed(log: &str) -> Vec<Command> {
    let mut until: Option<String> = None;
    let mut obeyed = Vec::new();
    for line in log.lines() {
        assert!(!line.contains("##["), "the old form: {line}");
        let Some(command) = parsed(line) else { continue };
        match &until {
            Some(token) if command.name == *token => until = None,
            Some(_) => {}
            None if command.name == "stop-commands" => until = Some(command.message),
            None => obeyed.push(command),
        }
    }
    assert_eq!(until, None, "commands stay stopped");
    obeyed
}

fn github(env: &TestEnvironment) {
    let repo = env.repo(&spec());
    let run = run(&repo, "github", 3);
    let commands = obeyed(&run.stdout);
    let known = ["group", "endgroup", "error", "warning", "notice"];
    assert!(commands.iter().all(|command| known.contains(&command.name.as_str())), "{commands:#?}");
    let errors: Vec<&Command> = commands.iter().filter(|command| command.name == "error").collect();
    let property = |command: &Command, name: &str| {
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
    let token =
        |run: &Finished| run.stdout.lines().find_map(|line| line.strip_prefix("::stop-commands::").map(str::to_owned));
    assert_ne!(token(&run), token(&again), "the word is another in each run");
}

/// Creates the files of a GitHub runner, and adds their variables to the caller's environment.
fn runner_files(env: &TestEnvironment) -> [PathBuf; 2] {
    [("GITHUB_STEP_SUMMARY", "summary"), ("GITHUB_OUTPUT", "output")].map(|(name, file)| {
        let path = env.root().join(file);
        machine::write(&path, "");
        env.hand_over(&path);
        env.caller_has(name, path.to_str().expect("UTF-8"));
        path
    })
}

#[expect(clippy::disallowed_methods, reason = "a runner of GitHub makes the file, not we")]
fn github_files(env: &TestEnvironment) {
    let repo = env.repo(&spec());
    let [summary, output] = runner_files(env);
    std::fs::write(&summary, "from an earlier command\n").expect("a file");
    repo.run_with(&["--report", &format!("github={}", env.root().join("log").display())]).exits(3);
    let summary = std::fs::read_to_string(summary).expect("a summary");
    assert!(summary.starts_with("from an earlier command\n### ❌ Proctor: failed"), "{summary}");
    let output = std::fs::read_to_string(output).expect("outputs");
    let names: Vec<&str> = output.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
    assert_eq!(names, ["verdict", "exit_code", "run_id", "tier", "snapshot", "partial"]);
    assert!(output.starts_with("verdict=failed\nexit_code=3\nrun_id="), "{output}");
    repo.run_with(&["--format", "human"]).exits(3);
    assert_eq!(std::fs::read_to_string(env.root().join("output")).expect("outputs"), output, "they were not asked for");
}

fn github_bad_files(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let [summary, output] = runner_files(env);
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

fn markdown(env: &TestEnvironment) {
    let repo = env.repo(&spec());
    let comment = run(&repo, "markdown", 3).stdout;
    assert!(comment.starts_with("### ❌ Proctor: failed\n"), "{comment}");
    assert!(comment.chars().count() < 65_536);
    assert!(!comment.contains("<script") && comment.contains("&lt;script&gt;@octocat"), "{comment}");
    for said in ["did not end within 200 ms", "\n+more\n", "```diff\n"] {
        assert!(comment.contains(said), "{said}\n{comment}");
    }
    assert_eq!(comment.matches("<details>").count(), comment.matches("</details>").count());
}

fn several(env: &TestEnvironment) {
    let repo = env.repo(&spec());
    let place = |name: &str| env.root().join("home").join(name);
    let words: Vec<String> = ["json", "jsonl", "junit", "sarif", "github", "markdown", "html"]
        .iter()
        .map(|format| format!("--report={format}={}", place(format).display()))
        .collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let run = repo.run_with(&words).exits(3);
    assert!(run.stdout.contains("verify.bad/fails"), "the terminal has its own\n{run}");
    let read = |name: &str| std::fs::read_to_string(place(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let json: Value = serde_json::from_str(&read("json")).expect("JSON");
    let id = json["started"]["run_id"].as_str().expect("an id");
    let events = documents::check_events(&read("jsonl"));
    assert_eq!(events.first().map(|event| event["run_id"].clone()), Some(id.into()));
    assert_eq!(demand_sarif(&read("sarif"))["runs"][0]["invocations"][0]["properties"]["runId"], id);
    assert!(read("junit").contains(id) && read("markdown").contains("<code>"));
    assert!(!obeyed(&read("github")).is_empty());
    assert!(
        read("html").starts_with("<!doctype html>") && read("html").contains(id) && !read("html").contains("<script>@")
    );
}

fn lost(env: &TestEnvironment) {
    let place = env.root().join("home/reports");
    std::fs::create_dir(&place).expect("a directory");
    env.hand_over(&place);
    let repo = env.repo(&Spec::of_steps([waiting_step(env, "it")]));
    let mut running = repo.start(&["--report", &format!("junit={}/x.xml", place.display())]);
    let step = wait_for_step(env, &mut running);
    std::fs::remove_dir(&place).expect("it is empty");
    release(&step);
    let run = env.finish(running).exits(5).complains(&["a report could not be written", "reports/x.xml"]);
    assert!(run.stdout.contains("passed"), "the verdict is unchanged\n{run}");
}

fn places(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    for (word, said) in [
        ("junit=/nonexistent/x.xml", "No such file"),
        ("junit=.git/x.xml", "`.git`"),
        ("junit=src", "not a regular file"),
    ] {
        let run = repo.run_with(&["--report", word]).exits(2);
        assert!(run.stderr.contains("the report is not written to") && run.stderr.contains(said), "{run}");
    }
    repo.run_with(&["--report", "junit=a.xml", "--report", "sarif=./a.xml"]).exits(2);
    repo.run_with(&["--report", "human=a"]).exits(2).complains(&["the format is one of `json`"]);
    assert!(!repo.file("a.xml").exists());
}

fn no_run(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    repo.write("spec/verification.yaml", "version: 1\nskils: {}\n");
    let of = |format: &str| repo.run_with(&["--format", format]).exits(2);
    let junit = of("junit");
    assert!(junit.stdout.contains("errors=\"1\"") && junit.stdout.contains("type=\"no_run\""), "{junit}");
    let sarif = demand_sarif(&of("sarif").stdout);
    assert_eq!(sarif["runs"][0]["invocations"][0]["executionSuccessful"], false);
    assert_eq!(sarif["runs"][0]["invocations"][0]["exitCode"], 2);
    assert_eq!(obeyed(&of("github").stdout)[0].name, "error");
    assert!(of("markdown").stdout.contains("Nothing was verified"), "markdown");
    let jsonl = of("jsonl");
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

fn range(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("grep -q 'first line' README.md"));
    let base = repo.git(&["rev-parse", "HEAD"]);
    for (text, message) in [("first line\n2\n", "good"), ("gone\n", "bad @octocat"), ("first line\n", "mended")] {
        repo.write("README.md", text);
        repo.git(&["commit", "-qam", message]);
    }
    let rev = format!("{}..HEAD", base.trim());
    let of = |format: &str| {
        let words = ["run", "--rev", &rev, "--format", format];
        repo.proctor(&words).exits(1)
    };
    let junit = of("junit");
    demand_junit(env, &junit.stdout);
    assert!(junit.stdout.contains("tests=\"3\" failures=\"1\" errors=\"0\""), "{junit}");
    let sarif = demand_sarif(&of("sarif").stdout);
    assert_eq!(sarif["runs"][0]["invocations"].as_array().map(Vec::len), Some(3));
    assert_eq!(sarif["runs"][0]["results"].as_array().map(Vec::len), Some(1));
    let markdown = of("markdown").stdout;
    assert!(markdown.starts_with("### ❌ Proctor: failed, 3 commits") && !markdown.contains(" @octocat"), "{markdown}");
    let jsonl = of("jsonl");
    let last: Value = serde_json::from_str(jsonl.stdout.lines().last().expect("a line")).expect("JSON");
    assert_eq!((&last["event"], &last["exit_code"]), (&"run_finished".into(), &0.into()), "the last commit's own");
}

fn earlier(env: &TestEnvironment) {
    let repo = env.repo(&spec());
    let daemon = env.daemon();
    let socket = env.socket();
    let socket = socket.to_str().expect("UTF-8");
    let ask = |words: &[&str]| env.proctor_in(repo.path(), &[words, &["--socket", socket]].concat());
    let live = {
        let mut command = env.command(repo.path());
        command.args(["run", "--format", "jsonl", "--socket"]).arg(env.socket());
        env.finish(Running::start(command)).exits(3)
    };
    let events = documents::check_events(&live.stdout);
    let id = events[0]["run_id"].as_str().expect("an id").to_owned();
    let again = ask(&["report", &id, "--format", "jsonl"]).exits(0);
    assert_eq!(documents::check_events(&again.stdout), events, "the log reports the same");
    let file = env.root().join("home/report.sarif");
    let human = ask(&["report", &id, "--report", &format!("sarif={}", file.display())]).exits(0);
    assert!(human.stdout.contains("verify.late"), "{human}");
    demand_sarif(&std::fs::read_to_string(file).expect("a file"));
    let json: Value = serde_json::from_str(&ask(&["report", &id, "--format", "json"]).exits(0).stdout).expect("JSON");
    assert!(json["skills"][0]["span"]["ended_ms"].is_u64(), "{json:#}");
    ask(&["report", "20200101T000000Z-00000000", "--format", "markdown"]).exits(2);
    daemon.end().exits(0);
}

/// Returns a step that writes reports of tools, and fails.
fn tool_step() -> Step {
    let junit = "<testsuite name=\"unit\"><testcase name=\"bad\" file=\"src/lib.rs\" line=\"2\"><failure message=\"no\"/></testcase></testsuite>";
    let sarif = serde_json::json!({ "version": "2.1.0", "runs": [{
        "tool": { "driver": { "name": "lint" } },
        "results": [{ "ruleId": "L1", "level": "error", "message": { "text": "mend it" }, "locations": [{ "physicalLocation": {
            "artifactLocation": { "uri": "src/lib.rs" }, "region": { "startLine": 3 } } }] }],
    }] });
    let script = format!(
        "mkdir -p target; printf %s '{junit}' > target/unit.xml; printf %s '{sarif}' > target/lint.sarif; exit 1"
    );
    Step::sh("it", &script).with("reports: { junit: target/unit.xml, sarif: target/lint.sarif }")
}

fn tools(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([tool_step()]));
    let daemon = env.daemon();
    let id = {
        let mut command = env.command(repo.path());
        command.args(["run", "--format", "json", "--socket"]).arg(env.socket());
        let run = env.finish(Running::start(command)).exits(1);
        let record: Value = serde_json::from_str(&run.stdout).expect("JSON");
        record["started"]["run_id"].as_str().expect("an id").to_owned()
    };
    let here = |format: &str| run(&repo, format, 1).stdout;
    let socket = env.socket();
    let socket = socket.to_str().expect("UTF-8");
    let of_daemon = |format: &str| {
        let words = ["report", &id, "--format", format, "--socket", socket];
        env.proctor_in(repo.path(), &words).exits(0).stdout
    };
    for told in [&here as &dyn Fn(&str) -> String, &of_daemon] {
        let junit = told("junit");
        demand_junit(env, &junit);
        assert!(junit.contains("verify.it/it: unit") && junit.contains("failures=\"2\""), "{junit}");
        let sarif = demand_sarif(&told("sarif"));
        assert_eq!(sarif["runs"][1]["tool"]["driver"]["name"], "lint");
        assert_eq!(sarif["runs"][1]["results"][0]["message"]["text"], "mend it");
        let commands = obeyed(&told("github"));
        let messages: Vec<&str> =
            commands.iter().filter(|command| command.name == "error").map(|command| command.message.as_str()).collect();
        assert_eq!(messages, ["no", "mend it"]);
        assert!(told("markdown").contains("1 of 1 case failed"), "markdown");
    }
    daemon.end().exits(0);
}

fn hostile(env: &TestEnvironment) {
    let laughs = "<!DOCTYPE a [<!ENTITY b \"ha\"><!ENTITY c \"&b;&b;\">]><testsuites>&c;</testsuites>";
    let large = "head -c 17000000 /dev/zero > target/r.xml";
    for (script, said) in [
        (&*format!("printf %s '{laughs}' > target/r.xml"), "document type"),
        ("echo '<html/>' > target/r.xml", "its root is"),
        ("printf '<testsuite name=\"\\377\"/>' > target/r.xml", "not UTF-8"),
        (large, "16 MiB"),
    ] {
        let step = Step::sh("it", &format!("mkdir -p target; {script}")).with("reports: { junit: target/r.xml }");
        let repo = env.repo_at(&format!("repo-{}", said.len()), &Spec::of_steps([step]));
        let junit = run(&repo, "junit", 0).stdout;
        demand_junit(env, &junit);
        assert!(junit.contains("errors=\"1\"") && junit.contains("type=\"report\"") && junit.contains(said), "{junit}");
        assert!(
            obeyed(&run(&repo, "github", 0).stdout)
                .iter()
                .any(|command| command.name == "warning" && command.message.contains(said))
        );
    }
    let step = Step::sh("it", "true").with("reports: { junit: target/r.xml }");
    let junit = run(&env.repo_at("missing", &Spec::of_steps([step])), "junit", 0).stdout;
    assert!(junit.contains("the step wrote none") && junit.contains("errors=\"0\""), "{junit}");
}
