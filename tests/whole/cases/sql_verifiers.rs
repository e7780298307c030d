//! Tests verifiers of the operator: their findings are part of each judgement, and a statement that a verifier could not
//! check is not `ok`.

use std::os::unix::fs::PermissionsExt as _;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::daemon::send_request;
use crate::environment::TestEnvironment;
use crate::needs::{CaseDefinition, Needs, case};
use crate::{machine, schemas};

pub(super) const CASES: &[CaseDefinition] = &[
    case("sql_verifiers::findings_decide_the_verdict", findings_decide).needs(&[Needs::Sandbox]),
    case("sql_verifiers::rejected_statement_is_not_run", rejected_statement_is_not_run).needs(&[Needs::Sandbox]),
    case("sql_verifiers::broken_verifier_is_an_error", broken_verifier_is_error).needs(&[Needs::Sandbox]),
    case("sql_verifiers::daemon_uses_the_current_config", daemon_uses_current_config).needs(&[Needs::Sandbox]),
    case("", findings_decide)
        .unprivileged("sql_verifiers::findings_decide_the_verdict_as_a_user")
        .needs(&[Needs::Sandbox])
        .long(),
];

const SCHEMA: &str = "CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT, email TEXT);\n";
/// Rejects statements with the word `email`, and warns of statements with the word `name`.
const NO_EMAIL: &str = r#"input=$(cat)
case $input in
*'"sql":"'*email*'","dialect":"sqlite"'*)
    echo '{"diagnostics":[{"severity":"error","message":"it shows personal data","code":"PII1","start":7,"end":12}]}' ;;
*'"sql":"'*name*'","dialect":"sqlite"'*)
    echo '{"diagnostics":[{"severity":"warning","message":"it may show personal data","confidence":60}]}' ;;
*) echo '{"diagnostics":[]}' ;;
esac"#;

/// Writes a verifier, and returns its entry in the config.
fn verifier(env: &TestEnvironment, name: &str, script: &str, more: &str) -> String {
    let file = env.root().join(format!("verifier-{name}"));
    machine::write(&file, format!("#!/bin/sh\n{script}\n"));
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).expect("the mode can be set");
    format!("[[sql.verifiers]]\nname = '{name}'\ncommand = ['{}']\n{more}\n", file.display())
}

/// Judges a statement with this process, and returns the exit code and the judgement.
fn judge(env: &TestEnvironment, config: &str, sql: &str, more: &[&str]) -> (Option<i32>, Value) {
    let path = |name: &str| env.root().join(name).to_string_lossy().into_owned();
    machine::write(&env.root().join("config.toml"), config);
    machine::write(&env.root().join("schema.sql"), SCHEMA);
    machine::write(&env.root().join("query.sql"), sql);
    env.give_to_actor(env.root());
    let state = env.state_dir();
    let (config, schema, query) = (path("config.toml"), path("schema.sql"), path("query.sql"));
    let mut words = vec!["sql", "verify", &query, "--schema", &schema, "--format", "json", "--no-daemon"];
    words.extend(["--config", &config, "--state-dir", state.to_str().expect("a path")]);
    words.extend(more);
    let run = env.proctor_in(env.root(), &words);
    let judgement = serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run}"));
    schemas::assert_valid("sql-judgement", &judgement, &run);
    (run.code, judgement)
}

/// Returns the state of the stage of a verifier.
fn state_of<'a>(judgement: &'a Value, name: &str) -> &'a str {
    let stages = judgement["stages"].as_array().expect("stages");
    let record = stages.iter().find(|record| record["verifier"] == name).expect("a record of the verifier");
    assert_eq!(record["stage"], "custom");
    record["state"].as_str().expect("a state")
}

/// Asserts that the durations of the stages include one of a verifier, which is a part of the total.
#[track_caller]
fn assert_timed(judgement: &Value) {
    let timing = &judgement["timing"];
    let stages = timing["stages_us"].as_array().expect("stages");
    let custom: Vec<u64> =
        stages.iter().filter(|pair| pair[0] == "custom").filter_map(|pair| pair[1].as_u64()).collect();
    let [micros] = custom.as_slice() else { panic!("one duration: {timing}") };
    assert!(*micros > 0 && timing["total_us"].as_u64() >= Some(*micros), "{timing}");
}

fn findings_decide(env: &TestEnvironment) {
    let config = verifier(env, "pii", NO_EMAIL, "");
    let (code, judgement) = judge(env, &config, "SELECT id FROM people", &[]);
    assert_eq!((code, state_of(&judgement, "pii")), (Some(0), "passed"), "{judgement}");
    assert_timed(&judgement);
    let (code, judgement) = judge(env, &config, "SELECT email FROM people", &[]);
    assert_eq!((code, state_of(&judgement, "pii")), (Some(1), "rejected"), "{judgement}");
    let found = judgement["diagnostics"].as_array().expect("findings").last().expect("one");
    assert_eq!((&found["code"], &found["id"]), (&json!("custom_finding"), &json!("P0675")));
    assert_eq!((&found["engine_code"], &found["span"]["column"]), (&json!("PII1"), &json!(8)));
    assert!(judgement["feedback"].as_str().is_some_and(|text| text.contains("pii: it shows personal data")));
    // A warning rejects only if the caller asks for that.
    let (code, judgement) = judge(env, &config, "SELECT name FROM people", &[]);
    assert_eq!((code, state_of(&judgement, "pii")), (Some(0), "passed"), "{judgement}");
    let (code, judgement) = judge(env, &config, "SELECT name FROM people", &["--reject-at", "60"]);
    assert_eq!((code, state_of(&judgement, "pii")), (Some(1), "rejected"), "{judgement}");
    // The caller's choice of stages does not leave a verifier out.
    let (code, judgement) = judge(env, &config, "SELECT email FROM people", &["--stages", "bind,safety"]);
    assert_eq!((code, state_of(&judgement, "pii")), (Some(1), "rejected"), "{judgement}");
    // A verifier does not run after an error of an earlier stage, but runs after an error of a later stage.
    let (_, judgement) = judge(env, &config, "SELECT e FROM people", &[]);
    assert_eq!(state_of(&judgement, "pii"), "skipped", "{judgement}");
    let config =
        verifier(env, "pii", NO_EMAIL, "after = 'bind'") + &verifier(env, "second", "exit 1", "dialects = ['duckdb']");
    let (_, judgement) = judge(env, &config, "DELETE FROM people WHERE email = 'x'", &[]);
    assert_eq!(state_of(&judgement, "pii"), "rejected", "{judgement}");
    let order: Vec<&str> =
        judgement["stages"].as_array().expect("stages").iter().filter_map(|record| record["stage"].as_str()).collect();
    let at = order.iter().position(|stage| *stage == "custom").expect("a record");
    assert_eq!((order[at - 1], order.iter().filter(|stage| **stage == "custom").count()), ("bind", 1), "{order:?}");
}

fn rejected_statement_is_not_run(env: &TestEnvironment) {
    let config = verifier(env, "pii", NO_EMAIL, "after = 'bind'");
    let path = |name: &str| env.root().join(name).to_string_lossy().into_owned();
    let run = |sql: &str| {
        machine::write(&env.root().join("config.toml"), &config);
        machine::write(
            &env.root().join("schema.sql"),
            SCHEMA.to_owned() + "INSERT INTO people VALUES (1, 'Ada', 'a@b.c');",
        );
        machine::write(&env.root().join("query.sql"), sql);
        env.give_to_actor(env.root());
        let state = env.state_dir();
        let (config, schema, query) = (path("config.toml"), path("schema.sql"), path("query.sql"));
        let words = ["sql", "run", &query, "--schema", &schema, "--format", "json", "--no-daemon", "--config", &config];
        let words = [&words[..], &["--state-dir", state.to_str().expect("a path")]].concat();
        let run = env.proctor_in(env.root(), &words);
        let answer: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run}"));
        (run.code, answer)
    };
    let (code, answer) = run("SELECT email FROM people");
    assert_eq!((code, answer.get("result")), (Some(1), None), "{answer}");
    assert_eq!(state_of(&answer["judgement"], "pii"), "rejected", "{answer}");
    // The judgement of a statement that ran has the record and the warning of the verifier.
    let (code, answer) = run("SELECT name FROM people");
    assert_eq!((code, &answer["result"]["rows"]), (Some(0), &json!([["Ada"]])), "{answer}");
    assert_eq!(state_of(&answer["judgement"], "pii"), "passed", "{answer}");
    assert_timed(&answer["judgement"]);
    assert_eq!(answer["judgement"]["diagnostics"][0]["code"], "custom_finding", "{answer}");
}

fn broken_verifier_is_error(env: &TestEnvironment) {
    let state = env.state_dir();
    let marker = state.join("marker");
    let writes = format!("cat >/dev/null; echo x >'{}'; echo '{{\"diagnostics\":[]}}'", marker.display());
    for (name, script, more, message) in [
        ("exit", "cat >/dev/null; echo oh no >&2; exit 3", "", "it ended with exit code 3: oh no"),
        ("prose", "cat >/dev/null; echo ok", "", "its output is not a document with `diagnostics`"),
        ("silent", "cat >/dev/null", "", "its output is not a document"),
        ("slow", "cat >/dev/null; sleep 60", "timeout_ms = 200", "gave no answer in time"),
        ("deaf", "exec <&-; echo '{\"diagnostics\":[]} '; exit 1", "", "exit code 1"),
        ("loud", "cat >/dev/null; yes | head -c 9000000", "", "printed more than 4 MiB"),
        ("network", "cat >/dev/null; : >/dev/tcp/127.0.0.1/1 || exit 4", "", "it ended with exit code"),
        ("writes", &writes, "", "it ended with exit code"),
    ] {
        let config = verifier(env, name, script, more);
        let (code, judgement) = judge(env, &config, "SELECT id FROM people", &[]);
        if name == "writes" {
            // A write outside of the sandbox's own directories is refused or lost.
            assert!(!marker.exists(), "{judgement}");
            continue;
        }
        assert_eq!((code, state_of(&judgement, name)), (Some(5), "failed"), "{name}: {judgement}");
        let found = &judgement["diagnostics"][0];
        assert_eq!(found["code"], "verifier_failed", "{name}: {judgement}");
        assert!(found["message"].as_str().is_some_and(|text| text.contains(message)), "{name}: {judgement}");
    }
    let config = "[[sql.verifiers]]\nname = 'gone'\ncommand = ['/nonexistent/verifier']\n";
    let (code, judgement) = judge(env, config, "SELECT id FROM people", &[]);
    assert_eq!((code, state_of(&judgement, "gone")), (Some(5), "failed"), "{judgement}");
}

fn daemon_uses_current_config(env: &TestEnvironment) {
    let pii = verifier(env, "pii", NO_EMAIL, "");
    env.write_operator_config(&pii);
    let mut daemon = env.start_ready_daemon();
    let request = json!({ "sql": "SELECT email FROM people", "dialect": "sqlite", "schema": SCHEMA });
    let socket = env.socket_path();
    let verdict = || {
        let answer = send_request(&socket, "POST", "/v1/sql/verify", Some(&request)).expect("an answer");
        answer.parse_json_body()["verdict"].clone()
    };
    assert_eq!(verdict(), "reject");
    for (config, expected) in [("", "ok"), (pii.as_str(), "reject")] {
        env.write_operator_config(config);
        daemon.process.signal(Signal::HUP);
        daemon.process.wait_until(|| verdict() == expected);
        assert_eq!(verdict(), expected);
    }
    daemon.stop().exits(0);
}
