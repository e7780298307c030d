//! Tests of the trace context of a call.

use super::*;

#[tokio::test]
async fn call_continues_trace_of_its_meta() {
    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let run = FakeBackend::new(ended_run(Verdict::Passed, vec![step(0, "a", "b", Outcome::Passed, 0)]), b"");
    let mut client = McpTestClient::connect(run.clone()).await;
    let metas = [
        json!({ "traceparent": PARENT, "tracestate": "vendor=1,other=2" }),
        json!({ "traceparent": PARENT, "tracestate": "not valid" }),
        json!({ "traceparent": "00-nonsense-01", "tracestate": "vendor=1" }),
        json!({ "traceparent": 7 }),
        json!({ "tracestate": "vendor=1" }),
    ];
    for meta in metas {
        let call = json!({ "name": "antigravity_verify", "arguments": { "repo_root": "/r" }, "_meta": meta });
        let answer = client.request("tools/call", call).await;
        assert!(text(&answer["result"]).starts_with("PASSED"), "{answer}");
    }
    let continued = |state| TraceContext::parse(PARENT, state);
    let expected = [continued(Some("vendor=1,other=2")), continued(None), None, None, None];
    assert_eq!(*run.traces.lock().expect("a lock"), expected);
}
