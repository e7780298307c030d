//! Tests the client against a small server that breaks the rules: wrong bytes, silence, errors, lost connections.

mod execution_faults;
mod fault_server;

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use fault_server::{FaultServer, Reply};
use proctor_remote::messages::{
    ActionResult, Any, BatchReadBlobsResponse, BlobRead, CacheCapabilities, ExecuteOperationMetadata, ExecuteResponse,
    Operation, QueryWriteStatusResponse, ReadRequest, ReadResponse, RpcStatus, SHA256, ServerCapabilities,
    WriteRequest, WriteResponse, ZSTD,
};
use proctor_remote::{
    BlobDigest, Client, ClientConfig, Credentials, ExecutionLimits, ExecutionRequest, RemoteError, RetryPolicy,
    Timeouts, TlsFiles,
};
use prost::Message as _;
use tonic::Code;

const QUICK: RetryPolicy = RetryPolicy {
    max_attempts: 4,
    budget: 20,
    first_pause: Duration::from_millis(1),
    max_pause: Duration::from_millis(2),
    max_failures: 5,
    cooldown: Duration::from_secs(3_600),
    max_busy: Duration::from_millis(20),
};
const SHORT: Duration = Duration::from_millis(300);

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(work)
}

fn config(server: &FaultServer) -> ClientConfig {
    ClientConfig {
        retry: QUICK,
        timeouts: Timeouts { connect: Duration::from_secs(10), call: SHORT, idle: SHORT },
        ..ClientConfig::new(server.endpoint())
    }
}

fn client(server: &FaultServer) -> Client {
    Client::new(config(server)).expect("a client")
}

fn capabilities() -> Reply {
    let cache = CacheCapabilities { digest_functions: vec![SHA256], ..CacheCapabilities::default() };
    Reply::message(&ServerCapabilities { cache_capabilities: Some(cache), execution_capabilities: None })
}

/// Starts a server that states its capabilities, and answers all other methods with `answer`.
async fn server(answer: impl Fn(&str, &[u8]) -> Reply + Send + Sync + 'static) -> FaultServer {
    FaultServer::start(move |method, body| match method {
        "GetCapabilities" => capabilities(),
        _ => answer(method, body),
    })
    .await
}

fn one(content: &[u8]) -> BTreeSet<BlobDigest> {
    BTreeSet::from([BlobDigest::for_bytes(content)])
}

#[test]
fn wrong_bytes_are_the_servers_fault() {
    block_on(async {
        let digest = BlobDigest::for_bytes(b"right").to_message();
        let read = BlobRead { digest: Some(digest), data: b"wrong".to_vec(), ..BlobRead::default() };
        let answer = BatchReadBlobsResponse { responses: vec![read] };
        let server = server(move |method, _| match method {
            "BatchReadBlobs" => Reply::message(&answer),
            _ => Reply::messages(&[ReadResponse { data: b"wrong".to_vec() }]),
        })
        .await;
        let (client, expected) = (client(&server), one(b"right"));
        for error in [
            client.read(&expected, 100).await.map(drop).expect_err("wrong"),
            client.read_blob(&BlobDigest::for_bytes(b"right")).await.map(drop).expect_err("wrong"),
        ] {
            assert!(matches!(error, RemoteError::WrongBlob { .. }), "{error}");
            assert!(error.to_string().contains("the server is at fault"), "{error}");
        }
        assert_eq!(server.count("BatchReadBlobs"), 1, "the same request would get the same bytes");
    });
}

#[test]
fn stream_longer_than_its_digest_is_refused() {
    block_on(async {
        let server = server(|_, _| Reply::messages(&vec![ReadResponse { data: vec![0; 1 << 16] }; 50])).await;
        let error = client(&server).read_blob(&BlobDigest::for_bytes(b"right")).await.expect_err("too long");
        assert!(matches!(error, RemoteError::Violation { .. }), "{error}");
    });
}

#[test]
fn silent_server_has_a_deadline() {
    block_on(async {
        let server = server(|_, _| Reply::Stall).await;
        let start = Instant::now();
        let retry = RetryPolicy { max_attempts: 1, ..QUICK };
        let client = Client::new(ClientConfig { retry, ..config(&server) }).expect("a client");
        for error in [
            client.find_missing(&[BlobDigest::for_bytes(b"a")]).await.map(drop).expect_err("silence"),
            client.read_blob(&BlobDigest::for_bytes(b"a")).await.map(drop).expect_err("silence"),
        ] {
            assert!(matches!(error, RemoteError::Deadline { .. }), "{error}");
        }
        assert!(start.elapsed() < Duration::from_secs(60));
    });
}

#[test]
fn functions_of_a_server_are_read_again_after_a_lost_connection() {
    block_on(async {
        let server = server(|method, _| if method == "GetCapabilities" { capabilities() } else { Reply::Stall }).await;
        let retry = RetryPolicy { max_attempts: 1, ..QUICK };
        let client = Client::new(ClientConfig { retry, ..config(&server) }).expect("a client");
        for _ in 0..2 {
            client.capabilities().await.expect("an answer");
        }
        assert_eq!(server.count("GetCapabilities"), 1);
        client.find_missing(&[BlobDigest::for_bytes(b"x")]).await.expect_err("no answer");
        client.capabilities().await.expect("an answer");
        assert_eq!(server.count("GetCapabilities"), 2);
    });
}

#[test]
fn transient_errors_are_repeated() {
    block_on(async {
        let failures = Mutex::new(2);
        let server = server(move |_, _| {
            let mut left = failures.lock().expect("no panic");
            if *left == 0 {
                return Reply::message(&ActionResult::default());
            }
            *left -= 1;
            Reply::Status(Code::Unavailable, "busy".to_owned())
        })
        .await;
        let result = client(&server).action_result(&BlobDigest::for_bytes(b"a"), &[]).await;
        assert!(result.expect("an answer").is_some());
        assert_eq!(server.count("GetActionResult"), 3);
    });
}

#[test]
fn refusals_are_not_repeated() {
    block_on(async {
        let server = server(|_, _| Reply::Status(Code::PermissionDenied, "read only".to_owned())).await;
        let stored = client(&server).store_action_result(&BlobDigest::for_bytes(b"a"), ActionResult::default()).await;
        assert!(stored.expect_err("refused").to_string().contains("read only"));
        assert_eq!(server.count("UpdateActionResult"), 1);
    });
}

#[test]
fn stops_requests_to_failing_server() {
    block_on(async {
        let server = server(|_, _| Reply::Status(Code::Unavailable, "down".to_owned())).await;
        let client = client(&server);
        let mut last = None;
        for _ in 0..20 {
            last = client.action_result(&BlobDigest::for_bytes(b"a"), &[]).await.err();
        }
        assert!(matches!(last, Some(RemoteError::CircuitOpen { failures: 5, .. })), "{last:?}");
        assert_eq!(server.count("GetActionResult"), 5);
    });
}

#[test]
fn absent_server_is_unreachable() {
    block_on(async {
        let socket = tempfile::tempdir().expect("a directory");
        let endpoint = format!("unix:{}/none", socket.path().display()).parse().expect("an address");
        let client = Client::new(ClientConfig { retry: QUICK, ..ClientConfig::new(endpoint) }).expect("a client");
        let error = client.capabilities().await.expect_err("no server");
        assert!(matches!(error, RemoteError::Unreachable { .. }), "{error}");
    });
}

#[test]
fn server_without_sha256_is_refused() {
    block_on(async {
        let server = FaultServer::start(|_, _| {
            let cache = CacheCapabilities { digest_functions: vec![9], ..CacheCapabilities::default() };
            Reply::message(&ServerCapabilities { cache_capabilities: Some(cache), execution_capabilities: None })
        })
        .await;
        let error = client(&server).capabilities().await.expect_err("another digest");
        assert!(matches!(error, RemoteError::Unsupported { .. }), "{error}");
    });
}

#[test]
fn interrupted_read_continues_where_it_stopped() {
    block_on(async {
        let content: &[u8] = b"0123456789";
        let server = server(move |_, body| {
            let request = ReadRequest::decode(body).expect("a request");
            let part = |range: std::ops::Range<usize>| ReadResponse { data: content[range].to_vec() };
            match request.read_offset {
                0 => Reply::broken(&[part(0..4)]),
                offset => Reply::messages(&[part(usize::try_from(offset).expect("a position")..10)]),
            }
        })
        .await;
        let read = client(&server).read_blob(&BlobDigest::for_bytes(content)).await.expect("a blob");
        assert_eq!(read, content);
        assert_eq!(server.count("Read"), 2);
    });
}

#[test]
fn interrupted_read_of_compressed_content_continues() {
    block_on(async {
        let content: Vec<u8> =
            (0..1_u32 << 17).flat_map(|number| number.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect();
        let served = content.clone();
        let compress = |content: &[u8]| zstd::bulk::compress(content, 1).expect("compressed");
        let names = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&names);
        let server = FaultServer::start(move |method, body| {
            if method == "GetCapabilities" {
                let digest_functions = vec![SHA256];
                let cache = CacheCapabilities {
                    digest_functions,
                    supported_compressors: vec![ZSTD],
                    ..CacheCapabilities::default()
                };
                return Reply::message(&ServerCapabilities {
                    cache_capabilities: Some(cache),
                    execution_capabilities: None,
                });
            }
            let request = ReadRequest::decode(body).expect("a request");
            let start = usize::try_from(request.read_offset).expect("a position");
            let mut seen = seen.lock().expect("no panic");
            seen.push((request.resource_name, start));
            let compressed = compress(&served[start..]);
            match seen.len() {
                1 => Reply::broken(&[ReadResponse { data: compressed[..compressed.len() / 2].to_vec() }]),
                _ => Reply::messages(&[ReadResponse { data: compressed }]),
            }
        })
        .await;
        let read = client(&server).read_blob(&BlobDigest::for_bytes(&content)).await.expect("a blob");
        assert!(read == content);
        let names = names.lock().expect("no panic");
        assert!(names[0].0.starts_with("compressed-blobs/zstd/"), "{}", names[0].0);
        assert!(names[1].1 > 0, "the received part counts");
    });
}

#[test]
fn interrupted_upload_continues_where_the_server_stopped() {
    block_on(async {
        let content = Bytes::from(vec![1; 100]);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let writes = Arc::clone(&seen);
        let server = server(move |method, body| match method {
            "QueryWriteStatus" => Reply::message(&QueryWriteStatusResponse { committed_size: 40, complete: false }),
            _ => {
                let write = WriteRequest::decode(body).expect("a request");
                let mut writes = writes.lock().expect("no panic");
                writes.push((write.resource_name, write.write_offset, write.data.len()));
                if writes.len() == 1 {
                    return Reply::Status(Code::Unavailable, "lost".to_owned());
                }
                Reply::message(&WriteResponse { committed_size: 100 })
            }
        })
        .await;
        client(&server).write_blob(&BlobDigest::for_bytes(&content), content).await.expect("stored");
        let seen = seen.lock().expect("no panic");
        assert_eq!((seen[0].1, seen[0].2), (0, 100));
        assert_eq!((seen[1].1, seen[1].2), (40, 60));
        assert_eq!(seen[0].0, seen[1].0, "the same upload");
        assert!(seen[0].0.starts_with("uploads/") && seen[0].0.ends_with("/100"), "{}", seen[0].0);
    });
}

#[test]
fn server_that_does_not_read_an_upload_has_a_deadline() {
    block_on(async {
        let server = FaultServer::start_without_reading("Write", |_, _| capabilities()).await;
        let config = ClientConfig { retry: RetryPolicy { max_attempts: 1, ..QUICK }, ..config(&server) };
        let client = Client::new(config).expect("a client");
        // More than fits into the buffers of the connection. The transfer of so many bytes may take minutes.
        let content = Bytes::from(vec![7; 16 << 20]);
        let began = Instant::now();
        let error = client.write_blob(&BlobDigest::for_bytes(&content), content).await.expect_err("stalled");
        assert!(matches!(error, RemoteError::Deadline { .. }), "{error}");
        assert!(began.elapsed() < Duration::from_secs(60));
    });
}

#[test]
fn incomplete_upload_is_reported() {
    block_on(async {
        let server = server(|_, _| Reply::message(&WriteResponse { committed_size: 3 })).await;
        let content = Bytes::from_static(b"content");
        let error =
            client(&server).write_blob(&BlobDigest::for_bytes(&content), content).await.expect_err("incomplete");
        assert!(matches!(error, RemoteError::Violation { .. }), "{error}");
    });
}

#[test]
fn refused_token_is_read_again_once_and_appears_nowhere() {
    block_on(async {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("token");
        let write = |token: &str| {
            #[expect(clippy::disallowed_methods, reason = "a file of the test")]
            std::fs::write(&file, token).expect("written");
        };
        write("token-11111\n");
        let server = FaultServer::start_with_headers(|_, _, headers| {
            let token = headers.get("authorization").map(|value| value.to_str().expect("text").to_owned());
            match token.as_deref() {
                Some("Bearer token-22222") => capabilities(),
                other => Reply::Status(Code::Unauthenticated, format!("not valid: {other:?}")),
            }
        })
        .await;
        let config = ClientConfig { credentials: Credentials::TokenFile(file.clone()), ..config(&server) };
        let client = Client::new(config).expect("a client");
        let error = client.capabilities().await.expect_err("refused").to_string();
        assert!(error.contains("[redacted]") && !error.contains("11111"), "{error}");
        assert_eq!(server.count("GetCapabilities"), 2);
        write("token-22222\n");
        client.capabilities().await.expect("the new token counts");
    });
}

#[test]
fn tls_needs_a_trusted_server_and_a_known_client() {
    block_on(async {
        let file = |name: &str| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tls")).join(name);
        let server = FaultServer::start_with_tls(|_, _, _| capabilities()).await;
        let connect = async |tls: TlsFiles| {
            let config = ClientConfig { tls, ..config(&server) };
            Client::new(config).expect("a client").capabilities().await
        };
        let identity = Some((file("client.pem"), file("client-key.pem")));
        let trusting = TlsFiles { roots: Some(file("authority.pem")), client: identity.clone() };
        connect(trusting.clone()).await.expect("both are known");
        let error = connect(TlsFiles { client: None, ..trusting }).await.expect_err("the server wants a certificate");
        assert!(error.to_string().contains("requires a client certificate"), "{error}");
        let stranger = TlsFiles { roots: Some(file("client.pem")), client: identity };
        let error = connect(stranger).await.expect_err("the authority is not trusted").to_string();
        assert!(error.contains("certificate"), "{error}");
        let plain = FaultServer::start(|_, _| capabilities()).await;
        for (server, scheme) in [(&server, "grpc"), (&plain, "grpcs")] {
            let endpoint = server.endpoint().to_string();
            let (actual, address) = endpoint.split_once("://").expect("an address");
            let config = ClientConfig::new(format!("{scheme}://{address}").parse().expect("an address"));
            let config = ClientConfig { retry: RetryPolicy { max_attempts: 1, ..QUICK }, ..config };
            let error = Client::new(config).expect("a client").capabilities().await.expect_err("the other kind");
            assert!(error.to_string().contains(&format!("`{actual}://`")), "{error}");
        }
    });
}

#[test]
fn files_of_tls_are_named_in_errors() {
    let endpoint = || "grpcs://localhost:1".parse().expect("an address");
    let key = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tls/client-key.pem");
    for roots in ["/does/not/exist.pem", key] {
        let tls = TlsFiles { roots: Some(roots.into()), client: None };
        let error = Client::new(ClientConfig { tls, ..ClientConfig::new(endpoint()) }).expect_err("no certificates");
        assert!(error.to_string().contains(roots), "{error}");
    }
}

const STAGE: &str = "type.googleapis.com/build.bazel.remote.execution.v2.ExecuteOperationMetadata";
#[test]
fn unknown_answers_are_violations() {
    block_on(async {
        let other = BlobRead { digest: Some(BlobDigest::for_bytes(b"other").to_message()), ..BlobRead::default() };
        let bad = BlobRead { digest: None, ..BlobRead::default() };
        for read in [other, bad] {
            let answer = BatchReadBlobsResponse { responses: vec![read] };
            let server = server(move |_, _| Reply::message(&answer)).await;
            let error = client(&server).read(&one(b"right"), 100).await.expect_err("a violation");
            assert!(matches!(error, RemoteError::Violation { .. }), "{error}");
        }
        let nothing = server(|method, _| match method {
            "FindMissingBlobs" => {
                let missing = vec![BlobDigest::for_bytes(b"a").to_message()];
                Reply::message(&proctor_remote::messages::FindMissingBlobsResponse { missing_blob_digests: missing })
            }
            _ => Reply::message(&proctor_remote::messages::BatchUpdateBlobsResponse::default()),
        })
        .await;
        let blob = proctor_remote::BlobSource::Bytes(Bytes::from_static(b"a"));
        let blobs = BTreeMap::from([(BlobDigest::for_bytes(b"a"), blob)]);
        let error = client(&nothing).upload(&blobs).await.expect_err("a violation");
        assert!(matches!(error, RemoteError::Violation { .. }), "{error}");
    });
}
