//! Tests the output of steps: it is hashed completely, stored within limits, and escaped on the screen.

use std::path::Path;

use sha2::{Digest as _, Sha256};

use proctor_core::digest::Sha256Hex;

use crate::environment::{Repo, TestEnvironment};
use crate::machine;
use crate::needs::{Case, case};
use crate::spec::{Spec, Step};

pub(super) const CASES: &[Case] = &[
    case("output::two_hundred_megabytes_are_hashed_in_bounded_memory", flood),
    case("output::both_streams_at_once_do_not_block", both_streams),
    case("output::the_preview_has_both_ends", both_ends),
    case("output::bytes_that_are_no_text_are_escaped", binary),
    case("output::escapes_do_not_reach_the_screen", escapes),
    case("output::a_ci_command_does_not_reach_the_screen_as_one", ci_commands),
    case("output::a_line_without_an_end_is_kept", no_newline),
    case("output::a_secret_of_the_caller_is_neither_kept_nor_shown", secret),
    case("output::a_secret_of_the_caller_is_not_shown_as_drift", drifting_secret),
];

const FLOOD: usize = 200_000_000;
/// Maximum resident set of a run, whatever its steps print.
const MEMORY_BOUND_KIB: u64 = 160 << 10;

fn hash_of(pattern: &[u8], total: usize) -> String {
    let mut hasher = Sha256::new();
    let block = pattern.repeat((1 << 20) / pattern.len());
    let mut left = total;
    while left > 0 {
        let count = left.min(block.len());
        hasher.update(&block[..count]);
        left -= count;
    }
    Sha256Hex::from_raw(hasher.finalize().into()).as_str().to_owned()
}

fn flood(env: &TestEnvironment) {
    let script = format!("yes 0123456 | head -c {FLOOD}");
    let step = Step::sh("it", &script).with("limits: { output: 1MiB }").with("timeout_ms: 100000");
    let repo = env.repo(&Spec::of_steps([step]));
    let run = repo.run().exits(0);
    let step = repo.step("it");
    assert_eq!(step["stdout_bytes"], FLOOD);
    assert_eq!(step["stdout_sha256"], hash_of(b"0123456\n", FLOOD));
    assert_eq!(step["stdout_kept_bytes"], 1 << 20, "{:?}", step["limits"]);
    assert!(run.peak_kib < MEMORY_BOUND_KIB, "{} KiB", run.peak_kib);
    assert!(run.stdout.len() < 100_000, "the flood reached the screen");
}

fn both_streams(env: &TestEnvironment) {
    let script = "for i in 1 2 3; do head -c 300000 /dev/zero; head -c 300000 /dev/zero >&2; done";
    let repo = env.repo(&Spec::of_script(script));
    repo.run().exits(0);
    let step = repo.step("it");
    for stream in ["stdout", "stderr"] {
        assert_eq!(step[format!("{stream}_bytes")], 900_000);
        assert_eq!(step[format!("{stream}_sha256")], hash_of(b"\0", 900_000));
    }
}

fn both_ends(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("echo the-first-line; seq 1 100000; echo the-last-line"));
    repo.run().exits(0);
    let step = repo.step("it");
    let (preview, tail) = (step["stdout_preview"].as_str().expect("text"), step["stdout_tail"].as_str().expect("text"));
    assert!(preview.starts_with("the-first-line\n") && preview.len() <= proctor_core::evidence::PREVIEW_BYTES);
    assert!(tail.ends_with("the-last-line\n") && tail.len() <= proctor_core::evidence::PREVIEW_BYTES);
    assert_eq!(step["stdout_complete"], true);
}

fn binary(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script(r"printf '\000\377\303\050 ok'"));
    repo.run().exits(0);
    let step = repo.step("it");
    assert_eq!(step["stdout_preview"], "\\x00\\xff\\xc3( ok");
    assert_eq!(step["stdout_sha256"], Sha256Hex::of(b"\0\xff\xc3( ok").as_str());
}

fn escapes(env: &TestEnvironment) {
    let script =
        r"printf '\033[2J\033]0;title\007red\033[0m\r\b\n\302\233x\n'; printf '\342\200\256evil\n' >&2; exit 1";
    let repo = env.repo(&Spec::of_script(script));
    for format in ["human", "json", "jsonl"] {
        let run = repo.run_with(&["--format", format]).exits(1);
        let bad = |c: char| c.is_control() && c != '\n' && c != '\t' || c == '\u{202e}';
        assert!(!run.everything().contains(bad), "{format}: {run:?}");
    }
    repo.run().says(&["\\x1b[2J", "\\u{202e}evil"]);
}

fn ci_commands(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("echo '::error file=x::forged'; echo '##vso[task.complete]'; exit 1"));
    let run = repo.run().exits(1);
    let is_command = |line: &str| line.starts_with("::") || line.contains("##vso[");
    assert!(!run.everything().lines().any(is_command), "{run}");
    for format in ["json", "jsonl"] {
        let run = repo.run_with(&["--format", format]).exits(1);
        assert!(!run.everything().lines().any(is_command), "{run}");
    }
    for format in ["human", "json"] {
        let script = "echo ' ::error::forged'; echo 'x ##vso[task.complete]' >&2";
        let run = repo.proctor(&["exec", "--format", format, "--", "sh", "-c", script]).exits(0);
        assert!(!run.everything().lines().any(|line| is_command(line.trim_start())), "{run}");
    }
}

fn no_newline(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("printf 'no end'; exit 1"));
    repo.run().exits(1).says(&["no end\n"]);
    assert_eq!(repo.step("it")["stdout_preview"], "no end");
}

const SECRET: &str = "tok-0123456789abcdef";

/// Creates a repository whose step runs `script` and receives a secret of the caller.
fn repo_with_secret<'e>(env: &'e TestEnvironment, script: &str) -> Repo<'e> {
    env.caller_has("DEPLOY_TOKEN", SECRET);
    env.repo(&Spec::of_steps([Step::sh("it", script).with("env_allowlist: [DEPLOY_TOKEN]")]))
}

/// Asserts that the secret is in no output of a run, and in no file that it left outside the repository.
fn demand_no_secret(env: &TestEnvironment, repo: &Repo<'_>, code: i32) {
    for format in ["human", "json", "jsonl"] {
        let run = repo.run_with(&["--format", format]).exits(code);
        assert!(!run.everything().contains(SECRET), "{format}: {run}");
    }
    let holds = |path: &Path| {
        let bytes = std::fs::read(path).unwrap_or_default();
        bytes.windows(SECRET.len()).any(|window| window == SECRET.as_bytes())
    };
    let files = machine::walk(env.root()).into_iter().filter(|path| path.is_file());
    let found: Vec<_> = files.filter(|path| holds(path)).collect();
    assert!(found.is_empty(), "{found:?}");
}

fn secret(env: &TestEnvironment) {
    let script =
        "echo \"a $DEPLOY_TOKEN b\"; printf %s \"$DEPLOY_TOKEN\" | base64; echo \"x$DEPLOY_TOKEN\" >&2; exit 1";
    let repo = repo_with_secret(env, script);
    demand_no_secret(env, &repo, 1);
    let step = repo.step("it");
    assert_eq!(step["stderr_preview"], "x[redacted]\n");
    assert!(step["stdout_preview"].as_str().expect("text").starts_with("a [redacted] b\n[redacted]"), "{step:#}");
    assert_eq!((&step["stdout_redacted"], &step["stderr_redacted"]), (&2.into(), &1.into()));
    let sha256 = Sha256Hex::of(format!("x{SECRET}\n").as_bytes());
    assert_eq!(step["stderr_sha256"], sha256.as_str(), "the hash is that of what was written");
    let object = env.state().join("objects").join(&sha256.as_str()[..2]).join(&sha256.as_str()[2..]);
    let kept = |suffix: &str| object.with_extension(suffix).exists();
    assert_eq!((kept("zst"), kept("redacted.zst")), (false, true));
}

fn drifting_secret(env: &TestEnvironment) {
    let repo = repo_with_secret(env, "echo \"key = $DEPLOY_TOKEN\" >> README.md; touch \"$DEPLOY_TOKEN\"");
    demand_no_secret(env, &repo, 3);
    let step = repo.step("it");
    let changes = step["drift"]["changes"].as_array().expect("a list");
    let texts: Vec<&str> = changes.iter().filter_map(|change| change["diff"]["text"].as_str()).collect();
    assert!(texts.iter().any(|text| text.contains("+key = [redacted]\n")), "{step:#}");
    assert!(changes.iter().any(|change| change["path"] == "[redacted]"), "{step:#}");
}
