//! Tests the output of steps: it is hashed completely, stored within limits, and escaped on the screen.

use std::path::Path;

use sha2::{Digest as _, Sha256};

use proctor_core::text::digest::Sha256Hex;

use crate::environment::{Repo, TestEnvironment};
use crate::machine;
use crate::needs::{CaseDefinition, case};
use crate::test_spec::{TestSkill, TestSpec, TestStep};

pub(super) const CASES: &[CaseDefinition] = &[
    case("step_output::two_hundred_megabytes_are_hashed_in_bounded_memory", large_output_uses_bounded_memory)
        .daemon_sample(),
    case("step_output::concurrent_streams_do_not_block", concurrent_streams_do_not_block),
    case("step_output::preview_has_the_start_and_the_end", preview_has_start_and_end),
    case("step_output::binary_output_is_escaped", binary_output_is_escaped).daemon_sample(),
    case("step_output::terminal_escapes_do_not_reach_the_screen", terminal_escapes_are_neutralised).daemon_sample(),
    case("step_output::ci_commands_are_neutralised_on_the_screen", ci_commands_are_neutralised).daemon_sample(),
    case("step_output::unterminated_last_line_is_kept", unterminated_line_is_kept),
    case("step_output::secret_of_the_caller_is_neither_stored_nor_shown", secret_is_redacted).daemon_sample(),
    case("step_output::secret_of_the_caller_is_redacted_in_drift", secret_in_drift_is_redacted).daemon_sample(),
    case("step_output::secret_of_the_caller_is_redacted_in_process_names", secret_in_process_name_is_redacted),
    case("step_output::secret_of_the_caller_is_redacted_in_patch_refusal", secret_in_patch_refusal_is_redacted),
    case("step_output::secret_of_the_caller_is_redacted_in_run_refusal", secret_in_run_refusal_is_redacted)
        .daemon_sample(),
];

const FLOOD_BYTES: usize = 200_000_000;
/// Maximum resident set of a run, whatever its steps print.
const MAX_RESIDENT_KIB: u64 = 160 << 10;

fn hash_of_repeated_pattern(pattern: &[u8], total: usize) -> String {
    let mut hasher = Sha256::new();
    let block = pattern.repeat((1 << 20) / pattern.len());
    let mut left = total;
    while left > 0 {
        let count = left.min(block.len());
        hasher.update(&block[..count]);
        left -= count;
    }
    Sha256Hex::from_raw(hasher.finalize().into()).to_string()
}

fn large_output_uses_bounded_memory(env: &TestEnvironment) {
    let script = format!("yes 0123456 | head -c {FLOOD_BYTES}");
    let step = TestStep::sh("it", &script).with_field("limits: { output: 1MiB }").with_field("timeout_ms: 100000");
    let repo = env.repo(&TestSpec::from_steps([step]));
    let run = repo.run().exits(0);
    let step = repo.step("it");
    assert_eq!(step["stdout_bytes"], FLOOD_BYTES);
    assert_eq!(step["stdout_sha256"], hash_of_repeated_pattern(b"0123456\n", FLOOD_BYTES));
    assert_eq!(step["stdout_kept_bytes"], 1 << 20, "{:?}", step["limits"]);
    assert!(run.peak_kib < MAX_RESIDENT_KIB, "{} KiB", run.peak_kib);
    assert!(run.stdout.len() < 100_000, "the flood reached the screen");
}

fn concurrent_streams_do_not_block(env: &TestEnvironment) {
    let script = "for i in 1 2 3; do head -c 300000 /dev/zero; head -c 300000 /dev/zero >&2; done";
    let repo = env.repo(&TestSpec::from_script(script));
    repo.run().exits(0);
    let step = repo.step("it");
    for stream in ["stdout", "stderr"] {
        assert_eq!(step[format!("{stream}_bytes")], 900_000);
        assert_eq!(step[format!("{stream}_sha256")], hash_of_repeated_pattern(b"\0", 900_000));
    }
}

fn preview_has_start_and_end(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("echo the-first-line; seq 1 100000; echo the-last-line"));
    repo.run().exits(0);
    let step = repo.step("it");
    let (preview, tail) = (step["stdout_preview"].as_str().expect("text"), step["stdout_tail"].as_str().expect("text"));
    assert!(preview.starts_with("the-first-line\n") && preview.len() <= proctor_core::record::evidence::PREVIEW_BYTES);
    assert!(tail.ends_with("the-last-line\n") && tail.len() <= proctor_core::record::evidence::PREVIEW_BYTES);
    assert_eq!(step["stdout_complete"], true);
}

fn binary_output_is_escaped(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script(r"printf '\000\377\303\050 ok'"));
    repo.run().exits(0);
    let step = repo.step("it");
    assert_eq!(step["stdout_preview"], "\\x00\\xff\\xc3( ok");
    assert_eq!(step["stdout_sha256"], Sha256Hex::digest(b"\0\xff\xc3( ok").to_string());
}

fn terminal_escapes_are_neutralised(env: &TestEnvironment) {
    let script =
        r"printf '\033[2J\033]0;title\007red\033[0m\r\b\n\302\233x\n'; printf '\342\200\256evil\n' >&2; exit 1";
    let repo = env.repo(&TestSpec::from_script(script));
    for format in ["human", "json", "jsonl"] {
        let run = repo.run_with(&["--format", format]).exits(1);
        let bad = |c: char| c.is_control() && c != '\n' && c != '\t' || c == '\u{202e}';
        assert!(!run.all_output().contains(bad), "{format}: {run:?}");
    }
    repo.run().prints(&["\\x1b[2J", "\\u{202e}evil"]);
}

fn ci_commands_are_neutralised(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("echo '::error file=x::forged'; echo '##vso[task.complete]'; exit 1"));
    let run = repo.run().exits(1);
    let is_command = |line: &str| line.starts_with("::") || line.contains("##vso[");
    assert!(!run.all_output().lines().any(is_command), "{run}");
    for format in ["json", "jsonl"] {
        let run = repo.run_with(&["--format", format]).exits(1);
        assert!(!run.all_output().lines().any(is_command), "{run}");
    }
    for format in ["human", "json"] {
        let script = "echo ' ::error::forged'; echo 'x ##vso[task.complete]' >&2";
        let run = repo.proctor(&["exec", "--format", format, "--", "sh", "-c", script]).exits(0);
        assert!(!run.all_output().lines().any(|line| is_command(line.trim_start())), "{run}");
    }
}

fn unterminated_line_is_kept(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("printf 'no end'; exit 1"));
    repo.run().exits(1).prints(&["no end\n"]);
    assert_eq!(repo.step("it")["stdout_preview"], "no end");
}

const SECRET: &str = "tok-0123456789abcdef";

/// Creates a repository whose step runs `script` and receives a secret of the caller.
fn repo_with_secret<'e>(env: &'e TestEnvironment, script: &str) -> Repo<'e> {
    env.set_caller_var("DEPLOY_TOKEN", SECRET);
    env.repo(&TestSpec::from_steps([TestStep::sh("it", script).with_field("env_allowlist: [DEPLOY_TOKEN]")]))
}

/// Asserts that the secret is in no output of a run, and in no file that it left outside the repository.
fn assert_secret_is_absent(env: &TestEnvironment, repo: &Repo<'_>, code: i32) {
    for format in ["human", "json", "jsonl"] {
        let run = repo.run_with(&["--format", format]).exits(code);
        assert!(!run.all_output().contains(SECRET), "{format}: {run}");
    }
    let contains_secret = |path: &Path| {
        let bytes = std::fs::read(path).unwrap_or_default();
        bytes.windows(SECRET.len()).any(|window| window == SECRET.as_bytes())
    };
    let files = machine::walk(env.root()).into_iter().filter(|path| path.is_file());
    let found: Vec<_> = files.filter(|path| contains_secret(path)).collect();
    assert!(found.is_empty(), "{found:?}");
}

fn secret_is_redacted(env: &TestEnvironment) {
    let script =
        "echo \"a $DEPLOY_TOKEN b\"; printf %s \"$DEPLOY_TOKEN\" | base64; echo \"x$DEPLOY_TOKEN\" >&2; exit 1";
    let repo = repo_with_secret(env, script);
    assert_secret_is_absent(env, &repo, 1);
    let step = repo.step("it");
    assert_eq!(step["stderr_preview"], "x[redacted]\n");
    assert!(step["stdout_preview"].as_str().expect("text").starts_with("a [redacted] b\n[redacted]"), "{step:#}");
    assert_eq!((&step["stdout_redacted"], &step["stderr_redacted"]), (&2.into(), &1.into()));
    let sha256 = Sha256Hex::digest(format!("x{SECRET}\n").as_bytes());
    assert_eq!(step["stderr_sha256"], sha256.to_string(), "the hash is that of what was written");
    let object = env.state_dir().join("objects").join(&sha256.to_string()[..2]).join(&sha256.to_string()[2..]);
    let kept = |suffix: &str| object.with_extension(suffix).exists();
    assert_eq!((kept("zst"), kept("redacted.zst")), (false, true));
}

fn secret_in_drift_is_redacted(env: &TestEnvironment) {
    let repo = repo_with_secret(env, "echo \"key = $DEPLOY_TOKEN\" >> README.md; touch \"$DEPLOY_TOKEN\"");
    assert_secret_is_absent(env, &repo, 3);
    let step = repo.step("it");
    let changes = step["drift"]["changes"].as_array().expect("a list");
    let texts: Vec<&str> = changes.iter().filter_map(|change| change["diff"]["text"].as_str()).collect();
    assert!(texts.iter().any(|text| text.contains("+key = [redacted]\n")), "{step:#}");
    assert!(changes.iter().any(|change| change["path"] == "[redacted]"), "{step:#}");
}

fn secret_in_process_name_is_redacted(env: &TestEnvironment) {
    // The kernel cuts the name in the secret.
    let script = "cp \"$(command -v sh)\" \"/tmp/$DEPLOY_TOKEN\"; \"/tmp/$DEPLOY_TOKEN\" -c 'while :; do sleep 9; done' & exit 0";
    let repo = repo_with_secret(env, script);
    assert_secret_is_absent(env, &repo, 0);
    let leaked = &repo.step("it")["leaked"];
    assert!(
        leaked["first"].as_array().expect("a list").iter().any(|process| process["name"] == "[redacted]"),
        "{leaked}"
    );
    assert!(!leaked.to_string().contains(&SECRET[..8]), "{leaked}");
}

fn secret_in_patch_refusal_is_redacted(env: &TestEnvironment) {
    env.set_caller_var("DEPLOY_TOKEN", SECRET);
    let writes = |name: &str| {
        let step = TestStep::sh("it", &format!("echo $$ {name} > \"$DEPLOY_TOKEN\"")).with_field("read_only: off");
        TestSkill::new(name, [step.with_field("env_allowlist: [DEPLOY_TOKEN]")])
    };
    let after = TestSkill::new("verify.after", [TestStep::sh("it", "true")]).with_field("needs: [verify.a]");
    let repo = env.repo(&TestSpec::new([writes("verify.a"), writes("verify.b"), after]));
    let run = repo.run_with(&["--patch", &env.root().join("a.patch").to_string_lossy()]).exits(5);
    let run = run.prints_to_stderr(&["`verify.a` and `verify.b` both changed `[redacted]`"]);
    assert!(!run.all_output().contains(SECRET), "{run}");
}

fn secret_in_run_refusal_is_redacted(env: &TestEnvironment) {
    env.set_caller_var("DEPLOY_TOKEN", SECRET);
    let skill = TestSkill::new("verify.it", [TestStep::sh("it", "true")]).with_field("caches: [cache]");
    let repo = env.repo(&TestSpec::new([skill]));
    repo.write(&format!("cache/{SECRET}"), "");
    let run = repo.run().exits(2).prints_to_stderr(&["would hide `cache/[redacted]`"]);
    assert!(!run.all_output().contains(SECRET), "{run}");
}
