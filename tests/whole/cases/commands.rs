//! Tests the commands other than `run`.

use serde_json::Value;

use crate::binaries;
use crate::documents;
use crate::environment::{Repo, TestEnvironment};
use crate::machine;
use crate::needs::{Case, Needs, case, dry_case};
use crate::process::Running;
use crate::schemas;
use crate::spec::{Skill, Spec, Step};

pub(super) const CASES: &[Case] = &[
    dry_case("commands::validate_says_that_a_good_spec_is_good", validate),
    dry_case("commands::plan_is_valid_and_complete", plan),
    dry_case("commands::explain_names_where_a_value_comes_from", explain),
    dry_case("commands::explain_names_the_profile_that_has_a_step", explain_elsewhere),
    dry_case("commands::explain_env_says_why_a_variable_is_missing", explain_env),
    dry_case("commands::schema_prints_what_is_published", schema),
    dry_case("commands::an_unknown_command_or_flag_is_a_usage_error", usage),
    dry_case("commands::help_names_every_command", help),
    case("commands::doctor_shows_each_control", doctor),
    dry_case("commands::doctor_prints_a_profile_for_the_helper_that_is_used", apparmor_profile),
    dry_case("commands::apparmor_takes_that_profile", apparmor_parses).needs(&[Needs::Works(APPARMOR)]),
    case("commands::the_plan_is_what_the_record_says", plan_is_recorded),
    case("commands::jsonl_is_valid_and_ends_with_the_verdict", jsonl),
    case("commands::json_is_one_document", json),
    case("commands::the_screen_without_a_terminal_has_no_escapes", no_escapes),
    case("commands::repo_names_another_repository", other_repo),
];

fn validate(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    repo.proctor(&["validate"]).exits(0);
    repo.proctor(&["validate", "spec/verification.yaml"]).exits(0);
    repo.write("spec/verification.yaml", "version: 1\nskils: {}\n");
    let run = repo.proctor(&["validate", "--format", "json"]).exits(2);
    let document: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run}"));
    let text = document.to_string();
    assert!(text.contains("skils") && text.contains("\"line\":2"), "{text}");
}

fn rich_spec() -> Spec {
    let step = Step::sh("one", "true").with("timeout_ms: 1500").with("retries: 2").with("env: { A: b }");
    Spec::new([
        Skill::new("verify.it", [step, Step::argv("two", &["true"])]).with("read_only: strict"),
        Skill::new("verify.other", [Step::argv("it", &["true"])]),
    ])
    .with_default("timeout_ms: 9000")
    .with_default("env_allowlist: [RUST_LOG]")
    .top("toolchains: { t: { required: [ { cmd: [\"true\", \"--version\"] } ] } }")
}

fn plan_of(repo: &Repo<'_>) -> Value {
    let run = repo.proctor(&["plan", "--format", "json"]).exits(0);
    serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run}"))
}

fn plan(env: &TestEnvironment) {
    let repo = env.repo(&rich_spec());
    repo.proctor(&["plan"]).exits(0).says(&["verify.it", "one", "1500", "true --version"]);
    let plan = plan_of(&repo);
    schemas::demand("plan", &plan, &"the plan");
    let nulls = plan.to_string().contains("null");
    assert!(!nulls, "a plan leaves nothing open: {plan:#}");
    let steps = &plan["skills"][0]["steps"];
    assert_eq!((&steps[0]["timeout_ms"], &steps[1]["timeout_ms"]), (&1500.into(), &9000.into()));
    assert_eq!(
        (&steps[0]["read_only"], &plan["skills"][1]["steps"][0]["read_only"]),
        (&"strict".into(), &"tracked".into())
    );
    assert!(repo.is_untouched() && !env.state().exists(), "`plan` wrote something");
}

fn explain(env: &TestEnvironment) {
    let repo = env.repo(&rich_spec());
    let run = repo.proctor(&["explain", "verify.it/one"]).exits(0).says(&["timeout_ms", "1500", "retries", "RUST_LOG"]);
    assert!(run.stdout.contains("defaults") && run.stdout.contains("step"), "{run}");
    let run = repo.proctor(&["explain", "verify.it/onne"]).exits(2);
    assert!(run.stderr.contains("verify.it/one") || run.stderr.contains("`one`"), "{run}");
}

fn explain_elsewhere(env: &TestEnvironment) {
    let repo = env.repo(&rich_spec());
    let spec = "version: 1\nprofiles: { pr: { include: [a] }, other: { include: [b] } }\n\
                skills:\n  a: { steps: [ { name: s, cmd: make } ] }\n  b: { steps: [ { name: s, cmd: make } ] }\n";
    repo.write("spec/verification.yaml", spec);
    let run = repo.proctor(&["explain", "b/s"]).exits(2);
    assert!(run.stderr.contains("--profile other"), "{run}");
    repo.proctor(&["explain", "b/s", "--profile", "other"]).exits(0).says(&["b/s"]);
}

fn explain_env(env: &TestEnvironment) {
    env.caller_has("RUST_LOG", "debug");
    env.caller_has("GIT_DIR", "/nowhere");
    env.caller_has("MY_TOKEN", "the-value-of-a-token");
    let repo = env.repo(&rich_spec());
    let run = repo.proctor(&["explain", "env"]).exits(0).says(&["RUST_LOG", "GIT_DIR", "MY_TOKEN", "env_allowlist"]);
    assert!(!run.everything().contains("the-value-of-a-token"), "{run}");
}

fn schema(env: &TestEnvironment) {
    let names = env.proctor(["schema"]).exits(0);
    for name in ["spec", "plan", "skill-evidence", "toolchain-evidence", "status", "event", "exec"] {
        assert!(names.stdout.contains(name), "{name}\n{names}");
        let printed = env.proctor(["schema", name]).exits(0);
        let printed: Value = serde_json::from_str(&printed.stdout).expect("JSON");
        assert_eq!(printed, schemas::read(name), "{name} is not what schemas/ holds");
    }
    env.proctor(["schema", "speck"]).exits(2);
}

fn usage(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
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
    assert!(repo.is_untouched());
}

fn help(env: &TestEnvironment) {
    env.proctor(["--help"]).exits(0).says(&[
        "run",
        "validate",
        "plan",
        "explain",
        "exec",
        "doctor",
        "schema",
        "Exit codes",
    ]);
    env.proctor(["--version"]).exits(0).says(&["proctor"]);
}

fn doctor(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    repo.proctor(&["doctor"]).exits(0).says(&["network_namespace", "layer", "pid_namespace"]);
    let run = repo.proctor(&["doctor", "--format", "json"]).exits(0);
    let document: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run}"));
    assert!(document.to_string().contains("\"enforced\""), "{document:#}");
}

fn apparmor_profile(env: &TestEnvironment) {
    let printed = env.proctor(["doctor", "--apparmor-profile"]).exits(0);
    assert_eq!(printed.stderr, "");
    let places: Vec<&str> = printed.stdout.lines().filter(|line| line.starts_with("@{proctor_sandbox} = ")).collect();
    let helper = binaries::built("proctor-sandbox").canonicalize().expect("it was built");
    // Characters of AppArmor's glob syntax are escaped with a backslash.
    let named: Vec<String> = places.iter().map(|line| line.replace('\\', "")).collect();
    assert_eq!(named, [format!("@{{proctor_sandbox}} = \"{}\"", helper.display())], "{printed}");
    printed
        .says(&["abi <abi/4.0>,\n", "\nprofile proctor-sandbox @{proctor_sandbox} flags=(unconfined) {\n  userns,\n"]);
    assert!(!env.state().exists(), "nothing was tried");
}

/// Checks that AppArmor's own compiler has version 4 or newer, and accepts the kinds of rules in our profile. Nothing
/// is loaded into the kernel, and nothing is cached.
const APPARMOR: &[&str] = &[
    "sh",
    "-c",
    "apparmor_parser --version | grep -Eq 'version ([4-9]|[1-9][0-9])' && printf '%s\\n' 'abi <abi/4.0>,' \
     'include <tunables/global>' 'profile tried /tried flags=(unconfined) { userns, }' | apparmor_parser -Q -K",
];

fn apparmor_parses(env: &TestEnvironment) {
    let printed = env.proctor(["doctor", "--apparmor-profile"]).exits(0);
    let parsed = |name: &str, text: &str| {
        let file = env.root().join(name);
        machine::write(&file, text);
        let mut parser = machine::command("apparmor_parser");
        parser.args(["-Q", "-K"]).arg(file);
        Running::start(parser).wait()
    };
    parsed("profile", &printed.stdout).exits(0);
    let broken = parsed("broken", &printed.stdout.replace("  userns,", "  userns"));
    assert_ne!(broken.code, Some(0), "a parser that accepts anything proves nothing\n{broken}");
}

fn plan_is_recorded(env: &TestEnvironment) {
    let repo = env.repo(&rich_spec());
    let plan = plan_of(&repo);
    repo.run().exits(0);
    let recorded = repo.evidence("verify.it");
    let planned = plan["skills"][0]["steps"].as_array().expect("a list");
    for (planned, recorded) in planned.iter().zip(recorded["steps"].as_array().expect("a list")) {
        for (key, value) in planned.as_object().expect("an object") {
            assert_eq!(&recorded[key], value, "{key}");
        }
    }
}

fn jsonl(env: &TestEnvironment) {
    for (script, verdict, code) in
        [("echo ok", "passed", 0), ("exit 1", "failed", 1), ("echo x >> README.md", "failed", 3)]
    {
        let repo = env.repo_at(&format!("repo{code}"), &Spec::of_script(script));
        let run = repo.run_with(&["--format", "jsonl"]).exits(code);
        let events = documents::check_events(&run.stdout);
        let first = events.first().expect("an event");
        let last = events.last().expect("an event");
        assert_eq!((&first["event"], &last["event"]), (&"run_started".into(), &"run_finished".into()));
        assert_eq!((&last["verdict"], &last["exit_code"]), (&verdict.into(), &code.into()));
        let of = |kind: &str| events.iter().filter(|event| event["event"] == kind).collect::<Vec<_>>();
        assert_eq!(of("step_finished")[0]["step"], repo.step("it"), "the event and the record differ");
        let cited = repo.last_run()["evidence"].as_object().map_or(0, serde_json::Map::len);
        assert_eq!(of("evidence_written").len(), cited);
    }
}

fn json(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("exit 1"));
    let run = repo.run_with(&["--format", "json"]).exits(1);
    let document: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run}"));
    let text = document.to_string();
    assert!(text.contains("\"failed\"") && text.contains("verify.it"), "{text}");
}

fn no_escapes(env: &TestEnvironment) {
    env.caller_has("TERM", "xterm-256color");
    let repo = env.repo(&Spec::of_script("exit 1"));
    let run = repo.run().exits(1);
    assert!(!run.everything().contains(['\u{1b}', '\r']), "{run:?}");
    let coloured =
        repo.proctor(&["--color", "always", "run", "--state-dir", env.state().to_str().expect("UTF-8")]).exits(1);
    assert!(coloured.everything().contains('\u{1b}'), "{coloured:?}");
}

fn other_repo(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("cat README.md"));
    let elsewhere = Repo::at(env, env.root().join("sibling"));
    elsewhere.run_bare(&["--changeset", "009_x", "--repo", repo.path().to_str().expect("UTF-8")]).exits(0);
    assert_eq!(repo.last_run()["outcome"], "passed");
    let before = machine::walk(elsewhere.path());
    elsewhere.run_bare(&[]).exits(2);
    assert_eq!(machine::walk(elsewhere.path()), before);
}
