//! The commands beside `run`.

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
    case("commands::exec_passes_the_end_of_its_command_on", exec),
    case("commands::exec_shows_drift", exec_drift),
    case("commands::exec_runs_like_a_step", exec_is_a_step),
    case("commands::exec_ends_at_its_deadline", exec_timeout),
    case("commands::exec_prints_its_record", exec_json),
    case("commands::exec_has_limits_below_the_ceiling", exec_limits),
    case("commands::exec_does_without_a_broken_spec", exec_no_spec),
    case("commands::exec_hides_what_it_was_given", exec_secret),
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
    // What would be a pattern stands behind a backslash.
    let named: Vec<String> = places.iter().map(|line| line.replace('\\', "")).collect();
    assert_eq!(named, [format!("@{{proctor_sandbox}} = \"{}\"", helper.display())], "{printed}");
    printed
        .says(&["abi <abi/4.0>,\n", "\nprofile proctor-sandbox @{proctor_sandbox} flags=(unconfined) {\n  userns,\n"]);
    assert!(!env.state().exists(), "nothing was tried");
}

/// AppArmor's own compiler, of version 4 or newer, at work on rules of the kinds that ours has. Nothing is
/// loaded into the kernel, and nothing cached.
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
    assert_ne!(broken.code, Some(0), "a parser that takes anything says nothing of ours\n{broken}");
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

fn exec(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    repo.proctor(&["exec", "--", "echo", "hello", "there"]).exits(0).says(&["hello there\n"]);
    let run = repo.proctor(&["exec", "--", "sh", "-c", "echo out; echo err >&2; exit 7"]).exits(1);
    assert!(run.everything().contains("out\n") && run.everything().contains("err\n"), "{run}");
    repo.proctor(&["exec", "sh", "-c", "exit 0"]).exits(0);
    for option in ["--no-such-option", "-z"] {
        let run = repo.proctor(&["exec", option, "--", "true"]).exits(2).complains(&["unexpected argument", option]);
        assert!(!run.stderr.contains("use '-- "), "a tip that makes the option a program: {run}");
    }
    let run = repo.proctor(&["exec", "--", "no-such-program-anywhere"]).exits(5);
    assert!(run.stderr.contains("no-such-program-anywhere"), "{run}");
    let run = repo.proctor(&["exec", "--", "printf", "\\033[2J"]).exits(0);
    assert!(!run.everything().contains('\u{1b}'), "{run:?}");
    assert!(repo.is_untouched(), "`exec` wrote evidence into the repository");
}

fn exec_drift(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let edit = ["sh", "-c", "echo an added line >> README.md"];
    let before = repo.read("README.md");
    let run = repo.proctor(&[&["exec", "--"], &edit[..]].concat()).exits(3);
    assert!(run.everything().contains("+an added line"), "{run}");
    assert_eq!(repo.read("README.md"), before);
    repo.proctor(&[&["exec", "--read-only", "off", "--"], &edit[..]].concat()).exits(0);
    assert_eq!(repo.read("README.md"), format!("{before}an added line\n"));
}

fn exec_is_a_step(env: &TestEnvironment) {
    env.caller_has("MY_TOKEN", "the-value-of-a-token");
    let repo = env.repo(&Spec::of_script("true"));
    let script = "env; ls -A \"$HOME\"; cat ../sibling/secret.txt; cut -d: -f1 /proc/net/dev; echo x > .git/x; true";
    let run =
        repo.proctor(&["exec", "--env", "FROM=flag", "--", "sh", "-c", script]).exits(0).says(&["FROM=flag", "lo"]);
    let text = run.everything();
    assert!(
        !text.contains("the-value-of-a-token") && !text.contains("a secret beside") && !text.contains("eth0"),
        "{run}"
    );
    assert!(!repo.file(".git/x").exists());
}

fn exec_timeout(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let run = repo.proctor(&["exec", "--timeout-ms", "400", "--", "sh", "-c", "echo began; sleep 300"]).exits(4);
    assert!(run.everything().contains("began"), "{run}");
}

fn record_of(repo: &Repo<'_>, arguments: &[&str], code: i32) -> Value {
    let run = repo.proctor(&[&["exec", "--format", "json"], arguments].concat()).exits(code);
    let record: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run}"));
    schemas::demand("exec", &record, &run);
    record
}

fn exec_json(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let script = ["--", "sh", "-c", "echo out; echo err >&2; exit 7"];
    let record = record_of(&repo, &script, 1);
    assert_eq!(
        (&record["verdict"], &record["exit_code"], &record["tier"]),
        (&"failed".into(), &1.into(), &env.least_tier().into())
    );
    let step = &record["step"];
    assert_eq!((&step["exit_code"], &step["stdout_preview"]), (&7.into(), &"out\n".into()));
    let drifted = record_of(&repo, &["--", "sh", "-c", "echo x >> README.md"], 3);
    assert_eq!((&drifted["tier"], &drifted["tier_reasons"][0]), (&3.into(), &"drift".into()));
    assert_eq!(drifted["step"]["drift"]["changes"][0]["path"], "README.md");
    let run = repo.proctor(&["exec", "--format", "json", "--", "no-such-program-anywhere"]).exits(5);
    assert!(run.stderr.contains("no-such-program-anywhere"), "{run}");
    let run = repo.proctor(&["exec", "--format", "json", "--repo", "nowhere", "--", "true"]).exits(2);
    let error: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run}"));
    assert_eq!(error["error"]["exit_code"], 2);
}

fn exec_limits(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    machine::write(&env.root().join("proctord.toml"), "max_grace_ms = 900\n[ceiling]\nmemory = '1GiB'\n");
    let config = env.root().join("proctord.toml");
    let under = |limits: &[&str]| -> Vec<String> {
        let words = [&["--config", config.to_str().expect("UTF-8"), "--grace-ms", "800"], limits, &["--", "true"]];
        words.concat().into_iter().map(str::to_owned).collect()
    };
    let words =
        under(&["--memory", "512MiB", "--pids", "64", "--disk", "64MiB", "--output", "1kB", "--open-files", "99"]);
    let record = record_of(&repo, &words.iter().map(String::as_str).collect::<Vec<_>>(), 0);
    let step = &record["step"];
    let max = |name: &str| step["limits"][name]["max"].as_u64();
    let found = ["memory", "pids", "disk", "output", "open_files"].map(max);
    assert_eq!(found, [512 << 20, 64, 64 << 20, 1000, 99].map(Some), "{step:#}");
    assert_eq!((&step["grace_ms"], &step["limits"]["cpu_seconds"]), (&800.into(), &"unlimited".into()));
    for (limits, named) in [(["--memory", "2GiB"], "limits.memory"), (["--memory", "unlimited"], "limits.memory")] {
        let words = [vec!["exec".to_owned()], under(&limits)].concat();
        let run = repo.proctor(&words.iter().map(String::as_str).collect::<Vec<_>>()).exits(2);
        assert!(run.stderr.contains(named) && run.stderr.contains("1GiB at most"), "{run}");
    }
}

fn exec_no_spec(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true").with_default("timeout_ms: 4321"));
    assert_eq!(record_of(&repo, &["--", "true"], 0)["step"]["timeout_ms"], 4321);
    assert_ne!(record_of(&repo, &["--no-spec", "--", "true"], 0)["step"]["timeout_ms"], 4321);
    repo.write("spec/verification.yaml", "version: 1\nskils: {}\n");
    repo.proctor(&["exec", "--", "true"]).exits(2);
    repo.proctor(&["exec", "--no-spec", "--", "true"]).exits(0);
}

fn exec_secret(env: &TestEnvironment) {
    let value = "tok-0123456789abcdef";
    let repo = env.repo(&Spec::of_script("true"));
    let given = format!("DEPLOY_TOKEN={value}");
    for form in [&["--format", "json"][..], &["--raw"], &[]] {
        let words = [&["exec", "--env", &given], form, &["--", "sh", "-c", "echo \"<$DEPLOY_TOKEN>\""]].concat();
        let run = repo.proctor(&words).exits(0);
        assert!(!run.everything().contains(value) && run.everything().contains("<[redacted]>"), "{run}");
    }
    let run = repo.proctor(&["exec", "--env", &given, "--", value]).exits(5);
    assert!(!run.everything().contains(value), "{run}");
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
