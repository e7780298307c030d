//! Describes the MCP servers that a client script can use.

use serde_json::{Value, json};

use crate::environment::TestEnvironment;

/// Returns the parameters with which the SDK starts `proctor mcp`.
fn stdio_server(env: &TestEnvironment, arguments: &[&str]) -> Value {
    let command = env.command(env.root());
    let text = |text: &std::ffi::OsStr| text.to_str().expect("our own words").to_owned();
    let vars: serde_json::Map<String, Value> =
        command.get_envs().filter_map(|(name, value)| Some((text(name), Value::from(text(value?))))).collect();
    let program = [text(command.get_program()), "mcp".to_owned()];
    let words: Vec<String> = program.into_iter().chain(arguments.iter().map(|word| (*word).to_owned())).collect();
    json!({ "command": words, "env": vars, "cwd": env.root() })
}

pub(super) fn in_process_server(env: &TestEnvironment) -> Value {
    stdio_server(env, &["--no-daemon", "--state-dir", env.state_dir().to_str().expect("a path")])
}

pub(super) fn daemon_stdio_server(env: &TestEnvironment) -> Value {
    stdio_server(env, &["--daemon", "--socket", env.socket_path().to_str().expect("a path")])
}

pub(super) fn socket_server(env: &TestEnvironment) -> Value {
    json!({ "socket": env.socket_path() })
}
