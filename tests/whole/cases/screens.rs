//! Snapshot tests of the screens: the output of each command on a terminal of 80 columns without colour, and of the
//! most important commands also with 40 columns and in colour. Values that differ between runs are replaced by words
//! in capitals.

use std::path::PathBuf;

use crate::environment::{Repo, TestEnvironment};
use crate::machine;
use crate::needs::{Case, Needs, case, dry_case};
use crate::process::{Finished, Running};
use crate::spec::{Skill, Spec, Step};

pub(super) const CASES: &[Case] = &[
    // As root there are control groups, and so the lowest tier.
    case("screens::of_runs", runs).needs(&[Needs::Sandbox, Needs::Root]),
    case("screens::of_what_is_on_record", recorded).needs(&[Needs::Sandbox, Needs::Root]),
    // The caller's user id determines the daemon's default socket and the user of a step.
    dry_case("screens::before_anything_runs", before).needs(&[Needs::Root]),
    case("screens::of_a_sandbox_and_this_machine", machine_of_ours).needs(&[
        Needs::Sandbox,
        Needs::Root,
        Needs::ControlGroups,
    ]),
    case("screens::of_a_daemon", of_daemon).needs(&[Needs::Sandbox, Needs::Root]),
    dry_case("screens::of_hooks", hooks),
    dry_case("screens::of_what_is_brought_along", brought),
    case("screens::of_sql", sql),
    dry_case("screens::of_mistakes", mistakes).needs(&[Needs::Root]),
];

/// Returns a spec with skills that pass, fail, and drift.
fn spec() -> Spec {
    Spec::new([
        Skill::new("fine", [Step::sh("say", "echo fine"), Step::sh("more", "true")]),
        Skill::new(
            "wrong",
            [Step::sh("fails", "echo 'src/lib.rs:2:5: error: no' >&2; exit 1"), Step::sh("later", "true")],
        ),
        Skill::new("drifts", [Step::sh("edits", "echo '// more' >> src/lib.rs")]),
    ])
}

/// A sequence of commands with their output.
struct Screens<'r, 'e> {
    repo: &'r Repo<'e>,
    env: &'e TestEnvironment,
    text: String,
}

impl<'r, 'e> Screens<'r, 'e> {
    fn new(repo: &'r Repo<'e>, env: &'e TestEnvironment) -> Self {
        Self { repo, env, text: String::new() }
    }

    fn show(&mut self, words: &[&str]) -> &mut Self {
        let finished = self.repo.proctor(words);
        self.add(words, &finished)
    }

    /// Adds the output of a command without further arguments.
    fn show_as_it_is(&mut self, words: &[&str]) -> &mut Self {
        let mut command = self.env.command(self.repo.path());
        command.args(words);
        let finished = self.env.finish(Running::start(command));
        self.add(words, &finished)
    }

    /// Adds the output of a command with the state directory as an argument.
    fn show_kept(&mut self, words: &[&str]) -> &mut Self {
        let state = self.env.state();
        let place = ["--state-dir", state.to_str().expect("UTF-8")];
        let finished = self.repo.proctor(&[words, &place].concat());
        self.add(words, &finished)
    }

    fn add(&mut self, words: &[&str], finished: &Finished) -> &mut Self {
        let part = |name: &str, text: &str| if text.is_empty() { String::new() } else { format!("--- {name}\n{text}") };
        let (out, err) = (part("output", &finished.stdout), part("messages", &finished.stderr));
        let code = finished.code.map_or_else(|| "by a signal".to_owned(), |code| code.to_string());
        self.text.push_str(&format!("$ proctor {}\n{err}{out}--- exit {code}\n\n", words.join(" ")));
        self
    }

    /// Compares the output with the stored screen of this name.
    fn are(&self, name: &str) {
        let text = steady(
            &self.text.replace(self.env.root().to_str().expect("UTF-8"), "/ROOT").replace(self.env.marker(), "MARKER"),
        );
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("whole/screens").join(format!("{name}.txt"));
        if is_to_be_written() {
            return machine::write(&path, &text);
        }
        let kept = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let differs = kept.lines().zip(text.lines()).find(|(kept, now)| kept != now);
        let lines = (kept.lines().count(), text.lines().count());
        assert!(
            kept == text,
            "a screen of {} is another one: {differs:#?}, {lines:?} lines. Where it is meant to be, write it anew \
             (PROCTOR_SCREENS=write) and read the difference.\n{text}",
            path.display()
        );
    }
}

/// Checks whether the current output should be stored as the new screens.
#[expect(clippy::disallowed_methods, reason = "a test has no caller who gives it an environment")]
fn is_to_be_written() -> bool {
    std::env::var_os("PROCTOR_SCREENS").is_some_and(|wanted| wanted == "write")
}

/// Replaces each id, hash, time and measured number with a word in capitals.
fn steady(text: &str) -> String {
    let mut steady = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let mut word = String::new();
        for character in line.chars() {
            if character.is_ascii_alphanumeric() || matches!(character, '-' | '.' | ':') {
                word.push(character);
            } else {
                steady.push_str(&steady_word(&word));
                word.clear();
                steady.push(character);
            }
        }
        steady.push_str(&steady_word(&word));
    }
    figures(&steady)
}

fn steady_word(word: &str) -> String {
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
fn figures(text: &str) -> String {
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

const RUN: [&str; 4] = ["run", "--profile", "pr", "--max-tier=3"];

fn runs(env: &TestEnvironment) {
    let repo = env.repo(&spec());
    Screens::new(&repo, env).show(&RUN).show(&[&RUN[..], &["--quiet"]].concat()).are("run");
    let part = [&RUN[..], &["--last-failed"]].concat();
    Screens::new(&repo, env).show(&part).show(&[&part[..], &["--quiet"]].concat()).are("run_last_failed");
    let passing = env.repo_at("passing", &Spec::new([Skill::new("fine", [Step::sh("say", "echo fine")])]));
    Screens::new(&passing, env).show(&RUN).are("run_passed");
    env.caller_has("COLUMNS", "40");
    Screens::new(&repo, env).show(&RUN).are("run_40");
    Screens::new(&repo, env).show(&[&RUN[..], &["--color", "always"]].concat()).are("run_40_colour");
}

fn recorded(env: &TestEnvironment) {
    let repo = env.repo(&spec());
    let id = || {
        let run = repo.run_bare(&RUN[1..]).exits(3);
        let line = run.stderr.lines().find_map(|line| line.strip_prefix("run ")).map(str::to_owned);
        line.and_then(|line| line.split_once(':').map(|(id, _)| id.to_owned())).expect("it says its id")
    };
    let (first, second) = (id(), id());
    let mut screens = Screens::new(&repo, env);
    screens.show_kept(&["logs", &second, "wrong/fails", "--stderr"]);
    screens.show_kept(&["logs", &second]);
    screens.show_kept(&["compare", &first, &second]);
    screens.show(&["gate", "--profile", "pr"]);
    screens.are("recorded");
    env.caller_has("COLUMNS", "40");
    let mut screens = Screens::new(&repo, env);
    screens.show_kept(&["compare", &first, &second]);
    screens.are("recorded_40");
}

fn before(env: &TestEnvironment) {
    let repo = env.repo(&spec());
    let mut screens = Screens::new(&repo, env);
    screens.show(&["validate"]).show(&["plan", "--profile", "pr"]).show(&["explain", "fine/say", "--profile", "pr"]);
    screens.show(&["explain", "P0123"]).show(&["explain", "P9999"]).show(&["status"]).show(&["daemon", "status"]);
    screens.show(&["explain", "env", "--var", "HOME", "fine/say", "--profile", "pr"]);
    screens.show(&["explain", "env", "--var", "NOWHERE", "fine/say", "--profile", "pr"]);
    screens.show(&["schema"]).show(&["man"]);
    for of_daemons in ["cancel", "report"] {
        screens.show(&[of_daemons, "20200101T000000Z-00000000"]);
    }
    screens.show(&["watch"]).are("before");
}

/// The mechanism of each control differs between machines; the rest of the screen does not.
fn machine_of_ours(env: &TestEnvironment) {
    let repo = env.repo(&spec());
    let mut screens = Screens::new(&repo, env);
    screens.show(&["doctor"]).show(&["doctor", "--fix"]);
    let in_rows = |line: &str| {
        let (row, held) = (line.get(..31).unwrap_or(line), line.get(31..).unwrap_or_default());
        let is_control = row.starts_with("enforced ") && !held.is_empty();
        if is_control { format!("{row}HOW\n") } else { format!("{line}\n") }
    };
    let groups = |line: String| if line.starts_with("groups ") { "groups        WHICH\n".to_owned() } else { line };
    screens.text = screens.text.lines().map(|line| groups(in_rows(line))).collect();
    screens.show(&["explain", "sandbox", "fine/say", "--profile", "pr"]);
    // The hidden directories differ between machines, and with them the numbers of the operations.
    let plain = |line: &str| match line.trim_start().split_once("  ") {
        Some((number, what)) if number.parse::<u32>().is_ok() => format!("   {what}\n"),
        _ => format!("{line}\n"),
    };
    let steps = screens.text.lines().map(plain);
    screens.text = steps.filter(|line| !line.starts_with("   hide /")).collect();
    screens.show(&["exec", "--", "sh", "-c", "echo hi; exit 4"]);
    screens.are("machine");
}

fn of_daemon(env: &TestEnvironment) {
    env.configure(&format!("[daemon]\nsocket = \"{}\"\n", env.socket().display()));
    let daemon = env.daemon();
    let repo = env.repo(&spec());
    let mut screens = Screens::new(&repo, env);
    screens.show(&["daemon", "status"]).show(&["status"]).show_as_it_is(&[&RUN[..], &["--daemon"]].concat());
    let runs = daemon.get("/v1/runs");
    let id = runs["runs"][0]["id"].as_str().unwrap_or_else(|| panic!("{runs}: {}", screens.text)).to_owned();
    screens.show(&["status"]).show(&["status", &id]).show(&["cancel", &id]);
    screens.show(&["report", &id, "--format", "markdown"]).show(&["logs", &id, "wrong/fails"]);
    screens.show(&["status", "20200101T000000Z-00000000"]).show(&["logs", &id, "wrong/nowhere"]);
    let process = daemon.get("/healthz")["pid"].to_string();
    screens.show(&["daemon", "stop"]);
    screens.text = screens.text.replace(&format!("process {process}"), "process PID");
    screens.text = screens.text.replace(&format!("process  {process}"), "process  PID");
    screens.are("daemon");
}

fn hooks(env: &TestEnvironment) {
    let repo = env.repo(&spec());
    let mut screens = Screens::new(&repo, env);
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
    screens.are("hooks");
}

fn brought(env: &TestEnvironment) {
    let empty = env.empty_repo_at("empty");
    Screens::new(&empty, env).show(&["init"]).show(&["import"]).are("brought_nothing");
    let repo = env.empty_repo_at("some");
    repo.write("Makefile", "test:\n\ttrue\n");
    repo.write("tools/run.sh", "#!/bin/sh\nexec true\n");
    repo.commit();
    Screens::new(&repo, env).show(&["init"]).show(&["init"]).show(&["validate"]).are("init");
    let imported = env.empty_repo_at("imported");
    imported.write(
        ".pre-commit-config.yaml",
        "repos:\n- repo: local\n  hooks:\n  - {id: own, name: own, entry: ./check.sh, language: script}\n\
         - repo: https://github.com/nobody/unknown\n  rev: v1\n  hooks:\n  - id: something\n",
    );
    imported.commit();
    Screens::new(&imported, env).show(&["import"]).are("import");
}

fn sql(env: &TestEnvironment) {
    let repo = env.empty_repo_at("sql");
    repo.write("schema.sql", "CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT NOT NULL, age INTEGER);\n");
    repo.write("good.sql", "SELECT name FROM users WHERE age > 30;\n");
    repo.write("bad.sql", "SELECT nmae FROM users;\nDELETE FROM users WHERE 1=1;\n");
    let verify = ["sql", "verify", "--dialect", "sqlite", "--schema", "schema.sql"];
    let mut screens = Screens::new(&repo, env);
    screens.show(&[&verify[..], &["good.sql"]].concat()).show(&[&verify[..], &["bad.sql"]].concat());
    screens.show(&["sql", "advice", "--dialect", "sqlite", "no such column: nmae"]);
    screens.are("sql");
    env.caller_has("COLUMNS", "40");
    Screens::new(&repo, env).show(&[&verify[..], &["bad.sql"]].concat()).are("sql_40");
}

fn mistakes(env: &TestEnvironment) {
    let nothing = env.empty_repo_at("nothing");
    Screens::new(&nothing, env).show(&RUN).show(&["validate"]).show(&["plan", "--profile", "pr"]).are("no_spec");
    let repo = env.repo(&spec());
    let mut screens = Screens::new(&repo, env);
    screens.show(&["run", "--profile", "rp"]).show(&["rnu"]).show(&["run", "--profil", "pr"]);
    screens.show(&["explain", "fine/sya", "--profile", "pr"]).show_kept(&["logs", "20200101T000000Z-00000000"]);
    screens.are("mistakes");
    let broken = env.empty_repo_at("broken");
    broken.write(
        "spec/verification.yaml",
        "version: 1\nprofile: {}\nskills:\n  a:\n    steps:\n    - {name: x, cmd: 3, timeout: 5 parsecs}\n",
    );
    broken.commit();
    Screens::new(&broken, env).show(&["validate"]).show(&RUN).are("broken_spec");
}
