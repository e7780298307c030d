//! Parses `[remote_executor]` of `proctord.toml`: steps that run on the workers of a cluster.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::remote_server::RemoteServer;
use crate::model::enforcement::{Control, Tolerated};

/// The default time for which a step waits for a worker, in milliseconds.
const QUEUE_TIMEOUT_MS: u64 = 300_000;
/// The default time for which a request waits for the server, in milliseconds.
const TIMEOUT_MS: u64 = 15_000;
/// The default name of the platform property for a container image.
const CONTAINER_PROPERTY: &str = "container-image";
/// The default `PATH` of steps on workers.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The cluster that executes steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteExecutorSettings {
    /// The server.
    pub server: RemoteServer,
    /// Where steps run if the cluster does not execute them.
    pub mode: ExecutorMode,
    /// The properties of the worker for every step. The `platform` of a skill replaces single ones.
    pub platform: BTreeMap<String, String>,
    /// The name of the property that gets the `container` of a skill.
    pub container_property: String,
    /// The `PATH` of steps.
    pub path: String,
    /// The agent program for workers; the installed `proctor-sandbox` if `None`.
    pub agent: Option<PathBuf>,
    /// True if the operator trusts the reports of workers, so a step can pass on one.
    pub trust_workers: bool,
    /// Sandbox controls that may be missing on workers.
    pub may_miss: Tolerated,
    /// The maximum age of a stored result of workers without a pinned container image, in milliseconds. 0: such a result
    /// is never used.
    pub unpinned_max_age_ms: u64,
    /// The time for which a step waits for a worker, in milliseconds.
    pub queue_timeout_ms: u64,
    /// The time for which a request waits for the server, in milliseconds.
    pub timeout_ms: u64,
}

/// Where steps run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExecutorMode {
    /// On this machine.
    Local,
    /// On the cluster. If the cluster does not execute a step, the step is inconclusive.
    Remote,
    /// On the cluster. If the cluster does not execute a step, it runs on this machine.
    #[default]
    Hybrid,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RemoteExecutorFile {
    /// Address of a server of the Remote Execution API v2: `grpcs://HOST:PORT`, `grpc://HOST:PORT` or `unix:/PATH`.
    endpoint: String,
    /// Name of the instance. Default: empty.
    instance: Option<String>,
    /// Where steps run: on this machine (`local`), on the cluster (`remote`), or on the cluster and, if it fails, on this
    /// machine (`hybrid`). Default: hybrid.
    mode: Option<ExecutorMode>,
    /// Properties of the worker for every step. Default: none.
    platform: Option<BTreeMap<String, String>>,
    /// Name of the property that gets the `container` of a skill. Default: `container-image`.
    container_property: Option<String>,
    /// `PATH` of steps on workers.
    path: Option<String>,
    /// Program that runs a step on a worker, for workers whose architecture differs from that of this machine. Default:
    /// the installed `proctor-sandbox`.
    agent: Option<PathBuf>,
    /// If true, the reports of workers are trusted, and a step can pass on one. Default: false.
    trust_workers: Option<bool>,
    /// Sandbox controls that may be missing on workers. A run with a missing control is raised to tier 2. Default: cgroup
    /// only.
    may_miss: Option<Vec<Control>>,
    /// Maximum age of a stored result of workers whose container image is not named with a digest, in milliseconds.
    /// Default: 0, such results are not used.
    unpinned_max_age_ms: Option<u64>,
    /// Time for which a step waits for a worker, in milliseconds. Default: 300000.
    queue_timeout_ms: Option<NonZeroU64>,
    /// Time for which a request waits for the server, in milliseconds. Default: 15000.
    timeout_ms: Option<NonZeroU64>,
    /// File that contains a bearer token.
    token_file: Option<PathBuf>,
    /// Program that provides credentials, with the protocol of Bazel's credential helpers.
    credential_helper: Option<PathBuf>,
    /// File of the certificates (PEM) that the server's certificate is verified with. Default: those of the system.
    tls_roots: Option<PathBuf>,
    /// File of the client certificate (PEM), for servers that require one.
    tls_client_certificate: Option<PathBuf>,
    /// File of the key (PEM) of the client certificate.
    tls_client_key: Option<PathBuf>,
}

impl RemoteExecutorSettings {
    pub(super) fn from_file(file: &RemoteExecutorFile) -> Self {
        Self {
            server: RemoteServer {
                endpoint: file.endpoint.clone(),
                instance: file.instance.clone().unwrap_or_default(),
                token_file: file.token_file.clone(),
                credential_helper: file.credential_helper.clone(),
                tls_roots: file.tls_roots.clone(),
                tls_client: file.tls_client_certificate.clone().zip(file.tls_client_key.clone()),
            },
            mode: file.mode.unwrap_or_default(),
            platform: file.platform.clone().unwrap_or_default(),
            container_property: file.container_property.clone().unwrap_or_else(|| CONTAINER_PROPERTY.to_owned()),
            path: file.path.clone().unwrap_or_else(|| PATH.to_owned()),
            agent: file.agent.clone(),
            trust_workers: file.trust_workers.unwrap_or(false),
            may_miss: file.may_miss.as_ref().map(|list| list.iter().copied().collect()).unwrap_or_default(),
            unpinned_max_age_ms: file.unpinned_max_age_ms.unwrap_or(0),
            queue_timeout_ms: file.queue_timeout_ms.map_or(QUEUE_TIMEOUT_MS, NonZeroU64::get),
            timeout_ms: file.timeout_ms.map_or(TIMEOUT_MS, NonZeroU64::get),
        }
    }

    /// Returns the contradictions of the table.
    pub(super) fn problems(file: &RemoteExecutorFile) -> Vec<String> {
        let settings = Self::from_file(file);
        let has_half_certificate = file.tls_client_certificate.is_some() != file.tls_client_key.is_some();
        let is_relative = settings.path.split(':').any(|directory| !directory.starts_with('/'));
        let relative = is_relative.then(|| "`remote_executor.path` has a directory that is not absolute".to_owned());
        let problems = settings.server.problems("remote_executor", has_half_certificate, settings.agent.iter());
        problems.into_iter().chain(relative).collect()
    }

    /// Returns the controls that may be missing on workers of a run in which `here` may be missing on this machine.
    pub fn tolerated(&self, here: Option<&Tolerated>) -> Tolerated {
        match here {
            Some(here) if *here == Tolerated::all() => Tolerated::all(),
            _ => self.may_miss.clone(),
        }
    }

    /// Returns the maximum age of a stored result of workers with these properties, in milliseconds; `None` if no result is
    /// used. A container image with a digest determines the tools. Without one, they can change at any time.
    pub fn max_result_age_ms(&self, platform: &BTreeMap<String, String>) -> Option<u64> {
        let is_pinned = platform.get(&self.container_property).is_some_and(|image| has_digest(image));
        if is_pinned { Some(u64::MAX) } else { Some(self.unpinned_max_age_ms).filter(|age| *age > 0) }
    }

    /// Returns the properties of the worker for a skill, sorted by name.
    pub fn platform_of(&self, platform: &BTreeMap<String, String>, container: &str) -> BTreeMap<String, String> {
        let mut properties = self.platform.clone();
        if !container.is_empty() {
            properties.insert(self.container_property.clone(), container.to_owned());
        }
        properties.extend(platform.iter().map(|(name, value)| (name.clone(), value.clone())));
        properties
    }
}

/// Returns whether the name of a container image ends with the digest of its content.
fn has_digest(image: &str) -> bool {
    let digest = image.rsplit_once("@sha256:").map(|(_, digest)| digest);
    digest.is_some_and(|digest| digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use super::super::OperatorConfig;
    use super::*;

    fn parse(rest: &str) -> Result<RemoteExecutorSettings, String> {
        let text = format!("[remote_executor]\nendpoint = 'grpcs://cluster:1'\n{rest}");
        let config = OperatorConfig::parse(&text).map_err(|problems| problems[0].message.clone())?;
        Ok(config.remote_executor.expect("settings"))
    }

    #[test]
    fn parses_table_with_defaults() {
        assert_eq!(OperatorConfig::parse("").expect("reads").remote_executor, None);
        let settings = parse("").expect("reads");
        assert_eq!((settings.mode, settings.trust_workers), (ExecutorMode::Hybrid, false));
        assert_eq!(settings.may_miss, Tolerated::default());
        assert_eq!(parse("mode = 'remote'\nmay_miss = []").expect("reads").may_miss, Tolerated::from_iter([]));
    }

    #[test]
    fn skill_replaces_single_properties() {
        let settings = parse("platform = { OSFamily = 'linux', pool = 'small' }").expect("reads");
        let skill = BTreeMap::from([("pool".to_owned(), "large".to_owned())]);
        let expected = [("OSFamily", "linux"), ("container-image", "docker://i"), ("pool", "large")];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(settings.platform_of(&skill, "docker://i"), BTreeMap::from(expected));
        assert_eq!(settings.platform_of(&BTreeMap::new(), "").len(), 2);
    }

    #[test]
    fn refuses_contradictions() {
        for (rest, expected) in [
            ("mode = 'far'", "far"),
            ("path = 'bin:/bin'", "not absolute"),
            ("agent = 'agent'", "not an absolute path"),
            ("may_miss = ['walls']", "walls"),
            ("token_file = '/t'\ncredential_helper = '/h'", "both"),
            ("tls_client_certificate = '/c'", "need each other"),
            ("queue_timeout_ms = 0", "nonzero"),
            ("unknown = 1", "unknown"),
        ] {
            let message = parse(rest).expect_err(rest);
            assert!(message.contains(expected), "{rest}: {message}");
        }
    }

    #[test]
    fn results_of_unpinned_workers_are_used_only_on_request() {
        let settings = |rest: &str| parse(rest).expect("a config");
        let digest = "0".repeat(64);
        let image = |image: &str| BTreeMap::from([("container-image".to_owned(), image.to_owned())]);
        let pinned = image(&format!("docker://registry/ci:12@sha256:{digest}"));
        let strict = settings("");
        assert_eq!(strict.max_result_age_ms(&pinned), Some(u64::MAX));
        let short = format!("docker://registry/ci@sha256:{}", &digest[1..]);
        for unpinned in [BTreeMap::new(), image("docker://registry/ci:12"), image(&short), image(&format!("@{digest}"))]
        {
            assert_eq!(strict.max_result_age_ms(&unpinned), None, "{unpinned:?}");
            assert_eq!(settings("unpinned_max_age_ms = 9").max_result_age_ms(&unpinned), Some(9));
        }
        let other = settings("container_property = 'image'");
        assert_eq!(other.max_result_age_ms(&pinned), None, "the property has another name");
    }
}
