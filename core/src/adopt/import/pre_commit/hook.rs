//! Converts one hook of pre-commit to an equivalent check.

use super::{PreCommitSettings, Revision, ToolEnvironment};
use crate::adopt::import::builtin_checks::{self, BuiltinCheck, CheckProgram};
use crate::adopt::import::check_mode::{program_index, program_name, to_check_mode};
use crate::adopt::import::config_map::ConfigMap;
use crate::adopt::import::file_selection::{FileSelection, TypeList, chooses_everything};
use crate::adopt::import::import_draft::{EquivalentCheck, HookConversion};
use crate::adopt::import::import_result::{Source, Tool};
use crate::adopt::import::known_hooks::{self, KnownHook};
use crate::adopt::import::path_pattern::PathPattern;
use crate::adopt::import::pygrep_hooks;
use crate::adopt::import::rejection::{HookError, Rejection};
use crate::adopt::import::shell_words::{in_shell, reject_unsupported, split};
use crate::model::plan::{FILES_PLACEHOLDER, FileRules};
use crate::spec::yaml::Node;
use crate::spec::{self, quoted};

/// The keys that a hook may have.
const HOOK_KEYS: [&str; 23] = [
    "id",
    "name",
    "entry",
    "language",
    "alias",
    "args",
    "files",
    "exclude",
    "types",
    "types_or",
    "exclude_types",
    "additional_dependencies",
    "always_run",
    "description",
    "fail_fast",
    "language_version",
    "log_file",
    "minimum_pre_commit_version",
    "pass_filenames",
    "require_serial",
    "stages",
    "verbose",
    "priority",
];

/// The stages at which a hook checks files.
const FILE_STAGES: [&str; 6] = ["pre-commit", "commit", "pre-push", "push", "pre-merge-commit", "merge-commit"];

/// A hook as written in the configuration.
pub(super) struct PreCommitHook<'t, 'a> {
    map: ConfigMap<'t, 'a>,
    id: &'t str,
    /// `owner/name`, `local` or `meta`.
    repo: String,
    rev: Option<&'t Revision>,
    settings: &'t PreCommitSettings,
}

/// Defaults from a hook's own manifest, for keys that the configuration does not set.
#[derive(Default)]
struct HookManifest {
    files: &'static str,
    types: Vec<&'static str>,
    types_or: Vec<&'static str>,
    exclude_types: Vec<&'static str>,
}

/// The way a command gets file names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FilenamePassing {
    /// As arguments, as many as fit.
    Arguments,
    /// As arguments; the value is the maximum number per call.
    AtMost(u32),
    /// Not at all.
    Omitted,
}

impl<'t, 'a> PreCommitHook<'t, 'a> {
    /// Converts the hook at `node`.
    pub(super) fn convert(
        node: &'t Node<'a>,
        address: &str,
        rev: Option<&'t Revision>,
        common: &'t PreCommitSettings,
    ) -> HookConversion {
        let hook = ConfigMap::from_node(node).ok_or(HookError::NotMap).and_then(|map| {
            let id = map.text("id")?.ok_or(HookError::MissingKey("id"))?;
            let repo = known_hooks::owner_and_name(address).unwrap_or_else(|| address.to_owned());
            Ok(PreCommitHook { map, id, repo, rev, settings: common })
        });
        let name = hook.as_ref().map_or("(unnamed)", |hook| hook.id).to_owned();
        let result = hook.and_then(|hook| hook.to_check()).map_err(Rejection::from);
        let group = Source::PreCommit.as_str().to_owned();
        HookConversion { name, group, line: node.span.line, chain: None, parallel: false, result }
    }

    fn to_check(&self) -> Result<EquivalentCheck, HookError> {
        self.map.reject_unknown_keys(&HOOK_KEYS)?;
        if let Some(target) = known_hooks::non_tree_target(self.id).filter(|_| self.repo != "local") {
            return Err(HookError::NonTreeTarget { target });
        }
        if let Some(query) = known_hooks::network_query(&self.repo, self.id) {
            return Err(HookError::NeedsNetwork { query });
        }
        self.require_file_stage()?;
        let mut check = match self.repo.as_str() {
            "meta" => Err(HookError::MetaHook),
            "local" => self.local_check(),
            known_hooks::BUILTIN_REPO => self.builtin_check(),
            pygrep_hooks::PYGREP_REPO => self.pygrep_check(),
            repo => {
                self.known_check(KnownHook::find(repo, self.id, self.tag()).ok_or_else(|| self.unknown_hook_error())?)
            }
        }?;
        check.description = self.map.text("name")?.unwrap_or(self.id).to_owned();
        if self.omits_links()? {
            check.notes.push("`types: []`: a step with these types does not check symbolic links".to_owned());
        }
        if self.map.flag("fail_fast")? == Some(true) {
            check.notes.push("`fail_fast`: `proctor run --fail-fast` stops after the first failure".to_owned());
        }
        if self.map.text("log_file")?.is_some() {
            check.notes.push("`log_file`: the output is stored with the run".to_owned());
        }
        Ok(check)
    }

    /// Returns the revision of the hook's repository.
    fn tag(&self) -> Option<&'t str> {
        self.rev.map(Revision::tag)
    }

    fn unknown_hook_error(&self) -> HookError {
        HookError::UnknownHook { repo: self.repo.clone() }
    }

    fn require_file_stage(&self) -> Result<(), HookError> {
        let own = self.map.texts("stages")?.map(super::to_owned_strings);
        let stages = match own.filter(|stages| !stages.is_empty()) {
            Some(stages) => Some(stages),
            None => self.settings.stages.clone()?,
        };
        let Some(stages) = stages.filter(|stages| !stages.is_empty()) else { return Ok(()) };
        if stages.iter().any(|stage| FILE_STAGES.contains(&stage.as_str())) {
            return Ok(());
        }
        Err(match stages.as_slice() {
            [stage] if stage == "manual" => HookError::ManualStage,
            _ => HookError::NonTreeStage { stages },
        })
    }

    /// Converts a hook of a repository whose manifest is known.
    fn known_check(&self, known: &'static KnownHook) -> Result<EquivalentCheck, HookError> {
        if let Some(language) = self.map.text("language")? {
            return Err(HookError::ReplacedLanguage { language: language.to_owned() });
        }
        let entry = match self.map.text("entry")? {
            Some(entry) => split(entry)?,
            None => known.argv.iter().map(|word| (*word).to_owned()).collect(),
        };
        let is_own = entry.first().is_some_and(|word| word == known.program());
        let args = self.args()?.unwrap_or_else(|| known.args.iter().map(|word| (*word).to_owned()).collect());
        let argv: Vec<String> = entry.into_iter().chain(args).collect();
        let mut notes: Vec<String> = known.note.iter().map(|note| (*note).to_owned()).collect();
        self.check_dependencies(&argv, &mut notes)?;
        let has_version = known.rev_is_version && !known.version_args.is_empty();
        let range = self.rev.filter(|_| has_version).and_then(|rev| known_hooks::compatible_range(rev.tag()));
        if let Some(rev) = self.rev.filter(|_| has_version && range.is_none()) {
            let tag = quoted(rev.tag());
            notes.push(format!(
                "`rev` {tag} is not a version, so any version of {} is accepted",
                quoted(known.program())
            ));
        }
        let tool = match known.version_args {
            version if is_own && !version.is_empty() => Tool::with_version_check(known.program(), version, range),
            _ => Tool::on_path(&argv[0]),
        };
        let manifest = HookManifest {
            files: known.files,
            types: known.types.to_vec(),
            types_or: known.types_or.to_vec(),
            exclude_types: known.exclude_types.to_vec(),
        };
        let mut selection = self.selection(&manifest)?;
        if known.excludes_spec {
            selection.exclude_path(spec::PATH);
            notes.push("does not check `spec/verification.yaml`, which has long lines".to_owned());
        }
        let names = self.filename_passing(known.pass_filenames)?;
        let mut check = self.command_check(&argv, &selection, names, notes)?;
        check.tools.retain(|other| other.name != tool.name);
        check.tools.push(tool);
        check.is_known = is_own;
        Ok(check)
    }

    /// Converts one of the small checks of pre-commit's own collection.
    fn builtin_check(&self) -> Result<EquivalentCheck, HookError> {
        let args = self.args()?.unwrap_or_default();
        reject_files_word(&args)?;
        let Some(BuiltinCheck { cmd, fix, program, types, note }) = builtin_checks::find(self.id, &args) else {
            return Err(self.unknown_hook_error());
        };
        for key in ["entry", "language", "additional_dependencies", "pass_filenames"] {
            if self.map.get(key).is_some() {
                return Err(HookError::ReplacedKey { key });
            }
        }
        let manifest = HookManifest {
            files: builtin_checks::files_pattern(self.id),
            types: types.to_vec(),
            ..HookManifest::default()
        };
        let files = self.selection(&manifest)?.to_rules().map_err(HookError::CombinedPatterns)?;
        let mut notes: Vec<String> = note.iter().map(|note| (*note).to_owned()).collect();
        let tool = program.map(|program| match program {
            CheckProgram::Python(module) => python_tool(module),
            CheckProgram::PackageCommand(name) => {
                notes.push(format!("`{name}` is installed by `pip install pre-commit-hooks`"));
                Tool::on_path(name)
            }
        });
        let tools = tool.into_iter().collect();
        Ok(EquivalentCheck { cmd, files: Some(files), fix, tools, notes, is_known: true, ..EquivalentCheck::default() })
    }

    /// Converts a hook of [`pygrep_hooks::PYGREP_REPO`].
    fn pygrep_check(&self) -> Result<EquivalentCheck, HookError> {
        let hook = pygrep_hooks::find(self.id, self.tag()).ok_or_else(|| self.unknown_hook_error())?;
        for key in ["language", "pass_filenames"] {
            if self.map.get(key).is_some() {
                return Err(HookError::ReplacedKey { key });
            }
        }
        let selection = self.selection(&HookManifest { types: vec![hook.file_type], ..HookManifest::default() })?;
        let entry = self.map.text("entry")?.unwrap_or(hook.expression);
        let mut check = self.expression_check(entry, &selection)?;
        check.is_known = true;
        if hook.is_newest
            && let Some(tag) = self.tag()
        {
            check.notes.push(format!("`rev` {} is not a version, so the newest known expression is used", quoted(tag)));
        }
        Ok(check)
    }

    /// Returns the check that searches files for an expression.
    fn expression_check(&self, expression: &str, selection: &FileSelection) -> Result<EquivalentCheck, HookError> {
        reject_files_word(&[expression.to_owned()])?;
        let cmd = builtin_checks::pygrep(expression, &self.args()?.unwrap_or_default())?;
        let files = selection.to_rules().map_err(HookError::CombinedPatterns)?;
        let tools = vec![python_tool(None)];
        Ok(EquivalentCheck { cmd, files: Some(files), tools, ..EquivalentCheck::default() })
    }

    /// Converts a hook whose command is in the configuration.
    fn local_check(&self) -> Result<EquivalentCheck, HookError> {
        let language = self.map.text("language")?.ok_or(HookError::MissingKey("language"))?;
        let entry = self.map.text("entry")?.ok_or(HookError::MissingKey("entry"))?;
        let mut selection = self.selection(&HookManifest { types: vec!["file"], ..HookManifest::default() })?;
        let mut notes = Vec::new();
        match language {
            "pygrep" => {
                // The spec contains the expression itself, and must not match it.
                selection.exclude_path(spec::PATH);
                return self.expression_check(entry, &selection);
            }
            "fail" => {
                reject_files_word(&[entry.to_owned()])?;
                let words = ["sh", "-c", "printf \"%s\\n\" \"$0\" \"$@\"; exit 1", entry, FILES_PLACEHOLDER];
                let cmd = words.map(str::to_owned).to_vec();
                let files = selection.to_rules().map_err(HookError::CombinedPatterns)?;
                return Ok(EquivalentCheck { cmd, files: Some(files), ..EquivalentCheck::default() });
            }
            "system" | "script" | "unsupported" | "unsupported_script"
                if self.map.list("additional_dependencies")?.is_some_and(|list| !list.is_empty()) =>
            {
                return Err(HookError::UninstalledDependencies);
            }
            "docker" | "docker_image" => {
                return Err(HookError::ContainerLanguage { language: language.to_owned() });
            }
            _ => {}
        }
        let mut argv = split(entry)?;
        if language.ends_with("script") && !argv[0].contains('/') {
            argv[0] = format!("./{}", argv[0]);
        }
        argv.extend(self.args()?.unwrap_or_default());
        if !["system", "script", "unsupported", "unsupported_script"].contains(&language) {
            // The environment of a local hook contains only these dependencies: pre-commit does not install this
            // repository in it.
            self.check_dependencies(&argv, &mut notes)?;
            if notes.is_empty() {
                notes.push(format!(
                    "runs the {} that is installed on the machine, not one from a separate environment",
                    quoted(&argv[0])
                ));
            }
        }
        let names = self.filename_passing(true)?;
        self.command_check(&argv, &selection, names, notes)
    }

    /// Checks the packages that pre-commit would install in addition to the tool. The package of the tool itself
    /// does not count.
    fn check_dependencies(&self, argv: &[String], notes: &mut Vec<String>) -> Result<(), HookError> {
        let Some(dependencies) = self.map.texts("additional_dependencies")? else { return Ok(()) };
        if self.settings.environment == ToolEnvironment::Project {
            return Ok(());
        }
        let program = program_name(&argv[program_index(argv)]);
        // codespell needs this package to read its configuration; since 3.11, Python includes an equivalent module.
        // blacken-docs requires black itself.
        let is_optional = |name: &str| match program {
            "codespell" => ["tomli", "toml"].contains(&name),
            "blacken-docs" => name == "black",
            _ => false,
        };
        let others: Vec<&str> = dependencies
            .iter()
            .copied()
            .filter(|dependency| {
                !known_hooks::is_package_of(&package_name(dependency), program)
                    && !is_optional(&package_name(dependency))
            })
            .collect();
        if !others.is_empty() {
            return Err(HookError::SeparateEnvironment {
                dependencies: super::to_owned_strings(others),
                program: program.to_owned(),
                argv: to_check_mode(argv).argv,
            });
        }
        if program == "blacken-docs" && !dependencies.is_empty() {
            notes.push(format!("formats with the installed black, not with {}", quoted(&dependencies.join(", "))));
        } else if !dependencies.is_empty() {
            notes.push(format!("runs the installed {}, not {}", quoted(program), quoted(&dependencies.join(", "))));
        }
        Ok(())
    }

    fn args(&self) -> Result<Option<Vec<String>>, HookError> {
        Ok(self.map.texts("args")?.map(super::to_owned_strings))
    }

    fn filename_passing(&self, pass_by_default: bool) -> Result<FilenamePassing, HookError> {
        match self.map.text("pass_filenames")?.and_then(|text| text.parse::<u32>().ok()) {
            Some(0) => Err(HookError::ZeroFilenames),
            Some(number) => Ok(FilenamePassing::AtMost(number)),
            None if self.map.flag("pass_filenames")?.unwrap_or(pass_by_default) => Ok(FilenamePassing::Arguments),
            None => Ok(FilenamePassing::Omitted),
        }
    }

    /// Returns the files that the hook checks.
    fn selection(&self, manifest: &HookManifest) -> Result<FileSelection, HookError> {
        let mut selection = FileSelection::default();
        if let Some(pattern) = &self.settings.files {
            selection.include_any(vec![pattern.clone()?]);
        }
        if let Some(pattern) = &self.settings.exclude {
            selection.exclude(&pattern.clone()?);
        }
        let own_pattern =
            |key, text| PathPattern::from_python_regex(text).map_err(|source| HookError::Pattern { key, source });
        selection.include_any(vec![own_pattern("files", self.map.text("files")?.unwrap_or(manifest.files))?]);
        if let Some(exclude) = self.map.text("exclude")? {
            selection.exclude(&own_pattern("exclude", exclude)?);
        }
        let lists = [
            (TypeList::All, "types", &manifest.types),
            (TypeList::Any, "types_or", &manifest.types_or),
            (TypeList::None, "exclude_types", &manifest.exclude_types),
        ];
        for (list, key, default) in lists {
            let types = self.map.texts(key)?.unwrap_or_else(|| default.clone());
            if list == TypeList::All && types.contains(&"directory") {
                return Err(HookError::SubmoduleFiles);
            }
            selection.add_types(list, &types).map_err(HookError::UnknownFileType)?;
        }
        if self.accepts_every_kind()? && self.map.texts("types_or")?.as_deref() == Some(&["symlink"]) {
            selection.select_only_links();
        }
        Ok(selection)
    }

    /// Returns whether the configuration replaces the default of `types`, `[file]`, by an empty list.
    fn accepts_every_kind(&self) -> Result<bool, HookError> {
        Ok(self.map.texts("types")?.is_some_and(|types| types.is_empty()))
    }

    /// Returns whether the hook checks links together with other files. A step has no equivalent rules.
    fn omits_links(&self) -> Result<bool, HookError> {
        let types_or = self.map.texts("types_or")?.unwrap_or_default();
        let selects_links = types_or.is_empty() || types_or.len() > 1 && types_or.contains(&"symlink");
        let excludes_links = self.map.texts("exclude_types")?.is_some_and(|types| types.contains(&"symlink"));
        Ok(self.accepts_every_kind()? && selects_links && !excludes_links)
    }

    /// Returns the check for a command, and passes the file names in the way that `names` gives.
    fn command_check(
        &self,
        argv: &[String],
        selection: &FileSelection,
        names: FilenamePassing,
        mut notes: Vec<String>,
    ) -> Result<EquivalentCheck, HookError> {
        reject_unsupported(&argv.join(" "))?;
        reject_files_word(argv)?;
        let always_runs = self.map.flag("always_run")? == Some(true);
        let mut argv = argv.to_vec();
        let tool = argv.first().filter(|program| !program.contains('/')).map(|program| Tool::on_path(program));
        if names != FilenamePassing::Omitted {
            argv.push(FILES_PLACEHOLDER.to_owned());
            if always_runs {
                notes.push("`always_run`: does not run if no file matches".to_owned());
            }
        }
        let form = to_check_mode(&argv);
        notes.extend(form.difference);
        let (mut cmd, mut fix) = (form.argv, form.fix);
        if let FilenamePassing::AtMost(number) = names {
            cmd = in_batches(&cmd, number);
            fix = fix.map(|fix| in_batches(&fix, number));
        }
        let rules = selection.to_rules().map_err(HookError::CombinedPatterns)?;
        let is_always = always_runs || chooses_everything(&rules);
        let files: Option<FileRules> = (names != FilenamePassing::Omitted || !is_always).then_some(rules);
        Ok(EquivalentCheck { cmd, files, fix, tools: tool.into_iter().collect(), notes, ..EquivalentCheck::default() })
    }
}

/// Returns a command that calls another one with at most `number` files at a time.
fn in_batches(argv: &[String], number: u32) -> Vec<String> {
    match argv.split_last() {
        Some((last, words)) if last == FILES_PLACEHOLDER => {
            in_shell(words, &format!("printf \"%s\\0\" \"$@\" | xargs -0 -n {number} "), "")
                .into_iter()
                .chain(["sh".to_owned(), FILES_PLACEHOLDER.to_owned()])
                .collect()
        }
        _ => argv.to_vec(),
    }
}

/// Rejects a command that contains the word that stands for the files in a spec.
fn reject_files_word(argv: &[String]) -> Result<(), HookError> {
    if argv.iter().any(|word| word.contains(FILES_PLACEHOLDER)) { Err(HookError::FilesWord) } else { Ok(()) }
}

/// Returns Python as a tool, with a check for a module that not every installation has.
fn python_tool(module: Option<&str>) -> Tool {
    match module {
        None => Tool::with_version_check("python3", &["--version"], None),
        Some(module) => Tool::with_version_check("python3", &["-I", "-c", &format!("import {module}")], None),
    }
}

/// Extracts the name of a package from `black==24.1`, `prettier@3`, `@scope/name@1`, `isort[colors]`.
fn package_name(dependency: &str) -> String {
    let (scope, rest) = match dependency.strip_prefix('@') {
        Some(rest) => ("@", rest),
        None => ("", dependency),
    };
    let end = rest.find(|c: char| "=<>~!;[@ ".contains(c)).unwrap_or(rest.len());
    format!("{scope}{}", rest[..end].to_lowercase().replace('_', "-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extracts_package_names() {
        let names =
            ["black==24.1", "prettier@3.0", "@scope/Name@1", "isort[colors]", "types_foo>=1; x"].map(package_name);
        assert_eq!(names, ["black", "prettier", "@scope/name", "isort", "types-foo"]);
    }
}
