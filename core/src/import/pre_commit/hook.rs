//! Converts one hook of pre-commit to an equivalent check.

use super::{Common, Revision};
use crate::import::builtin::{self, Builtin, Way};
use crate::import::check_form::{check_form, program_at, program_name};
use crate::import::config::{Map, unknown_key};
use crate::import::draft::{Check, Item, pipeline, pipeline_tools};
use crate::import::known::{self, Known};
use crate::import::pattern::Pattern;
use crate::import::selection::Selection;
use crate::import::shell::{quote, quote_all, split, unfit};
use crate::import::types::FileType;
use crate::import::{Source, Tool};
use crate::spec::quoted;
use crate::spec::yaml::Node;

/// The keys that a hook may have.
const KEYS: [&str; 23] = [
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
pub(super) struct Hook<'t, 'a> {
    map: Map<'t, 'a>,
    id: &'t str,
    /// `owner/name`, `local` or `meta`.
    repo: String,
    rev: Option<&'t Revision>,
    common: &'t Common,
}

/// Defaults from a hook's own manifest, for keys that the configuration does not set.
#[derive(Default)]
struct Manifest {
    files: &'static str,
    types: Vec<&'static str>,
    types_or: Vec<&'static str>,
    exclude_types: Vec<&'static str>,
}

/// The way a command gets file names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Names {
    /// As arguments, as many as fit.
    Arguments,
    /// As arguments, at most this many per call.
    Few(u32),
    /// Not at all.
    None,
}

impl<'t, 'a> Hook<'t, 'a> {
    /// Converts the hook at `node`.
    pub(super) fn item(node: &'t Node<'a>, address: &str, rev: Option<&'t Revision>, common: &'t Common) -> Item {
        let hook = Map::of(node).ok_or_else(|| "a hook is a map".to_owned()).and_then(|map| {
            let id = map.text("id")?.ok_or("it has no `id`")?;
            let repo = known::owner_and_name(address).unwrap_or_else(|| address.to_owned());
            Ok(Hook { map, id, repo, rev, common })
        });
        let name = hook.as_ref().map_or("(unnamed)", |hook| hook.id).to_owned();
        let fate = hook.and_then(|hook| hook.check());
        let group = Source::PreCommit.as_str().to_owned();
        Item { name, group, line: node.span.line, chain: None, parallel: false, fate }
    }

    fn check(&self) -> Result<Check, String> {
        if let Some(key) = self.map.unknown(&KEYS) {
            return Err(unknown_key(key));
        }
        if let Some(what) = known::elsewhere(self.id).filter(|_| self.repo != "local") {
            return Err(format!("it looks {what}, and a run has a tree and nothing else"));
        }
        self.at_a_stage_of_files()?;
        let mut check = match self.repo.as_str() {
            "meta" => Err("it looks at pre-commit itself".to_owned()),
            "local" => self.local(),
            known::BUILTINS => self.builtin(),
            repo => self.known(Known::find(repo, self.id).ok_or_else(|| self.unknown())?),
        }?;
        check.description = self.map.text("name")?.unwrap_or(self.id).to_owned();
        if self.map.flag("fail_fast")? == Some(true) {
            check.notes.push("`fail_fast`: `proctor run --fail-fast` stops after the first that fails".to_owned());
        }
        if self.map.text("log_file")?.is_some() {
            check.notes.push("`log_file`: what it prints is kept with the run".to_owned());
        }
        Ok(check)
    }

    fn unknown(&self) -> String {
        format!(
            "its command stands in its own repository ({}), which is not read; where you have the tool, write a step that \
             runs it",
            quoted(&self.repo)
        )
    }

    fn at_a_stage_of_files(&self) -> Result<(), String> {
        let own = self.map.texts("stages")?.map(super::owned);
        let stages = match own {
            Some(stages) => Some(stages),
            None => self.common.stages.clone()?,
        };
        let Some(stages) = stages.filter(|stages| !stages.is_empty()) else { return Ok(()) };
        if stages.iter().any(|stage| FILE_STAGES.contains(&stage.as_str())) {
            return Ok(());
        }
        Err(match stages.as_slice() {
            [stage] if stage == "manual" => "it runs only when it is asked for by name (stage `manual`)".to_owned(),
            stages => format!("it runs at the stage {}, which checks no tree", quoted(&stages.join(", "))),
        })
    }

    /// Converts a hook of a repository whose manifest is known.
    fn known(&self, known: &'static Known) -> Result<Check, String> {
        if let Some(language) = self.map.text("language")? {
            return Err(format!(
                "its `language` is made {} here, and only that of its repository is known",
                quoted(language)
            ));
        }
        let entry = match self.map.text("entry")? {
            Some(entry) => split(entry)?,
            None => known.argv.iter().map(|word| (*word).to_owned()).collect(),
        };
        let is_own = entry.first().is_some_and(|word| word == known.program());
        let args = self.args()?.unwrap_or_else(|| known.args.iter().map(|word| (*word).to_owned()).collect());
        let argv: Vec<String> = entry.into_iter().chain(args).collect();
        let mut notes: Vec<String> = known.note.iter().map(|note| (*note).to_owned()).collect();
        self.dependencies(&argv, &mut notes)?;
        let tells_version = known.rev_is_version && !known.version.is_empty();
        let range = self.rev.filter(|_| tells_version).and_then(|rev| known::range(rev.tag()));
        if let Some(rev) = self.rev.filter(|_| tells_version && range.is_none()) {
            let tag = quoted(rev.tag());
            notes.push(format!("`rev` {tag} names no version, so any version of {} will do", quoted(known.program())));
        }
        let tool = match known.version {
            version if is_own && !version.is_empty() => Tool::asked(known.program(), version, range),
            _ => Tool::found(&argv[0]),
        };
        let manifest = Manifest {
            files: known.files,
            types: known.types.to_vec(),
            types_or: known.types_or.to_vec(),
            exclude_types: known.exclude_types.to_vec(),
        };
        let mut selection = self.selection(&manifest)?;
        if known.spares_spec {
            selection.drop.push(the_spec());
            notes.push("does not look at `spec/verification.yaml`, whose lines are long".to_owned());
        }
        let names = self.names(known.takes_names)?;
        let mut check = self.command(&argv, &selection, names, notes)?;
        check.tools.retain(|other| other.name != tool.name);
        check.tools.push(tool);
        check.is_known = is_own;
        Ok(check)
    }

    /// Converts one of the small checks of pre-commit's own collection.
    fn builtin(&self) -> Result<Check, String> {
        let args = self.args()?.unwrap_or_default();
        let Some(Builtin { way, types, note }) = builtin::find(self.id, &args) else {
            return Err(self.unknown());
        };
        for key in ["entry", "language", "additional_dependencies", "pass_filenames"] {
            if self.map.get(key).is_some() {
                return Err(format!("its `{key}` differs from that of its repository"));
            }
        }
        let manifest = Manifest { files: builtin::files(self.id), types: types.to_vec(), ..Manifest::default() };
        let selection = self.selection(&manifest)?;
        let mut notes: Vec<String> = note.iter().map(|note| (*note).to_owned()).collect();
        let mut check = match way {
            Way::Python { program, module } => {
                let mut check = self.end(&selection, builtin::python_line(&program));
                check.tools.push(python(module));
                check
            }
            Way::Command { name } => {
                notes.push(format!("`{name}` comes with `pip install pre-commit-hooks`"));
                let argv: Vec<String> = std::iter::once(name.to_owned()).chain(args).collect();
                self.command(&argv, &selection, Names::Arguments, Vec::new())?
            }
        };
        check.notes = notes;
        check.is_known = true;
        Ok(check)
    }

    /// Converts a hook whose command is in the configuration.
    fn local(&self) -> Result<Check, String> {
        let language = self.map.text("language")?.ok_or("it has no `language`")?;
        let entry = self.map.text("entry")?.ok_or("it has no `entry`")?;
        let mut selection = self.selection(&Manifest { types: vec!["file"], ..Manifest::default() })?;
        let mut notes = Vec::new();
        match language {
            "pygrep" => {
                // The spec contains the expression itself, and must not match it.
                selection.drop.push(the_spec());
                let line = builtin::pygrep(entry, &self.args()?.unwrap_or_default())?;
                let mut check = self.end(&selection, line);
                check.tools.push(python(None));
                return Ok(check);
            }
            "fail" => {
                let said = format!("if tr '\\0' '\\n' | grep .; then printf '%s\\n' {}; exit 1; fi", quote(entry));
                // The names go through `tr` first, so this is a separate part of the pipeline.
                return Ok(self.end(&selection, format!("({said})")));
            }
            "system" | "script" | "unsupported" | "unsupported_script"
                if self.map.list("additional_dependencies")?.is_some_and(|list| !list.is_empty()) =>
            {
                return Err("it has `additional_dependencies`, which its language does not install".to_owned());
            }
            "docker" | "docker_image" => {
                return Err(format!("its language is `{language}`: a step cannot reach the daemon of containers"));
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
            self.dependencies(&argv, &mut notes)?;
            if notes.is_empty() {
                notes.push(format!(
                    "runs the {} that is installed on the machine, not one from a separate environment",
                    quoted(&argv[0])
                ));
            }
        }
        let names = self.names(true)?;
        self.command(&argv, &selection, names, notes)
    }

    /// Checks the packages that pre-commit would install in addition to the tool. The package of the tool itself
    /// does not count.
    fn dependencies(&self, argv: &[String], notes: &mut Vec<String>) -> Result<(), String> {
        let Some(dependencies) = self.map.texts("additional_dependencies")? else { return Ok(()) };
        let program = program_name(&argv[program_at(argv)]);
        // codespell needs this package to read its configuration; since 3.11, Python includes an equivalent module.
        let spare = |name: &str| program == "codespell" && ["tomli", "toml"].contains(&name);
        let others: Vec<&str> = dependencies
            .iter()
            .copied()
            .filter(|dependency| !known::is_package_of(&package(dependency), program) && !spare(&package(dependency)))
            .collect();
        if !others.is_empty() {
            return Err(format!(
                "pre-commit installs it with {} in a separate environment; install that next to {} and write a step that runs {}",
                others.iter().map(|other| quoted(other)).collect::<Vec<_>>().join(", "),
                quoted(program),
                quoted(&quote_all(&check_form(argv).argv))
            ));
        }
        if !dependencies.is_empty() {
            notes.push(format!(
                "runs the {} of the machine, not {}",
                quoted(program),
                quoted(&dependencies.join(", "))
            ));
        }
        Ok(())
    }

    fn args(&self) -> Result<Option<Vec<String>>, String> {
        Ok(self.map.texts("args")?.map(super::owned))
    }

    fn names(&self, usual: bool) -> Result<Names, String> {
        match self.map.text("pass_filenames")?.and_then(|text| text.parse::<u32>().ok()) {
            Some(0) => Err("its `pass_filenames` is 0".to_owned()),
            Some(number) => Ok(Names::Few(number)),
            None if self.map.flag("pass_filenames")?.unwrap_or(usual) => Ok(Names::Arguments),
            None => Ok(Names::None),
        }
    }

    /// Returns the files that the hook checks.
    fn selection(&self, manifest: &Manifest) -> Result<Selection, String> {
        let mut selection = Selection::default();
        let named = |which: &str, key: &str| format!("{which} `{key}` is ");
        for (pattern, key) in [(&self.common.keep, "files"), (&self.common.drop, "exclude")] {
            let Some(pattern) = pattern else { continue };
            let pattern = pattern.clone().map_err(|problem| named("for all hooks, the", key) + &problem)?;
            match key {
                "files" => selection.keep(pattern),
                _ => selection.drop.push(pattern),
            }
        }
        let files = self.map.text("files")?.unwrap_or(manifest.files);
        selection.keep(Pattern::python(files).map_err(|problem| named("its", "files") + &problem)?);
        if let Some(exclude) = self.map.text("exclude")? {
            // pre-commit itself uses `^$` as an exclusion that matches nothing.
            selection.drop.push(Pattern::python(exclude).map_err(|problem| named("its", "exclude") + &problem)?);
        }
        selection.drop.retain(|pattern| pattern.ere != "^$");
        self.kinds(&mut selection, manifest)?;
        Ok(selection)
    }

    fn kinds(&self, selection: &mut Selection, manifest: &Manifest) -> Result<(), String> {
        let all = self.map.texts("types")?.unwrap_or_else(|| manifest.types.clone());
        let any = self.map.texts("types_or")?.unwrap_or_else(|| manifest.types_or.clone());
        let none = self.map.texts("exclude_types")?.unwrap_or_else(|| manifest.exclude_types.clone());
        let mut kinds = Vec::new();
        for tag in all {
            match tag {
                "file" => {}
                "text" => selection.is_text = true,
                "executable" => selection.executable = Some(true),
                "non-executable" => selection.executable = Some(false),
                "symlink" => selection.links = true,
                tag => kinds.push(kind(tag)?),
            }
        }
        if kinds.len() > 1 {
            return Err("its `types` name more than one kind of file at once".to_owned());
        }
        if any.contains(&"text") {
            selection.is_text = true;
        } else if !any.is_empty() && !any.contains(&"file") {
            let any: Vec<_> = any.into_iter().map(kind).collect::<Result<_, _>>()?;
            // If a required kind is among the alternatives, only the required kind matters.
            if kinds.is_empty() {
                kinds = any;
            } else if !kinds.iter().all(|kind| any.contains(kind)) {
                return Err("its `types` and `types_or` name different kinds of files".to_owned());
            }
        }
        if !kinds.is_empty() {
            selection.keep_kinds(&kinds);
        }
        for tag in none {
            match tag {
                "binary" => selection.is_text = true,
                "symlink" => {}
                "executable" if selection.executable.is_none() => selection.executable = Some(false),
                tag => selection.drop_kinds(&[kind(tag)?]),
            }
        }
        Ok(())
    }

    /// Returns the check for a command, with file names as `names` says.
    fn command(
        &self,
        argv: &[String],
        selection: &Selection,
        names: Names,
        mut notes: Vec<String>,
    ) -> Result<Check, String> {
        if let Some(reason) = unfit(&argv.join(" ")) {
            return Err(reason);
        }
        let form = check_form(argv);
        notes.extend(form.changed);
        let tool = form.argv.first().filter(|program| !program.contains('/')).map(|program| Tool::found(program));
        if names == Names::None {
            if !selection.is_everything() && self.map.flag("always_run")? != Some(true) {
                notes.push("runs whatever files there are".to_owned());
            }
            return Ok(Check { cmd: form.argv, tools: tool.into_iter().collect(), notes, ..Check::default() });
        }
        if self.map.flag("always_run")? == Some(true) {
            notes.push("`always_run`: does not run where there is no file for it".to_owned());
        }
        let few = if let Names::Few(number) = names { format!(" -n {number}") } else { String::new() };
        let run = format!("xargs -0r{few} {}", quote_all(&form.argv));
        let mut check = match form.prints_faults {
            true => self.end(selection, format!("{run} |\n(! grep .)")),
            false => self.end(selection, run),
        };
        check.tools.extend(tool);
        check.notes = notes;
        Ok(check)
    }

    /// Returns the check for a pipeline that lists the files and ends in `line`.
    fn end(&self, selection: &Selection, line: String) -> Check {
        let mut lines = selection.lines();
        lines.push(line);
        Check { cmd: pipeline(&lines), tools: pipeline_tools().to_vec(), ..Check::default() }
    }
}

/// Returns a pattern for the path of the spec.
fn the_spec() -> Pattern {
    Pattern { ere: "^spec/verification\\.yaml$".to_owned(), ignores_case: false }
}

fn kind(tag: &str) -> Result<&'static FileType, String> {
    FileType::of(tag).ok_or_else(|| format!("the kind of file {} is not known here", quoted(tag)))
}

/// Returns Python as a tool, with a check for a module that not every installation has.
fn python(module: Option<&str>) -> Tool {
    match module {
        None => Tool::asked("python3", &["--version"], None),
        Some(module) => Tool::asked("python3", &["-I", "-c", &format!("import {module}")], None),
    }
}

/// Extracts the name of a package from `black==24.1`, `prettier@3`, `@scope/name@1`, `isort[colors]`.
fn package(dependency: &str) -> String {
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
    fn packages_have_names() {
        let names = ["black==24.1", "prettier@3.0", "@scope/Name@1", "isort[colors]", "types_foo>=1; x"].map(package);
        assert_eq!(names, ["black", "prettier", "@scope/name", "isort", "types-foo"]);
    }
}
