//! Runs the agent program over input roots, in the environments of different workers. If this machine lacks a
//! requirement of an environment, its tests are ignored, and their names say why.

mod agent_worker;

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::ExitCode;

use agent_worker::{Action, Environment, REPO, WORK_DIRECTORY, change, command, file, request, shell};
use libtest_mimic::{Arguments, Failed, Trial};
use proctor_core::model::enforcement::{Control, ControlState, Tolerated};
use proctor_core::model::outcome::StartFault;
use proctor_core::model::plan::{Network, RelPath};
use proctor_core::text::digest::Sha256Hex;
use proctor_sandbox::WaitStatus;
use proctor_sandbox::agent::{
    AgentAttempt, AgentNeededPath, AgentRequest, InputLink, LAYERS_CONTENT_FILE, LayerChangeKind,
    NEEDED_PATHS_DIRECTORY, REPORT_FILE, REQUEST_FILE,
};

type Check = fn(&Action) -> Result<(), Failed>;

/// Lists checks with their names.
macro_rules! checks {
    ($($check:ident;)*) => { [$((stringify!($check), $check as Check)),*] };
}

fn main() -> ExitCode {
    let checks = checks![
        reports_passing_step;
        reports_how_step_ended;
        ends_step_at_timeout;
        lists_changes_of_step;
        leaves_caches_out_of_changes;
        bounds_content_of_changes;
        bounds_output;
        never_writes_inputs;
        failing_check_prevents_step;
        checks_run_over_an_empty_tree;
        shows_needed_paths_to_checks_and_step;
        applies_earlier_layers;
        refuses_layers_with_wrong_content;
        denies_network;
        allows_network_of_worker;
        git_directory_is_read_only;
        hides_inputs_from_step;
        reports_program_that_does_not_exist;
        signal_cancels_step;
        refuses_bad_requests;
        records_user_without_capabilities;
        claims_only_enforced_process_limits;
        works_outside_of_the_input_root;
        no_command_starts_without_required_controls;
    ];
    let mut trials = Vec::new();
    for environment in Environment::ALL {
        let reason = environment.skip_reason();
        for (name, check) in checks {
            let name = format!("{}::{name}", environment.name());
            trials.push(match &reason {
                Some(reason) => Trial::test(format!("{name} ({reason})"), || Ok(())).with_ignored_flag(true),
                None => Trial::test(name, move || check(&Action::new(environment)?)),
            });
        }
    }
    let (environment, name) = (Environment::NoLandlock, "no_landlock::command_cannot_write_the_report");
    trials.push(match environment.skip_reason() {
        Some(reason) => Trial::test(format!("{name} ({reason})"), || Ok(())).with_ignored_flag(true),
        None => Trial::test(name, move || command_cannot_write_report(&Action::new(environment)?)),
    });
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn attempt(outputs: &agent_worker::Outputs) -> Result<&AgentAttempt, Failed> {
    outputs.report.attempt.as_ref().ok_or_else(|| format!("the step did not run: {outputs:?}").into())
}

fn status(outputs: &agent_worker::Outputs) -> Result<Option<WaitStatus>, Failed> {
    Ok(attempt(outputs)?.status)
}

/// Returns the changes by path, with the content of files.
fn changes(outputs: &agent_worker::Outputs) -> BTreeMap<String, (LayerChangeKind, String)> {
    let content = |kind: &LayerChangeKind| match kind {
        LayerChangeKind::File { offset, bytes, sha256, .. } => {
            let range = usize::try_from(*offset).expect("a position")..usize::try_from(offset + bytes).expect("an end");
            let content = &outputs.content[range];
            assert_eq!(Sha256Hex::digest(content), *sha256);
            String::from_utf8_lossy(content).into_owned()
        }
        _ => String::new(),
    };
    let named = outputs.report.changes.iter().map(|change| {
        (String::from_utf8_lossy(&change.path).into_owned(), (change.kind.clone(), content(&change.kind)))
    });
    named.collect()
}

fn reports_passing_step(action: &Action) -> Result<(), Failed> {
    let repo = format!("{REPO}-{}-{}", std::process::id(), action.environment.name());
    let script = "pwd; env | grep -v -e ^PWD= -e ^_= -e ^SHLVL= -e ^OLDPWD= | sort; cat tracked.txt >&2";
    let ran = action.run(&AgentRequest { repo: repo.clone().into(), ..request(shell("step", script)) })?;
    let report = &ran.report;
    assert_eq!(status(&ran)?, Some(WaitStatus::Code(0)), "{ran:?}");
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(Path::new(lines[0]), report.repo);
    assert!(lines[1].starts_with("HOME=/") && lines[2..] == ["PATH=/usr/bin:/bin"], "{lines:?}");
    assert_eq!((ran.stderr.as_str(), report.nonce.as_str()), ("as it was\n", "a nonce"));
    assert_eq!((report.changes.len(), &report.changes_error, ran.content.len()), (0, &None, 0));
    assert!(report.stdout.complete && report.stdout.bytes == ran.stdout.len() as u64);
    let attempt = attempt(&ran)?;
    assert!(attempt.started && attempt.processes_ended && !attempt.timed_out && !attempt.cancelled, "{attempt:?}");
    assert!(report.worker.processors > 0 && !report.worker.kernel.is_empty());
    let program = &report.worker.programs[0];
    assert!(program.name == "sh" && program.path.is_some() && program.sha256.is_some(), "{program:?}");
    // Root can create the path of the repository.
    if matches!(action.environment, Environment::Root | Environment::BubblewrapUser) {
        assert_eq!(report.repo, Path::new(&repo), "{attempt:?}");
    }
    assert!(!Path::new(&repo).exists(), "the mount point is removed");
    Ok(())
}

fn reports_how_step_ended(action: &Action) -> Result<(), Failed> {
    assert_eq!(status(&action.run_shell("exit 7")?)?, Some(WaitStatus::Code(7)));
    // A second agent replaces the outputs of the first.
    let ran = action.run_shell("echo text; kill -SEGV $$")?;
    assert_eq!((status(&ran)?, ran.stdout.as_str()), (Some(WaitStatus::Signal(11)), "text\n"));
    Ok(())
}

fn ends_step_at_timeout(action: &Action) -> Result<(), Failed> {
    let mut step = shell("step", "trap '' TERM; echo started; while :; do sleep 1000; done");
    (step.timeout_ms, step.grace_ms) = (200, 100);
    let ran = action.run(&request(step))?;
    let attempt = attempt(&ran)?;
    assert!(attempt.timed_out && attempt.processes_ended && !attempt.cancelled, "{attempt:?}");
    assert_eq!(ran.stdout, "started\n");
    assert!(attempt.duration_ms >= 300, "{attempt:?}");
    Ok(())
}

fn lists_changes_of_step(action: &Action) -> Result<(), Failed> {
    let ran = action.run_shell(
        "echo new > new.txt; chmod 755 new.txt; echo more >> tracked.txt; rm src/lib.rs; \
         rm -r old; mkdir old; echo x > old/new; ln -s /etc/passwd link; mkfifo fifo",
    )?;
    let changes = changes(&ran);
    let file = |name: &str| match changes.get(name) {
        Some((LayerChangeKind::File { mode, .. }, content)) => (*mode, content.as_str()),
        other => panic!("{name}: {other:?}"),
    };
    assert_eq!((file("new.txt"), file("tracked.txt")), ((0o755, "new\n"), (0o644, "as it was\nmore\n")));
    assert_eq!(file("old/new"), (0o644, "x\n"));
    assert_eq!(changes["src/lib.rs"].0, LayerChangeKind::Deleted);
    assert_eq!(changes["link"].0, LayerChangeKind::Symlink { target: b"/etc/passwd".to_vec() });
    assert!(matches!(changes["fifo"].0, LayerChangeKind::Special { .. }));
    let is_replaced = matches!(changes["old"].0, LayerChangeKind::Directory { opaque: true, .. })
        || changes.get("old/file").is_some_and(|(kind, _)| *kind == LayerChangeKind::Deleted);
    assert!(is_replaced, "{changes:?}");
    assert_eq!(ran.report.changes_error, None);
    Ok(())
}

fn leaves_caches_out_of_changes(action: &Action) -> Result<(), Failed> {
    action.write_input("tree/target/file", "of the tree")?;
    let caches = vec![RelPath::new("target")?, RelPath::new("deep/er/cache")?];
    let step =
        shell("step", "ls -A target deep/er/cache && echo x > target/x && echo y > deep/er/cache/y && cat target/x");
    let ran = action.run(&AgentRequest { caches, ..request(step) })?;
    assert_eq!(ran.stdout, "deep/er/cache:\n\ntarget:\nx\n", "{ran:?}");
    let changed = changes(&ran);
    assert!(!changed.keys().any(|path| path.ends_with("/x") || path.ends_with("/y")), "{changed:?}");
    assert!(ran.content.is_empty());
    Ok(())
}

fn bounds_content_of_changes(action: &Action) -> Result<(), Failed> {
    let step = shell("step", "head -c 3000 /dev/zero > a; head -c 3000 /dev/zero > b");
    let ran = action.run(&AgentRequest { max_changes_bytes: 5000, ..request(step) })?;
    assert_eq!(status(&ran)?, Some(WaitStatus::Code(0)));
    let error = ran.report.changes_error.as_deref().unwrap_or_default();
    assert!(error.contains("more than 5000 bytes"), "{error}");
    assert!(ran.report.changes.is_empty() && ran.content.is_empty());
    Ok(())
}

fn bounds_output(action: &Action) -> Result<(), Failed> {
    let mut step = shell("step", "i=0; while [ $i -lt 1000 ]; do echo 123456789; i=$((i+1)); done; echo end");
    step.max_output_bytes = 1000;
    let ran = action.run(&request(step))?;
    let all = "123456789\n".repeat(1000) + "end\n";
    let stream = &ran.report.stdout;
    assert_eq!((stream.bytes, stream.head_bytes), (all.len() as u64, 500));
    assert_eq!(stream.sha256, Some(Sha256Hex::digest(all.as_bytes())));
    assert_eq!(ran.stdout, format!("{}{}", &all[..500], &all[all.len() - 500..]));
    Ok(())
}

fn never_writes_inputs(action: &Action) -> Result<(), Failed> {
    // The worker's store has a hard link to the input.
    let stored = action.outside().join("stored");
    fs::hard_link(action.root.join("tree/tracked.txt"), &stored)?;
    let ran = action.run_shell("echo overwritten > tracked.txt; chmod 777 tracked.txt; truncate -s 0 src/lib.rs")?;
    assert_eq!(changes(&ran)["tracked.txt"].1, "overwritten\n");
    assert_eq!(fs::read_to_string(&stored)?, "as it was\n");
    assert_eq!(fs::read_to_string(action.root.join("tree/src/lib.rs"))?, "// nothing\n");
    Ok(())
}

fn failing_check_prevents_step(action: &Action) -> Result<(), Failed> {
    let checks = vec![shell("first", "echo version 1; echo warning >&2; exit 3"), shell("second", "echo 2")];
    let ran = action.run(&AgentRequest { checks, ..request(shell("step", "echo ran")) })?;
    assert_eq!(ran.report.attempt, None);
    let [first, second] = ran.report.checks.as_slice() else { return Err(format!("{ran:?}").into()) };
    assert_eq!(
        (first.name.as_str(), first.stdout.as_str(), first.stderr.as_str()),
        ("first", "version 1\n", "warning\n")
    );
    assert_eq!(first.attempt.status, Some(WaitStatus::Code(3)));
    assert_eq!((second.stdout.as_str(), second.attempt.status), ("2\n", Some(WaitStatus::Code(0))));
    assert_eq!((ran.stdout.as_str(), ran.report.stdout.bytes), ("", 0));
    Ok(())
}

fn checks_run_over_an_empty_tree(action: &Action) -> Result<(), Failed> {
    let checks = vec![shell("check", "ls -A; head -c 100000 /dev/zero | tr '\\0' x; echo x > written")];
    let ran = action.run(&AgentRequest { checks, ..request(shell("step", "ls")) })?;
    let check = &ran.report.checks[0];
    assert_eq!(check.stdout, "x".repeat(16 << 10), "{:?}", check.attempt);
    assert_eq!(ran.stdout, "old\nsrc\ntracked.txt\n", "the writes of a check are discarded");
    Ok(())
}

fn shows_needed_paths_to_checks_and_step(action: &Action) -> Result<(), Failed> {
    let input = |number: usize, name: &str, text: &str| {
        action.write_input(&format!("{NEEDED_PATHS_DIRECTORY}/{number}/{name}"), text)
    };
    let link = |path: &str, target: &str| InputLink { path: path.into(), target: target.into() };
    input(0, "content/bin/tool", "#!/bin/sh\necho tool\n")?;
    let tool = action.root.join(NEEDED_PATHS_DIRECTORY).join("0/content/bin/tool");
    fs::set_permissions(&tool, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    fs::create_dir_all(action.root.join(NEEDED_PATHS_DIRECTORY).join("0/content/empty"))?;
    let links = [link("bin/sh", "/bin/sh"), link("source", "../../src"), link("dangling", "absent")];
    input(0, "links.json", &serde_json::to_string(&links)?)?;
    input(1, "content/version", "2\n")?;
    input(1, "links.json", "[]")?;
    let needed = |path: &str, is_for_checks_only| AgentNeededPath {
        at: RelPath::new(path).expect("a path"),
        is_for_checks_only,
    };
    let list = "find . -mindepth 1 -not -path './old*' -not -path './src*' | sort | tr '\\n' ' '";
    let step = format!(
        "{list}; web/deps/bin/sh web/deps/bin/tool; cat web/deps/source/lib.rs; \
        rm web/deps/bin/tool; echo new > web/deps/empty/file"
    );
    let ran = action.run(&AgentRequest {
        checks: vec![shell("check", &format!("web/deps/bin/tool; cat other/version; {list}; rm -r web/deps/*"))],
        needed_paths: vec![needed("web/deps", false), needed("other", true)],
        ..request(shell("step", &step))
    })?;
    let below = "./web ./web/deps ./web/deps/bin ./web/deps/bin/sh ./web/deps/bin/tool ./web/deps/dangling \
        ./web/deps/empty ./web/deps/source ";
    assert_eq!(ran.report.checks[0].stdout, format!("tool\n2\n./other ./other/version {below}"), "{ran:?}");
    assert_eq!(ran.stdout, format!("./tracked.txt {below}tool\n// nothing\n"), "{ran:?}");
    let changed = changes(&ran);
    assert_eq!(changed["web/deps/bin/tool"].0, LayerChangeKind::Deleted);
    assert_eq!(changed["web/deps/empty/file"].1, "new\n");
    assert!(fs::read_to_string(&tool)?.contains("echo tool"), "the input is not changed");
    Ok(())
}

fn applies_earlier_layers(action: &Action) -> Result<(), Failed> {
    action.write_input(LAYERS_CONTENT_FILE, "first\nsecond\n")?;
    let directory = |opaque| LayerChangeKind::Directory { mode: 0o755, opaque };
    let layers = vec![
        vec![
            change("made", directory(false)),
            file("made/a", b"first\n", 0),
            change("src/lib.rs", LayerChangeKind::Deleted),
        ],
        vec![change("old", directory(true)), file("old/b", b"second\n", 6), change("made/a", LayerChangeKind::Deleted)],
    ];
    let step = shell("step", "find . -mindepth 1 | sort; cat old/b; echo third >> old/b");
    let ran = action.run(&AgentRequest { layers, ..request(step) })?;
    assert_eq!(ran.stdout, "./made\n./old\n./old/b\n./src\n./tracked.txt\nsecond\n", "{ran:?}");
    let changed = changes(&ran);
    assert_eq!(changed["old/b"].1, "second\nthird\n");
    assert!(!changed.contains_key("made"), "the list contains only the step's own changes: {changed:?}");
    Ok(())
}

fn refuses_layers_with_wrong_content(action: &Action) -> Result<(), Failed> {
    action.write_input(LAYERS_CONTENT_FILE, "changed")?;
    let layers = vec![vec![file("a", b"content", 0)]];
    action.write_request(&AgentRequest { layers, ..request(shell("step", "true")) })?;
    let output = action.start()?;
    assert_eq!(output.status.code(), Some(70));
    assert!(String::from_utf8_lossy(&output.stderr).contains("digest"), "{output:?}");
    assert!(!action.root.join(REPORT_FILE).exists());
    Ok(())
}

/// Returns a script that connects to this listener.
fn connect_script(listener: &TcpListener) -> Result<String, Failed> {
    Ok(format!("exec 3<>/dev/tcp/127.0.0.1/{} && echo connected", listener.local_addr()?.port()))
}

fn denies_network(action: &Action) -> Result<(), Failed> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let ran = action.run(&request(command("step", &["bash", "-c", &connect_script(&listener)?])))?;
    assert!(status(&ran)? != Some(WaitStatus::Code(0)) && ran.stdout.is_empty(), "{ran:?}");
    listener.set_nonblocking(true)?;
    assert!(listener.accept().is_err(), "the step has connected");
    let enforcement = &attempt(&ran)?.enforcement;
    match enforcement.0.get(&Control::NetworkNamespace) {
        Some(ControlState::Enforced { .. }) => {}
        Some(ControlState::NotEnforced { reason, .. }) => {
            assert!(reason.contains("seccomp refuses internet sockets"), "{reason}");
            assert!(enforcement.is_enforced(Control::SyscallFilter), "{enforcement:?}");
        }
        other => return Err(format!("{other:?}").into()),
    }
    Ok(())
}

fn allows_network_of_worker(action: &Action) -> Result<(), Failed> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut step = command("step", &["bash", "-c", &connect_script(&listener)?]);
    step.network = Network::Allow;
    let ran = action.run(&request(step))?;
    let state = attempt(&ran)?.enforcement.0.get(&Control::NetworkNamespace);
    assert!(matches!(state, Some(ControlState::NotRequested { .. })), "{state:?}");
    // Bubblewrap denies the network to all actions of its worker.
    let is_denied = matches!(action.environment, Environment::BubblewrapRoot | Environment::BubblewrapUser);
    assert_eq!(ran.stdout, if is_denied { "" } else { "connected\n" }, "{ran:?}");
    Ok(())
}

fn git_directory_is_read_only(action: &Action) -> Result<(), Failed> {
    let ran = action.run_with_git("cat .git/HEAD; echo x > .git/HEAD; echo x > .git/new; cat .git/HEAD")?;
    assert_eq!(ran.stdout, "ref: refs/heads/main\nref: refs/heads/main\n", "{ran:?}");
    assert_eq!(fs::read_to_string(action.root.join("git/HEAD"))?, "ref: refs/heads/main\n");
    assert!(changes(&ran).is_empty(), "{ran:?}");
    Ok(())
}

fn hides_inputs_from_step(action: &Action) -> Result<(), Failed> {
    action.write_input(LAYERS_CONTENT_FILE, "content")?;
    let root = match action.environment {
        Environment::BubblewrapRoot | Environment::BubblewrapUser => String::new(),
        _ => action.root.display().to_string(),
    };
    let script = format!("cat {root}/{REQUEST_FILE} {root}/{LAYERS_CONTENT_FILE} {root}/tree/tracked.txt; env; true");
    let ran = action.run_shell(&script)?;
    let shown = ["nonce", "content", "as it was", "do not leak"].map(|text| ran.stdout.contains(text));
    assert_eq!(shown, [false; 4], "{ran:?}");
    Ok(())
}

fn reports_program_that_does_not_exist(action: &Action) -> Result<(), Failed> {
    let ran = action.run(&request(command("step", &["no-such-program"])))?;
    let attempt = attempt(&ran)?;
    let fault = attempt.not_started.as_ref().map(|(fault, _)| *fault);
    assert_eq!(
        (fault, attempt.started, attempt.status),
        (Some(StartFault::ProgramMissing), false, None),
        "{attempt:?}"
    );
    assert!(attempt.processes_ended && !attempt.timed_out);
    assert_eq!(ran.report.worker.programs[0].path, None);
    Ok(())
}

fn signal_cancels_step(action: &Action) -> Result<(), Failed> {
    let marker = format!("1000.{}", std::process::id());
    action.write_request(&request(shell("step", &format!("echo text; sleep {marker}{}", action.environment as u8))))?;
    let agent = action.spawn()?;
    action.wait_for_process(&format!("sleep\0{marker}{}", action.environment as u8))?;
    rustix::process::kill_process(action.agent_process()?, rustix::process::Signal::TERM)?;
    let ran = action.outputs(&agent.wait_with_output()?)?;
    let attempt = attempt(&ran)?;
    assert!(attempt.cancelled && attempt.processes_ended && !attempt.timed_out, "{attempt:?}");
    assert_eq!(ran.stdout, "text\n");
    Ok(())
}

fn refuses_bad_requests(action: &Action) -> Result<(), Failed> {
    for text in ["{", "{\"version\": 1}", "{\"version\": 999}"] {
        action.write_input(REQUEST_FILE, text)?;
        let output = action.start()?;
        assert_eq!(output.status.code(), Some(65), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("the request is not valid"), "{output:?}");
        assert!(!action.root.join(REPORT_FILE).exists());
    }
    Ok(())
}

fn records_user_without_capabilities(action: &Action) -> Result<(), Failed> {
    let ran = action.run_shell("id -u; grep -E 'Cap(Prm|Eff|Bnd)' /proc/self/status")?;
    let (id, capabilities) = ran.stdout.split_once('\n').ok_or_else(|| format!("{ran:?}"))?;
    assert_eq!(capabilities.matches("0000000000000000").count(), 3, "{capabilities}");
    assert_eq!(id == "0", action.environment == Environment::BubblewrapRoot, "{ran:?}");
    if let Some(ControlState::NotEnforced { reason, .. }) = attempt(&ran)?.enforcement.0.get(&Control::UserNamespace) {
        let is_user_0 = action.environment == Environment::BubblewrapRoot;
        assert_eq!(reason.contains("who has no capabilities either"), is_user_0, "{reason}");
    }
    Ok(())
}

fn claims_only_enforced_process_limits(action: &Action) -> Result<(), Failed> {
    let ran = action.run_shell("i=0; while [ $i -lt 100 ]; do sleep 1000 & i=$((i+1)); done; echo all")?;
    let enforcement = &attempt(&ran)?.enforcement;
    assert!(attempt(&ran)?.processes_ended);
    if enforcement.is_enforced(Control::PidsLimit) {
        assert_eq!(ran.stdout, "", "{enforcement:?}");
    } else {
        let reason = enforcement.missing().find(|(control, _)| *control == Control::PidsLimit);
        assert!(reason.is_some_and(|(_, reason)| reason.contains("RLIMIT_NPROC")), "{enforcement:?}");
    }
    Ok(())
}

fn works_outside_of_the_input_root(action: &Action) -> Result<(), Failed> {
    // The agent cannot create its own directory.
    action.write_input(&format!("{WORK_DIRECTORY}/kept"), "kept")?;
    let ran = action.run_with_git("cat tracked.txt .git/HEAD; echo x > new")?;
    assert_eq!(ran.stdout, "as it was\nref: refs/heads/main\n", "{ran:?}");
    assert_eq!(changes(&ran)["new"].1, "x\n");
    assert_eq!(fs::read_to_string(action.root.join(WORK_DIRECTORY).join("kept"))?, "kept");
    Ok(())
}

/// Returns the missing controls that must not be missing.
fn missing_controls(outputs: &agent_worker::Outputs, tolerated: &Tolerated) -> Result<Vec<Control>, Failed> {
    let missing = attempt(outputs)?.enforcement.missing().map(|(control, _)| control);
    Ok(missing.filter(|control| !tolerated.contains(*control)).collect())
}

fn no_command_starts_without_required_controls(action: &Action) -> Result<(), Failed> {
    let (tolerated, all) = (Tolerated::default(), action.run_shell("true")?);
    let missing = missing_controls(&all, &tolerated)?;
    let ran = action.run(&AgentRequest { tolerated: tolerated.clone(), ..request(shell("step", "echo ran")) })?;
    if missing.is_empty() {
        assert_eq!(ran.stdout, "ran\n", "{ran:?}");
        return Ok(());
    }
    assert!(matches!(attempt(&ran)?.not_started, Some((StartFault::Sandbox, _))), "{ran:?}");
    assert_eq!((ran.stdout.as_str(), attempt(&ran)?.started), ("", false));
    assert_eq!(missing_controls(&ran, &tolerated)?, missing, "all of them, not only the first one");
    let may_miss = tolerated.controls().chain(missing).collect();
    let ran = action.run(&AgentRequest { tolerated: may_miss, ..request(shell("step", "echo ran")) })?;
    assert_eq!(ran.stdout, "ran\n", "{ran:?}");
    Ok(())
}

/// Without a mount namespace and Landlock, a command could write the outputs of the action, and make the agent fail.
fn command_cannot_write_report(action: &Action) -> Result<(), Failed> {
    let forge = "echo forged | tee /report.json /report.json.partial /stdout";
    for checks in [vec![], vec![shell("check", forge)]] {
        let ran = action.run(&AgentRequest { checks, ..request(shell("step", forge)) })?;
        let checks = ran.report.checks.iter().map(|check| &check.attempt);
        let first = checks.chain(&ran.report.attempt).next().ok_or("no attempt")?;
        let Some((StartFault::Sandbox, reason)) = &first.not_started else { return Err(format!("{ran:?}").into()) };
        assert!(reason.contains("Landlock"), "{reason}");
    }
    Ok(())
}
