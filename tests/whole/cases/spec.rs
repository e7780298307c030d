//! Tests invalid specs, and their messages.

use crate::environment::{Repo, TestEnvironment};
use crate::machine;
use crate::needs::{Case, dry_case};
use crate::spec::{Spec, Step};

pub(super) const CASES: &[Case] = &[
    dry_case("spec::none_is_a_usage_error", no_spec),
    dry_case("spec::everything_wrong_is_shown_at_once", everything_wrong),
    dry_case("spec::an_unknown_profile_has_a_suggestion", unknown_profile),
    dry_case("spec::nothing_to_run_is_no_pass", nothing_to_run),
    dry_case("spec::a_refused_spec_leaves_no_trace", no_trace),
    dry_case("spec::bombs_are_refused_cheaply", bombs),
    dry_case("spec::a_link_out_of_the_repository_is_refused", link_out),
    dry_case("spec::a_fifo_or_a_link_to_a_device_does_not_hang", no_regular_file),
    dry_case("spec::each_of_these_is_refused_with_its_place", refused_one_by_one),
    dry_case("spec::colliding_artifacts_are_refused", colliding_artifacts),
];

fn no_spec(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    std::fs::remove_file(repo.file("spec/verification.yaml")).expect("it was there");
    for command in [&["run"][..], &["validate"], &["plan"], &["explain", "verify.it/it"]] {
        repo.proctor(command).exits(2).complains(&["error[P0202]:", "spec/verification.yaml"]);
    }
}

/// Returns the positions of the errors in the fixture, as `line:column` of the first character.
fn places_of_errors(text: &str) -> Vec<String> {
    let wrong = text.lines().zip(1..).filter_map(|(line, number)| {
        let word = line.split_once("# wrong: ")?.1;
        let column = line.find(word).expect("the word is in its line before the comment") + 1;
        Some(format!("{number}:{column}"))
    });
    wrong.collect()
}

fn everything_wrong(env: &TestEnvironment) {
    let repo = env.repo_from("repos/everything-wrong");
    let expected = places_of_errors(&repo.read("spec/verification.yaml"));
    assert!(expected.len() >= 12, "{expected:?}");
    for command in ["validate", "run"] {
        let run = repo.proctor(&[command]).exits(2);
        let text = run.everything();
        let missing: Vec<_> =
            expected.iter().filter(|place| !text.contains(&format!("verification.yaml:{place}"))).collect();
        assert!(missing.is_empty(), "no diagnostic at {missing:?}\n{text}");
        assert!(text.contains("did you mean") && text.contains('^'), "{text}");
    }
}

fn unknown_profile(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let run = repo.run_bare(&["--profile", "rp"]).exits(2);
    assert!(run.stderr.contains("`rp`") && run.stderr.contains("`pr`"), "{run}");
    let text = repo.read("spec/verification.yaml").replace("[verify.it]", "[verify.if]");
    repo.write("spec/verification.yaml", text);
    let run = repo.run().exits(2);
    assert!(run.everything().contains("did you mean") && run.everything().contains("`verify.it`"), "{run}");
}

fn nothing_to_run(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let text = repo.read("spec/verification.yaml");
    for nothing in ["[]", "~"] {
        repo.write("spec/verification.yaml", text.replace("[verify.it]", nothing));
        let run = repo.run().exits(2);
        assert!(!run.everything().contains("passed"), "{run}");
    }
    for empty in ["", "version: 1\n", "# only a comment\n", "~"] {
        repo.write("spec/verification.yaml", empty);
        repo.run().exits(2);
    }
    assert!(repo.is_untouched());
}

fn no_trace(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([Step::sh("it", "true").with("timeout: 5")]));
    let before = machine::walk(repo.path());
    repo.run().exits(2);
    assert_eq!(machine::walk(repo.path()), before);
    let kept = machine::walk(&env.state()).into_iter().filter(|path| path.is_file()).count();
    assert_eq!(kept, 0, "something was kept of a run that there was not");
}

/// The address space is limited, so that an expanded bomb would not fit.
fn bombs(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
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

fn link_out(env: &TestEnvironment) {
    let (repo, other) = (env.repo(&Spec::of_script("true")), env.repo_at("other", &Spec::of_script("true")));
    std::fs::remove_file(repo.file("spec/verification.yaml")).expect("it goes");
    repo.link("spec/verification.yaml", &other.file("spec/verification.yaml"));
    for command in ["validate", "run"] {
        let run = repo.proctor(&[command]).exits(2);
        assert!(run.stderr.contains("leads out of the repository") && run.stderr.contains("hint:"), "{run}");
    }
}

fn no_regular_file(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let path = repo.file("spec/verification.yaml");
    std::fs::remove_file(&path).expect("it was there");
    let fifo = crate::process::Running::start({
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

fn refused_one_by_one(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
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
        ("skills:", "skills: &anchor", "anchor"),
        ("version: 1", "version: !!int 1", "tag"),
        ("version: 1", "version: 1\n---\nversion: 1", "document"),
    ];
    for (from, to, named) in cases {
        assert!(good.contains(from), "{from} is not in the good spec:\n{good}");
        repo.write("spec/verification.yaml", good.replacen(from, to, 1));
        let run = repo.proctor(&["validate"]).exits(2);
        let text = run.everything();
        assert!(text.contains(named), "{to}: {named} is not named\n{run}");
        assert!(text.contains("spec/verification.yaml:"), "{to}: no place\n{run}");
    }
}

fn colliding_artifacts(env: &TestEnvironment) {
    let skill = |name| crate::spec::Skill::new(name, [Step::sh("it", "true")]);
    let pairs = [["\"a b\"", "\"a/b\""], ["_toolchain", "other"]];
    for (index, names) in pairs.into_iter().enumerate() {
        let repo: Repo<'_> = env.repo_at(&format!("repo{index}"), &Spec::new(names.map(skill)));
        repo.run().exits(2);
        assert!(repo.is_untouched());
    }
}
