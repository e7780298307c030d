//! Snapshot tests of the screens: the output of each command on a terminal of 80 columns without colour, and of the
//! most important commands also with 40 columns and in colour. Values that differ between runs are replaced by words
//! in capitals.

use std::path::PathBuf;

use crate::environment::{Repo, TestEnvironment};
use crate::machine;
use crate::needs::{CaseDefinition, Needs, case, dry_case};
use crate::process::{FinishedProcess, RunningProcess};
use crate::test_spec::{TestSkill, TestSpec, TestStep};

pub(super) const CASES: &[CaseDefinition] = &[
    // As root there are control groups, and so the lowest tier.
    case("screen_snapshots::run_and_its_verdict", run_screens).needs(&[Needs::Sandbox, Needs::Root]),
    case("screen_snapshots::cached_steps", cached_screens).needs(&[Needs::Sandbox, Needs::Root, Needs::Views]),
    case("screen_snapshots::failures_and_their_reasons", failure_screens).needs(&[Needs::Sandbox, Needs::Root]),
    case("screen_snapshots::recorded_runs", recorded_run_screens).needs(&[Needs::Sandbox, Needs::Root]),
    // The caller's user id determines the daemon's default socket and the user of a step.
    dry_case("screen_snapshots::commands_without_a_run", screens_without_a_run).needs(&[Needs::Root]),
    case("screen_snapshots::sandbox_and_machine", sandbox_and_machine_screens).needs(&[
        Needs::Sandbox,
        Needs::Root,
        Needs::ControlGroups,
    ]),
    case("screen_snapshots::daemon_commands", daemon_screens).needs(&[Needs::Sandbox, Needs::Root]),
    dry_case("screen_snapshots::hook_commands", hook_screens),
    dry_case("screen_snapshots::init_and_import", init_and_import_screens),
    case("screen_snapshots::sql_commands", sql_screens),
    dry_case("screen_snapshots::mistakes_of_the_user", mistake_screens).needs(&[Needs::Root]),
];

/// Returns a spec with skills that pass, fail, and drift.
fn spec_with_all_outcomes() -> TestSpec {
    TestSpec::new([
        TestSkill::new("fine", [TestStep::sh("say", "echo fine"), TestStep::sh("more", "true")]),
        TestSkill::new(
            "wrong",
            [TestStep::sh("fails", "echo 'src/lib.rs:2:5: error: no' >&2; exit 1"), TestStep::sh("later", "true")],
        ),
        TestSkill::new("drifts", [TestStep::sh("edits", "echo '// more' >> src/lib.rs")]),
    ])
}

/// A sequence of commands with their output.
struct ScreenTranscript<'r, 'e> {
    repo: &'r Repo<'e>,
    env: &'e TestEnvironment,
    text: String,
}

impl<'r, 'e> ScreenTranscript<'r, 'e> {
    fn new(repo: &'r Repo<'e>, env: &'e TestEnvironment) -> Self {
        Self { repo, env, text: String::new() }
    }

    fn show(&mut self, words: &[&str]) -> &mut Self {
        let finished = self.repo.proctor(words);
        self.add(words, &finished)
    }

    /// Adds the output of a command without further arguments.
    fn show_unmodified(&mut self, words: &[&str]) -> &mut Self {
        let mut command = self.env.command(self.repo.path());
        command.args(words);
        let finished = self.env.finish(RunningProcess::start(command));
        self.add(words, &finished)
    }

    /// Adds the output of a command with the state directory as an argument.
    fn show_with_state_dir(&mut self, words: &[&str]) -> &mut Self {
        let state = self.env.state_dir();
        let state_option = ["--state-dir", state.to_str().expect("UTF-8")];
        let finished = self.repo.proctor(&[words, &state_option].concat());
        self.add(words, &finished)
    }

    fn add(&mut self, words: &[&str], finished: &FinishedProcess) -> &mut Self {
        let part = |name: &str, text: &str| if text.is_empty() { String::new() } else { format!("--- {name}\n{text}") };
        let (out, err) = (part("output", &finished.stdout), part("messages", &finished.stderr));
        let code = finished.code.map_or_else(|| "by a signal".to_owned(), |code| code.to_string());
        self.text.push_str(&format!("$ proctor {}\n{err}{out}--- exit {code}\n\n", words.join(" ")));
        self
    }

    /// Compares the output with the stored screen of this name.
    fn assert_matches_stored(&self, name: &str) {
        let text = mask_varying_values(
            &self.text.replace(self.env.root().to_str().expect("UTF-8"), "/ROOT").replace(self.env.marker(), "MARKER"),
        );
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("whole/screens").join(format!("{name}.txt"));
        if should_update_screens() {
            return machine::write(&path, &text);
        }
        let stored = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let differs = stored.lines().zip(text.lines()).find(|(kept, now)| kept != now);
        let lines = (stored.lines().count(), text.lines().count());
        assert!(
            stored == text,
            "the screens differ from {}: {differs:#?}, {lines:?} lines. If this is intended, run the test with \
             PROCTOR_SCREENS=write, and review the difference.\n{text}",
            path.display()
        );
    }
}

/// Checks whether the current output should be stored as the new screens.
#[expect(clippy::disallowed_methods, reason = "a test has no caller who gives it an environment")]
fn should_update_screens() -> bool {
    std::env::var_os("PROCTOR_SCREENS").is_some_and(|wanted| wanted == "write")
}

/// Replaces each id, hash, time and measured number with a word in capitals.
fn mask_varying_values(text: &str) -> String {
    let mut masked = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let mut word = String::new();
        for character in line.chars() {
            if character.is_ascii_alphanumeric() || matches!(character, '-' | '.' | ':') {
                word.push(character);
            } else {
                masked.push_str(&mask_word(&word));
                word.clear();
                masked.push(character);
            }
        }
        masked.push_str(&mask_word(&word));
    }
    // On a busy machine, the duration and the age of a run are in seconds.
    let followers = [" ago", "\n", "  "];
    followers.iter().fold(mask_measurements(&masked), |text, follower| {
        text.replace(&format!(" N s{follower}"), &format!(" N ms{follower}"))
    })
}

fn mask_word(word: &str) -> String {
    let bare = word.trim_end_matches(['.', ':', '-']);
    let rest = &word[bare.len()..];
    let is_hex = |text: &str| text.len() >= 8 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let is_time = |text: &str| text.len() == 16 && text.ends_with('Z') && text.as_bytes()[8] == b'T';
    let is_all = |separator: char, lengths: &[usize]| {
        let parts: Vec<&str> = bare.split(separator).collect();
        let digits = |part: &&str| part.bytes().all(|byte| byte.is_ascii_digit());
        parts.iter().map(|part| part.len()).eq(lengths.iter().copied()) && parts.iter().all(digits)
    };
    let name = match bare.split_once('-') {
        Some((time, hex)) if is_time(time) && is_hex(hex) => "RUN",
        _ if bare.len() > 18 && bare.ends_with('Z') && bare.as_bytes()[10] == b'T' => "TIME",
        _ if bare.strip_prefix("sha256:").is_some_and(is_hex)
            || (is_hex(bare) && bare.bytes().any(|b| b.is_ascii_digit())) =>
        {
            "HASH"
        }
        _ if is_all('-', &[4, 2, 2]) => "DATE",
        _ if is_all(':', &[2, 2, 2]) => "CLOCK",
        _ if bare == env!("CARGO_PKG_VERSION") => "VERSION",
        _ => bare,
    };
    format!("{name}{rest}")
}

/// Replaces measured durations and sizes, which are numbers before a unit, and the blanks that align them.
fn mask_measurements(text: &str) -> String {
    const UNITS: [&str; 6] = ["ms", "s", "KiB", "MiB", "min", "h"];
    let lines = text.split('\n').map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        let mut kept: Vec<String> = Vec::new();
        for (at, word) in words.iter().enumerate() {
            let unit = words.get(at + 1).map(|next| next.trim_end_matches([',', ')', ';', '.', ':']));
            let is_number = word.trim_start_matches('(').parse::<f64>().is_ok();
            if is_number && unit.is_some_and(|unit| UNITS.contains(&unit)) {
                while kept.len() > 1 && kept.last().is_some_and(String::is_empty) {
                    kept.pop();
                }
                kept.push(word.replace(|character: char| character.is_ascii_digit() || character == '.', "") + "N");
            } else {
                kept.push((*word).to_owned());
            }
        }
        kept.join(" ")
    });
    lines.collect::<Vec<_>>().join("\n")
}

const RUN_ARGUMENTS: [&str; 4] = ["run", "--profile", "pr", "--max-tier=3"];

fn run_screens(env: &TestEnvironment) {
    let repo = env.repo(&spec_with_all_outcomes());
    ScreenTranscript::new(&repo, env)
        .show(&RUN_ARGUMENTS)
        .show(&[&RUN_ARGUMENTS[..], &["--quiet"]].concat())
        .assert_matches_stored("run");
    let last_failed = [&RUN_ARGUMENTS[..], &["--last-failed"]].concat();
    ScreenTranscript::new(&repo, env)
        .show(&last_failed)
        .show(&[&last_failed[..], &["--quiet"]].concat())
        .assert_matches_stored("run_last_failed");
    let passing = env.repo_at("passing", &TestSpec::new([TestSkill::new("fine", [TestStep::sh("say", "echo fine")])]));
    ScreenTranscript::new(&passing, env).show(&RUN_ARGUMENTS).assert_matches_stored("run_passed");
    env.set_caller_var("COLUMNS", "40");
    ScreenTranscript::new(&repo, env).show(&RUN_ARGUMENTS).assert_matches_stored("run_40");
    ScreenTranscript::new(&repo, env)
        .show(&[&RUN_ARGUMENTS[..], &["--color", "always"]].concat())
        .assert_matches_stored("run_40_colour");
}

/// Shows a second run of a profile, of which one step is executed.
fn cached_screens(env: &TestEnvironment) {
    let lint = [TestStep::sh("read", "cat README.md"), TestStep::sh("look", "cat src/lib.rs")];
    let skills = [TestSkill::new("docs", [TestStep::sh("read", "cat README.md")]), TestSkill::new("lint", lint)];
    let repo = env.repo(&TestSpec::new(skills.map(|skill| skill.determinism("D1"))));
    repo.run_with_only(&RUN_ARGUMENTS[1..]).exits(0);
    repo.write("src/lib.rs", "// edited\n");
    let mut screens = ScreenTranscript::new(&repo, env);
    screens.show_with_state_dir(&["explain", "cache", "lint/look"]);
    screens.show(&RUN_ARGUMENTS).show(&["gate", "--profile", "pr"]).assert_matches_stored("cached");
}

/// Shows many errors, a failure without network, drift with new and existing files, and a missing tool.
fn failure_screens(env: &TestEnvironment) {
    let many = "for n in $(seq 60); do echo \"src/lib.rs:$n:1: F401 unused $n\"; echo context; echo; done; \
                echo 'Found 60 errors.'; exit 1";
    let drift = "for n in $(seq 13); do echo > a$n; done; echo more >> src/lib.rs";
    let offline = "echo 'curl: (6) Could not resolve host: example.org' >&2; exit 6";
    let step = |name, script| TestSkill::new(name, [TestStep::sh("it", script)]);
    let spec = TestSpec::new([step("lint", many), step("fetch", offline), step("docs", drift)]);
    let check = "toolchains:\n  lychee:\n    required:\n      - { cmd: [sh, -c, command -v no-such-lychee] }";
    let missing = env.repo_at("missing", &TestSpec::from_script("true").with_top_level(check));
    ScreenTranscript::new(&env.repo(&spec), env).show(&RUN_ARGUMENTS).assert_matches_stored("failures");
    ScreenTranscript::new(&missing, env).show(&RUN_ARGUMENTS).assert_matches_stored("missing_tool");
}

fn recorded_run_screens(env: &TestEnvironment) {
    let repo = env.repo(&spec_with_all_outcomes());
    let id = || {
        let run = repo.run_with_only(&RUN_ARGUMENTS[1..]).exits(3);
        let line = run.stderr.lines().find_map(|line| line.strip_prefix("run ")).map(str::to_owned);
        line.and_then(|line| line.split_once(':').map(|(id, _)| id.to_owned())).expect("it says its id")
    };
    let (first, second) = (id(), id());
    let mut screens = ScreenTranscript::new(&repo, env);
    screens.show_with_state_dir(&["logs", &second, "wrong/fails", "--stderr"]);
    screens.show_with_state_dir(&["logs", &second]);
    screens.show_with_state_dir(&["compare", &first, &second]);
    screens.show(&["gate", "--profile", "pr"]);
    screens.assert_matches_stored("recorded");
    env.set_caller_var("COLUMNS", "40");
    let mut screens = ScreenTranscript::new(&repo, env);
    screens.show_with_state_dir(&["compare", &first, &second]);
    screens.assert_matches_stored("recorded_40");
}

fn screens_without_a_run(env: &TestEnvironment) {
    let repo = env.repo(&spec_with_all_outcomes());
    let mut screens = ScreenTranscript::new(&repo, env);
    screens.show(&["validate"]).show(&["plan", "--profile", "pr"]).show(&["explain", "fine/say", "--profile", "pr"]);
    screens.show(&["explain", "P0123"]).show(&["explain", "P9999"]).show(&["status"]).show(&["daemon", "status"]);
    screens.show(&["explain", "env", "--var", "HOME", "fine/say", "--profile", "pr"]);
    screens.show(&["explain", "env", "--var", "NOWHERE", "fine/say", "--profile", "pr"]);
    screens.show(&["schema"]).show(&["man"]);
    for daemon_command in ["cancel", "report"] {
        screens.show(&[daemon_command, "20200101T000000Z-00000000"]);
    }
    screens.show(&["watch"]).assert_matches_stored("before");
}

/// The mechanism of each control differs between machines; the rest of the screen does not.
fn sandbox_and_machine_screens(env: &TestEnvironment) {
    let repo = env.repo(&spec_with_all_outcomes());
    let mut screens = ScreenTranscript::new(&repo, env);
    screens.show(&["doctor"]).show(&["doctor", "--fix"]);
    let mask_mechanism = |line: &str| {
        let (row, mechanism) = (line.get(..31).unwrap_or(line), line.get(31..).unwrap_or_default());
        let is_control = row.starts_with("enforced ") && !mechanism.is_empty();
        if is_control { format!("{row}HOW\n") } else { format!("{line}\n") }
    };
    let mask_fact = |line: String| match line.split(' ').next() {
        Some(label @ ("groups" | "views" | "reuse")) => format!("{label:<13} WHICH\n"),
        _ => line,
    };
    screens.text = screens.text.lines().map(|line| mask_fact(mask_mechanism(line))).collect();
    screens.show(&["explain", "sandbox", "fine/say", "--profile", "pr"]);
    // The hidden directories differ between machines, and with them the numbers of the operations.
    let without_number = |line: &str| match line.trim_start().split_once("  ") {
        Some((number, what)) if number.parse::<u32>().is_ok() => format!("   {what}\n"),
        _ => format!("{line}\n"),
    };
    let steps = screens.text.lines().map(without_number);
    screens.text = steps.filter(|line| !line.starts_with("   hide /")).collect();
    screens.show(&["exec", "--", "sh", "-c", "echo hi; exit 4"]);
    screens.assert_matches_stored("machine");
}

fn daemon_screens(env: &TestEnvironment) {
    env.write_operator_config(&format!("[daemon]\nsocket = \"{}\"\n", env.socket_path().display()));
    let daemon = env.start_ready_daemon();
    let repo = env.repo(&spec_with_all_outcomes());
    let mut screens = ScreenTranscript::new(&repo, env);
    screens
        .show(&["daemon", "status"])
        .show(&["status"])
        .show_unmodified(&[&RUN_ARGUMENTS[..], &["--daemon"]].concat());
    let runs = daemon.get("/v1/runs");
    let id = runs["runs"][0]["id"].as_str().unwrap_or_else(|| panic!("{runs}: {}", screens.text)).to_owned();
    screens.show(&["status"]).show(&["status", &id]).show(&["cancel", &id]);
    screens.show(&["report", &id, "--format", "markdown"]).show(&["logs", &id, "wrong/fails"]);
    screens.show(&["status", "20200101T000000Z-00000000"]).show(&["logs", &id, "wrong/nowhere"]);
    let process = daemon.get("/healthz")["pid"].to_string();
    screens.show(&["daemon", "stop"]);
    screens.text = screens.text.replace(&format!("process {process}"), "process PID");
    screens.text = screens.text.replace(&format!("process  {process}"), "process  PID");
    screens.assert_matches_stored("daemon");
}

fn hook_screens(env: &TestEnvironment) {
    let repo = env.repo(&spec_with_all_outcomes());
    let mut screens = ScreenTranscript::new(&repo, env);
    let commands: [&[&str]; 6] = [
        &["hook", "status"],
        &["hook", "install", "--profile", "pr"],
        &["hook", "install", "--profile", "pr"],
        &["hook", "status"],
        &["hook", "uninstall"],
        &["hook", "uninstall"],
    ];
    for words in commands {
        screens.show(words);
    }
    screens.assert_matches_stored("hooks");
}

fn init_and_import_screens(env: &TestEnvironment) {
    let empty = env.empty_repo_at("empty");
    ScreenTranscript::new(&empty, env).show(&["init"]).show(&["import"]).assert_matches_stored("brought_nothing");
    let repo = env.empty_repo_at("some");
    repo.write("Makefile", "test:\n\ttrue\n");
    repo.write("tools/run.sh", "#!/bin/sh\nexec true\n");
    repo.commit();
    ScreenTranscript::new(&repo, env).show(&["init"]).show(&["init"]).show(&["validate"]).assert_matches_stored("init");
    let imported = env.empty_repo_at("imported");
    imported.write(
        ".pre-commit-config.yaml",
        "repos:\n- repo: local\n  hooks:\n  - {id: own, name: own, entry: ./check.sh, language: script}\n\
         - repo: https://github.com/nobody/unknown\n  rev: v1\n  hooks:\n  - id: something\n",
    );
    imported.commit();
    ScreenTranscript::new(&imported, env).show(&["import"]).assert_matches_stored("import");
}

fn sql_screens(env: &TestEnvironment) {
    let repo = env.empty_repo_at("sql");
    repo.write("schema.sql", "CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT NOT NULL, age INTEGER);\n");
    repo.write("good.sql", "SELECT name FROM users WHERE age > 30;\n");
    repo.write("bad.sql", "SELECT nmae FROM users;\nDELETE FROM users WHERE 1=1;\n");
    let verify = ["sql", "verify", "--dialect", "sqlite", "--schema", "schema.sql"];
    let mut screens = ScreenTranscript::new(&repo, env);
    screens.show(&[&verify[..], &["good.sql"]].concat()).show(&[&verify[..], &["bad.sql"]].concat());
    screens.show(&["sql", "advice", "--dialect", "sqlite", "no such column: nmae"]);
    screens.assert_matches_stored("sql");
    env.set_caller_var("COLUMNS", "40");
    ScreenTranscript::new(&repo, env).show(&[&verify[..], &["bad.sql"]].concat()).assert_matches_stored("sql_40");
}

fn mistake_screens(env: &TestEnvironment) {
    let nothing = env.empty_repo_at("nothing");
    ScreenTranscript::new(&nothing, env)
        .show(&RUN_ARGUMENTS)
        .show(&["validate"])
        .show(&["plan", "--profile", "pr"])
        .assert_matches_stored("no_spec");
    let repo = env.repo(&spec_with_all_outcomes());
    let mut screens = ScreenTranscript::new(&repo, env);
    screens.show(&["run", "--profile", "rp"]).show(&["rnu"]).show(&["run", "--profil", "pr"]);
    screens
        .show(&["explain", "fine/sya", "--profile", "pr"])
        .show_with_state_dir(&["logs", "20200101T000000Z-00000000"]);
    screens.assert_matches_stored("mistakes");
    let broken = env.empty_repo_at("broken");
    broken.write(
        "spec/verification.yaml",
        "version: 1\nprofile: {}\nskills:\n  a:\n    steps:\n    - {name: x, cmd: 3, timeout: 5 parsecs}\n",
    );
    broken.commit();
    ScreenTranscript::new(&broken, env).show(&["validate"]).show(&RUN_ARGUMENTS).assert_matches_stored("broken_spec");
}
