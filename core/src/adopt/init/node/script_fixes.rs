//! Finds the command that fixes what a script of a package finds.

use super::{NodeFacts, NodePackage};
use crate::adopt::import::to_fix_mode;
use crate::adopt::init::check_tools::CheckTool;
use crate::adopt::init::project::{StepDraft, to_owned_strings};
use crate::spec::{SpecCommand, SpecText};

impl NodeFacts<'_> {
    /// Returns the step that runs a script of a package.
    pub(super) fn script_step(&self, package: &NodePackage, script: &str, name: String) -> StepDraft {
        let fix = self.declared_fix(package, script).or_else(|| self.tool_fix(package, script));
        StepDraft::new(name, &self.manager.run_command(script)).with_fix(fix)
    }

    /// Returns the command for a script of the package that fixes what another script finds: one with the same tool, and
    /// with a name that says so. It succeeds even if problems remain.
    fn declared_fix(&self, package: &NodePackage, script: &str) -> Option<Vec<String>> {
        let tool = tool_of_script(package.script(script)?)?;
        let stem = script.replace("check", "").replace("::", ":");
        let stem = stem.trim_matches([':', '-']);
        let names = [
            format!("{stem}:fix"),
            format!("{stem}-fix"),
            format!("fix:{stem}"),
            format!("{stem}:write"),
            stem.to_owned(),
        ];
        let fixes = |name: &&String| {
            let text = package.script(name).unwrap_or_default();
            let has = |option: &&str| text.split_whitespace().any(|word| word == *option);
            let is_plain = !text.contains(['&', '|', ';']) && !text.contains("--watch");
            name.as_str() != script
                && is_plain
                && tool_of_script(text) == Some(tool)
                && ["--fix", "--write", "-w"].iter().any(has)
        };
        let name = names.iter().find(fixes)?;
        let [manager, run, _] = self.manager.run_command(name);
        Some(to_owned_strings(&["sh", "-c", &format!("{manager} {run} {name} || [ $? = 1 ]")]))
    }

    /// Returns the fix of a script of the root package that only starts a tool.
    fn tool_fix(&self, package: &NodePackage, script: &str) -> Option<Vec<String>> {
        if package.dir != self.root.dir {
            return None;
        }
        let text = package.script(script)?;
        let mut words: Vec<String> = SpecCommand::Line(SpecText(text.to_owned())).argv().ok()?.into();
        let tool = CheckTool::find(words.first()?).filter(|tool| package.depends_on(tool.package))?;
        words[0] = format!("node_modules/.bin/{}", tool.program);
        to_fix_mode(&words)
    }
}

/// Returns the program that a script starts, if the script starts only one.
fn tool_of_script(text: &str) -> Option<&str> {
    let is_single = !text.contains(['&', '|', ';']);
    text.split_whitespace().next().filter(|_| is_single)
}
