//! The identity of a step: everything besides its observed inputs that determines its result.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::enforcement::Tolerated;
use crate::model::plan::{Determinism, PlannedStep};
use crate::text::canonical;
use crate::text::digest::Sha256Hex;

/// Version of the identity. A change of its meaning must change this number.
const VERSION: u32 = 5;

/// The parts of the identity, in words.
pub const IDENTITY_PARTS: [&str; 9] = [
    "the version of Proctor, and the files of its programs `proctord` and `proctor-sandbox`",
    "the name and the determinism class of the skill",
    "every setting of the step, and the files that it gets as arguments",
    "the complete environment of the step, including the values of variables on its `env_allowlist`",
    "the path of the repository, the user, and the directories that are hidden or shown",
    "the kernel, the architecture, and the model and the number of processors",
    "the supplementary groups, the resource limits and the personality that the step inherits from Proctor",
    "the paths of the transparent caches, and the paths of `needs_paths` with their content",
    "the results of the earlier steps whose files the step sees",
];

/// Everything besides the observed inputs that determines the result of a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StepIdentity<'a> {
    /// The programs of Proctor that execute steps, and that decide about their results.
    pub proctor: String,
    /// The skill and its determinism class.
    pub skill: (&'a str, Determinism),
    /// The step with every setting.
    pub step: &'a PlannedStep,
    /// The command, and the files that it gets as arguments.
    pub command: (&'a [String], Sha256Hex),
    /// The complete environment, without the trace context of the run.
    pub env: BTreeMap<String, String>,
    /// The path at which the step sees the tree.
    pub repository: String,
    /// The user and group of the step inside the sandbox, and its home.
    pub user: (u32, u32, String),
    /// Directories that are hidden.
    pub hidden: Vec<String>,
    /// Directories that are shown although their parent is hidden.
    pub tools: Vec<ShownTool>,
    /// The controls of the sandbox that may be missing.
    pub tolerated: &'a Tolerated,
    /// The machine.
    pub machine: MachineFacts,
    /// The directories that are mounted in the tree. No view records what the step reads in them.
    pub mounts: &'a [MountedDirectory],
    /// The attributes that the step inherits from Proctor's process.
    pub inherited: InheritedAttributes,
    /// The stored results of the earlier steps whose files this step sees, oldest first: digests of their keys and
    /// inputs.
    pub below: &'a [Sha256Hex],
}

/// A file or directory that is shown although its parent is hidden.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ShownTool {
    /// The path on the host.
    pub source: String,
    /// The path in the sandbox.
    pub at: String,
    /// The way in which the directory is shown to steps.
    pub kind: String,
}

/// A directory that is mounted in the tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MountedDirectory {
    /// The path in the repository.
    pub path: String,
    /// The content.
    pub content: MountedContent,
}

/// The content of a directory that is mounted in the tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MountedContent {
    /// A cache whose content does not change the result, as the spec declares.
    TransparentCache,
    /// A stored path of `needs_paths`.
    NeededPath {
        /// The origin of the content.
        origin: NeededPathOrigin,
        /// The digest of everything in it that a program can observe, except for owners and times.
        sha256: Sha256Hex,
        /// The digest of the modification times of its files. Some programs infer from them that a file has not
        /// changed, as Python does for a compiled module. `None` in the identity on other machines, where the same
        /// content has other times.
        #[serde(skip_serializing_if = "Option::is_none")]
        modified_sha256: Option<Sha256Hex>,
        /// True if the step sees a copy, which has neither the hard links nor the extended attributes of the original.
        is_copy: bool,
    },
}

impl MountedDirectory {
    /// Returns the directory as other machines identify it.
    #[must_use]
    pub fn without_times(&self) -> Self {
        let mut portable = self.clone();
        if let MountedContent::NeededPath { modified_sha256, .. } = &mut portable.content {
            *modified_sha256 = None;
        }
        portable
    }
}

/// The origin of the content of a needed path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NeededPathOrigin {
    /// The worktree.
    Worktree,
    /// A preparing command.
    Command,
}

/// Facts of the machine that programs read without a file system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MachineFacts {
    /// The release and version of the kernel.
    pub kernel: String,
    /// The architecture.
    pub architecture: String,
    /// Number of processors that steps can use.
    pub processors: usize,
    /// The [model](processor_model) of the first processor.
    pub processor_model: String,
}

/// Attributes of Proctor's process that its steps inherit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct InheritedAttributes {
    /// The supplementary groups, sorted. They determine which files the step can read.
    pub groups: Vec<u32>,
    /// The resource limits, such as the size of the stack.
    pub limits: Vec<ResourceLimit>,
    /// The execution domain, personality(2), as in `/proc/PID/personality`.
    pub personality: String,
}

/// A resource limit, getrlimit(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ResourceLimit {
    /// The name of the resource.
    pub name: &'static str,
    /// The soft limit; `None` if there is none.
    pub soft: Option<u64>,
    /// The hard limit; `None` if there is none.
    pub hard: Option<u64>,
}

/// The lines of `/proc/cpuinfo` that describe the model and the instructions of a processor, on all architectures. Other
/// lines differ between the processors of a machine, or change with its load.
const MODEL_LINES: [&str; 14] = [
    "vendor_id",
    "cpu family",
    "model",
    "model name",
    "stepping",
    "flags",
    "Features",
    "features",
    "CPU implementer",
    "CPU architecture",
    "CPU variant",
    "CPU part",
    "cpu",
    "isa",
];

/// Returns the model of the first processor in `/proc/cpuinfo`, with its instruction set extensions.
pub fn processor_model(cpuinfo: &str) -> String {
    let first = cpuinfo.lines().take_while(|line| !line.trim().is_empty());
    let is_model = |line: &&str| line.split_once(':').is_some_and(|(name, _)| MODEL_LINES.contains(&name.trim()));
    first.filter(is_model).collect::<Vec<_>>().join("\n")
}

impl StepIdentity<'_> {
    /// Returns the key under which results of the step are stored. `secret` belongs to this state directory, so that a
    /// key does not reveal values of variables.
    pub fn key(&self, secret: &[u8; 32]) -> Sha256Hex {
        let identity = canonical::to_vec(&(VERSION, self));
        Sha256Hex::digest(&[secret, identity.as_slice()].concat())
    }

    /// Returns the key under which results of workers are stored. It is never that of a result of this machine.
    pub fn worker_key(&self, secret: &[u8; 32]) -> Sha256Hex {
        let identity = canonical::to_vec(&("proctor-worker", VERSION, self));
        Sha256Hex::digest(&[secret, identity.as_slice()].concat())
    }

    /// Returns the weak fingerprint of the step, which other machines compute, too. It depends on no secret, so the
    /// identity must not contain one.
    pub fn weak_fingerprint(&self) -> Sha256Hex {
        Sha256Hex::digest(&canonical::to_vec(&("proctor-weak", VERSION, self)))
    }
}

/// A fact of the machine that the operator can declare as irrelevant for results of other machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MachineFact {
    /// The release and version of the kernel.
    Kernel,
    /// The number of processors.
    Processors,
    /// The model of the processor, with its instruction set extensions.
    ProcessorModel,
    /// The resource limits that steps inherit. Some of their defaults depend on the size of the memory.
    ResourceLimits,
}

impl InheritedAttributes {
    /// Returns the attributes without the ignored ones.
    #[must_use]
    pub fn without(mut self, ignored: &[MachineFact]) -> Self {
        if ignored.contains(&MachineFact::ResourceLimits) {
            self.limits.clear();
        }
        self
    }
}

impl MachineFacts {
    /// Returns the facts without the ignored ones. The architecture is never ignored.
    #[must_use]
    pub fn without(mut self, ignored: &[MachineFact]) -> Self {
        for fact in ignored {
            match fact {
                MachineFact::Kernel => self.kernel.clear(),
                MachineFact::Processors => self.processors = 0,
                MachineFact::ProcessorModel => self.processor_model.clear(),
                // These are among the inherited attributes.
                MachineFact::ResourceLimits => {}
            }
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::names::ProfileName;
    use crate::spec::{self, OperatorConfig};

    #[test]
    fn every_part_changes_the_key() {
        let text =
            "version: 1\nprofiles: { p: { include: [a] } }\nskills: { a: { steps: [{ name: s, cmd: lint }] } }\n";
        let spec = spec::parse(text.as_bytes()).expect("a spec").spec;
        let profile = ProfileName::new("p").expect("a name");
        let plan =
            spec::resolve(&spec, &profile, &OperatorConfig::default(), Sha256Hex::digest(b""), 1).expect("a plan");
        let step = &plan.plan.skills[0].steps[0];
        let (usual, all, words) = (Tolerated::default(), Tolerated::all(), ["lint".to_owned()]);
        let below = [Sha256Hex::digest(b"below")];
        let identity = StepIdentity {
            proctor: "1".to_owned(),
            skill: ("a", Determinism::D1),
            step,
            command: (&words, Sha256Hex::digest(b"files")),
            env: BTreeMap::from([("A".to_owned(), "1".to_owned())]),
            repository: "/r".to_owned(),
            user: (1, 1, "/home".to_owned()),
            hidden: Vec::new(),
            tools: Vec::new(),
            tolerated: &usual,
            machine: MachineFacts {
                kernel: "k".to_owned(),
                architecture: "a".to_owned(),
                processors: 1,
                processor_model: "m".to_owned(),
            },
            inherited: InheritedAttributes::default(),
            mounts: &[],
            below: &[],
        };
        let mount = |path: &str, content| [MountedDirectory { path: path.to_owned(), content }];
        let needed_at = |origin, content: &[u8], is_copy, times: &[u8]| {
            let (sha256, modified_sha256) = (Sha256Hex::digest(content), Some(Sha256Hex::digest(times)));
            mount("m", MountedContent::NeededPath { origin, sha256, modified_sha256, is_copy })
        };
        let needed = |origin, content: &[u8], is_copy| needed_at(origin, content, is_copy, b"times");
        let mounts = [
            mount("m", MountedContent::TransparentCache),
            mount("n", MountedContent::TransparentCache),
            needed(NeededPathOrigin::Worktree, b"1", false),
            needed(NeededPathOrigin::Worktree, b"2", false),
            needed(NeededPathOrigin::Worktree, b"1", true),
            needed(NeededPathOrigin::Command, b"1", false),
            needed_at(NeededPathOrigin::Worktree, b"1", false, b"other times"),
        ];
        assert_eq!(mounts[2][0].without_times(), mounts[6][0].without_times(), "times differ between machines");
        assert_ne!(mounts[2][0].without_times(), mounts[3][0].without_times());

        let other_step = PlannedStep { retries: 1, ..step.clone() };
        let tool = ShownTool { source: "/t".to_owned(), at: "/t".to_owned(), kind: "k".to_owned() };
        let base = || identity.clone();
        let inherited = InheritedAttributes::default;
        let stack = ResourceLimit { name: "stack", soft: Some(1), hard: None };
        let others = [
            StepIdentity { proctor: "2".to_owned(), ..base() },
            StepIdentity { skill: ("a", Determinism::D0), ..base() },
            StepIdentity { step: &other_step, ..base() },
            StepIdentity { command: (&words, Sha256Hex::digest(b"other")), ..base() },
            StepIdentity { env: BTreeMap::from([("A".to_owned(), "2".to_owned())]), ..base() },
            StepIdentity { repository: "/s".to_owned(), ..base() },
            StepIdentity { user: (2, 1, "/home".to_owned()), ..base() },
            StepIdentity { hidden: vec!["/h".to_owned()], ..base() },
            StepIdentity { tools: vec![tool], ..base() },
            StepIdentity { tolerated: &all, ..base() },
            StepIdentity { machine: MachineFacts { processors: 2, ..base().machine }, ..base() },
            StepIdentity { machine: MachineFacts { kernel: "l".to_owned(), ..base().machine }, ..base() },
            StepIdentity { machine: MachineFacts { processor_model: "n".to_owned(), ..base().machine }, ..base() },
            StepIdentity { inherited: InheritedAttributes { groups: vec![4], ..inherited() }, ..base() },
            StepIdentity { inherited: InheritedAttributes { limits: vec![stack], ..inherited() }, ..base() },
            StepIdentity { inherited: InheritedAttributes { personality: "1".to_owned(), ..inherited() }, ..base() },
            StepIdentity { below: &below, ..base() },
        ];
        let (key, weak) = (identity.key(&[0; 32]), identity.weak_fingerprint());
        let of_worker = identity.worker_key(&[0; 32]);
        assert_ne!(weak, key);
        assert!(of_worker != key && of_worker != weak);
        assert_ne!(identity.worker_key(&[1; 32]), of_worker, "the secret of another state directory");
        assert_eq!(base().key(&[0; 32]), key);
        assert_ne!(identity.key(&[1; 32]), key, "the secret of another state directory");
        for other in others {
            assert_ne!(other.key(&[0; 32]), key, "{other:?}");
            assert_ne!(other.weak_fingerprint(), weak, "{other:?}");
            assert_ne!(other.worker_key(&[0; 32]), of_worker, "{other:?}");
        }
        let mut keys: Vec<Sha256Hex> =
            mounts.iter().map(|mounts| StepIdentity { mounts, ..base() }.key(&[0; 32])).chain([key]).collect();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), mounts.len() + 1, "each of these mounts gives another key");
    }

    #[test]
    fn ignored_facts_of_the_machine_do_not_matter() {
        let facts = |kernel: &str, processors, processor_model: &str| MachineFacts {
            kernel: kernel.to_owned(),
            architecture: "a".to_owned(),
            processors,
            processor_model: processor_model.to_owned(),
        };
        let all = [MachineFact::Kernel, MachineFact::Processors, MachineFact::ProcessorModel];
        assert_eq!(facts("k", 1, "m").without(&all), facts("l", 2, "n").without(&all));
        assert_ne!(facts("k", 1, "m").without(&all[..1]), facts("k", 2, "m").without(&all[..1]));
        let other = MachineFacts { architecture: "b".to_owned(), ..facts("k", 1, "m") };
        assert_ne!(other.without(&all), facts("k", 1, "m").without(&all));
    }

    #[test]
    fn processor_model_is_that_of_the_first_processor_without_its_load() {
        let first = "processor\t: 0\nmodel name\t: X\ncpu MHz\t\t: 2000.1\nflags\t\t: fpu avx2\n";
        let text = |load: &str| format!("{}\nprocessor\t: 1\nmodel name\t: Y\n", first.replace("2000.1", load));
        assert_eq!(processor_model(&text("2000.1")), "model name\t: X\nflags\t\t: fpu avx2");
        assert_eq!(processor_model(&text("800.0")), processor_model(&text("2000.1")));
        assert_ne!(processor_model(&first.replace(" avx2", "")), processor_model(first));
    }
}
