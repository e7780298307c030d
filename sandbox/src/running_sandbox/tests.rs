//! Tests of the daemon's side of an attempt. Each test plays the helper.

use super::*;

/// Returns an attempt without namespaces whose helper does nothing by itself: the test sends the messages on the
/// other end of the control socket. The helper process also plays PID 1.
fn test_attempt() -> (AttemptState, OwnedFd, OwnedFd) {
    let (ours, theirs) = wire::socket_pair().expect("a pair");
    rustix::io::ioctl_fionbio(&ours, true).expect("set");
    (AttemptState::new(HelperProcess::new(sleeper()).expect("watched"), CleanupOwner::Helper), ours, theirs)
}

#[expect(clippy::disallowed_methods, reason = "a process to be killed")]
fn sleeper() -> std::process::Child {
    // A process left behind by a failing test must not hold an inherited pipe open.
    let null = std::process::Stdio::null;
    std::process::Command::new("sleep").arg("1000").stdout(null()).stderr(null()).spawn().expect("started")
}

fn send_init_message(state: &AttemptState, theirs: &OwnedFd) {
    let pidfd = state.helper.as_ref().expect("there").exit_fd().expect("a descriptor");
    wire::send(theirs.as_fd(), &HelperMessage::Init, &[pidfd.as_fd()]).expect("sent");
}

fn is_end_uncertain(mut state: AttemptState, ours: &OwnedFd, theirs: &OwnedFd) -> bool {
    // A process forked by a concurrent test may hold that end open too.
    rustix::net::shutdown(theirs, Shutdown::Write).expect("shut down");
    let doubted = match state.recv(ours.as_fd()) {
        Ok(EventPoll::Closed) => false,
        Err(error) if error.to_string().contains("may still be running") => true,
        other => panic!("{other:?}"),
    };
    assert!(doubted || state.has_no_processes);
    doubted
}

fn exited_message(code: u8) -> HelperMessage {
    exited_on_view(code, None)
}

fn exited_on_view(code: u8, view: Option<ViewMessageReport>) -> HelperMessage {
    HelperMessage::Exited {
        status: WaitStatus::Code(code),
        limit: None,
        alone: true,
        serves_on: false,
        leaked: None,
        scratch: crate::resource_report::ExhaustedSpace::default(),
        view,
        user_ms: 0,
        system_ms: 0,
        max_rss_kib: 0,
    }
}

/// PID 1 reports the exit of a process that never became the command, and the helper may report the exit of PID
/// 1.
#[test]
fn first_final_message_wins() {
    let fault = StartFault::ProgramMissing;
    let missing = || HelperMessage::NotStarted { fault, message: "no such program".to_owned() };
    for (words, first) in [
        ([missing(), exited_message(1)], SandboxEvent::NotStarted { fault, message: "no such program".to_owned() }),
        ([exited_message(0), missing()], event_from_message(exited_message(0)).expect("a report")),
        ([exited_message(0), exited_message(9)], event_from_message(exited_message(0)).expect("a report")),
    ] {
        let (mut state, ours, theirs) = test_attempt();
        words.iter().for_each(|word| wire::send(theirs.as_fd(), word, &[]).expect("sent"));
        assert_eq!(state.recv(ours.as_fd()).expect("heard"), EventPoll::Event(first));
        assert_eq!(state.recv(ours.as_fd()).expect("heard"), EventPoll::Closed, "the end, and no second word");
        state.abort_attempt(ours.as_fd()).expect("killed");
    }
}

/// Returns the event and the trace of a command that exited with 0 on a view with this report.
fn end_on_view(view: Option<ViewMessageReport>, fds: &[BorrowedFd<'_>], is_killed: bool) -> (SandboxEvent, ViewTrace) {
    let (mut state, ours, theirs) = test_attempt();
    state.wants_view = true;
    wire::send(theirs.as_fd(), &exited_on_view(0, view), fds).expect("sent");
    if is_killed {
        state.is_killed = true;
    }
    let event = match state.recv(ours.as_fd()).expect("received") {
        EventPoll::Event(event) => event,
        other => panic!("{other:?}"),
    };
    state.abort_attempt(ours.as_fd()).expect("killed");
    (event, state.view_trace.take().expect("a trace was requested"))
}

#[test]
fn failed_view_replaces_exit_code() {
    let failed = NoTrace::Failed { message: "gone".to_owned() };
    let (event, trace) = end_on_view(Some(ViewMessageReport::missing(failed.clone())), &[], false);
    let fault = StartFault::Internal;
    assert_eq!(event, SandboxEvent::NotStarted { fault, message: "the view failed: gone".to_owned() });
    assert_eq!(trace, Err(failed.clone()));
    // The daemon itself has killed the server.
    let (event, trace) = end_on_view(Some(ViewMessageReport::missing(failed)), &[], true);
    assert!(matches!(event, SandboxEvent::Exited { .. }) && !trace.expect_err("killed").invalidates_result());
}

#[test]
fn missing_or_damaged_trace_keeps_exit_code() {
    let memory = |bytes: &[u8]| {
        let fd = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).expect("memory");
        rustix::io::write(&fd, bytes).expect("written");
        fd
    };
    let whole = memory(&AccessTrace::default().encode());
    let (event, trace) =
        end_on_view(Some(ViewMessageReport { no_trace: None, withheld: None }), &[whole.as_fd()], false);
    assert!(matches!(event, SandboxEvent::Exited { .. }));
    assert_eq!(trace, Ok(AccessTrace::default()));
    for fds in [&[][..], &[memory(b"damaged").as_fd()]] {
        let (event, trace) = end_on_view(Some(ViewMessageReport { no_trace: None, withheld: None }), fds, false);
        assert!(matches!(event, SandboxEvent::Exited { .. }));
        assert!(matches!(trace, Err(NoTrace::NotDescribable { .. })), "{trace:?}");
    }
    let (_, trace) = end_on_view(None, &[], false);
    assert!(matches!(trace, Err(NoTrace::Unavailable { .. })), "a sandbox without namespaces");
}

/// The helper had not yet sent PID 1's pidfd when the daemon looked, and sent it before it died.
#[test]
fn init_message_during_kill_is_not_an_error() {
    let (mut state, ours, theirs) = test_attempt();
    state.abort_attempt(ours.as_fd()).expect("killed");
    send_init_message(&state, &theirs);
    // This check keeps PID 1 from continuing.
    assert!(crate::helper::is_daemon_gone(theirs.as_fd()).expect("a look"));
    assert!(!is_end_uncertain(state, &ours, &theirs));
}

#[test]
fn second_kill_is_not_an_error() {
    let (mut state, ours, theirs) = test_attempt();
    state.abort_attempt(ours.as_fd()).expect("killed");
    send_init_message(&state, &theirs);
    state.abort_attempt(ours.as_fd()).expect("killed");
    assert!(!is_end_uncertain(state, &ours, &theirs));
}

#[test]
fn helper_death_after_init_message_is_an_error() {
    let (mut state, ours, theirs) = test_attempt();
    send_init_message(&state, &theirs);
    state.abort_attempt(ours.as_fd()).expect("killed");
    assert!(is_end_uncertain(state, &ours, &theirs));
}
