//! Tests the packaging: manual pages and completions with the programs that read them, the GitHub Action and the
//! GitLab template as these systems run them, and the files that `scripts/install` installs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::binaries;
use crate::environment::{Repo, TestEnvironment};
use crate::machine;
use crate::needs::{CaseDefinition, Needs, case, dry_case};
use crate::process::{FinishedProcess, RunningProcess};
use crate::schemas;
use crate::test_spec::TestSpec;

pub(super) const CASES: &[CaseDefinition] = &[
    dry_case("packaging::manual_pages_are_rendered_without_a_warning", manual_pages_render_without_warning)
        .needs(&[Needs::Program("groff")]),
    dry_case("packaging::an_unknown_manual_page_is_a_usage_error", unknown_manual_page_is_usage_error),
    dry_case("packaging::bash_loads_its_completions", bash_loads_completions).needs(&[Needs::Program("bash")]),
    dry_case("packaging::zsh_loads_its_completions", zsh_loads_completions).needs(&[Needs::Program("zsh")]),
    dry_case("packaging::fish_loads_its_completions", fish_loads_completions).needs(&[Needs::Program("fish")]),
    dry_case("packaging::the_action_and_the_template_are_valid", action_and_template_are_valid)
        .needs(NEEDS_SCHEMA_CHECKER),
    case("", action_passes_if_run_passes).needs(NEEDS_SHELL).unprivileged("packaging::action_passes_if_the_run_passes"),
    case("", action_fails_if_run_fails).needs(NEEDS_SHELL).unprivileged("packaging::action_fails_if_the_run_fails"),
    case("", action_inputs_are_never_executed)
        .needs(NEEDS_SHELL)
        .unprivileged("packaging::action_inputs_are_never_executed"),
    dry_case("packaging::action_reports_a_missing_proctor", missing_proctor_is_reported).needs(NEEDS_SHELL),
    case("", gitlab_template_runs)
        .needs(NEEDS_SHELL)
        .unprivileged("packaging::gitlab_template_reports_pass_and_failure"),
    dry_case("packaging::action_installs_the_release_of_its_version", action_installs_release).needs(NEEDS_SHELL),
    dry_case("packaging::action_refuses_a_changed_archive", action_refuses_changed_archive).needs(NEEDS_SHELL),
    dry_case("packaging::gitlab_template_installs_and_caches_the_release", gitlab_template_installs_release)
        .needs(&[Needs::Program("bash"), Needs::Program("curl")]),
    dry_case("packaging::files_of_a_release_are_reproducible_and_complete", release_files_are_correct)
        .needs(&[Needs::Program("python3")]),
    dry_case("packaging::an_installation_is_complete", installation_is_complete),
    dry_case("packaging::installation_without_programs_is_refused", installation_without_programs_fails),
];

const NEEDS_SHELL: &[Needs] = &[Needs::Sandbox, Needs::Program("bash"), Needs::Program("git")];
const SCHEMA_CHECKER: &str = "check-jsonschema/bin/check-jsonschema";
const NEEDS_SCHEMA_CHECKER: &[Needs] = &[Needs::Client(&[SCHEMA_CHECKER, "--version"])];

/// The files that a step writes for GitHub's runner, by their variables.
const RUNNER_FILES: [&str; 4] = ["GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY", "GITHUB_PATH", "GITHUB_ENV"];

fn project_path(path: &str) -> PathBuf {
    schemas::workspace_root().join(path)
}

fn manual_pages_render_without_warning(env: &TestEnvironment) {
    let names = env.proctor(["man"]).exits(0).stdout;
    assert!(names.lines().any(|name| name == "proctord.8") && names.lines().count() > 15, "{names}");
    for name in names.lines() {
        let file = env.root().join(name);
        machine::write(&file, env.proctor(["man", name]).exits(0).stdout);
        let mut groff = machine::command("groff");
        groff.args(["-man", "-ww", "-Tutf8", "-P-cbou"]).arg(&file);
        let shown = RunningProcess::start(groff).wait().exits(0);
        assert!(shown.stderr.is_empty(), "{name}\n{shown}");
        for part in ["NAME", "SYNOPSIS", "SEE ALSO"] {
            assert!(shown.stdout.contains(part), "{name} lacks {part}\n{shown}");
        }
    }
}

fn unknown_manual_page_is_usage_error(env: &TestEnvironment) {
    env.proctor(["man", "proctor-nothing.1"])
        .exits(2)
        .prints_to_stderr(&["no page `proctor-nothing.1`", "hint: `proctor man`"]);
}

fn write_completions(env: &TestEnvironment, shell: &str) -> PathBuf {
    let file = env.root().join(format!("completions.{shell}"));
    machine::write(&file, env.proctor(["completions", shell]).exits(0).stdout);
    file
}

/// Returns the output of a shell for a script that uses a file.
fn shell_output(program: &str, options: &[&str], script: &str, file: &Path) -> String {
    let mut command = machine::command(program);
    command.args(options).args(["-c", script]).env("FILE", file).env("HOME", "/nonexistent");
    let finished = RunningProcess::start(command).wait().exits(0);
    assert!(finished.stderr.is_empty(), "{finished}");
    finished.stdout
}

fn bash_loads_completions(env: &TestEnvironment) {
    let file = write_completions(env, "bash");
    let script =
        ". \"$FILE\"; COMP_WORDS=(proctor va); COMP_CWORD=1; _proctor proctor va proctor; echo \"${COMPREPLY[@]}\"";
    assert_eq!(shell_output("bash", &["--norc", "--noprofile"], script, &file).trim(), "validate");
}

fn zsh_loads_completions(env: &TestEnvironment) {
    let file = write_completions(env, "zsh");
    let script = "autoload -Uz compinit && compinit -D && . $FILE && whence -w _proctor && echo $_comps[proctor]";
    assert_eq!(shell_output("zsh", &["-f"], script, &file), "_proctor: function\n_proctor\n");
}

fn fish_loads_completions(env: &TestEnvironment) {
    let file = write_completions(env, "fish");
    let script = "source $FILE; complete -C 'proctor va'";
    let mut command = machine::command("fish");
    command.args(["--no-config", "-c", script]).env("FILE", &file).env("HOME", env.home_dir());
    let finished = RunningProcess::start(command).wait().exits(0);
    assert!(finished.stdout.starts_with("validate\t"), "{finished}");
}

fn action_and_template_are_valid(_: &TestEnvironment) {
    let files = [
        ("vendor.github-actions", "action.yml"),
        ("vendor.gitlab-ci", "ci/gitlab.yml"),
        ("vendor.github-workflows", ".github/workflows/release.yml"),
        ("vendor.github-workflows", ".github/workflows/checks.yml"),
        ("vendor.github-workflows", ".github/workflows/weekly.yml"),
        ("vendor.dependabot", ".github/dependabot.yml"),
    ];
    for (schema, file) in files {
        let text = std::fs::read_to_string(project_path(file)).expect("a file of the project");
        let unpinned: Vec<&str> = text.lines().filter(|line| uses_unpinned_action(line)).collect();
        assert!(unpinned.is_empty(), "{file} uses actions without the hash of a commit: {unpinned:?}");
        let mut check = machine::client_command(SCHEMA_CHECKER);
        check.args(["--builtin-schema", schema]).arg(project_path(file)).env("HOME", "/nonexistent");
        RunningProcess::start(check).wait().exits(0);
    }
}

/// Returns whether a line of a workflow uses an action whose content can change. PyPI's documentation recommends a branch.
fn uses_unpinned_action(line: &str) -> bool {
    let Some((_, action)) = line.split_once("uses: ") else { return false };
    let revision = action.split_once('@').map_or("", |(_, revision)| revision.split(' ').next().unwrap_or(revision));
    let is_commit = revision.len() == 40 && revision.bytes().all(|byte| byte.is_ascii_hexdigit());
    !is_commit && !action.starts_with("pypa/gh-action-pypi-publish@")
}

/// Reads a YAML file as JSON, with a general YAML parser.
fn read_yaml(file: &str) -> Value {
    let text = std::fs::read_to_string(project_path(file)).expect("a file of the project");
    serde_yaml::from_str(&text).expect("YAML")
}

/// A job on GitHub: it runs the command steps of the action in order, until one fails.
struct ActionJob<'e> {
    env: &'e TestEnvironment,
    workspace: PathBuf,
    inputs: BTreeMap<String, String>,
    /// True if `proctor` is in the runner's `PATH`.
    has_proctor: bool,
    /// The URL of the releases, if it is not the published one.
    downloads: Option<String>,
}

impl<'e> ActionJob<'e> {
    fn new(env: &'e TestEnvironment, repo: &Repo<'_>) -> Self {
        Self { env, workspace: repo.path().to_owned(), inputs: BTreeMap::new(), has_proctor: true, downloads: None }
    }

    fn with_input(mut self, input: &str, value: &str) -> Self {
        self.inputs.insert(input.to_owned(), value.to_owned());
        self
    }

    /// Expands expressions in the action as GitHub does.
    fn expand_expressions(&self, text: &str, action: &Value) -> String {
        let mut expanded = String::new();
        let mut remaining = text;
        while let Some((before, rest)) = remaining.split_once("${{ ") {
            let (expression, after) = rest.split_once(" }}").expect("an end of the expression");
            expanded.push_str(before);
            match expression.split_once('.') {
                Some(("inputs", name)) => {
                    let default = action["inputs"][name]["default"].as_str().expect("every input has a default");
                    expanded.push_str(self.inputs.get(name).map_or(default, String::as_str));
                }
                Some(("github", "action_path")) => expanded.push_str(&schemas::workspace_root().display().to_string()),
                _ => panic!("an expression that this runner does not know: {expression}"),
            }
            remaining = after;
        }
        expanded + remaining
    }

    /// Runs the job, and returns the last step that ran.
    fn run(&self) -> FinishedProcess {
        let action = read_yaml("action.yml");
        let mut last = None;
        for step in action["runs"]["steps"].as_array().expect("steps") {
            let Some(script) = step["run"].as_str() else { continue };
            assert!(!script.contains("${{"), "text of an input becomes text of a script:\n{script}");
            assert_eq!(step["shell"], "bash");
            let finished = RunningProcess::start(self.command(step, script, &action)).wait();
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
        self.env.give_to_actor(self.env.root());
        let mut command = self.env.system_command_as_actor("bash");
        command.args(["--noprofile", "--norc", "-eo", "pipefail"]).arg(&file);
        let directory =
            step["working-directory"].as_str().map_or(String::new(), |text| self.expand_expressions(text, action));
        command.current_dir(self.workspace.join(directory)).env("HOME", self.env.home_dir());
        let path = if self.has_proctor { path_with_proctor() } else { machine::PATH.to_owned() };
        // A step adds directories to the search path of the next steps.
        let added = self.read_runner_file("GITHUB_PATH").lines().map(|line| format!("{line}:")).collect::<String>();
        command.env("PATH", added + &path).env("XDG_STATE_HOME", self.env.root().join("state"));
        command
            .env("GITHUB_ACTIONS", "true")
            .env("GITHUB_WORKSPACE", &self.workspace)
            .env("RUNNER_TEMP", self.env.root());
        command.envs(RUNNER_FILES.iter().map(|name| (name, self.env.root().join(name))));
        command.envs(self.downloads.iter().map(|url| ("PROCTOR_DOWNLOADS", url)));
        for (name, value) in step["env"].as_object().into_iter().flatten() {
            command.env(name, self.expand_expressions(value.as_str().expect("text"), action));
        }
        command
    }

    fn read_runner_file(&self, name: &str) -> String {
        std::fs::read_to_string(self.env.root().join(name)).expect("a file of the runner")
    }

    /// Reads the reports, which must exist and not be empty.
    fn read_reports(&self, directory: &str) -> BTreeMap<&'static str, String> {
        let names = ["junit.xml", "proctor.sarif", "report.md", "report.html"];
        let read = |name| std::fs::read_to_string(self.workspace.join(directory).join(name)).unwrap_or_default();
        let reports: BTreeMap<_, _> = names.into_iter().map(|name| (name, read(name))).collect();
        assert!(reports.values().all(|text| !text.is_empty()), "{reports:?}");
        reports
    }
}

/// Returns the search path of a runner with `proctor` installed.
fn path_with_proctor() -> String {
    format!("{}:{}", binaries::public_program("proctor").parent().expect("a directory").display(), machine::PATH)
}

/// Creates a repository that ignores the reports of a job, which are written to the workspace.
fn repo_that_ignores_reports<'e>(env: &'e TestEnvironment, script: &str) -> Repo<'e> {
    let repo = env.repo(&TestSpec::from_script(script));
    repo.write(".gitignore", "proctor-reports/\n");
    repo.commit();
    repo
}

fn action_passes_if_run_passes(env: &TestEnvironment) {
    let repo = repo_that_ignores_reports(env, "true");
    let job = ActionJob::new(env, &repo);
    job.run().exits(0);
    assert!(
        job.read_runner_file("GITHUB_OUTPUT").lines().any(|line| line == "verdict=passed"),
        "{}",
        job.read_runner_file("GITHUB_OUTPUT")
    );
    assert!(job.read_runner_file("GITHUB_STEP_SUMMARY").contains("passed"));
    job.read_reports("proctor-reports");
}

fn action_fails_if_run_fails(env: &TestEnvironment) {
    let repo = repo_that_ignores_reports(env, "echo it is broken; exit 3");
    let job = ActionJob::new(env, &repo).with_input("reports", "elsewhere").with_input("rev", "HEAD");
    let finished = job.run().exits(1);
    assert!(finished.stdout.lines().any(|line| line.starts_with("::error ")), "{finished}");
    assert!(
        job.read_runner_file("GITHUB_OUTPUT").lines().any(|line| line == "verdict=failed"),
        "{}",
        job.read_runner_file("GITHUB_OUTPUT")
    );
    assert!(job.read_reports("elsewhere")["junit.xml"].contains("<failure"));
}

fn action_inputs_are_never_executed(env: &TestEnvironment) {
    let repo = repo_that_ignores_reports(env, "true");
    let evil = "x'; touch injected; echo '$(touch injected)`touch injected`";
    for input in ["profile", "rev", "changeset", "max-tier", "sandbox"] {
        let finished = ActionJob::new(env, &repo).with_input(input, evil).run();
        assert_ne!(finished.code, Some(0), "{input}\n{finished}");
        assert!(!repo.file("injected").exists(), "{input}\n{finished}");
    }
}

fn missing_proctor_is_reported(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let job = ActionJob { has_proctor: false, ..ActionJob::new(env, &repo).with_input("install", "never") };
    let finished = job.run().exits(5);
    assert!(finished.stdout.starts_with("::error title=proctor::"), "{finished}");
}

/// Creates a release of this version with a fake program, and returns the URL of the releases.
fn write_fake_release(env: &TestEnvironment) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let name = format!("proctor-{version}-{}-unknown-linux-gnu", std::env::consts::ARCH);
    let release = env.root().join("releases").join(format!("v{version}"));
    let script = r#"
        mkdir -p "$NAME/bin" && printf '#!/bin/sh\necho "fake proctor $*"\n' >"$NAME/bin/proctor"
        chmod 755 "$NAME/bin/proctor" && tar -czf "$NAME.tar.gz" "$NAME"
        sha256sum "$NAME.tar.gz" >SHA256SUMS && cp "$INSTALLER" .
    "#;
    std::fs::create_dir_all(&release).expect("a directory");
    let mut command = machine::command("sh");
    command.args(["-euc", script]).current_dir(&release);
    command.env("NAME", name).env("INSTALLER", project_path("scripts/dist.d/install.sh"));
    RunningProcess::start(command).wait().exits(0);
    format!("file://{}", env.root().join("releases").display())
}

fn archive_of_fake_release(env: &TestEnvironment) -> PathBuf {
    let version = env!("CARGO_PKG_VERSION");
    let name = format!("proctor-{version}-{}-unknown-linux-gnu.tar.gz", std::env::consts::ARCH);
    env.root().join("releases").join(format!("v{version}")).join(name)
}

fn job_without_proctor<'e>(env: &'e TestEnvironment, repo: &Repo<'_>) -> ActionJob<'e> {
    let downloads = Some(write_fake_release(env));
    ActionJob { has_proctor: false, downloads, ..ActionJob::new(env, repo) }
}

fn action_installs_release(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let finished = job_without_proctor(env, &repo).run().exits(0);
    assert!(finished.stdout.contains("fake proctor run --no-daemon --profile pr"), "{finished}");
}

fn action_refuses_changed_archive(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let job = job_without_proctor(env, &repo);
    machine::write(&archive_of_fake_release(env), "changed");
    let finished = job.run().exits(5);
    assert!(finished.stderr.contains("error: the archive has the checksum"), "{finished}");
    assert!(finished.stdout.starts_with("::error title=proctor::"), "{finished}");
}

fn gitlab_template_installs_release(env: &TestEnvironment) {
    let downloads = write_fake_release(env);
    let job = read_yaml("ci/gitlab.yml")[".proctor"].take();
    assert_eq!(job["variables"]["PROCTOR_VERSION"], env!("CARGO_PKG_VERSION"), "the version of the template");
    let [before, script, after] =
        ["before_script", "script", "after_script"].map(|key| job[key][0].as_str().expect("a script"));
    let project = env.root().join("project");
    std::fs::create_dir(&project).expect("a directory");
    let run = |script: &str| {
        let mut command = machine::command("bash");
        command.args(["-eo", "pipefail", "-c", script]).current_dir(&project).env("HOME", env.home_dir());
        for (name, value) in job["variables"].as_object().expect("variables") {
            command.env(name, value.as_str().expect("text"));
        }
        command.env("PATH", machine::PATH).env("CI_PROJECT_DIR", &project).env("PROCTOR_DOWNLOADS", &downloads);
        RunningProcess::start(command).wait()
    };
    for cached in [false, true] {
        if cached {
            std::fs::remove_file(archive_of_fake_release(env)).expect("the archive");
        }
        // One shell runs both scripts, and another one `after_script`.
        let finished = run(&format!("{before}\nls -A\n{script}")).exits(0);
        assert!(finished.stdout.contains("fake proctor run --no-daemon --profile pr"), "{finished}");
        assert!(!finished.stdout.contains(".proctor-archive"), "the archive is an input of the checks\n{finished}");
        run(after).exits(0);
        assert!(project.join(".proctor-archive").is_dir());
    }
}

fn release_files_are_correct(_: &TestEnvironment) {
    let mut command = machine::command("python3");
    command.arg(project_path("scripts/dist.d/tests.py")).env("PYTHONDONTWRITEBYTECODE", "1");
    RunningProcess::start(command).wait().exits(0);
}

fn gitlab_template_runs(env: &TestEnvironment) {
    let job = read_yaml("ci/gitlab.yml")[".proctor"].take();
    let script = job["script"][0].as_str().expect("a script");
    for (body, code) in [("true", 0), ("exit 3", 1)] {
        let repo = env.repo_at(&format!("repo{code}"), &TestSpec::from_script(body));
        // Run the script as the shell executor does: with bash, which exits at the first failing command.
        let mut command = env.system_command_as_actor("bash");
        command.args(["-eo", "pipefail", "-c", script]).current_dir(repo.path()).env("HOME", env.home_dir());
        command.env("PATH", path_with_proctor()).env("XDG_STATE_HOME", env.root().join("state"));
        for (name, value) in job["variables"].as_object().expect("variables") {
            command.env(name, value.as_str().expect("text"));
        }
        command.env("PROCTOR_REPORTS", env.root().join("reports"));
        RunningProcess::start(command).wait().exits(code);
        let junit = std::fs::read_to_string(env.root().join("reports/junit.xml")).expect("a report");
        assert_eq!(junit.contains("<failure"), code == 1, "{junit}");
    }
}

fn run_install_script(env: &TestEnvironment, from: &Path) -> FinishedProcess {
    let mut command = machine::command("sh");
    command.arg(project_path("scripts/install")).arg("/usr").env("HOME", env.home_dir());
    command.env("DESTDIR", env.root().join("root")).env("FROM", from);
    RunningProcess::start(command).wait()
}

fn installation_is_complete(env: &TestEnvironment) {
    run_install_script(env, binaries::built_program("proctor").parent().expect("a directory")).exits(0);
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
    doctor.args(["doctor", "--apparmor-profile"]).current_dir(env.root()).env("HOME", env.home_dir());
    RunningProcess::start(doctor).wait().exits(0).prints(&["libexec/proctor/proctor-sandbox"]);
}

fn installation_without_programs_fails(env: &TestEnvironment) {
    let finished = run_install_script(env, env.root()).exits(1);
    assert!(finished.stderr.contains("has no program `proctor`\nhint: "), "{finished}");
}
