//! Runs the tests of the Python client (`python/tests`) against the built daemon.

use crate::environment::TestEnvironment;
use crate::needs::{CaseDefinition, NEEDS_PYTHON_CLIENT, PYTHON_CLIENT_PYTHON, case};
use crate::process::RunningProcess;
use crate::{binaries, machine, schemas};

pub(super) const CASES: &[CaseDefinition] =
    &[case("python_client::its_tests_pass_against_the_built_daemon", python_tests_pass).needs(NEEDS_PYTHON_CLIENT)];

fn python_tests_pass(env: &TestEnvironment) {
    let mut command = machine::client_command(PYTHON_CLIENT_PYTHON);
    command.args(["-m", "pytest", "--quiet", "-rs", "--basetemp"]).arg(env.root().join("pytest"));
    command.current_dir(schemas::workspace_root().join("python"));
    command.env("HOME", env.home_dir()).env("PYTHONDONTWRITEBYTECODE", "1");
    let programs = binaries::built_program("proctord");
    command.env("PROCTOR_PROGRAMS", programs.parent().expect("the directory of the programs"));
    env.finish(RunningProcess::start(command)).exits(0).prints(&[" passed"]);
}
