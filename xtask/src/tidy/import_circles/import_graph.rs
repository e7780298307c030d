//! Builds the graph of the imports between the sources of a crate, and finds its circles.

use std::collections::{BTreeMap, BTreeSet};

use super::super::source_texts::SourceTexts;
use super::source_module::{ItemPath, SourceModule};

/// The sources of a crate by module path, with the modules that each imports from.
#[derive(Debug, Default)]
pub(super) struct ImportGraph {
    prefix: String,
    modules: BTreeMap<ItemPath, SourceModule>,
}

/// The source that defines an item, and the item; `None` if the path ends at the module itself.
type Definition = (ItemPath, Option<String>);

impl ImportGraph {
    pub(super) fn for_crate(texts: &SourceTexts, name: &str) -> Self {
        let prefix = format!("{name}/src/");
        let sources = texts.iter().filter_map(|(path, text)| {
            let module = path.strip_prefix(&prefix)?.strip_suffix(".rs")?;
            let is_counted = !module.ends_with("tests") && !module.contains("tests/") && !module.starts_with("bin/");
            is_counted.then_some((module, text))
        });
        let has_library = texts.contains_key(&format!("{prefix}lib.rs"));
        let modules = sources
            .filter(|(module, _)| *module != "main" || !has_library)
            .map(|(module, text)| (module_path(module), SourceModule::parse(text)))
            .collect();
        Self { prefix, modules }
    }

    /// Returns the circles: the files of each strongly connected component, sorted.
    pub(super) fn circles(&self) -> Vec<Vec<String>> {
        let edges: BTreeMap<&ItemPath, BTreeSet<ItemPath>> =
            self.modules.iter().map(|(path, module)| (path, self.imported_modules(path, module))).collect();
        let reachable: BTreeMap<&ItemPath, BTreeSet<&ItemPath>> =
            self.modules.keys().map(|path| (path, reachable_from(path, &edges))).collect();
        let mut circles: Vec<Vec<&ItemPath>> = Vec::new();
        for path in self.modules.keys() {
            if circles.iter().any(|circle| circle.contains(&path)) {
                continue;
            }
            let returns = |other: &&ItemPath| reachable[*other].contains(path);
            let circle: Vec<&ItemPath> = reachable[path].iter().copied().filter(returns).collect();
            if circle.len() > 1 && !is_module_with_submodule(&circle) {
                circles.push(circle);
            }
        }
        circles.iter().map(|circle| circle.iter().map(|path| self.file(path)).collect()).collect()
    }

    fn file(&self, path: &[String]) -> String {
        let name = if path.is_empty() { "lib".to_owned() } else { path.join("/") };
        format!("{}{name}.rs", self.prefix)
    }

    fn imported_modules(&self, from: &ItemPath, module: &SourceModule) -> BTreeSet<ItemPath> {
        let imports = module.imports.values().filter(|import| !import.is_reexport).map(|import| &import.path);
        // An imported module alone is not an import: the paths that start with its name are.
        let items = imports.filter_map(|path| self.definition(from, path)).filter(|(_, item)| item.is_some());
        let starts_here = |path: &&ItemPath| {
            matches!(path[0].as_str(), "crate" | "self" | "super")
                || module.imports.contains_key(&path[0])
                || self.is_submodule(from, &path[0])
        };
        let paths = module.paths.iter().filter(starts_here).filter_map(|path| self.definition(from, path));
        let globs = module.globs.iter().filter_map(|path| self.definition(from, path));
        items.chain(paths).chain(globs).map(|(target, _)| target).filter(|target| target != from).collect()
    }

    fn is_submodule(&self, of: &[String], name: &str) -> bool {
        let path: ItemPath = of.iter().cloned().chain([name.to_owned()]).collect();
        self.modules.contains_key(&path)
    }

    /// Returns the definition that a path in the module `from` leads to, or `None` if it is outside the crate.
    fn definition(&self, from: &ItemPath, path: &[String]) -> Option<Definition> {
        self.follow(&self.absolute(from, path, &mut BTreeSet::new())?, &mut BTreeSet::new())
    }

    /// Returns a path relative to the crate.
    fn absolute(&self, from: &ItemPath, path: &[String], seen: &mut BTreeSet<ItemPath>) -> Option<ItemPath> {
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => Some(rest.to_vec()),
            "self" => Some(join(from, rest)),
            "super" => {
                let levels = path.iter().take_while(|part| *part == "super").count();
                let above = from.get(..from.len().checked_sub(levels)?)?;
                Some(join(above, &path[levels..]))
            }
            name if self.is_submodule(from, name) => Some(join(from, path)),
            name => {
                let import = &self.modules.get(from)?.imports.get(name)?.path;
                if import.first() == Some(first) || !seen.insert(import.clone()) {
                    return None;
                }
                Some(join(&self.absolute(from, import, seen)?, rest))
            }
        }
    }

    /// Follows re-exports from a path relative to the crate to the definition.
    fn follow(&self, path: &[String], seen: &mut BTreeSet<ItemPath>) -> Option<Definition> {
        if !seen.insert(path.to_vec()) {
            return None;
        }
        let length = (0..=path.len()).rev().find(|length| self.modules.contains_key(&path[..*length]))?;
        let (module_path, rest) = (path[..length].to_vec(), &path[length..]);
        let Some((name, after)) = rest.split_first() else { return Some((module_path, None)) };
        let module = self.modules.get(&module_path)?;
        if module.definitions.contains(name) {
            return Some((module_path, Some(name.clone())));
        }
        if let Some(import) = module.imports.get(name) {
            let target = self.absolute(&module_path, &import.path, &mut BTreeSet::new())?;
            return self.follow(&join(&target, after), seen);
        }
        let from_globs = module.globs.iter().find_map(|glob| {
            let target = self.absolute(&module_path, glob, &mut BTreeSet::new())?;
            let found = self.follow(&join(&target, rest), seen)?;
            let defines = self.modules.get(&found.0)?.definitions.contains(found.1.as_ref()?);
            defines.then_some(found)
        });
        Some(from_globs.unwrap_or_else(|| (module_path, Some(name.clone()))))
    }
}

fn join(first: &[String], second: &[String]) -> ItemPath {
    first.iter().chain(second).cloned().collect()
}

fn module_path(module: &str) -> ItemPath {
    if matches!(module, "lib" | "main") { ItemPath::new() } else { module.split('/').map(str::to_owned).collect() }
}

/// Checks whether a circle has only a module and one submodule of it.
fn is_module_with_submodule(circle: &[&ItemPath]) -> bool {
    matches!(circle, [outer, inner] if inner.len() == outer.len() + 1 && inner.starts_with(outer))
}

/// Returns the modules that imports lead to from `start`, in one or more steps.
fn reachable_from<'a>(
    start: &'a ItemPath,
    edges: &'a BTreeMap<&ItemPath, BTreeSet<ItemPath>>,
) -> BTreeSet<&'a ItemPath> {
    let mut reached = BTreeSet::new();
    let mut pending = vec![start];
    while let Some(path) = pending.pop() {
        pending.extend(edges.get(path).into_iter().flatten().filter(|target| reached.insert(*target)));
    }
    reached
}
