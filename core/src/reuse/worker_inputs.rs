//! The inputs of a step that ran on a worker of a cluster. A worker does not report what a step read, so a result is
//! valid only while everything that the worker got is the same.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::reuse::tree_listing::TreeDifference;
use crate::text::canonical;
use crate::text::digest::Sha256Hex;

/// Everything that a worker gets for a step, and the worker that the step requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerInputs {
    /// The address of the cluster.
    pub endpoint: String,
    /// The name of the instance; empty for the default one.
    pub instance: String,
    /// The requested properties of the worker.
    pub platform: BTreeMap<String, String>,
    /// The sha256 of the agent program.
    pub agent: Sha256Hex,
    /// A digest of the request to the agent, which depends on a secret of the state directory. The request contains
    /// variables.
    pub request: Sha256Hex,
    /// The root of the tree that the worker gets.
    pub tree: Sha256Hex,
    /// A digest of the git directory that the worker gets; `None` if it gets none.
    pub git: Option<Sha256Hex>,
    /// The needed paths that the worker gets, each with the root of its content.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub needed_paths: BTreeMap<String, Sha256Hex>,
}

/// A difference between the inputs of a stored result and the current ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkerChange {
    /// The cluster differs from the cluster of the stored result.
    Cluster,
    /// The properties of the requested worker differ.
    Platform,
    /// The agent program has changed.
    Agent,
    /// The request to the agent has changed.
    Request,
    /// The tree has changed; with the first difference, if it is known.
    Tree(Option<TreeDifference>),
    /// The git directory has changed; with the first difference, if it is known.
    Git(Option<TreeDifference>),
    /// A needed path has changed.
    NeededPath(String),
}

impl fmt::Display for WorkerChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |difference: &Option<TreeDifference>| {
            difference.as_ref().map(|difference| format!(": {difference}")).unwrap_or_default()
        };
        match self {
            Self::Cluster => {
                f.write_str("the cluster is a different one (`endpoint` or `instance` of `[remote_executor]`)")
            }
            Self::Platform => f.write_str("the properties of the worker have changed (`platform`, `container`)"),
            Self::Agent => f.write_str("the agent program has changed"),
            Self::Request => f.write_str(
                "the request to the worker has changed (`path` of `[remote_executor]`, or a toolchain check)",
            ),
            Self::Tree(None) => {
                f.write_str("the tree has changed, and a worker does not report which files a step reads")
            }
            Self::Tree(difference) => write!(
                f,
                "the tree has changed{}; a worker does not report which files a step reads",
                shown(difference)
            ),
            Self::Git(None) => f.write_str("the git directory has changed (HEAD, its refs, the index or the config)"),
            Self::Git(difference) => write!(f, "the git directory has changed{}", shown(difference)),
            Self::NeededPath(path) => write!(f, "the content of the needed path `{path}` has changed"),
        }
    }
}

impl WorkerInputs {
    /// Returns a digest of the inputs.
    pub fn digest(&self) -> Sha256Hex {
        Sha256Hex::digest(&canonical::to_vec(&("proctor-worker-inputs", self)))
    }

    /// Returns the first difference from the current inputs; `None` if all are the same.
    pub fn first_change(&self, now: &Self) -> Option<WorkerChange> {
        let Self { endpoint, instance, platform, agent, request, tree, git, needed_paths } = self;
        let changes = [
            (*endpoint != now.endpoint || *instance != now.instance, WorkerChange::Cluster),
            (*platform != now.platform, WorkerChange::Platform),
            (*agent != now.agent, WorkerChange::Agent),
            (*tree != now.tree, WorkerChange::Tree(None)),
            (*git != now.git, WorkerChange::Git(None)),
        ];
        let paths: BTreeSet<&String> = needed_paths.keys().chain(now.needed_paths.keys()).collect();
        let path = paths.into_iter().find(|path| needed_paths.get(*path) != now.needed_paths.get(*path));
        let first = changes.into_iter().find_map(|(differs, change)| differs.then_some(change));
        let first = first.or_else(|| Some(WorkerChange::NeededPath(path?.clone())));
        // The request also contains whether there is a git directory, and the names of the needed paths.
        first.or_else(|| (*request != now.request).then_some(WorkerChange::Request))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_difference_is_a_change() {
        let digest = |text: &str| Sha256Hex::digest(text.as_bytes());
        let inputs = || WorkerInputs {
            endpoint: "grpcs://cluster:1".to_owned(),
            instance: "i".to_owned(),
            platform: BTreeMap::from([("pool".to_owned(), "small".to_owned())]),
            agent: digest("agent"),
            request: digest("request"),
            tree: digest("tree"),
            git: Some(digest("git")),
            needed_paths: [(".venv", "one"), ("deps", "two")].map(|(path, of)| (path.to_owned(), digest(of))).into(),
        };
        let with_paths = |paths: &[(&str, &str)]| WorkerInputs {
            needed_paths: paths.iter().map(|(path, of)| ((*path).to_owned(), digest(of))).collect(),
            ..inputs()
        };
        let path = |path: &str| WorkerChange::NeededPath(path.to_owned());
        assert_eq!(inputs().first_change(&inputs()), None);
        let other = || digest("other");
        for (now, change) in [
            (WorkerInputs { endpoint: "grpcs://other:1".to_owned(), ..inputs() }, WorkerChange::Cluster),
            (WorkerInputs { instance: String::new(), ..inputs() }, WorkerChange::Cluster),
            (WorkerInputs { platform: BTreeMap::new(), ..inputs() }, WorkerChange::Platform),
            (WorkerInputs { agent: other(), ..inputs() }, WorkerChange::Agent),
            (WorkerInputs { request: other(), ..inputs() }, WorkerChange::Request),
            (WorkerInputs { tree: other(), ..inputs() }, WorkerChange::Tree(None)),
            (WorkerInputs { git: None, ..inputs() }, WorkerChange::Git(None)),
            (with_paths(&[(".venv", "one"), ("deps", "other")]), path("deps")),
            (with_paths(&[(".venv", "one")]), path("deps")),
            (with_paths(&[(".venv", "one"), ("deps", "two"), ("new", "three")]), path("new")),
        ] {
            assert_ne!(inputs().digest(), now.digest(), "{change:?}");
            assert_eq!(inputs().first_change(&now), Some(change));
        }
    }
}
