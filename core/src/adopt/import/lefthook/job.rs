//! Imports one job of lefthook, with the settings that it inherits from its groups.

use std::collections::BTreeMap;

use super::job_command::{self, JobCommand};
use super::{LefthookError, LefthookSettings};
use crate::adopt::import::config_map::{ConfigMap, ConfigMapError, scalar_text};
use crate::adopt::import::file_selection::{FileSelection, TypeList};
use crate::adopt::import::import_draft::{EquivalentCheck, HookConversion};
use crate::adopt::import::path_pattern::{GlobCase, PathPattern, UnsupportedPattern};
use crate::adopt::import::rejection::{JobError, Rejection};
use crate::adopt::import::shell_words::split;
use crate::model::names::VarName;
use crate::model::plan::RelPath;
use crate::spec::yaml::{Node, YamlValue};

/// Maximum nesting of groups.
const MAX_GROUPS: usize = 16;
/// The keys that a job may have.
const JOB_KEYS: [&str; 24] = [
    "name",
    "run",
    "script",
    "runner",
    "args",
    "root",
    "files",
    "fail_text",
    "timeout",
    "glob",
    "exclude",
    "tags",
    "file_types",
    "env",
    "interactive",
    "use_stdin",
    "stage_fixed",
    "skip",
    "only",
    "group",
    "priority",
    "parallel",
    "piped",
    "follow",
];

/// Settings that a job inherits from its hook and groups.
#[derive(Debug, Clone)]
pub(super) struct JobScope<'t> {
    settings: &'t LefthookSettings<'t>,
    hook: &'t str,
    /// The names of the hook and the groups, for the name of a skill.
    path: Vec<String>,
    root: Option<&'t str>,
    globs: Vec<&'t str>,
    exclude: Vec<&'t str>,
    file_types: Vec<&'t str>,
    tags: Vec<&'t str>,
    exclude_tags: Vec<&'t str>,
    files: Option<&'t str>,
    env: BTreeMap<&'t str, &'t str>,
    notes: Vec<String>,
    /// The reason why none of the jobs in this scope can be imported.
    rejection: Option<JobError>,
    parallel: bool,
    piped: bool,
    groups: usize,
    /// The first chain number of the hook.
    first_chain: usize,
}

impl<'t> JobScope<'t> {
    /// Creates the scope of a hook.
    ///
    /// # Errors
    /// One of its values has the wrong type.
    pub(super) fn for_hook(
        name: &'t str,
        hook: &ConfigMap<'t, '_>,
        common: &'t LefthookSettings<'t>,
        first: usize,
    ) -> Result<Self, ConfigMapError> {
        let mut scope = Self {
            settings: common,
            hook: name,
            path: vec![name.to_owned()],
            root: None,
            globs: Vec::new(),
            exclude: hook.texts("exclude")?.unwrap_or_default(),
            file_types: Vec::new(),
            tags: Vec::new(),
            exclude_tags: split_words(hook, "exclude_tags")?,
            files: hook.text("files")?,
            env: BTreeMap::new(),
            notes: Vec::new(),
            rejection: None,
            parallel: hook.flag("parallel")?.unwrap_or_default(),
            piped: hook.flag("piped")?.unwrap_or_default(),
            groups: 0,
            first_chain: first,
        };
        scope.rejection = scope.check_conditions(hook).err();
        Ok(scope)
    }

    /// Returns the scope with the settings of a job or a group added.
    fn extended(&self, map: &ConfigMap<'t, '_>) -> Result<Self, JobError> {
        let mut scope = self.clone();
        scope.root = map.text("root")?.filter(|root| !root.is_empty()).or(scope.root);
        scope.files = map.text("files")?.or(scope.files);
        scope.globs.extend(map.texts("glob")?.unwrap_or_default().into_iter().filter(|glob| !glob.is_empty()));
        scope.exclude.extend(map.texts("exclude")?.unwrap_or_default());
        scope.file_types.extend(map.texts("file_types")?.unwrap_or_default());
        scope.tags.extend(split_words(map, "tags")?);
        for (name, node) in map.map("env")?.iter().flat_map(ConfigMap::iter) {
            scope.env.insert(name, scalar_text(node).ok_or(JobError::VariableNotText)?);
        }
        scope.check_conditions(map)?;
        Ok(scope)
    }

    /// Checks the conditions (`only`, `skip`) under which the jobs run.
    ///
    /// # Errors
    /// The conditions depend on something other than the tree.
    fn check_conditions(&mut self, map: &ConfigMap<'t, '_>) -> Result<(), JobError> {
        match map.get("only").map(|only| (only, map.flag("only"))) {
            None | Some((_, Ok(Some(true)))) => {}
            Some(_) => return Err(JobError::OnlyCondition),
        }
        let Some(skip) = map.get("skip") else { return Ok(()) };
        let states = match (&skip.value, map.flag("skip")) {
            (_, Ok(Some(true))) => return Err(JobError::Disabled),
            (_, Ok(Some(false))) => return Ok(()),
            (YamlValue::Seq(states), _) => states.iter().collect(),
            _ => vec![skip],
        };
        for state in states {
            match scalar_text(state) {
                Some("merge" | "merge-commit" | "rebase") => {}
                _ => return Err(JobError::SkipCondition),
            }
        }
        self.notes.push("`skip`: runs during a merge or a rebase too".to_owned());
        Ok(())
    }

    fn selection(&self) -> Result<FileSelection, JobError> {
        let mut selection = FileSelection::default();
        let dialect = self.settings.glob_dialect;
        let globs = self.globs.iter().map(|glob| PathPattern::from_glob(glob, dialect, GlobCase::Ignored));
        selection.include_any(globs.collect::<Result<_, _>>()?);
        for exclude in &self.exclude {
            // Before version 2, a text was a regular expression.
            let is_regular = exclude.contains(['^', '$', '(', '|', '\\']);
            selection.exclude(&match is_regular {
                true => PathPattern::from_python_regex(exclude)?,
                false => PathPattern::from_glob(exclude, dialect, GlobCase::Sensitive)?,
            });
        }
        for kind in &self.file_types {
            let tag = match *kind {
                "text" | "binary" | "executable" => *kind,
                // The selection combines types with `and`, and a link has no other type.
                "symlink" if self.file_types.len() == 1 => *kind,
                "not executable" => "non-executable",
                "not symlink" => continue,
                other => return Err(JobError::UnknownFileType { name: other.to_owned() }),
            };
            selection.add_types(TypeList::All, &[tag]).map_err(UnsupportedPattern::from)?;
        }
        Ok(selection)
    }

    fn workdir(&self) -> Result<Option<String>, JobError> {
        let Some(root) = self.root else { return Ok(None) };
        let root = root.trim_start_matches("./").trim_end_matches('/');
        if root.is_empty() || root == "." {
            return Ok(None);
        }
        let path = RelPath::new(root).map_err(|_| JobError::InvalidRoot { root: root.to_owned() })?;
        Ok(Some(path.as_str().to_owned()))
    }
}

/// Returns the words of a text or of a list of texts.
fn split_words<'t>(map: &ConfigMap<'t, '_>, key: &str) -> Result<Vec<&'t str>, ConfigMapError> {
    let texts = map.texts(key)?.unwrap_or_default();
    Ok(texts.into_iter().flat_map(str::split_whitespace).collect())
}

/// Imports the jobs of a list, in order.
pub(super) fn import_list(jobs: &[Node<'_>], scope: &JobScope<'_>, chain: usize, items: &mut Vec<HookConversion>) {
    let chain = if scope.piped { chain + items.len() } else { chain };
    for job in jobs {
        let Some(map) = ConfigMap::from_node(job) else {
            items.push(new_conversion("(unnamed)", job, scope, chain, Err(JobError::NotMap)));
            continue;
        };
        match map.map("group") {
            Ok(Some(inner)) => import_group(job, &map, &inner, scope, items),
            Ok(None) => {
                let name = ["name", "run", "script"].iter().find_map(|key| map.text(key).ok().flatten());
                let name = name.unwrap_or("(unnamed)");
                let conversion = convert_job(name, &map, None, scope);
                items.push(new_conversion(name, job, scope, chain, conversion));
            }
            Err(problem) => items.push(new_conversion("(group)", job, scope, chain, Err(problem.into()))),
        }
    }
}

/// Imports a group of jobs. If the group is part of a pipe, its jobs do not belong to the chain of that pipe.
fn import_group(
    node: &Node<'_>,
    map: &ConfigMap<'_, '_>,
    inner: &ConfigMap<'_, '_>,
    scope: &JobScope<'_>,
    items: &mut Vec<HookConversion>,
) {
    let name = map.text("name").ok().flatten().unwrap_or("group").to_owned();
    let read_group = || -> Result<(JobScope<'_>, Vec<Node<'_>>), JobError> {
        if scope.groups >= MAX_GROUPS {
            return Err(JobError::NestedTooDeep { max: MAX_GROUPS });
        }
        map.reject_unknown_keys(&JOB_KEYS)?;
        inner.reject_unknown_keys(&["parallel", "piped", "jobs", "root"])?;
        let mut scope = scope.extended(map)?;
        scope.root = inner.text("root")?.or(scope.root);
        scope.path.push(name.clone());
        scope.parallel = inner.flag("parallel")?.unwrap_or_default();
        scope.piped = inner.flag("piped")?.unwrap_or_default();
        scope.groups += 1;
        let jobs = inner.list("jobs")?.ok_or(JobError::GroupWithoutJobs)?;
        Ok((scope, jobs.to_vec()))
    };
    match read_group() {
        Ok((scope, jobs)) => {
            let chain = scope.first_chain + items.len() + 1_000_000 * (scope.groups + 1);
            import_list(&jobs, &scope, chain, items);
        }
        Err(problem) => items.push(new_conversion(&name, node, scope, 0, Err(problem))),
    }
}

/// Imports the commands or scripts of a hook, which are listed by name. A pipe runs them by priority and then by
/// name.
///
/// # Errors
/// A priority is not a number.
pub(super) fn import_named(
    key: &str,
    map: &ConfigMap<'_, '_>,
    scope: &JobScope<'_>,
    chain: usize,
    items: &mut Vec<HookConversion>,
) -> Result<(), LefthookError> {
    let mut jobs: Vec<(u32, &str, &Node<'_>)> = Vec::new();
    for (name, node) in map.iter() {
        let priority = ConfigMap::from_node(node).map(|job| job.text("priority")).transpose()?.flatten();
        let priority =
            priority.map(|text| text.parse().map_err(|_| LefthookError::InvalidPriority { text: text.to_owned() }));
        jobs.push((priority.transpose()?.filter(|number| *number > 0).unwrap_or(u32::MAX), name, node));
    }
    if scope.piped {
        let number =
            |name: &str| name.split(|c: char| !c.is_ascii_digit()).next().and_then(|text| text.parse::<u32>().ok());
        jobs.sort_by_key(|(priority, name, _)| (*priority, number(name).unwrap_or(u32::MAX), (*name).to_owned()));
    }
    let script = key == "scripts";
    for (_, name, node) in jobs {
        let map = ConfigMap::from_node(node).ok_or_else(|| JobError::NamedJobNotMap { name: name.to_owned() });
        let conversion = map.and_then(|map| convert_job(name, &map, script.then_some(name), scope));
        items.push(new_conversion(name, node, scope, chain, conversion));
    }
    Ok(())
}

fn new_conversion(
    name: &str,
    node: &Node<'_>,
    scope: &JobScope<'_>,
    chain: usize,
    result: Result<EquivalentCheck, JobError>,
) -> HookConversion {
    let result = match &scope.rejection {
        Some(reason) => Err(reason.clone()),
        None => result,
    };
    // The head of a named job is its key; that of a job in a list is the job itself.
    HookConversion {
        name: name.to_owned(),
        group: scope.path.join("."),
        line: node.head.line,
        chain: scope.piped.then_some(chain),
        parallel: scope.parallel && !scope.piped,
        result: result.map_err(Rejection::from),
    }
}

/// Returns the check that is equivalent to a job.
fn convert_job(
    name: &str,
    map: &ConfigMap<'_, '_>,
    script: Option<&str>,
    scope: &JobScope<'_>,
) -> Result<EquivalentCheck, JobError> {
    map.reject_unknown_keys(&JOB_KEYS)?;
    let scope = scope.extended(map)?;
    if let Some(tag) = scope.tags.iter().find(|tag| scope.exclude_tags.contains(tag)) {
        return Err(JobError::ExcludedTag { tag: (*tag).to_owned() });
    }
    for key in ["interactive", "use_stdin"] {
        if map.flag(key)? == Some(true) {
            return Err(JobError::ReadsInput { key });
        }
    }
    let script = script.or(map.text("script")?);
    let mut check = match (script, map.text("run")?) {
        (Some(script), None) => self::convert_script(script, map, &scope)?,
        (None, Some(run)) => {
            let run = expand_templates(run, name, &scope);
            let rules = scope.selection()?.to_rules()?;
            let command = JobCommand { run: &run, files: scope.files, rules: &rules };
            job_command::equivalent_check(&command)?
        }
        _ => return Err(JobError::NoCommand),
    };
    check.workdir = scope.workdir()?;
    check.env = job_env(&scope)?;
    check.notes.splice(0..0, scope.notes.iter().cloned());
    check.description = map.text("fail_text")?.unwrap_or(name).to_owned();
    check.timeout_ms = map.text("timeout")?.map(parse_timeout).transpose()?;
    if map.flag("stage_fixed")? == Some(true) {
        check.notes.push("`stage_fixed`: nothing is staged".to_owned());
    }
    Ok(check)
}

fn parse_timeout(text: &str) -> Result<u64, JobError> {
    let parsed = humantime::parse_duration(text).ok().and_then(|duration| u64::try_from(duration.as_millis()).ok());
    parsed.filter(|ms| *ms > 0).ok_or_else(|| JobError::InvalidTimeout { text: text.to_owned() })
}

fn convert_script(script: &str, map: &ConfigMap<'_, '_>, scope: &JobScope<'_>) -> Result<EquivalentCheck, JobError> {
    if scope.root.is_some() {
        return Err(JobError::ScriptWithRoot);
    }
    let args = map.text("args")?.unwrap_or_default();
    if args.contains('{') || args.contains('$') {
        return Err(JobError::ScriptArguments);
    }
    let mut argv = match map.text("runner")? {
        Some(runner) => split(runner)?,
        None => Vec::new(),
    };
    argv.push(format!("{}/{}/{script}", scope.settings.source_dir, scope.hook));
    if !args.is_empty() {
        argv.extend(split(args)?);
    }
    Ok(job_command::check_for_argv(&argv))
}

/// Returns the environment variables of a job.
fn job_env(scope: &JobScope<'_>) -> Result<BTreeMap<String, String>, JobError> {
    let mut env = BTreeMap::new();
    for (name, value) in &scope.env {
        if VarName::new(*name).is_err() {
            return Err(JobError::VariableName { name: (*name).to_owned() });
        }
        if value.contains('$') {
            return Err(JobError::VariableReference { name: (*name).to_owned() });
        }
        env.insert((*name).to_owned(), (*value).to_owned());
    }
    Ok(env)
}

/// Replaces the templates in braces in a command.
fn expand_templates(run: &str, name: &str, scope: &JobScope<'_>) -> String {
    let mut run = run.to_owned();
    for (key, text) in &scope.settings.templates {
        run = run.replace(&format!("{{{key}}}"), text);
    }
    run.replace("{lefthook_job_name}", &crate::adopt::import::shell_words::quote(name))
}
