//! Tests the small program `proctor`, which sends a short `exec` to a daemon itself and executes `proctord` for
//! everything else.

use std::ffi::OsStr;
use std::io::{Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::binaries;
use crate::environment::{Repo, TestEnvironment};
use crate::machine;
use crate::needs::{CaseDefinition, case, dry_case};
use crate::process::RunningProcess;
use crate::test_spec::TestSpec;

pub(super) const CASES: &[CaseDefinition] = &[
    case("launcher::prints_a_plain_pass_without_the_main_program", prints_plain_pass_alone),
    case("launcher::accepts_only_complete_and_consistent_passes", accepts_only_whole_passes),
    case("launcher::passes_arguments_on_unchanged", passes_arguments_on),
    dry_case("launcher::reports_a_missing_main_program", reports_missing_main_program),
    dry_case("launcher::handed_over_option_needs_a_command_in_progress", handed_over_option_needs_command),
];

/// Returns the path of a copy of `proctor` in a directory without any other program.
fn lonely_launcher(env: &TestEnvironment) -> PathBuf {
    let dir = env.root().join("lonely");
    std::fs::create_dir_all(&dir).expect("a directory");
    let program = dir.join("proctor");
    // A child process copies it: a descriptor of this process, open for writing, could be inherited by the child of
    // another case, and an executable that is open for writing cannot be executed.
    let mut copy = machine::command("cp");
    copy.arg(binaries::built_program("proctor")).arg(&program);
    RunningProcess::start(copy).wait().exits(0);
    machine::make_dir_public(&dir);
    machine::make_executable(&program);
    program
}

/// Starts `proctor exec --socket SOCKET WORDS` with the given program.
fn start_exec(env: &TestEnvironment, program: &Path, repo: &Repo<'_>, socket: &Path, words: &[&str]) -> RunningProcess {
    let mut command = env.program_command(program.to_str().expect("UTF-8"), repo.path(), &[]);
    command.args(["exec", "--socket"]).arg(socket).args(words);
    RunningProcess::start(command)
}

fn prints_plain_pass_alone(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let daemon = env.start_ready_daemon();
    let program = lonely_launcher(env);
    let exec = |words: &[&str]| env.finish_client(start_exec(env, &program, &repo, &env.socket_path(), words));
    // On a busy machine a command may take longer than the launcher waits; it then fails to hand the command over.
    let run = (0..500).map(|_| exec(&["--", "sh", "-c", "echo out; echo err >&2"])).find(|run| run.code != Some(5));
    let run = run.expect("a command that the launcher prints").exits(0);
    assert_eq!((run.stdout.as_str(), run.stderr.as_str()), ("out\n", "err\n"));
    let others: [&[&str]; 5] = [
        &["--", "false"],
        &["--", "printf", "\\033[1m"],
        &["--", "sh", "-c", "echo x >> README.md"],
        &["--", "no-such-program-anywhere"],
        &["--format", "json", "--", "true"],
    ];
    for words in others {
        let run = exec(words).exits(5);
        assert!(run.stdout.is_empty() && run.stderr.contains("error[P0002]: the program `proctord` is in"), "{run}");
    }
    daemon.stop().exits(0);
}

/// Answers a health check, and then a command with these bytes.
fn answer_exec(listener: &UnixListener, answer: &[u8]) {
    let (mut stream, _) = listener.accept().expect("a connection");
    read_head(&mut stream);
    let health = json!({
        "status": "ok", "version": env!("CARGO_PKG_VERSION"), "pid": 1, "uid": 0, "uptime_ms": 1,
        "runs": { "queued": 0, "running": 0 },
    });
    let health = health.to_string();
    write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{health}", health.len()).expect("sent");
    read_head(&mut stream);
    // The client may have the whole answer before it was sent to the end.
    let _ = stream.write_all(answer);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let _ = stream.read_to_end(&mut Vec::new());
}

fn read_head(stream: &mut UnixStream) {
    let mut read = Vec::new();
    let mut byte = [0];
    while !read.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).expect("a request");
        read.push(byte[0]);
    }
}

fn response(lines: &[Value]) -> Vec<u8> {
    let body: String = lines.iter().map(|line| format!("{line}\n")).collect();
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

fn accepts_only_whole_passes(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let run = repo.proctor(&["exec", "--format", "json", "--", "true"]).exits(0);
    let record: Value = serde_json::from_str(&run.stdout).expect("a record");
    let finished = |change: &dyn Fn(&mut Value)| {
        let mut record = record.clone();
        change(&mut record);
        vec![json!({ "event": "started", "id": "0".repeat(32) }), json!({ "event": "finished", "record": record })]
    };
    let whole = response(&finished(&|_| {}));
    let output = json!({ "event": "output", "stream": "stdout", "text": "x\n" });
    let answers: Vec<(Vec<u8>, bool)> = vec![
        (whole.clone(), true),
        (whole[..whole.len() - 2].to_vec(), false),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_vec(), false),
        (Vec::new(), false),
        (response(&[output]), false),
        (response(&finished(&|record| record["exit_code"] = 1.into())), false),
        (response(&finished(&|record| record["verdict"] = "failed".into())), false),
        (response(&finished(&|record| record["step"]["outcome"] = "failed".into())), false),
        (response(&finished(&|record| record["step"]["outcome"] = "skipped".into())), false),
        (response(&[json!({ "event": "finished", "record": {} })]), false),
        (b"HTTP/1.1 204 No Content\r\n\r\n".to_vec(), false),
    ];
    let socket = env.root().join("fake.sock");
    let listener = UnixListener::bind(&socket).expect("a socket");
    machine::make_file_public(&socket);
    let program = binaries::public_program("proctor");
    for (answer, is_pass) in answers {
        let running = start_exec(env, &program, &repo, &socket, &["--", "true"]);
        answer_exec(&listener, &answer);
        let run = env.finish(running);
        assert_eq!(run.code == Some(0), is_pass, "{}: {run}", String::from_utf8_lossy(&answer));
    }
}

fn passes_arguments_on(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let run = repo.proctor(&["exec", "--no-spec", "--", "printf", "%s|", "", "a b", "--", "--repo", "é"]).exits(0);
    assert_eq!(run.stdout, "|a b|--|--repo|é|");
    let mut command = env.program_command("proctor", repo.path(), &[]);
    command.args(["exec", "--", "printf"]).arg(OsStr::from_bytes(b"\xff"));
    let run = env.finish(RunningProcess::start(command)).exits(2);
    assert!(run.stderr.contains("UTF-8"), "{run}");
    let mut command = env.program_command("proctor", repo.path(), &[]);
    std::os::unix::process::CommandExt::arg0(&mut command, "another-name");
    command.arg("--version");
    assert!(env.finish(RunningProcess::start(command)).exits(0).stdout.starts_with("proctor "));
}

fn reports_missing_main_program(env: &TestEnvironment) {
    let program = lonely_launcher(env);
    let mut command = machine::command(&program);
    command.arg("--version").current_dir(env.root());
    let run = RunningProcess::start(command).wait().exits(5);
    assert!(run.stderr.contains("`proctord` is in neither") && run.stderr.contains("hint: "), "{run}");
}

fn handed_over_option_needs_command(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    for value in ["7,8", "1,2", "x", "", "3,3"] {
        let run = repo.proctor(&["exec", &format!("--handed-over={value}"), "--", "true"]).exits(2);
        assert!(run.stdout.is_empty() && run.stderr.contains("error[P0001]"), "{run}");
    }
}
