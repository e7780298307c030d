//! Recognizes Go modules: one project for each module.

use super::project::{Demand, Kind, Project, Skill, Step, Variable};
use super::tree::{Tree, join};
use super::{Note, ranges, shell, text};

const MODULE: &str = "go.mod";

const ENV: [Variable; 2] = [
    Variable { name: "GOPROXY", value: "off", why: "go takes modules from its cache, and fails at once without them" },
    Variable { name: "GOTOOLCHAIN", value: "local", why: "go stays the version that it is" },
];

/// The build cache of go; the default location in the home directory does not survive a step.
const CACHE: &str = ".cache/go-build";

const GOFMT: &str = "\
list=$(mktemp)
git ls-files -z --cached --others --exclude-standard -- '*.go' ':(exclude,glob)**/testdata/**' ':(exclude,glob)**/vendor/**' > \"$list\"
test -s \"$list\"
xargs -0 sh -ec 'for file; do if test -f \"$file\"; then gofmt -l \"$file\"; fi; done' sh < \"$list\" > \"$list.not\"
sed 's/$/: not as gofmt writes it/' \"$list.not\" >&2
test ! -s \"$list.not\"
";

/// Returns the module in a directory.
pub(super) fn look(tree: &Tree, dir: &str, _: &mut Vec<Note>) -> Option<Project> {
    let module = tree.text(dir, MODULE)?;
    let mut project = Project::new("go", "Go module", dir);
    project.told_by(MODULE);
    project.env.extend(ENV);
    project.demand(Demand::program("go", &["go", "version"]).in_range(range(module, dir)));
    project.demand(Demand::program("gofmt", &["sh", "-c", "command -v gofmt"]));
    project.demand(shell::git());
    let format =
        Step::new("gofmt", &["sh", "-ec", GOFMT]).because("gofmt itself never fails: a file that it names does.");
    project.skills.push(Skill::new(Kind::Format, "Go formatting", vec![format]).quick().reproducible());
    let caches = vec![CACHE.to_owned()];
    let vet = Skill::new(Kind::Lint, "go vet over all packages", vec![go("go_vet", "go vet ./...")]);
    project.skills.push(vet.with_caches(caches.clone()));
    let test = go("go_test", "go test -count=1 ./...").because("`-count=1`: the tests run, whatever ran before.");
    project.skills.push(Skill::new(Kind::Test, "The tests of all packages", vec![test]).with_caches(caches));
    Some(project)
}

/// Returns a go command with `GOCACHE` set, which go requires to be an absolute path.
fn go(name: &str, command: &str) -> Step {
    Step::new(name, &["sh", "-c", &format!("GOCACHE=\"$PWD/{CACHE}\" exec {command}")])
}

fn range(module: &str, dir: &str) -> Option<(String, String)> {
    let version = module.lines().find_map(|line| line.trim().strip_prefix("go "))?;
    let version = version.split("//").next().unwrap_or_default().trim();
    Some((ranges::at_least(version)?, format!("`go` of {}", text::quoted(&join(dir, MODULE)))))
}
