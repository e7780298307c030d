//! Tests malicious and faulty agents at `/mcp`: they are treated like clients of the other paths, and none of their
//! messages starts a run.

use serde_json::{Value, json};

use super::abuse::{connect_saying, everything, exchange, meanwhile, peak_kib, pid};
use crate::environment::TestEnvironment;
use crate::needs::{Case, dry_case};
use crate::spec::Spec;

pub(super) const CASES: &[Case] = &[
    dry_case("misuse::messages_that_readers_differ_on_are_refused", messages),
    dry_case("misuse::a_message_of_a_gigabyte_is_refused_and_not_kept", gigabyte),
    dry_case("misuse::slow_agents_are_cut", slow),
    dry_case("misuse::arguments_lead_nowhere_else", arguments),
];

const HEAD: &str = "POST /mcp HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
                    Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2025-11-25\r\n";

fn message(body: &str) -> String {
    format!("{HEAD}Content-Length: {}\r\n\r\n{body}", body.len())
}

fn call(tool: &str, arguments: &str) -> String {
    let params = format!(r#"{{"name":"{tool}","arguments":{arguments}}}"#);
    message(&format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#))
}

/// Checks whether a response reports success.
fn is_done(answer: &str) -> bool {
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    let text = body.lines().find_map(|line| line.strip_prefix("data: ")).unwrap_or(body);
    let value: Value = serde_json::from_str(text).unwrap_or_default();
    answer.starts_with("HTTP/1.1 200 ") && value.get("error").is_none() && value["result"]["isError"] != true
}

fn messages(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let daemon = env.daemon();
    let place = serde_json::to_string(repo.path()).expect("text");
    let deep = |open: &str, close: &str| format!("{}1{}", open.repeat(10_000), close.repeat(10_000));
    let refused = [
        message(""),
        message("nul"),
        message("{}"),
        message(&deep("[", "]")),
        message(&deep("{\"a\":", "}")),
        message(&"[".repeat(500_000)),
        message(&format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}}"#, deep("{\"a\":", "}"))),
        call("antigravity_verify", &deep("[", "]")),
        call("antigravity_verify", &format!(r#"{{"repo_root":{place},"env":{}}}"#, deep("{\"a\":", "}"))),
        call("antigravity_verify", &format!(r#"{{"repo_root":{place},"unknown":1}}"#)),
        call("antigravity_verify", &format!(r#"{{"repo_root":{place},"profile":"p\u0000r"}}"#)),
        call("antigravity_verify", r#"{"repo_root":"\ud800"}"#),
        call(
            "antigravity_verify",
            &format!(r#"{{"repo_root":"/nonexistent","repo_root":{place},"changeset_id":"009_x"}}"#),
        ),
        call("no.such.tool", "{}"),
        message("\u{feff}{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/list\"}x"),
    ];
    assert!(is_done(&exchange(env, message(r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#))), "a sound one");
    meanwhile(env, || {
        for said in &refused {
            let answer = exchange(env, said);
            let shown: String = said.chars().skip(HEAD.len()).take(160).collect();
            assert!(!is_done(&answer), "{shown}: {answer}");
            assert!(answer.starts_with("HTTP/1.1 "), "{shown}: no answer: {answer:?}");
        }
    });
    assert_eq!(daemon.get("/v1/runs")["runs"], json!([]), "nothing of that was taken on");
    daemon.end().exits(0);
}

fn gigabyte(env: &TestEnvironment) {
    use std::io::Write as _;
    let daemon = env.daemon();
    let (pid, part) = (pid(&daemon), vec![b' '; 64 << 10]);
    let before = peak_kib(pid);
    meanwhile(env, || {
        for framing in ["Content-Length: 1073741824", "Transfer-Encoding: chunked"] {
            let mut stream = connect_saying(env, format!("{HEAD}{framing}\r\n\r\n").as_bytes());
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
            let answer = everything(&mut stream);
            assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
        }
    });
    assert!(peak_kib(pid) < before + (32 << 10), "from {before} to {} KiB", peak_kib(pid));
    daemon.end().exits(0);
}

fn slow(env: &TestEnvironment) {
    env.configure("[daemon]\nrequest_timeout_ms = 1500\n");
    let daemon = env.daemon();
    let said = [
        format!("{HEAD}Content-Length: 100\r\n\r\n{{"),
        format!("{HEAD}Transfer-Encoding: chunked\r\n\r\n1\r\n{{\r\n"),
    ];
    meanwhile(env, || {
        let senders: Vec<_> = (0..200).map(|n| connect_saying(env, said[n % said.len()].as_bytes())).collect();
        for mut sender in senders {
            let answer = everything(&mut sender);
            assert!(!is_done(&answer), "{answer}");
        }
    });
    daemon.end().exits(0);
}

fn arguments(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    repo.link("link-to-etc", std::path::Path::new("/etc"));
    let daemon = env.daemon();
    let with = |name: &str, value: &Value| {
        let mut arguments = json!({ "repo_root": repo.path(), "changeset_id": "009_x" });
        arguments[name] = value.clone();
        arguments
    };
    let roots = ["", ".", "..", "/", "/a\u{0}b", "/a\nb", "/dev/null", "/proc/self/fd"].map(|root| json!(root));
    let places = [env.state(), env.socket(), repo.file("link-to-etc"), repo.file("src")].map(|path| json!(path));
    let ids = ["..", "a/b", "/etc", "a\u{0}", "a\n", "../../etc"].map(|id| json!(id));
    let verify = roots.iter().chain(&places).map(|root| with("repo_root", root));
    let verify = verify.chain(ids.iter().map(|id| with("changeset_id", id)));
    let verify = verify.chain(["../x", "p\u{0}r", "p\nr"].iter().map(|profile| with("profile", &json!(profile))));
    let runs = ["..", "../../etc/passwd", "x\u{0}", "x\n", ""].map(|id| json!({ "run_id": id }));
    meanwhile(env, || {
        for arguments in verify {
            let answer = exchange(env, call("antigravity_verify", &arguments.to_string()));
            assert!(!is_done(&answer), "{arguments}: {answer}");
        }
        for tool in ["antigravity_verify_status", "antigravity_verify_logs", "antigravity_verify_cancel"] {
            for arguments in &runs {
                let answer = exchange(env, call(tool, &arguments.to_string()));
                assert!(!is_done(&answer), "{tool} {arguments}: {answer}");
            }
        }
    });
    assert_eq!(daemon.get("/v1/runs")["runs"], json!([]), "nothing of that was taken on");
    daemon.end().exits(0);
}
