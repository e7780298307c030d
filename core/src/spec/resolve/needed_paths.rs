//! Resolves the paths that the steps of a skill need although no commit contains them.

use std::collections::BTreeMap;

use super::{Resolver, step_key};
use crate::model::names::StepName;
use crate::model::plan::{NeededPath, PathKey, PathSource, PlannedStep, RelPath};
use crate::spec::built_in;
use crate::spec::diagnostic::{Code, Diagnostic};
use crate::spec::needed_paths::{Prepare, WrittenPath};
use crate::spec::provenance::ValueOrigin;
use crate::spec::setting_layers::{SettingsLayer, StepOnlySettings};
use crate::spec::span::{Span, Spanned};
use crate::spec::spec_types::{Skill, Spec};

/// The group of preparing commands in the provenance. No skill has a name with a space.
const GROUP: &str = "prepare of";
/// The name of a preparing command.
const STEP_NAME: &str = "prepare";

impl Resolver<'_> {
    /// Returns the paths that `skill` needs: those of `defaults`, of the skill and of its steps. The innermost
    /// definition of a path applies.
    pub(super) fn needed_paths(&mut self, spec: &Spec, skill: &Skill) -> Vec<NeededPath> {
        let of_defaults = spec.defaults.iter().filter_map(|defaults| defaults.needs_paths.as_ref());
        let of_steps = skill.steps.value.iter().filter_map(|step| step.needs_paths.as_ref());
        let lists = of_defaults.chain(&skill.needs_paths).chain(of_steps);
        let mut chosen: BTreeMap<&RelPath, &WrittenPath> = BTreeMap::new();
        for written in lists.flat_map(|list| &list.value) {
            chosen.insert(written.value.path(), &written.value);
        }
        chosen.into_iter().filter_map(|(path, written)| self.needed_path(spec, path, written)).collect()
    }

    fn needed_path(&mut self, spec: &Spec, path: &RelPath, written: &WrittenPath) -> Option<NeededPath> {
        let (path, map) = (path.clone(), written.map());
        let Some(prepare) = map.and_then(|map| map.prepare.as_ref()) else {
            let key = path_key(map.and_then(|map| map.key.as_ref()));
            return Some(NeededPath { path, key, source: PathSource::Worktree });
        };
        let run = Box::new(self.preparing_step(spec, &path, prepare)?);
        Some(NeededPath { path, key: path_key(prepare.key.as_ref()), source: PathSource::Prepare { run } })
    }

    fn preparing_step(&mut self, spec: &Spec, path: &RelPath, prepare: &Prepare) -> Option<PlannedStep> {
        let cmd = self.command(&prepare.cmd)?;
        let name = match StepName::new(STEP_NAME) {
            Ok(name) => name,
            Err(bad) => {
                self.problems.push(Diagnostic::without_span(Code::BadName, bad.to_string()));
                return None;
            }
        };
        // The writes of the command are discarded except for the path, so the protection of the tree does not matter.
        let tracked = Spanned::new(built_in::READ_ONLY, Span::default());
        let fixed = SettingsLayer {
            origin: |_| ValueOrigin::BuiltIn,
            read_only: Some(&tracked),
            ..SettingsLayer::from_defaults(None)
        };
        let own = SettingsLayer {
            origin: ValueOrigin::Step,
            workdir: prepare.workdir.as_ref(),
            timeout_ms: prepare.timeout_ms.as_ref(),
            network: prepare.network.as_ref(),
            env_allowlist: prepare.env_allowlist.as_ref(),
            env: prepare.env.as_ref(),
            ..SettingsLayer::from_defaults(None)
        };
        let layers = [fixed, own, SettingsLayer::from_defaults(spec.defaults.as_ref())];
        let (key, origin) = (step_key(GROUP, path.as_str()), ValueOrigin::Step(prepare.cmd.span));
        Some(self.step(&key, name, cmd, origin, &layers, StepOnlySettings::ToolchainCheck))
    }
}

fn path_key(written: Option<&Spanned<Vec<Spanned<RelPath>>>>) -> PathKey {
    match written {
        None => PathKey::LockFiles,
        Some(files) => PathKey::Files(files.value.iter().map(|file| file.value.clone()).collect()),
    }
}
