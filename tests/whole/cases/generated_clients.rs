//! Generates clients from the OpenAPI document with third-party generators, and checks that they understand a
//! daemon's responses.

use serde_json::json;

use crate::environment::TestEnvironment;
use crate::needs::{CaseDefinition, Needs, case};
use crate::process::RunningProcess;
use crate::test_spec::TestSpec;
use crate::{binaries, machine};

/// The Python interpreter with the generators.
const GENERATOR_PYTHON: &str = "generators/bin/python";

pub(super) const CASES: &[CaseDefinition] =
    &[case("generated_clients::clients_of_two_generators_work_with_a_daemon", generated_clients_work).needs(&[
        Needs::Sandbox,
        Needs::Client(&[GENERATOR_PYTHON, "-c", "import openapi_python_client, datamodel_code_generator"]),
    ])];

fn generated_clients_work(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("echo hello"));
    let daemon = env.start_ready_daemon();
    let mut command = machine::client_command(GENERATOR_PYTHON);
    let programs = binaries::client_program("generators/bin");
    let script = json!({ "socket": env.socket_path(), "repo": repo.path(), "programs": programs });
    command.args(["-c", include_str!("../generated_client.py"), &script.to_string()]);
    command.env("HOME", env.home_dir()).env("PYTHONDONTWRITEBYTECODE", "1").current_dir(env.root());
    RunningProcess::start(command).wait().exits(0).prints(&["\"run\""]);
    daemon.stop().exits(0);
}
