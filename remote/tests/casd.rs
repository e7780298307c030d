//! Tests the client against `buildbox-casd`, a server of another project. `PROCTOR_CASD` names the program; otherwise the
//! one that `make test` installs is used. Without it, each test is skipped.
#![expect(clippy::disallowed_methods, reason = "a test starts a server and reads its own environment")]

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use libtest_mimic::{Arguments, Failed, Trial};
use proctor_remote::messages::{self, ActionResult, OutputFile};
use proctor_remote::{
    BlobDigest, BlobSource, Client, ClientConfig, Endpoint, ExecutionLimits, ExecutionRequest, MerkleTree, RemoteError,
};
use prost::Message as _;
use tempfile::TempDir;

type Test = fn(&Path) -> Result<(), Failed>;

const TESTS: [(&str, Test); 8] = [
    ("reads_capabilities", reads_capabilities),
    ("transfers_blobs_of_every_size", transfers_blobs_of_every_size),
    ("uploads_only_what_changed", uploads_only_what_changed),
    ("stores_results_of_actions", stores_results_of_actions),
    ("reports_missing_blobs", reports_missing_blobs),
    ("reconnects_to_a_restarted_server", reconnects_to_a_restarted_server),
    ("names_the_refusal_of_an_execution", names_the_refusal_of_an_execution),
    (EXECUTES, executes_an_action),
];
/// The test whose server executes actions, with bubblewrap.
const EXECUTES: &str = "executes_an_action";

fn main() {
    let program = program();
    let bubblewrap = Path::new("/usr/bin/bwrap");
    let trial = |(name, test): (&str, Test)| match program.clone() {
        Some(_) if name == EXECUTES && !bubblewrap.is_file() => {
            Trial::test(format!("{name} (skipped: needs bubblewrap)"), || Ok(())).with_ignored_flag(true)
        }
        Some(program) => Trial::test(name, move || test(&program)),
        None => Trial::test(format!("{name} (skipped: needs buildbox-casd)"), || Ok(())).with_ignored_flag(true),
    };
    libtest_mimic::run(&Arguments::from_args(), TESTS.into_iter().map(trial).collect()).exit();
}

fn program() -> Option<PathBuf> {
    let given = std::env::var_os("PROCTOR_CASD").map(PathBuf::from);
    let installed = || {
        let itself = std::env::current_exe().ok()?;
        let places = itself.ancestors().map(|place| place.join("clients/buildbox/buildbox-casd"));
        places.into_iter().find(|program| program.is_file())
    };
    given.or_else(installed)
}

/// A running server.
struct Casd {
    process: Child,
    directory: TempDir,
}

impl Drop for Casd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Casd {
    fn start(program: &Path) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        Self { process: start_process(program, directory.path(), &[]), directory }
    }

    /// Starts a server that executes actions over the directories of the system.
    fn start_executing(program: &Path) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        // The installed program is a link; the other program is next to its target.
        let runner = program.canonicalize().expect("a program").with_file_name("buildbox-run");
        let mut arguments = vec![format!("--buildbox-run={}", runner.display()), "--cache-failures=false".to_owned()];
        for mount in ["/usr:/usr", "/usr/bin:/bin", "/usr/lib:/lib", "/usr/lib64:/lib64"] {
            arguments.push(format!("--runner-arg=--ro-bind-mount={mount}"));
        }
        Self { process: start_process(program, directory.path(), &arguments), directory }
    }

    fn restart(&mut self, program: &Path) {
        self.process.kill().expect("killed");
        self.process.wait().expect("ended");
        std::fs::remove_file(self.directory.path().join("sock")).expect("removed");
        self.process = start_process(program, self.directory.path(), &[]);
    }

    fn client(&self) -> Client {
        let endpoint: Endpoint = format!("unix:{}/sock", self.directory.path().display()).parse().expect("an address");
        Client::new(ClientConfig::new(endpoint)).expect("a client")
    }
}

/// Starts the server, and waits until its socket exists.
fn start_process(program: &Path, directory: &Path, arguments: &[String]) -> Child {
    let socket = directory.join("sock");
    let mut process = Command::new(program)
        .arg(format!("--bind=unix:{}", socket.display()))
        .args(["--quota-high=500M", "--reserved=0"])
        .args(arguments)
        .arg(directory.join("store"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("started");
    while std::os::unix::net::UnixStream::connect(&socket).is_err() {
        assert!(process.try_wait().expect("a state").is_none(), "the server has ended");
        std::thread::yield_now();
    }
    process
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(work)
}

fn blobs(contents: &[Vec<u8>]) -> BTreeMap<BlobDigest, BlobSource> {
    let entry = |content: &Vec<u8>| (BlobDigest::for_bytes(content), BlobSource::Bytes(Bytes::from(content.clone())));
    contents.iter().map(entry).collect()
}

/// Returns bytes that zstd cannot make smaller.
fn noise(count: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..count).map(|_| next()).collect()
}

fn reads_capabilities(program: &Path) -> Result<(), Failed> {
    let casd = Casd::start(program);
    let capabilities = block_on(async { casd.client().capabilities().await })?;
    assert!(capabilities.may_update_results && capabilities.max_batch_bytes > 0, "{capabilities:?}");
    Ok(())
}

fn transfers_blobs_of_every_size(program: &Path) -> Result<(), Failed> {
    let casd = Casd::start(program);
    block_on(async {
        let client = casd.client();
        let contents =
            [Vec::new(), b"small".to_vec(), vec![b'a'; 100_000], noise(3 << 20), vec![b'b'; 9 << 20], noise(9 << 20)];
        let blobs = blobs(&contents);
        let uploaded = client.upload(&blobs).await?;
        // The server may always have the empty blob.
        assert!(uploaded.len() >= contents.len() - 1, "{uploaded:?}");
        assert_eq!(client.upload(&blobs).await?, BTreeSet::new(), "nothing is uploaded twice");
        let digests: BTreeSet<BlobDigest> = blobs.keys().cloned().collect();
        let read = client.read(&digests, 64 << 20).await?;
        for content in &contents {
            assert!(read[&BlobDigest::for_bytes(content)] == content, "{} bytes", content.len());
        }
        let bounded = client.read(&digests, 1 << 20).await;
        assert!(matches!(bounded, Err(RemoteError::TooLarge { .. })), "{bounded:?}");
        Ok(())
    })
}

fn uploads_only_what_changed(program: &Path) -> Result<(), Failed> {
    let casd = Casd::start(program);
    let tree = tempfile::tempdir()?;
    for directory in 0..20 {
        let path = tree.path().join(directory.to_string());
        std::fs::create_dir(&path)?;
        for file in 0..100 {
            std::fs::write(path.join(file.to_string()), format!("{directory} {file}"))?;
        }
    }
    block_on(async {
        let client = casd.client();
        let first = MerkleTree::read(tree.path())?;
        assert!(client.upload(&first.blobs).await?.len() > 2_000);
        for (path, content) in [("3/7", "x"), ("3/8", "y"), ("11/50", "z")] {
            std::fs::write(tree.path().join(path), content)?;
        }
        let second = MerkleTree::read(tree.path())?;
        let uploaded = client.upload(&second.blobs).await?;
        assert_eq!(uploaded.len(), 3 + 2 + 1, "three files, two directories and the top");
        Ok(())
    })
}

fn stores_results_of_actions(program: &Path) -> Result<(), Failed> {
    let casd = Casd::start(program);
    block_on(async {
        let client = casd.client();
        let content = b"a record".to_vec();
        let digest = BlobDigest::for_bytes(&content);
        let action = stored_action(&client, "true").await?;
        assert_eq!(client.action_result(&action, &[]).await?, None);
        client.upload(&blobs(&[content])).await?;
        let file = OutputFile { path: "record".to_owned(), digest: Some(digest.to_message()), ..OutputFile::default() };
        let result = ActionResult { output_files: vec![file], ..ActionResult::default() };
        client.store_action_result(&action, result).await?;
        let found = client.action_result(&action, &["record"]).await?.expect("a result");
        assert_eq!(BlobDigest::from_message(found.output_files[0].digest.as_ref())?, digest);
        Ok(())
    })
}

fn reports_missing_blobs(program: &Path) -> Result<(), Failed> {
    let casd = Casd::start(program);
    block_on(async {
        let client = casd.client();
        let absent = BlobDigest::for_bytes(b"never stored");
        assert_eq!(client.read(&BTreeSet::from([absent.clone()]), 1_000).await?.len(), 0);
        let read = client.read_blob(&absent).await;
        assert!(matches!(read, Err(RemoteError::Missing { .. })), "{read:?}");
        assert_eq!(client.find_missing(std::slice::from_ref(&absent)).await?, BTreeSet::from([absent]));
        Ok(())
    })
}

fn reconnects_to_a_restarted_server(program: &Path) -> Result<(), Failed> {
    let mut casd = Casd::start(program);
    block_on(async {
        let client = casd.client();
        let blobs = blobs(&[b"survives".to_vec()]);
        client.upload(&blobs).await?;
        casd.restart(program);
        let digests: BTreeSet<BlobDigest> = blobs.keys().cloned().collect();
        assert_eq!(client.read(&digests, 1_000).await?.len(), 1);
        Ok(())
    })
}

/// Stores an action without inputs.
async fn stored_action(client: &Client, program: &str) -> Result<BlobDigest, RemoteError> {
    let command = messages::Command { arguments: vec![program.to_owned()], ..messages::Command::default() };
    let command = command.encode_to_vec();
    let root = Vec::new();
    let action = messages::Action {
        command_digest: Some(BlobDigest::for_bytes(&command).to_message()),
        input_root_digest: Some(BlobDigest::for_bytes(&root).to_message()),
        ..messages::Action::default()
    };
    let action = action.encode_to_vec();
    let digest = BlobDigest::for_bytes(&action);
    client.upload(&blobs(&[command, root, action])).await?;
    Ok(digest)
}

/// This server stores content, but was started without a program that executes.
fn names_the_refusal_of_an_execution(program: &Path) -> Result<(), Failed> {
    let casd = Casd::start(program);
    block_on(async {
        let client = casd.client();
        let action = stored_action(&client, "true").await?;
        let limits = ExecutionLimits { queue: Duration::from_secs(20), run: Duration::from_secs(20) };
        let request = ExecutionRequest { action, skip_cache: true, limits };
        let error = client.execute(&request, pending()).await.expect_err("refused");
        assert!(matches!(error, RemoteError::Status { method: "Execute", .. }), "{error}");
        Ok(())
    })
}

fn executes_an_action(program: &Path) -> Result<(), Failed> {
    let casd = Casd::start_executing(program);
    let tree = tempfile::tempdir()?;
    std::fs::create_dir(tree.path().join("tree"))?;
    std::fs::write(tree.path().join("tree/input"), "from the input")?;
    block_on(async {
        let client = casd.client();
        assert!(client.capabilities().await?.executes);
        let tree = MerkleTree::read(tree.path())?;
        client.upload(&tree.blobs).await?;
        let command = messages::Command {
            arguments: ["sh", "-c", "cat input > output; exit 3"].map(str::to_owned).to_vec(),
            environment_variables: vec![messages::NamedValue { name: "PATH".to_owned(), value: "/usr/bin".to_owned() }],
            working_directory: "tree".to_owned(),
            output_paths: vec!["output".to_owned()],
            ..messages::Command::default()
        };
        let command = command.encode_to_vec();
        let action = messages::Action {
            command_digest: Some(BlobDigest::for_bytes(&command).to_message()),
            input_root_digest: Some(tree.root.to_message()),
            ..messages::Action::default()
        };
        let action = action.encode_to_vec();
        let digest = BlobDigest::for_bytes(&action);
        client.upload(&blobs(&[command, action])).await?;
        let limits = ExecutionLimits { queue: Duration::from_secs(60), run: Duration::from_secs(60) };
        let request = ExecutionRequest { action: digest, skip_cache: true, limits };
        let result = client.execute(&request, pending()).await?.result.expect("a result");
        assert_eq!(result.exit_code, 3, "{result:?}");
        let output = BlobDigest::from_message(result.output_files[0].digest.as_ref())?;
        assert_eq!(client.read_blob(&output).await?, "from the input");
        Ok(())
    })
}
