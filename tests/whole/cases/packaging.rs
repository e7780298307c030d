//! Tests the packaging: manual pages and completions with the programs that read them, the GitHub Action and the
//! GitLab template as these systems run them, and the files that `scripts/install` installs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::binaries;
use crate::environment::{Repo, TestEnvironment};
use crate::machine;
use crate::needs::{Case, Needs, case, dry_case};
use crate::process::{Finished, Running};
use crate::schemas;
use crate::spec::Spec;

pub(super) const CASES: &[Case] = &[
    dry_case("packaging::manual_pages_are_rendered_without_a_warning", pages).needs(&[Needs::Program("groff")]),
    dry_case("packaging::an_unknown_manual_page_is_a_usage_error", unknown_page),
    dry_case("packaging::bash_loads_its_completions", bash).needs(&[Needs::Program("bash")]),
    dry_case("packaging::zsh_loads_its_completions", zsh).needs(&[Needs::Program("zsh")]),
    dry_case("packaging::fish_loads_its_completions", fish).needs(&[Needs::Program("fish")]),
    dry_case("packaging::the_action_and_the_template_are_valid", valid).needs(VALIDATOR),
    case("", action_passes).needs(SHELL).unprivileged("packaging::the_action_passes_what_passes"),
    case("", action_fails).needs(SHELL).unprivileged("packaging::the_action_fails_with_what_fails"),
    case("", action_is_not_injected).needs(SHELL).unprivileged("packaging::the_action_takes_no_input_for_a_command"),
    dry_case("packaging::the_action_says_that_no_proctor_is_there", action_without).needs(SHELL),
    case("", template).needs(SHELL).unprivileged("packaging::the_template_runs_as_gitlab_runs_it"),
    dry_case("packaging::an_installation_is_complete", installed),
    dry_case("packaging::an_installation_without_programs_says_so", not_installed),
];

const SHELL: &[Needs] = &[Needs::Sandbox, Needs::Program("bash"), Needs::Program("git")];
const CHECK: &str = "check-jsonschema/bin/check-jsonschema";
const VALIDATOR: &[Needs] = &[Needs::Client(&[CHECK, "--version"])];

/// The files that a step writes for GitHub's runner, by their variables.
const RUNNER_FILES: [&str; 4] = ["GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY", "GITHUB_PATH", "GITHUB_ENV"];

fn in_project(path: &str) -> PathBuf {
    schemas::project().join(path)
}

fn pages(env: &TestEnvironment) {
    let names = env.proctor(["man"]).exits(0).stdout;
    assert!(names.lines().any(|name| name == "proctord.8") && names.lines().count() > 15, "{names}");
    for name in names.lines() {
        let file = env.root().join(name);
        machine::write(&file, env.proctor(["man", name]).exits(0).stdout);
        let mut groff = machine::command("groff");
        groff.args(["-man", "-ww", "-Tutf8", "-P-cbou"]).arg(&file);
        let shown = Running::start(groff).wait().exits(0);
        assert!(shown.stderr.is_empty(), "{name}\n{shown}");
        for part in ["NAME", "SYNOPSIS", "SEE ALSO"] {
            assert!(shown.stdout.contains(part), "{name} lacks {part}\n{shown}");
        }
    }
}

fn unknown_page(env: &TestEnvironment) {
    env.proctor(["man", "proctor-nothing.1"])
        .exits(2)
        .complains(&["no page `proctor-nothing.1`", "hint: `proctor man`"]);
}

fn completions(env: &TestEnvironment, shell: &str) -> PathBuf {
    let file = env.root().join(format!("completions.{shell}"));
    machine::write(&file, env.proctor(["completions", shell]).exits(0).stdout);
    file
}

/// Returns the output of a shell for a script that uses a file.
fn told(program: &str, options: &[&str], script: &str, file: &Path) -> String {
    let mut command = machine::command(program);
    command.args(options).args(["-c", script]).env("FILE", file).env("HOME", "/nonexistent");
    let finished = Running::start(command).wait().exits(0);
    assert!(finished.stderr.is_empty(), "{finished}");
    finished.stdout
}

fn bash(env: &TestEnvironment) {
    let file = completions(env, "bash");
    let script =
        ". \"$FILE\"; COMP_WORDS=(proctor va); COMP_CWORD=1; _proctor proctor va proctor; echo \"${COMPREPLY[@]}\"";
    assert_eq!(told("bash", &["--norc", "--noprofile"], script, &file).trim(), "validate");
}

fn zsh(env: &TestEnvironment) {
    let file = completions(env, "zsh");
    let script = "autoload -Uz compinit && compinit -D && . $FILE && whence -w _proctor && echo $_comps[proctor]";
    assert_eq!(told("zsh", &["-f"], script, &file), "_proctor: function\n_proctor\n");
}

fn fish(env: &TestEnvironment) {
    let file = completions(env, "fish");
    let script = "source $FILE; complete -C 'proctor va'";
    let mut command = machine::command("fish");
    command.args(["--no-config", "-c", script]).env("FILE", &file).env("HOME", env.home());
    let finished = Running::start(command).wait().exits(0);
    assert!(finished.stdout.starts_with("validate\t"), "{finished}");
}

fn valid(_: &TestEnvironment) {
    for (schema, file) in [("vendor.github-actions", "action.yml"), ("vendor.gitlab-ci", "ci/gitlab.yml")] {
        let mut check = machine::client_command(CHECK);
        check.args(["--builtin-schema", schema]).arg(in_project(file)).env("HOME", "/nonexistent");
        Running::start(check).wait().exits(0);
    }
}

/// Reads a YAML file as JSON, with a general YAML parser.
fn document(file: &str) -> Value {
    let text = std::fs::read_to_string(in_project(file)).expect("a file of the project");
    serde_yaml::from_str(&text).expect("YAML")
}

/// A job on GitHub: it runs the command steps of the action in order, until one fails.
struct Job<'e> {
    env: &'e TestEnvironment,
    workspace: PathBuf,
    inputs: BTreeMap<String, String>,
    /// True if `proctor` is in the runner's `PATH`.
    has_proctor: bool,
}

impl<'e> Job<'e> {
    fn of(env: &'e TestEnvironment, repo: &Repo<'_>) -> Self {
        Self { env, workspace: repo.path().to_owned(), inputs: BTreeMap::new(), has_proctor: true }
    }

    fn with(mut self, input: &str, value: &str) -> Self {
        self.inputs.insert(input.to_owned(), value.to_owned());
        self
    }

    /// Expands expressions in the action as GitHub does.
    fn replaced(&self, text: &str, action: &Value) -> String {
        let mut done = String::new();
        let mut left = text;
        while let Some((before, rest)) = left.split_once("${{ ") {
            let (expression, after) = rest.split_once(" }}").expect("an end of the expression");
            done.push_str(before);
            match expression.split_once('.') {
                Some(("inputs", name)) => {
                    let default = action["inputs"][name]["default"].as_str().expect("every input has a default");
                    done.push_str(self.inputs.get(name).map_or(default, String::as_str));
                }
                Some(("github", "action_path")) => done.push_str(&schemas::project().display().to_string()),
                _ => panic!("an expression that this runner does not know: {expression}"),
            }
            left = after;
        }
        done + left
    }

    /// Runs the job, and returns the last step that ran.
    fn run(&self) -> Finished {
        let action = document("action.yml");
        let mut last = None;
        for step in action["runs"]["steps"].as_array().expect("steps") {
            let Some(script) = step["run"].as_str() else { continue };
            assert!(!script.contains("${{"), "text of an input becomes text of a script:\n{script}");
            assert_eq!(step["shell"], "bash");
            let finished = Running::start(self.command(step, script, &action)).wait();
            let failed = finished.code != Some(0);
            last = Some(finished);
            if failed {
                break;
            }
        }
        last.expect("a step")
    }

    fn command(&self, step: &Value, script: &str, action: &Value) -> Command {
        let file = self.env.root().join("step.sh");
        machine::write(&file, script);
        for name in RUNNER_FILES.iter().filter(|name| !self.env.root().join(name).exists()) {
            machine::write(&self.env.root().join(name), "");
        }
        self.env.hand_over(self.env.root());
        let mut command = self.env.program_of_actor("bash");
        command.args(["--noprofile", "--norc", "-eo", "pipefail"]).arg(&file);
        let directory = step["working-directory"].as_str().map_or(String::new(), |text| self.replaced(text, action));
        command.current_dir(self.workspace.join(directory)).env("HOME", self.env.home());
        let path = if self.has_proctor { path_with_proctor() } else { machine::PATH.to_owned() };
        command.env("PATH", path).env("XDG_STATE_HOME", self.env.root().join("state"));
        command
            .env("GITHUB_ACTIONS", "true")
            .env("GITHUB_WORKSPACE", &self.workspace)
            .env("RUNNER_TEMP", self.env.root());
        command.envs(RUNNER_FILES.iter().map(|name| (name, self.env.root().join(name))));
        for (name, value) in step["env"].as_object().into_iter().flatten() {
            command.env(name, self.replaced(value.as_str().expect("text"), action));
        }
        command
    }

    fn file(&self, name: &str) -> String {
        std::fs::read_to_string(self.env.root().join(name)).expect("a file of the runner")
    }

    /// Reads the reports, which must exist and not be empty.
    fn reports(&self, place: &str) -> BTreeMap<&'static str, String> {
        let names = ["junit.xml", "proctor.sarif", "report.md", "report.html"];
        let read = |name| std::fs::read_to_string(self.workspace.join(place).join(name)).unwrap_or_default();
        let reports: BTreeMap<_, _> = names.into_iter().map(|name| (name, read(name))).collect();
        assert!(reports.values().all(|text| !text.is_empty()), "{reports:?}");
        reports
    }
}

/// Returns the search path of a runner with `proctor` installed.
fn path_with_proctor() -> String {
    format!("{}:{}", binaries::for_all("proctor").parent().expect("a directory").display(), machine::PATH)
}

/// Creates a repository that ignores the reports of a job, which are written to the workspace.
fn repository<'e>(env: &'e TestEnvironment, script: &str) -> Repo<'e> {
    let repo = env.repo(&Spec::of_script(script));
    repo.write(".gitignore", "proctor-reports/\n");
    repo.commit();
    repo
}

fn action_passes(env: &TestEnvironment) {
    let repo = repository(env, "true");
    let job = Job::of(env, &repo);
    job.run().exits(0);
    assert!(job.file("GITHUB_OUTPUT").lines().any(|line| line == "verdict=passed"), "{}", job.file("GITHUB_OUTPUT"));
    assert!(job.file("GITHUB_STEP_SUMMARY").contains("passed"));
    job.reports("proctor-reports");
}

fn action_fails(env: &TestEnvironment) {
    let repo = repository(env, "echo it is broken; exit 3");
    let job = Job::of(env, &repo).with("reports", "elsewhere").with("rev", "HEAD");
    let finished = job.run().exits(1);
    assert!(finished.stdout.lines().any(|line| line.starts_with("::error ")), "{finished}");
    assert!(job.file("GITHUB_OUTPUT").lines().any(|line| line == "verdict=failed"), "{}", job.file("GITHUB_OUTPUT"));
    assert!(job.reports("elsewhere")["junit.xml"].contains("<failure"));
}

fn action_is_not_injected(env: &TestEnvironment) {
    let repo = repository(env, "true");
    let evil = "x'; touch injected; echo '$(touch injected)`touch injected`";
    for input in ["profile", "rev", "changeset", "max-tier", "sandbox"] {
        let finished = Job::of(env, &repo).with(input, evil).run();
        assert_ne!(finished.code, Some(0), "{input}\n{finished}");
        assert!(!repo.file("injected").exists(), "{input}\n{finished}");
    }
}

fn action_without(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let job = Job { has_proctor: false, ..Job::of(env, &repo).with("install", "never") };
    let finished = job.run().exits(5);
    assert!(finished.stdout.starts_with("::error title=proctor::"), "{finished}");
}

fn template(env: &TestEnvironment) {
    let job = document("ci/gitlab.yml")[".proctor"].take();
    let script = job["script"][0].as_str().expect("a script");
    for (body, code) in [("true", 0), ("exit 3", 1)] {
        let repo = env.repo_at(&format!("repo{code}"), &Spec::of_script(body));
        // Run the script as the shell executor does: with bash, which exits at the first failing command.
        let mut command = env.program_of_actor("bash");
        command.args(["-eo", "pipefail", "-c", script]).current_dir(repo.path()).env("HOME", env.home());
        command.env("PATH", path_with_proctor()).env("XDG_STATE_HOME", env.root().join("state"));
        for (name, value) in job["variables"].as_object().expect("variables") {
            command.env(name, value.as_str().expect("text"));
        }
        command.env("PROCTOR_REPORTS", env.root().join("reports"));
        Running::start(command).wait().exits(code);
        let junit = std::fs::read_to_string(env.root().join("reports/junit.xml")).expect("a report");
        assert_eq!(junit.contains("<failure"), code == 1, "{junit}");
    }
}

fn install(env: &TestEnvironment, from: &Path) -> Finished {
    let mut command = machine::command("sh");
    command.arg(in_project("scripts/install")).arg("/usr").env("HOME", env.home());
    command.env("DESTDIR", env.root().join("root")).env("FROM", from);
    Running::start(command).wait()
}

fn installed(env: &TestEnvironment) {
    install(env, binaries::built("proctor").parent().expect("a directory")).exits(0);
    let root = env.root().join("root/usr");
    for file in [
        "bin/proctor",
        "bin/proctord",
        "libexec/proctor/proctor-sandbox",
        "libexec/proctor/proctor-git",
        "libexec/proctor/proctor-sql",
        "share/man/man1/proctor-run.1",
        "share/man/man5/verification.yaml.5",
        "share/man/man8/proctord.8",
        "share/bash-completion/completions/proctor",
        "share/zsh/site-functions/_proctor",
        "share/fish/vendor_completions.d/proctor.fish",
        "share/doc/proctor/tutorial.md",
        "lib/systemd/system/proctord.socket",
        "lib/systemd/user/proctord.service",
        "lib/sysusers.d/proctor.conf",
        "lib/tmpfiles.d/proctor.conf",
    ] {
        let path = root.join(file);
        assert!(path.metadata().is_ok_and(|found| found.len() > 0), "{file}");
    }
    // The installed program finds its installed helpers.
    let mut doctor = machine::command(root.join("bin/proctor"));
    doctor.args(["doctor", "--apparmor-profile"]).current_dir(env.root()).env("HOME", env.home());
    Running::start(doctor).wait().exits(0).says(&["libexec/proctor/proctor-sandbox"]);
}

fn not_installed(env: &TestEnvironment) {
    let finished = install(env, env.root()).exits(1);
    assert!(finished.stderr.contains("has no program `proctor`\nhint: "), "{finished}");
}
