//! Tests executions on a server that breaks the rules.

use super::*;

const RESPONSE: &str = "type.googleapis.com/build.bazel.remote.execution.v2.ExecuteResponse";

pub(super) fn in_stage(stage: i32) -> Operation {
    let metadata = ExecuteOperationMetadata { stage }.encode_to_vec();
    let metadata = Some(Any { type_url: STAGE.to_owned(), value: metadata });
    Operation { name: "operations/1".to_owned(), metadata, ..Operation::default() }
}

pub(super) fn completed(response: &ExecuteResponse) -> Operation {
    let response = Some(Any { type_url: RESPONSE.to_owned(), value: response.encode_to_vec() });
    Operation { done: true, response, ..in_stage(4) }
}

pub(super) fn exited(exit_code: i32) -> ExecuteResponse {
    ExecuteResponse {
        result: Some(ActionResult { exit_code, ..ActionResult::default() }),
        ..ExecuteResponse::default()
    }
}

pub(super) fn execution(queue: Duration, run: Duration) -> ExecutionRequest {
    let limits = ExecutionLimits { queue, run };
    ExecutionRequest { action: BlobDigest::for_bytes(b"action"), skip_cache: false, limits }
}

pub(super) const LONG: Duration = Duration::from_secs(60);

#[test]
fn broken_execution_is_followed_further() {
    block_on(async {
        let server = server(|method, _| match method {
            "Execute" => Reply::broken(&[in_stage(2), in_stage(3)]),
            _ => Reply::messages(&[completed(&exited(7))]),
        })
        .await;
        let response = client(&server).execute(&execution(LONG, LONG), pending()).await.expect("a response");
        assert_eq!(response.result.expect("a result").exit_code, 7);
        assert_eq!((server.count("Execute"), server.count("WaitExecution")), (1, 1));
    });
}

#[test]
fn lost_execution_is_started_again() {
    block_on(async {
        let lost = Mutex::new(false);
        let server = server(move |method, _| match method {
            "WaitExecution" => Reply::Status(Code::NotFound, "no such operation".to_owned()),
            _ if !std::mem::replace(&mut *lost.lock().expect("no panic"), true) => Reply::broken(&[in_stage(3)]),
            _ => Reply::messages(&[completed(&exited(0))]),
        })
        .await;
        client(&server).execute(&execution(LONG, LONG), pending()).await.expect("a response");
        assert_eq!((server.count("Execute"), server.count("WaitExecution")), (2, 1));
    });
}

#[test]
fn failure_of_the_server_is_not_an_exit_code() {
    let internal = || Some(RpcStatus { code: 13, message: "the worker failed".to_owned() });
    let with_status = completed(&ExecuteResponse { status: internal(), ..exited(0) });
    let as_error = Operation { done: true, error: internal(), ..in_stage(4) };
    let nothing = completed(&ExecuteResponse::default());
    for (operation, expected) in
        [(with_status, "the worker failed"), (as_error, "the worker failed"), (nothing, "no result")]
    {
        block_on(async {
            let server = server(move |_, _| Reply::messages(std::slice::from_ref(&operation))).await;
            let error = client(&server).execute(&execution(LONG, LONG), pending()).await.expect_err("a failure");
            assert!(error.to_string().contains(expected), "{error}");
        });
    }
}

#[test]
fn queue_and_run_have_their_own_deadlines() {
    for (stage, queue, run, expected) in [(2, SHORT, LONG, "the wait for a worker"), (3, LONG, SHORT, "the action")] {
        block_on(async {
            let server = server(move |method, _| match method {
                "CancelOperation" => Reply::message(&proctor_remote::messages::Empty {}),
                _ => Reply::stalled(&[in_stage(stage)]),
            })
            .await;
            let error = client(&server).execute(&execution(queue, run), pending()).await.expect_err("too late");
            assert!(matches!(error, RemoteError::Deadline { .. }) && error.to_string().contains(expected), "{error}");
            assert_eq!(server.count("CancelOperation"), 1);
        });
    }
}

/// An operation that has ended with an error keeps this error.
#[test]
fn does_not_resume_ended_operation() {
    let failed = |code: Code| {
        let error = Some(RpcStatus { code: code as i32, message: "the worker failed".to_owned() });
        Operation { done: true, error, ..in_stage(4) }
    };
    for (code, executions) in
        [(Code::Unavailable, QUICK.max_attempts), (Code::DeadlineExceeded, 1), (Code::NotFound, 1), (Code::Internal, 1)]
    {
        block_on(async {
            let operation = failed(code);
            let server = server(move |_, _| Reply::messages(&[in_stage(3), operation.clone()])).await;
            let error = client(&server).execute(&execution(LONG, LONG), pending()).await.expect_err("a failure");
            assert!(error.to_string().contains("the worker failed"), "{error}");
            let executions = usize::try_from(executions).expect("a small number");
            assert_eq!((server.count("Execute"), server.count("WaitExecution")), (executions, 0), "{code:?}");
        });
    }
}

/// Some servers refuse an action while no worker is connected, or while their scheduler restarts.
#[test]
fn retries_busy_server() {
    let busy = || Reply::Status(Code::Unavailable, "no workers exist".to_owned());
    for accepted in [false, true] {
        block_on(async {
            let calls = Mutex::new(0);
            let server = server(move |method, _| {
                let mut calls = calls.lock().expect("no panic");
                *calls += 1;
                match (*calls, method) {
                    (1, _) if accepted => Reply::broken(&[in_stage(3)]),
                    (1..=8, _) => busy(),
                    _ => Reply::messages(&[completed(&exited(7))]),
                }
            })
            .await;
            let retry = RetryPolicy { max_busy: LONG, ..QUICK };
            let client = Client::new(ClientConfig { retry, ..config(&server) }).expect("a client");
            let response = client.execute(&execution(LONG, LONG), pending()).await.expect("a response");
            assert_eq!(response.result.expect("a result").exit_code, 7);
            let waited = if accepted { (1, 8) } else { (9, 0) };
            assert_eq!((server.count("Execute"), server.count("WaitExecution")), waited);
        });
    }
}

/// A server without a worker for one action can have workers for others.
#[test]
fn server_that_stays_busy_gets_further_requests() {
    block_on(async {
        let server = server(|method, _| match method {
            "Execute" => Reply::Status(Code::Unavailable, "no workers exist".to_owned()),
            _ => Reply::message(&ActionResult::default()),
        })
        .await;
        let client = client(&server);
        for _ in 0..3 {
            let error = client.execute(&execution(LONG, LONG), pending()).await.expect_err("busy");
            assert!(error.to_string().contains("no workers exist"), "{error}");
        }
        client.action_result(&BlobDigest::for_bytes(b"a"), &[]).await.expect("an answer");
    });
}

#[test]
fn action_that_waits_for_a_worker_again_has_the_deadline_of_the_queue() {
    block_on(async {
        let server = server(|method, _| match method {
            "CancelOperation" => Reply::message(&proctor_remote::messages::Empty {}),
            _ => Reply::stalled(&[in_stage(3), in_stage(2)]),
        })
        .await;
        let error = client(&server).execute(&execution(SHORT, LONG), pending()).await.expect_err("too late");
        assert!(error.to_string().contains("the wait for a worker"), "{error}");
    });
}

#[test]
fn action_that_waits_again_and_again_has_a_deadline() {
    block_on(async {
        let server = server(|method, _| match method {
            "CancelOperation" => Reply::message(&proctor_remote::messages::Empty {}),
            _ => Reply::stalled(&vec![[in_stage(3), in_stage(2)]; 100].concat()),
        })
        .await;
        let error = client(&server).execute(&execution(LONG, SHORT), pending()).await.expect_err("too late");
        assert!(error.to_string().contains("the action"), "{error}");
    });
}

#[test]
fn cancelled_execution_is_cancelled_on_the_server() {
    block_on(async {
        let waited = Arc::new(tokio::sync::Notify::new());
        let notify = Arc::clone(&waited);
        let server = server(move |method, _| match method {
            "Execute" => Reply::broken(&[in_stage(3)]),
            "WaitExecution" => {
                notify.notify_one();
                Reply::Stall
            }
            _ => Reply::Status(Code::Unimplemented, String::new()),
        })
        .await;
        // The client has the name of the operation when it asks for it again.
        let cancelled = waited.notified();
        let error = client(&server).execute(&execution(LONG, LONG), cancelled).await.expect_err("cancelled");
        assert!(matches!(error, RemoteError::Cancelled), "{error}");
        assert_eq!(server.count("CancelOperation"), 1);
    });
}
