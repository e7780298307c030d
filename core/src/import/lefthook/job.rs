//! Imports one job of lefthook, with the settings that it inherits from its groups.

use std::collections::BTreeMap;

use super::Common;
use super::command::{self, Asked};
use crate::import::config::{Map, scalar, unknown_key};
use crate::import::draft::{Check, Item};
use crate::import::pattern::Pattern;
use crate::import::selection::Selection;
use crate::import::shell::split;
use crate::names::VarName;
use crate::plan::RelPath;
use crate::spec::quoted;
use crate::spec::yaml::{Node, Value};

/// Maximum nesting of groups.
const MAX_GROUPS: usize = 16;
/// The keys that a job may have.
const KEYS: [&str; 24] = [
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
pub(super) struct Scope<'t> {
    common: &'t Common<'t>,
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
    refused: Option<String>,
    parallel: bool,
    piped: bool,
    groups: usize,
    /// The first chain number of the hook.
    first: usize,
}

impl<'t> Scope<'t> {
    /// Creates the scope of a hook.
    ///
    /// # Errors
    /// One of its values has the wrong type.
    pub(super) fn of(name: &'t str, hook: &Map<'t, '_>, common: &'t Common<'t>, first: usize) -> Result<Self, String> {
        let mut scope = Self {
            common,
            hook: name,
            path: vec![name.to_owned()],
            root: None,
            globs: Vec::new(),
            exclude: hook.texts("exclude")?.unwrap_or_default(),
            file_types: Vec::new(),
            tags: Vec::new(),
            exclude_tags: words(hook, "exclude_tags")?,
            files: hook.text("files")?,
            env: BTreeMap::new(),
            notes: Vec::new(),
            refused: None,
            parallel: hook.flag("parallel")?.unwrap_or_default(),
            piped: hook.flag("piped")?.unwrap_or_default(),
            groups: 0,
            first,
        };
        scope.refused = scope.conditions(hook).err();
        Ok(scope)
    }

    /// Returns the scope with the settings of a job or a group added.
    fn extended(&self, map: &Map<'t, '_>) -> Result<Self, String> {
        let mut scope = self.clone();
        scope.root = map.text("root")?.filter(|root| !root.is_empty()).or(scope.root);
        scope.files = map.text("files")?.or(scope.files);
        scope.globs.extend(map.texts("glob")?.unwrap_or_default().into_iter().filter(|glob| !glob.is_empty()));
        scope.exclude.extend(map.texts("exclude")?.unwrap_or_default());
        scope.file_types.extend(map.texts("file_types")?.unwrap_or_default());
        scope.tags.extend(words(map, "tags")?);
        for (name, node) in map.map("env")?.iter().flat_map(Map::iter) {
            scope.env.insert(name, scalar(node).ok_or("a value of `env` is no text")?);
        }
        scope.conditions(map)?;
        Ok(scope)
    }

    /// Checks the conditions (`only`, `skip`) under which the jobs run.
    ///
    /// # Errors
    /// They depend on something other than the tree.
    fn conditions(&mut self, map: &Map<'t, '_>) -> Result<(), String> {
        match map.get("only").map(|only| (only, map.flag("only"))) {
            None | Some((_, Ok(Some(true)))) => {}
            Some(_) => return Err("it runs under a condition alone (`only`)".to_owned()),
        }
        let Some(skip) = map.get("skip") else { return Ok(()) };
        let states = match (&skip.value, map.flag("skip")) {
            (_, Ok(Some(true))) => return Err("it is turned off (`skip: true`)".to_owned()),
            (_, Ok(Some(false))) => return Ok(()),
            (Value::Seq(states), _) => states.iter().collect(),
            _ => vec![skip],
        };
        for state in states {
            match scalar(state) {
                Some("merge" | "merge-commit" | "rebase") => {}
                _ => return Err("whether it runs depends on a condition (`skip`)".to_owned()),
            }
        }
        self.notes.push("`skip`: runs during a merge or a rebase too".to_owned());
        Ok(())
    }

    fn selection(&self) -> Result<Selection, String> {
        let mut selection = Selection::default();
        let dialect = self.common.globs;
        let globs: Vec<Pattern> =
            self.globs.iter().map(|glob| Pattern::glob(glob, dialect)).collect::<Result<_, _>>()?;
        if !globs.is_empty() {
            let any: Vec<String> = globs.into_iter().map(|glob| glob.ere).collect();
            selection.keep(Pattern { ere: any.join("|"), ignores_case: true });
        }
        for exclude in &self.exclude {
            // Before version 2, a text was a regular expression.
            let is_regular = exclude.contains(['^', '$', '(', '|', '\\']);
            selection.drop.push(match is_regular {
                true => Pattern::python(exclude)?,
                false => Pattern { ignores_case: false, ..Pattern::glob(exclude, dialect)? },
            });
        }
        for kind in &self.file_types {
            match *kind {
                "text" => selection.is_text = true,
                "executable" => selection.executable = Some(true),
                "not executable" => selection.executable = Some(false),
                "not symlink" => {}
                other => return Err(format!("its `file_types` name {}, which is not known here", quoted(other))),
            }
        }
        selection.below = self.workdir()?;
        Ok(selection)
    }

    fn workdir(&self) -> Result<Option<String>, String> {
        let Some(root) = self.root else { return Ok(None) };
        let root = root.trim_start_matches("./").trim_end_matches('/');
        if root.is_empty() || root == "." {
            return Ok(None);
        }
        let path =
            RelPath::new(root).map_err(|_| format!("its `root` {} is no directory below this one", quoted(root)))?;
        Ok(Some(path.as_str().to_owned()))
    }
}

/// Returns the words of a text or of a list of texts.
fn words<'t>(map: &Map<'t, '_>, key: &str) -> Result<Vec<&'t str>, String> {
    let texts = map.texts(key)?.unwrap_or_default();
    Ok(texts.into_iter().flat_map(str::split_whitespace).collect())
}

/// Imports the jobs of a list, in order.
pub(super) fn list(jobs: &[Node<'_>], scope: &Scope<'_>, chain: usize, items: &mut Vec<Item>) {
    let chain = if scope.piped { chain + items.len() } else { chain };
    for job in jobs {
        let Some(map) = Map::of(job) else {
            items.push(item("(unnamed)", job, scope, chain, Err("a job is a map".to_owned())));
            continue;
        };
        match map.map("group") {
            Ok(Some(inner)) => group(job, &map, &inner, scope, items),
            Ok(None) => {
                let name = ["name", "run", "script"].iter().find_map(|key| map.text(key).ok().flatten());
                let name = name.unwrap_or("(unnamed)");
                let fate = check(name, &map, None, scope);
                items.push(item(name, job, scope, chain, fate));
            }
            Err(problem) => items.push(item("(group)", job, scope, chain, Err(problem))),
        }
    }
}

/// Imports a group of jobs. If the group is part of a pipe, its jobs do not belong to the chain of that pipe.
fn group(node: &Node<'_>, map: &Map<'_, '_>, inner: &Map<'_, '_>, scope: &Scope<'_>, items: &mut Vec<Item>) {
    let name = map.text("name").ok().flatten().unwrap_or("group").to_owned();
    let whole = || -> Result<(Scope<'_>, Vec<Node<'_>>), String> {
        if scope.groups >= MAX_GROUPS {
            return Err(format!("its groups are nested more than {MAX_GROUPS} deep"));
        }
        if let Some(key) = map.unknown(&KEYS).or_else(|| inner.unknown(&["parallel", "piped", "jobs", "root"])) {
            return Err(unknown_key(key));
        }
        let mut scope = scope.extended(map)?;
        scope.root = inner.text("root")?.or(scope.root);
        scope.path.push(name.clone());
        scope.parallel = inner.flag("parallel")?.unwrap_or_default();
        scope.piped = inner.flag("piped")?.unwrap_or_default();
        scope.groups += 1;
        let jobs = inner.list("jobs")?.ok_or("a group has the key `jobs`")?;
        Ok((scope, jobs.to_vec()))
    };
    match whole() {
        Ok((scope, jobs)) => {
            let chain = scope.first + items.len() + 1_000_000 * (scope.groups + 1);
            list(&jobs, &scope, chain, items);
        }
        Err(problem) => items.push(item(&name, node, scope, 0, Err(problem))),
    }
}

/// Imports the commands or scripts of a hook, which are listed by name. A pipe runs them by priority and then by
/// name.
///
/// # Errors
/// A priority is not a number.
pub(super) fn named(
    key: &str,
    map: &Map<'_, '_>,
    scope: &Scope<'_>,
    chain: usize,
    items: &mut Vec<Item>,
) -> Result<(), String> {
    let mut jobs: Vec<(u32, &str, &Node<'_>)> = Vec::new();
    for (name, node) in map.iter() {
        let priority = Map::of(node).map(|job| job.text("priority")).transpose()?.flatten();
        let priority = priority.map(|text| text.parse().map_err(|_| format!("a `priority` is {}", quoted(text))));
        jobs.push((priority.transpose()?.filter(|number| *number > 0).unwrap_or(u32::MAX), name, node));
    }
    if scope.piped {
        let number =
            |name: &str| name.split(|c: char| !c.is_ascii_digit()).next().and_then(|text| text.parse::<u32>().ok());
        jobs.sort_by_key(|(priority, name, _)| (*priority, number(name).unwrap_or(u32::MAX), (*name).to_owned()));
    }
    let script = key == "scripts";
    for (_, name, node) in jobs {
        let map = Map::of(node).ok_or_else(|| format!("{} is no map", quoted(name)));
        let fate = map.and_then(|map| check(name, &map, script.then_some(name), scope));
        items.push(item(name, node, scope, chain, fate));
    }
    Ok(())
}

fn item(name: &str, node: &Node<'_>, scope: &Scope<'_>, chain: usize, fate: Result<Check, String>) -> Item {
    let fate = match &scope.refused {
        Some(reason) => Err(reason.clone()),
        None => fate,
    };
    // The head of a named job is its key; that of a job in a list is the job itself.
    Item {
        name: name.to_owned(),
        group: scope.path.join("."),
        line: node.head.line,
        chain: scope.piped.then_some(chain),
        parallel: scope.parallel && !scope.piped,
        fate,
    }
}

/// Returns the check that is equivalent to a job.
fn check(name: &str, map: &Map<'_, '_>, script: Option<&str>, scope: &Scope<'_>) -> Result<Check, String> {
    if let Some(key) = map.unknown(&KEYS) {
        return Err(unknown_key(key));
    }
    let scope = scope.extended(map)?;
    if let Some(tag) = scope.tags.iter().find(|tag| scope.exclude_tags.contains(tag)) {
        return Err(format!("its tag {} is one of `exclude_tags`", quoted(tag)));
    }
    for key in ["interactive", "use_stdin"] {
        if map.flag(key)? == Some(true) {
            return Err(format!("it reads from a person or from git (`{key}`), and a step has no input"));
        }
    }
    let script = script.or(map.text("script")?);
    let mut check = match (script, map.text("run")?) {
        (Some(script), None) => self::script(script, map, &scope)?,
        (None, Some(run)) => {
            let run = templated(run, name, &scope);
            let asked = Asked { run: &run, files: scope.files, selection: &scope.selection()? };
            command::check(&asked)?
        }
        _ => return Err("it has neither `run` nor `script`".to_owned()),
    };
    check.workdir = scope.workdir()?;
    check.env = environment(&scope)?;
    check.notes.splice(0..0, scope.notes.iter().cloned());
    check.description = map.text("fail_text")?.unwrap_or(name).to_owned();
    check.timeout_ms = map.text("timeout")?.map(timeout).transpose()?;
    if map.flag("stage_fixed")? == Some(true) {
        check.notes.push("`stage_fixed`: nothing is staged; files that it would fix fail the step".to_owned());
    }
    Ok(check)
}

fn timeout(text: &str) -> Result<u64, String> {
    let parsed = humantime::parse_duration(text).ok().and_then(|duration| u64::try_from(duration.as_millis()).ok());
    parsed.filter(|ms| *ms > 0).ok_or_else(|| format!("its `timeout` is {}", quoted(text)))
}

fn script(script: &str, map: &Map<'_, '_>, scope: &Scope<'_>) -> Result<Check, String> {
    if scope.root.is_some() {
        return Err("it is a script with a `root`".to_owned());
    }
    let args = map.text("args")?.unwrap_or_default();
    if args.contains('{') || args.contains('$') {
        return Err("what its script is given depends on the files of a commit".to_owned());
    }
    let mut argv = match map.text("runner")? {
        Some(runner) => split(runner)?,
        None => Vec::new(),
    };
    argv.push(format!("{}/{}/{script}", scope.common.source_dir, scope.hook));
    if !args.is_empty() {
        argv.extend(split(args)?);
    }
    Ok(command::plain(&argv))
}

/// Returns the environment variables of a job.
fn environment(scope: &Scope<'_>) -> Result<BTreeMap<String, String>, String> {
    let mut env = BTreeMap::new();
    for (name, value) in &scope.env {
        if VarName::new(*name).is_err() {
            return Err(format!("its variable {} has a name that a spec cannot set", quoted(name)));
        }
        if value.contains('$') {
            return Err(format!("its variable {} is made of others of the caller", quoted(name)));
        }
        env.insert((*name).to_owned(), (*value).to_owned());
    }
    Ok(env)
}

/// Replaces the templates in braces in a command.
fn templated(run: &str, name: &str, scope: &Scope<'_>) -> String {
    let mut run = run.to_owned();
    for (key, text) in &scope.common.templates {
        run = run.replace(&format!("{{{key}}}"), text);
    }
    run.replace("{lefthook_job_name}", &crate::import::shell::quote(name))
}
