//! Tests malicious and faulty agents at `/mcp`: they are treated like clients of the other paths, and none of their
//! messages starts a run.

use serde_json::{Value, json};

use super::hostile_clients::{
    connect_and_send, daemon_pid, peak_rss_kib, read_until_close, send_and_read_all, with_health_probe,
};
use crate::environment::TestEnvironment;
use crate::needs::{CaseDefinition, dry_case};
use crate::test_spec::TestSpec;

pub(super) const CASES: &[CaseDefinition] = &[
    dry_case("hostile_mcp_clients::malformed_and_ambiguous_messages_are_refused", malformed_messages_are_refused),
    dry_case("hostile_mcp_clients::gigabyte_message_is_refused_without_buffering", gigabyte_message_is_refused),
    dry_case("hostile_mcp_clients::slow_clients_are_disconnected", slow_clients_are_disconnected),
    dry_case("hostile_mcp_clients::arguments_cannot_point_outside_a_repository", invalid_arguments_start_no_run),
];

const MCP_REQUEST_HEAD: &str = "POST /mcp HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
                    Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2025-11-25\r\n";

fn http_message(body: &str) -> String {
    format!("{MCP_REQUEST_HEAD}Content-Length: {}\r\n\r\n{body}", body.len())
}

fn tool_call(tool: &str, arguments: &str) -> String {
    let params = format!(r#"{{"name":"{tool}","arguments":{arguments}}}"#);
    http_message(&format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#))
}

/// Checks whether a response reports success.
fn is_success(answer: &str) -> bool {
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    let text = body.lines().find_map(|line| line.strip_prefix("data: ")).unwrap_or(body);
    let value: Value = serde_json::from_str(text).unwrap_or_default();
    answer.starts_with("HTTP/1.1 200 ") && value.get("error").is_none() && value["result"]["isError"] != true
}

fn malformed_messages_are_refused(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let daemon = env.start_ready_daemon();
    let repo_json = serde_json::to_string(repo.path()).expect("text");
    let deep = |open: &str, close: &str| format!("{}1{}", open.repeat(10_000), close.repeat(10_000));
    let refused = [
        http_message(""),
        http_message("nul"),
        http_message("{}"),
        http_message(&deep("[", "]")),
        http_message(&deep("{\"a\":", "}")),
        http_message(&"[".repeat(500_000)),
        http_message(&format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}}"#, deep("{\"a\":", "}"))),
        tool_call("antigravity_verify", &deep("[", "]")),
        tool_call("antigravity_verify", &format!(r#"{{"repo_root":{repo_json},"env":{}}}"#, deep("{\"a\":", "}"))),
        tool_call("antigravity_verify", &format!(r#"{{"repo_root":{repo_json},"unknown":1}}"#)),
        tool_call("antigravity_verify", &format!(r#"{{"repo_root":{repo_json},"profile":"p\u0000r"}}"#)),
        tool_call("antigravity_verify", r#"{"repo_root":"\ud800"}"#),
        tool_call(
            "antigravity_verify",
            &format!(r#"{{"repo_root":"/nonexistent","repo_root":{repo_json},"changeset_id":"009_x"}}"#),
        ),
        tool_call("no.such.tool", "{}"),
        http_message("\u{feff}{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/list\"}x"),
    ];
    assert!(
        is_success(&send_and_read_all(env, http_message(r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#))),
        "a sound one"
    );
    with_health_probe(env, || {
        for request in &refused {
            let answer = send_and_read_all(env, request);
            let shown: String = request.chars().skip(MCP_REQUEST_HEAD.len()).take(160).collect();
            assert!(!is_success(&answer), "{shown}: {answer}");
            assert!(answer.starts_with("HTTP/1.1 "), "{shown}: no answer: {answer:?}");
        }
    });
    assert_eq!(daemon.get("/v1/runs")["runs"], json!([]), "nothing of that was taken on");
    daemon.stop().exits(0);
}

fn gigabyte_message_is_refused(env: &TestEnvironment) {
    use std::io::Write as _;
    let daemon = env.start_ready_daemon();
    let (pid, part) = (daemon_pid(&daemon), vec![b' '; 64 << 10]);
    let before = peak_rss_kib(pid);
    with_health_probe(env, || {
        for framing in ["Content-Length: 1073741824", "Transfer-Encoding: chunked"] {
            let mut stream = connect_and_send(env, format!("{MCP_REQUEST_HEAD}{framing}\r\n\r\n").as_bytes());
            let is_chunked = framing.starts_with('T');
            let head = if is_chunked { format!("{:x}\r\n", part.len()) } else { String::new() };
            let end: &[u8] = if is_chunked { b"\r\n" } else { b"" };
            let mut sent = 0_u64;
            while sent < 1 << 30 {
                if [head.as_bytes(), &part, end].iter().any(|bytes| stream.write_all(bytes).is_err()) {
                    break;
                }
                sent += part.len() as u64;
            }
            assert!(sent < 16 << 20, "{sent} bytes were taken");
            let answer = read_until_close(&mut stream);
            assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
        }
    });
    assert!(peak_rss_kib(pid) < before + (32 << 10), "from {before} to {} KiB", peak_rss_kib(pid));
    daemon.stop().exits(0);
}

fn slow_clients_are_disconnected(env: &TestEnvironment) {
    env.write_operator_config("[daemon]\nrequest_timeout_ms = 1500\n");
    let daemon = env.start_ready_daemon();
    let requests = [
        format!("{MCP_REQUEST_HEAD}Content-Length: 100\r\n\r\n{{"),
        format!("{MCP_REQUEST_HEAD}Transfer-Encoding: chunked\r\n\r\n1\r\n{{\r\n"),
    ];
    with_health_probe(env, || {
        let senders: Vec<_> =
            (0..200).map(|n| connect_and_send(env, requests[n % requests.len()].as_bytes())).collect();
        for mut sender in senders {
            let answer = read_until_close(&mut sender);
            assert!(!is_success(&answer), "{answer}");
        }
    });
    daemon.stop().exits(0);
}

fn invalid_arguments_start_no_run(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    repo.link("link-to-etc", std::path::Path::new("/etc"));
    let daemon = env.start_ready_daemon();
    let with = |name: &str, value: &Value| {
        let mut arguments = json!({ "repo_root": repo.path(), "changeset_id": "009_x" });
        arguments[name] = value.clone();
        arguments
    };
    let roots = ["", ".", "..", "/", "/a\u{0}b", "/a\nb", "/dev/null", "/proc/self/fd"].map(|root| json!(root));
    let non_repositories =
        [env.state_dir(), env.socket_path(), repo.file("link-to-etc"), repo.file("src")].map(|path| json!(path));
    let ids = ["..", "a/b", "/etc", "a\u{0}", "a\n", "../../etc"].map(|id| json!(id));
    let verify = roots.iter().chain(&non_repositories).map(|root| with("repo_root", root));
    let verify = verify.chain(ids.iter().map(|id| with("changeset_id", id)));
    let verify = verify.chain(["../x", "p\u{0}r", "p\nr"].iter().map(|profile| with("profile", &json!(profile))));
    let runs = ["..", "../../etc/passwd", "x\u{0}", "x\n", ""].map(|id| json!({ "run_id": id }));
    with_health_probe(env, || {
        for arguments in verify {
            let answer = send_and_read_all(env, tool_call("antigravity_verify", &arguments.to_string()));
            assert!(!is_success(&answer), "{arguments}: {answer}");
        }
        for tool in ["antigravity_verify_status", "antigravity_verify_logs", "antigravity_verify_cancel"] {
            for arguments in &runs {
                let answer = send_and_read_all(env, tool_call(tool, &arguments.to_string()));
                assert!(!is_success(&answer), "{tool} {arguments}: {answer}");
            }
        }
    });
    assert_eq!(daemon.get("/v1/runs")["runs"], json!([]), "nothing of that was taken on");
    daemon.stop().exits(0);
}
