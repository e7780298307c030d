//! Generates clients from the OpenAPI document with third-party generators, and checks that they understand a
//! daemon's responses.

use serde_json::json;

use crate::environment::TestEnvironment;
use crate::needs::{Case, Needs, case};
use crate::process::Running;
use crate::spec::Spec;
use crate::{binaries, machine};

/// The Python interpreter with the generators.
const PYTHON: &str = "generators/bin/python";

pub(super) const CASES: &[Case] = &[case("generated::clients_of_two_generators_ask_a_daemon", ask).needs(&[
    Needs::Sandbox,
    Needs::Client(&[PYTHON, "-c", "import openapi_python_client, datamodel_code_generator"]),
])];

fn ask(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("echo hello"));
    let daemon = env.daemon();
    let mut command = machine::client_command(PYTHON);
    let programs = binaries::client("generators/bin");
    let script = json!({ "socket": env.socket(), "repo": repo.path(), "programs": programs });
    command.args(["-c", include_str!("../generated_client.py"), &script.to_string()]);
    command.env("HOME", env.home()).env("PYTHONDONTWRITEBYTECODE", "1").current_dir(env.root());
    Running::start(command).wait().exits(0).says(&["\"run\""]);
    daemon.end().exits(0);
}
