//! Tests the commands other than `run`.

use serde_json::Value;

use crate::binaries;
use crate::documents;
use crate::environment::{CHANGESET, Repo, TestEnvironment};
use crate::machine;
use crate::needs::{CaseDefinition, Needs, case, dry_case};
use crate::process::{FinishedProcess, RunningProcess};
use crate::schemas;
use crate::test_spec::{TestSkill, TestSpec, TestStep};

pub(super) const CASES: &[CaseDefinition] = &[
    case("commands::recorded_runs_are_found_without_a_daemon", recorded_runs_are_found_without_daemon),
    dry_case("commands::validate_accepts_a_valid_spec", validates_spec),
    dry_case("commands::plan_is_valid_and_complete", prints_complete_plan),
    dry_case("commands::explain_names_the_origin_of_a_value", explains_value_origins),
    dry_case("commands::explain_names_the_profile_of_a_step", names_profile_of_step),
    dry_case("commands::explain_env_gives_the_reason_for_a_missing_variable", explains_missing_variables),
    dry_case("commands::schema_prints_the_published_schemas", prints_published_schemas),
    dry_case("commands::an_unknown_command_or_flag_is_a_usage_error", rejects_unknown_commands),
    dry_case("commands::help_names_every_command", help_lists_commands),
    case("commands::doctor_shows_each_control", doctor_lists_controls),
    dry_case("commands::doctor_prints_an_apparmor_profile_for_the_used_helper", prints_apparmor_profile),
    dry_case("commands::apparmor_parser_accepts_the_printed_profile", apparmor_accepts_profile)
        .needs(&[Needs::WorkingCommand(APPARMOR_PROBE)]),
    case("commands::evidence_records_the_plan", evidence_records_plan),
    case("commands::jsonl_is_valid_and_ends_with_the_verdict", jsonl_is_valid),
    case("commands::json_is_one_document", json_is_one_document),
    case("commands::output_without_a_terminal_has_no_escapes", no_escapes_without_terminal),
    case("commands::repo_option_selects_another_repository", repo_option_selects_repository),
];

fn validates_spec(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    repo.proctor(&["validate"]).exits(0);
    repo.proctor(&["validate", "spec/verification.yaml"]).exits(0);
    repo.write("spec/verification.yaml", "version: 1\nskils: {}\n");
    let run = repo.proctor(&["validate", "--format", "json"]).exits(2);
    let document: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run}"));
    let text = document.to_string();
    assert!(text.contains("skils") && text.contains("\"line\":2"), "{text}");
}

fn spec_with_all_levels() -> TestSpec {
    let step =
        TestStep::sh("one", "true").with_field("timeout_ms: 1500").with_field("retries: 2").with_field("env: { A: b }");
    TestSpec::new([
        TestSkill::new("verify.it", [step, TestStep::argv("two", &["true"])]).with_field("read_only: strict"),
        TestSkill::new("verify.other", [TestStep::argv("it", &["true"])]),
    ])
    .with_default("timeout_ms: 9000")
    .with_default("env_allowlist: [RUST_LOG]")
    .with_top_level("toolchains: { t: { required: [ { cmd: [\"true\", \"--version\"] } ] } }")
}

fn resolved_plan(repo: &Repo<'_>) -> Value {
    let run = repo.proctor(&["plan", "--format", "json"]).exits(0);
    serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run}"))
}

fn prints_complete_plan(env: &TestEnvironment) {
    let repo = env.repo(&spec_with_all_levels());
    repo.proctor(&["plan"]).exits(0).prints(&["verify.it", "one", "1500", "true --version"]);
    let plan = resolved_plan(&repo);
    schemas::assert_valid("plan", &plan, &"the plan");
    let nulls = plan.to_string().contains("null");
    assert!(!nulls, "a plan leaves nothing open: {plan:#}");
    let steps = &plan["skills"][0]["steps"];
    assert_eq!((&steps[0]["timeout_ms"], &steps[1]["timeout_ms"]), (&1500.into(), &9000.into()));
    assert_eq!(
        (&steps[0]["read_only"], &plan["skills"][1]["steps"][0]["read_only"]),
        (&"strict".into(), &"tracked".into())
    );
    assert!(repo.has_no_documents() && !env.state_dir().exists(), "`plan` wrote something");
}

fn explains_value_origins(env: &TestEnvironment) {
    let repo = env.repo(&spec_with_all_levels());
    let run =
        repo.proctor(&["explain", "verify.it/one"]).exits(0).prints(&["timeout_ms", "1500", "retries", "RUST_LOG"]);
    assert!(run.stdout.contains("defaults") && run.stdout.contains("step"), "{run}");
    let run = repo.proctor(&["explain", "verify.it/onne"]).exits(2);
    assert!(run.stderr.contains("verify.it/one") || run.stderr.contains("`one`"), "{run}");
}

fn names_profile_of_step(env: &TestEnvironment) {
    let repo = env.repo(&spec_with_all_levels());
    let spec = "version: 1\nprofiles: { pr: { include: [a] }, other: { include: [b] } }\n\
                skills:\n  a: { steps: [ { name: s, cmd: make } ] }\n  b: { steps: [ { name: s, cmd: make } ] }\n";
    repo.write("spec/verification.yaml", spec);
    let run = repo.proctor(&["explain", "b/s"]).exits(2);
    assert!(run.stderr.contains("--profile other"), "{run}");
    repo.proctor(&["explain", "b/s", "--profile", "other"]).exits(0).prints(&["b/s"]);
}

fn explains_missing_variables(env: &TestEnvironment) {
    env.set_caller_var("RUST_LOG", "debug");
    env.set_caller_var("GIT_DIR", "/nowhere");
    env.set_caller_var("MY_TOKEN", "the-value-of-a-token");
    let repo = env.repo(&spec_with_all_levels());
    let run = repo.proctor(&["explain", "env"]).exits(0).prints(&["RUST_LOG", "GIT_DIR", "MY_TOKEN", "env_allowlist"]);
    assert!(!run.all_output().contains("the-value-of-a-token"), "{run}");
}

fn prints_published_schemas(env: &TestEnvironment) {
    let names = env.proctor(["schema"]).exits(0);
    for name in ["spec", "plan", "skill-evidence", "toolchain-evidence", "status", "event", "exec"] {
        assert!(names.stdout.contains(name), "{name}\n{names}");
        let printed = env.proctor(["schema", name]).exits(0);
        let printed: Value = serde_json::from_str(&printed.stdout).expect("JSON");
        assert_eq!(printed, schemas::read_schema(name), "{name} is not what schemas/ holds");
    }
    env.proctor(["schema", "speck"]).exits(2);
}

fn rejects_unknown_commands(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    for words in [
        &["rum"][..],
        &["run", "--profil", "pr"],
        &["run", "--max-tier", "4"],
        &["run", "--format", "xml"],
        &["exec"],
        &[],
    ] {
        let run = repo.proctor(words).exits(2);
        assert!(run.stdout.is_empty() && !run.stderr.is_empty(), "{words:?}\n{run}");
    }
    assert!(repo.has_no_documents());
}

fn help_lists_commands(env: &TestEnvironment) {
    env.proctor(["--help"]).exits(0).prints(&[
        "run",
        "validate",
        "plan",
        "explain",
        "exec",
        "doctor",
        "schema",
        "Exit codes",
    ]);
    env.proctor(["--version"]).exits(0).prints(&["proctor"]);
}

fn doctor_lists_controls(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    repo.proctor(&["doctor"]).exits(0).prints(&["network_namespace", "layer", "pid_namespace", "views "]);
    let run = repo.proctor(&["doctor", "--format", "json"]).exits(0);
    let document: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run}"));
    assert!(document.to_string().contains("\"enforced\""), "{document:#}");
}

fn prints_apparmor_profile(env: &TestEnvironment) {
    let printed = env.proctor(["doctor", "--apparmor-profile"]).exits(0);
    assert_eq!(printed.stderr, "");
    let attachments: Vec<&str> =
        printed.stdout.lines().filter(|line| line.starts_with("@{proctor_sandbox} = ")).collect();
    let helper = binaries::built_program("proctor-sandbox").canonicalize().expect("it was built");
    // Characters of AppArmor's glob syntax are escaped with a backslash.
    let unescaped: Vec<String> = attachments.iter().map(|line| line.replace('\\', "")).collect();
    assert_eq!(unescaped, [format!("@{{proctor_sandbox}} = \"{}\"", helper.display())], "{printed}");
    printed.prints(&[
        "abi <abi/4.0>,\n",
        "\nprofile proctor-sandbox @{proctor_sandbox} flags=(unconfined) {\n  userns,\n",
    ]);
    assert!(!env.state_dir().exists(), "nothing was tried");
}

/// Checks that AppArmor's own compiler has version 4 or newer, and accepts the kinds of rules in Proctor's profile.
/// Nothing is loaded into the kernel, and nothing is cached.
const APPARMOR_PROBE: &[&str] = &[
    "sh",
    "-c",
    "apparmor_parser --version | grep -Eq 'version ([4-9]|[1-9][0-9])' && printf '%s\\n' 'abi <abi/4.0>,' \
     'include <tunables/global>' 'profile tried /tried flags=(unconfined) { userns, }' | apparmor_parser -Q -K",
];

fn apparmor_accepts_profile(env: &TestEnvironment) {
    let printed = env.proctor(["doctor", "--apparmor-profile"]).exits(0);
    let parse_profile = |name: &str, text: &str| {
        let file = env.root().join(name);
        machine::write(&file, text);
        let mut parser = machine::command("apparmor_parser");
        parser.args(["-Q", "-K"]).arg(file);
        RunningProcess::start(parser).wait()
    };
    parse_profile("profile", &printed.stdout).exits(0);
    let broken = parse_profile("broken", &printed.stdout.replace("  userns,", "  userns"));
    assert_ne!(broken.code, Some(0), "a parser that accepts anything proves nothing\n{broken}");
}

fn evidence_records_plan(env: &TestEnvironment) {
    let repo = env.repo(&spec_with_all_levels());
    let plan = resolved_plan(&repo);
    repo.run().exits(0);
    let recorded = repo.evidence("verify.it");
    let planned = plan["skills"][0]["steps"].as_array().expect("a list");
    for (planned, recorded) in planned.iter().zip(recorded["steps"].as_array().expect("a list")) {
        for (key, value) in planned.as_object().expect("an object") {
            assert_eq!(&recorded[key], value, "{key}");
        }
    }
}

fn jsonl_is_valid(env: &TestEnvironment) {
    for (script, verdict, code) in
        [("echo ok", "passed", 0), ("exit 1", "failed", 1), ("echo x >> README.md", "failed", 3)]
    {
        let repo = env.repo_at(&format!("repo{code}"), &TestSpec::from_script(script));
        let run = repo.run_with(&["--format", "jsonl"]).exits(code);
        let events = documents::check_events(&run.stdout);
        let first = events.first().expect("an event");
        let last = events.last().expect("an event");
        assert_eq!((&first["event"], &last["event"]), (&"run_started".into(), &"run_finished".into()));
        assert_eq!((&last["verdict"], &last["exit_code"]), (&verdict.into(), &code.into()));
        let events_of_kind = |kind: &str| events.iter().filter(|event| event["event"] == kind).collect::<Vec<_>>();
        assert_eq!(events_of_kind("step_finished")[0]["step"], repo.step("it"), "the event and the record differ");
        let cited = repo.last_run()["evidence"].as_object().map_or(0, serde_json::Map::len);
        assert_eq!(events_of_kind("evidence_written").len(), cited);
    }
}

fn json_is_one_document(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("exit 1"));
    let run = repo.run_with(&["--format", "json"]).exits(1);
    let document: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run}"));
    let text = document.to_string();
    assert!(text.contains("\"failed\"") && text.contains("verify.it"), "{text}");
}

fn no_escapes_without_terminal(env: &TestEnvironment) {
    env.set_caller_var("TERM", "xterm-256color");
    let repo = env.repo(&TestSpec::from_script("exit 1"));
    let run = repo.run().exits(1);
    assert!(!run.all_output().contains(['\u{1b}', '\r']), "{run:?}");
    let coloured =
        repo.proctor(&["--color", "always", "run", "--state-dir", env.state_dir().to_str().expect("UTF-8")]).exits(1);
    assert!(coloured.all_output().contains('\u{1b}'), "{coloured:?}");
}

fn repo_option_selects_repository(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("cat README.md"));
    let elsewhere = Repo::at(env, env.root().join("sibling"));
    elsewhere.run_with_only(&["--changeset", "009_x", "--repo", repo.path().to_str().expect("UTF-8")]).exits(0);
    assert_eq!(repo.last_run()["outcome"], "passed");
    let before = machine::walk(elsewhere.path());
    elsewhere.run_with_only(&[]).exits(2);
    assert_eq!(machine::walk(elsewhere.path()), before);
}

fn recorded_runs_are_found_without_daemon(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("echo seen; test ! -e src/bad"));
    let state = env.state_dir();
    let in_state =
        |arguments: &[&str]| repo.proctor(&[arguments, &["--state-dir", state.to_str().expect("UTF-8")]].concat());
    let runs = |arguments: &[&str]| -> Vec<Value> {
        let listed = in_state(&[&["runs", "--format", "json"], arguments].concat()).exits(0);
        serde_json::from_str(&listed.stdout).unwrap_or_else(|error| panic!("{error}: {listed}"))
    };
    assert_eq!(runs(&[]), [] as [Value; 0]);
    in_state(&["logs", "last"]).exits(2).prints_to_stderr(&["no run of", "is recorded", "proctor run"]);
    let unknown =
        in_state(&["report", "20260101T000000Z-00000000"]).exits(2).prints_to_stderr(&["is recorded neither"]);
    assert!(!unknown.stderr.contains("daemon's socket"), "{unknown}");
    repo.run().exits(0);
    repo.write("src/bad", "x");
    repo.run_with_only(&["--profile", "pr"]).exits(1);
    let listed = runs(&[]);
    let outcomes: Vec<&str> = listed.iter().map(|run| run["outcome"].as_str().expect("a word")).collect();
    assert_eq!(outcomes, ["failed", "passed"]);
    assert_eq!((&listed[0]["changeset_id"], &listed[1]["changeset_id"]), (&Value::Null, &CHANGESET.into()));
    assert_eq!(runs(&["--all"]), listed);
    let id = listed[0]["run_id"].as_str().expect("an id");
    let used: Value = serde_json::from_str(&in_state(&["du", "--format", "json"]).exits(0).stdout).expect("JSON");
    let kinds = used["kinds"].as_array().expect("kinds").iter().map(|kind| kind["kind"].as_str().expect("a kind"));
    assert!(kinds.collect::<Vec<_>>().contains(&"runs"), "{used}");
    in_state(&["du"]).exits(0).prints(&["runs", " in "]);
    in_state(&["runs"]).exits(0).prints(&["VERDICT", id, "failed"]);
    in_state(&["logs", "last"]).exits(0).prints(&["seen"]);
    in_state(&["report", "last"]).exits(0).prints(&["failed", "exit 1"]);
    let page = in_state(&["report", "last", "--format", "html"]).exits(0);
    assert!(page.stdout.contains("<html") && page.stdout.contains(id), "{page}");
    opens_page_in_browser(env, &in_state, id);
    let record: Value = serde_json::from_str(&in_state(&["report", id, "--format", "json"]).exits(0).stdout)
        .expect("the record of a run");
    assert_eq!((&record["finished"]["exit_code"], &record["started"]["run_id"]), (&1.into(), &id.into()));
}

/// Opens the page of a run in a program that copies the page.
fn opens_page_in_browser(env: &TestEnvironment, in_state: &dyn Fn(&[&str]) -> FinishedProcess, id: &str) {
    const OPEN: [&str; 4] = ["report", "--format", "html", "--open"];
    let page = env.root().join(format!("cache/proctor/reports/{id}.html"));
    in_state(&["report", "--open"]).exits(2).prints_to_stderr(&["add `--format html`"]);
    env.set_caller_var("PATH", "");
    in_state(&OPEN).exits(5).prints_to_stderr(&[page.to_str().expect("text"), "`xdg-open` is not installed"]);
    let (browser, shown) = (env.root().join("browser"), env.root().join("shown"));
    machine::write(&browser, format!("#!/bin/sh\n/bin/cp \"$1\" {}\n", shown.display()));
    machine::make_executable(&browser);
    env.set_caller_var("BROWSER", browser.to_str().expect("text"));
    let opened = in_state(&OPEN).exits(0).prints(&["opened"]);
    assert!(!opened.stdout.contains("<html"), "{opened}");
    let text = std::fs::read_to_string(&shown).expect("the page was opened");
    assert!(text.contains("<html") && text.contains(id), "{text}");
}
