//! Tests invalid specs, and their messages.

use crate::environment::{Repo, TestEnvironment};
use crate::machine;
use crate::needs::{CaseDefinition, Needs, case, dry_case};
use crate::test_spec::{TestSkill, TestSpec, TestStep};

pub(super) const CASES: &[CaseDefinition] = &[
    dry_case("spec::missing_spec_is_a_usage_error", missing_spec_is_usage_error),
    dry_case("spec::all_errors_are_reported_at_once", all_errors_are_reported_at_once),
    dry_case("spec::an_unknown_profile_has_a_suggestion", unknown_profile_has_suggestion),
    dry_case("spec::empty_profile_or_spec_is_refused", empty_profile_or_spec_is_refused),
    dry_case("spec::refused_spec_writes_nothing", refused_spec_writes_nothing),
    dry_case("spec::yaml_bombs_are_refused_with_bounded_memory_and_time", yaml_bombs_are_refused),
    dry_case("spec::a_link_out_of_the_repository_is_refused", link_out_of_repository_is_refused),
    dry_case("spec::a_fifo_or_a_link_to_a_device_does_not_hang", fifo_or_device_link_does_not_hang),
    dry_case("spec::each_error_is_reported_with_its_position", each_error_is_reported_with_position),
    dry_case("spec::colliding_artifacts_are_refused", colliding_artifacts_are_refused),
    case("spec::defaults_declare_determinism_and_tier_of_skills", defaults_declare_determinism_and_tier)
        .needs(&[Needs::Sandbox, Needs::Views]),
];

fn missing_spec_is_usage_error(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    std::fs::remove_file(repo.file("spec/verification.yaml")).expect("it was there");
    for command in [&["run"][..], &["validate"], &["plan"], &["explain", "verify.it/it"]] {
        repo.proctor(command).exits(2).prints_to_stderr(&["error[P0202]:", "spec/verification.yaml"]);
    }
}

/// Returns the positions of the errors in the fixture, as `line:column` of the first character.
fn expected_error_positions(text: &str) -> Vec<String> {
    let positions = text.lines().zip(1..).filter_map(|(line, number)| {
        let word = line.split_once("# wrong: ")?.1;
        let column = line.find(word).expect("the word is in its line before the comment") + 1;
        Some(format!("{number}:{column}"))
    });
    positions.collect()
}

fn all_errors_are_reported_at_once(env: &TestEnvironment) {
    let repo = env.repo_from_fixture("repos/everything-wrong");
    let expected = expected_error_positions(&repo.read("spec/verification.yaml"));
    assert!(expected.len() >= 12, "{expected:?}");
    for command in ["validate", "run"] {
        let run = repo.proctor(&[command]).exits(2);
        let text = run.all_output();
        let missing: Vec<_> =
            expected.iter().filter(|place| !text.contains(&format!("verification.yaml:{place}"))).collect();
        assert!(missing.is_empty(), "no diagnostic at {missing:?}\n{text}");
        assert!(text.contains("did you mean") && text.contains('^'), "{text}");
    }
}

fn unknown_profile_has_suggestion(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let run = repo.run_with_only(&["--profile", "rp"]).exits(2);
    assert!(run.stderr.contains("`rp`") && run.stderr.contains("`pr`"), "{run}");
    let text = repo.read("spec/verification.yaml").replace("[verify.it]", "[verify.if]");
    repo.write("spec/verification.yaml", text);
    let run = repo.run().exits(2);
    assert!(run.all_output().contains("did you mean") && run.all_output().contains("`verify.it`"), "{run}");
}

fn empty_profile_or_spec_is_refused(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let text = repo.read("spec/verification.yaml");
    for nothing in ["[]", "~"] {
        repo.write("spec/verification.yaml", text.replace("[verify.it]", nothing));
        let run = repo.run().exits(2);
        assert!(!run.all_output().contains("passed"), "{run}");
    }
    for empty in ["", "version: 1\n", "# only a comment\n", "~"] {
        repo.write("spec/verification.yaml", empty);
        repo.run().exits(2);
    }
    assert!(repo.has_no_documents());
}

fn refused_spec_writes_nothing(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([TestStep::sh("it", "true").with_field("timeout: 5")]));
    let before = machine::walk(repo.path());
    repo.run().exits(2);
    assert_eq!(machine::walk(repo.path()), before);
    let state_files = machine::walk(&env.state_dir()).into_iter().filter(|path| path.is_file()).count();
    assert_eq!(state_files, 0, "something was kept of a run that there was not");
}

/// The address space is limited, so that an expanded bomb would not fit.
fn yaml_bombs_are_refused(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let mut aliases = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for i in 1..10 {
        let refs = vec![format!("*a{}", i - 1); 10].join(", ");
        aliases.push_str(&format!("a{i}: &a{i} [{refs}]\n"));
    }
    let cases = [
        ("an alias bomb", aliases),
        ("many aliases on one line", format!("a: &a x\nb: [{}]\n", "*a, ".repeat(200_000))),
        ("100 MB", "# filler\n".repeat(100_000_000 / 9)),
        ("depth 10,000", format!("version: {}", "[".repeat(10_000))),
        ("depth 10,000 of maps", "{a: ".repeat(10_000)),
    ];
    for (what, text) in cases {
        repo.write("spec/verification.yaml", text);
        let run = repo.proctor(&["validate"]);
        assert_eq!(run.code, Some(2), "{what}: {run}");
        assert!(run.stderr.len() + run.stdout.len() < 200_000, "{what}: a wall of text");
        assert!(run.elapsed < std::time::Duration::from_secs(20), "{what}: {:?}", run.elapsed);
        assert!(run.peak_kib < 64 << 10, "{what}: {} KiB", run.peak_kib);
    }
}

fn link_out_of_repository_is_refused(env: &TestEnvironment) {
    let (repo, other) =
        (env.repo(&TestSpec::from_script("true")), env.repo_at("other", &TestSpec::from_script("true")));
    std::fs::remove_file(repo.file("spec/verification.yaml")).expect("it goes");
    repo.link("spec/verification.yaml", &other.file("spec/verification.yaml"));
    for command in ["validate", "run"] {
        let run = repo.proctor(&[command]).exits(2);
        assert!(run.stderr.contains("leads out of the repository") && run.stderr.contains("hint:"), "{run}");
    }
}

fn fifo_or_device_link_does_not_hang(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let path = repo.file("spec/verification.yaml");
    std::fs::remove_file(&path).expect("it was there");
    let fifo = crate::process::RunningProcess::start({
        let mut command = machine::command("mkfifo");
        command.arg(&path);
        command
    });
    assert_eq!(fifo.wait().code, Some(0));
    repo.run().exits(2);
    std::fs::remove_file(&path).expect("it was there");
    repo.link("spec/verification.yaml", std::path::Path::new("/dev/zero"));
    repo.run().exits(2);
}

fn each_error_is_reported_with_position(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let good = repo.read("spec/verification.yaml");
    let cases = [
        ("tier: 1", "tier: 3", "tier"),
        ("tier: 1", "tiers: 1", "did you mean"),
        ("determinism: D0", "determinism: D9", "D0"),
        ("[\"sh\",\"-c\",\"true\"]", "\"cargo test | tee log\"", "sh"),
        ("[\"sh\",\"-c\",\"true\"]", "[]", "empty"),
        ("[\"sh\",\"-c\",\"true\"]", "\"\"", "empty"),
        ("name: it", "name: \"a b\"", "a b"),
        ("name: it", "name: it, timeout_ms: -1", "timeout_ms"),
        ("name: it", "name: it, timeout_ms: 0", "timeout_ms"),
        ("name: it", "name: it, network: maybe", "maybe"),
        ("name: it", "name: it, workdir: ../..", "workdir"),
        ("name: it", "name: it, env_allowlist: [lower]", "lower"),
        ("name: it", "name: it, name: twice", "name"),
        ("version: 1", "version: 2", "version"),
        ("skills:", "skills: *unknown", "unknown"),
        ("version: 1", "version: !!int 1", "tag"),
        ("version: 1", "version: 1\n---\nversion: 1", "document"),
    ];
    for (from, to, named) in cases {
        assert!(good.contains(from), "{from} is not in the good spec:\n{good}");
        repo.write("spec/verification.yaml", good.replacen(from, to, 1));
        let run = repo.proctor(&["validate"]).exits(2);
        let text = run.all_output();
        assert!(text.contains(named), "{to}: {named} is not named\n{run}");
        assert!(text.contains("spec/verification.yaml:"), "{to}: no place\n{run}");
    }
}

fn colliding_artifacts_are_refused(env: &TestEnvironment) {
    let skill = |name| TestSkill::new(name, [TestStep::sh("it", "true")]);
    let pairs = [["\"a b\"", "\"a/b\""], ["_toolchain", "other"]];
    for (index, names) in pairs.into_iter().enumerate() {
        let repo: Repo<'_> = env.repo_at(&format!("repo{index}"), &TestSpec::new(names.map(skill)));
        repo.run().exits(2);
        assert!(repo.has_no_documents());
    }
}

/// A skill without the keys has those of `defaults`, so its result is reused. Another skill keeps its own values.
fn defaults_declare_determinism_and_tier(env: &TestEnvironment) {
    let print = || [TestStep::sh("it", "cat README.md")];
    let skills =
        [TestSkill::new("verify.it", print()), TestSkill::new("verify.own", print()).determinism("D2").tier(2)];
    let spec = TestSpec::new(skills).with_default("determinism: D1\ntier: 1");
    let repo = env.repo(&spec.with_top_level("toolchains: { sh: { required: [{ cmd: [sh, -c, echo 1] }] } }"));
    let text = repo.read("spec/verification.yaml").replacen("    determinism: D0\n    tier: 1\n", "", 1);
    repo.write("spec/verification.yaml", text);
    for is_second in [false, true] {
        repo.run_with(&["--max-tier", "2"]).exits(0);
        let [it, own, checks] = ["verify.it", "verify.own", "_toolchain"].map(|name| repo.evidence(name));
        assert_eq!((&it["determinism"], &it["declared_tier"]), (&"D1".into(), &1.into()));
        assert_eq!((&own["determinism"], &own["declared_tier"]), (&"D2".into(), &2.into()));
        assert_eq!(it["steps"][0].get("reused").is_some(), is_second, "{it:#}");
        assert!(own["steps"][0].get("reused").is_none(), "{own:#}");
        assert!(checks["checks"][0]["step"].get("reused").is_none(), "{checks:#}");
    }
    let explained = repo.proctor(&["explain", "verify.it/it"]).exits(0);
    let field =
        |name: &str| explained.stdout.lines().find(|line| line.trim_start().starts_with(name)).map(str::to_owned);
    assert!(field("tier").is_some_and(|line| line.contains("defaults at ") && line.ends_with(" 1")), "{explained}");
}
