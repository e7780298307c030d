//! Moves the plan of a spec in a subdirectory: its paths are written relative to the directory that contains `spec/`,
//! and executed relative to the top of the repository.

use super::{Inputs, NeededPath, PathKey, PathSource, Plan, PlannedStep, RelPath};

impl Plan {
    /// Returns the plan with all of its paths, which are relative to `directory`, relative to the repository.
    #[must_use]
    pub fn relocated_below(mut self, directory: &RelPath) -> Self {
        if directory.is_repository() {
            return self;
        }
        self.spec_dir = directory.join(&self.spec_dir);
        self.toolchain.iter_mut().for_each(|check| check.run.relocate_below(directory));
        for skill in &mut self.skills {
            let caches = skill.caches.iter_mut().chain(&mut skill.transparent_caches);
            caches.for_each(|cache| *cache = directory.join(cache));
            skill.needs_paths.iter_mut().for_each(|needed| needed.relocate_below(directory));
            skill.steps.iter_mut().for_each(|step| step.relocate_below(directory));
        }
        self
    }
}

impl NeededPath {
    fn relocate_below(&mut self, directory: &RelPath) {
        self.path = directory.join(&self.path);
        if let PathKey::Files(files) = &mut self.key {
            files.iter_mut().for_each(|file| *file = directory.join(file));
        }
        if let PathSource::Prepare { run } = &mut self.source {
            run.relocate_below(directory);
        }
    }
}

impl PlannedStep {
    /// Makes the paths of the step, which are relative to `directory`, relative to the repository. The words of the
    /// command do not change, since they are relative to the working directory.
    pub fn relocate_below(&mut self, directory: &RelPath) {
        self.workdir = directory.join(&self.workdir);
        self.reports.iter_mut().for_each(|report| report.path = directory.join(&report.path));
        if let (Some(files), false) = (&mut self.files, directory.is_repository()) {
            files.base = Some(directory.clone());
        }
        if let (Inputs::Globs(globs), false) = (&mut self.inputs, directory.is_repository()) {
            let prefix = globset_literal(directory.as_str());
            globs.iter_mut().for_each(|glob| *glob = format!("{prefix}/{}", glob.strip_prefix("./").unwrap_or(glob)));
        }
    }
}

/// Escapes the characters of a path that have a meaning in a glob.
fn globset_literal(path: &str) -> String {
    let escaped = |c: char| if "*?[]{}\\".contains(c) { vec!['\\', c] } else { vec![c] };
    path.chars().flat_map(escaped).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::model::names::ProfileName;
    use crate::model::plan::ReportFile;
    use crate::spec::{self, OperatorConfig};
    use crate::text::digest::Sha256Hex;

    const SPEC: &str = "version: 1
toolchains: { t: { required: [{ cmd: [./tool, --version] }] } }
profiles: { pr: { include: [s] } }
skills:
  s:
    caches: [target, { path: a/b, transparent: true }]
    needs_paths: [{ path: .venv, prepare: { cmd: [uv, sync], key: [uv.lock] } }]
    steps:
      - { name: top, cmd: [./x, y], reports: { junit: out.xml }, inputs: ['src/**', './a'] }
      - { name: below, cmd: [x, '{files}'], files: {}, workdir: sub/dir }
";

    fn plan() -> Plan {
        let spec = spec::parse(SPEC.as_bytes()).expect("valid").spec;
        let profile = ProfileName::new("pr").expect("a profile");
        spec::resolve(&spec, &profile, &OperatorConfig::default(), Sha256Hex::digest(b""), 1).expect("resolves").plan
    }

    fn path(text: &str) -> RelPath {
        RelPath::new(text).expect("a path")
    }

    #[test]
    fn moves_every_path_below_the_directory() {
        let moved = plan().relocated_below(&path("svc/[a]"));
        let skill = &moved.skills[0];
        assert_eq!(skill.caches, [path("svc/[a]/target"), path("svc/[a]/a/b")]);
        assert_eq!(skill.transparent_caches, [path("svc/[a]/a/b")]);
        let needed = &skill.needs_paths[0];
        assert_eq!(
            (&needed.path, &needed.key),
            (&path("svc/[a]/.venv"), &PathKey::Files(vec![path("svc/[a]/uv.lock")]))
        );
        assert_eq!(needed.prepare().map(|run| run.workdir.as_str()), Some("svc/[a]"));
        let [top, below] = skill.steps.as_slice() else { panic!("two steps") };
        assert_eq!((top.workdir.as_str(), below.workdir.as_str()), ("svc/[a]", "svc/[a]/sub/dir"));
        assert_eq!(top.cmd.words(), ["./x", "y"], "relative to the working directory");
        assert_eq!(top.inputs, Inputs::Globs(vec![r"svc/\[a\]/src/**".into(), r"svc/\[a\]/a".into()]));
        assert_eq!(below.files.as_ref().and_then(|files| files.base.clone()), Some(path("svc/[a]")));
        let reports: Vec<&ReportFile> = top.reports.iter().collect();
        assert_eq!(reports[0].path, path("svc/[a]/out.xml"));
        assert_eq!(moved.toolchain[0].run.workdir, path("svc/[a]"));
    }

    #[test]
    fn keeps_the_plan_of_the_top() {
        assert_eq!(plan().relocated_below(&RelPath::repository()), plan());
    }

    #[test]
    fn plans_of_two_directories_differ() {
        let digests: BTreeMap<_, _> =
            ["a", "b"].map(|directory| (directory, plan().relocated_below(&path(directory)).digest())).into();
        assert_ne!(digests["a"], digests["b"]);
    }
}
