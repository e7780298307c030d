//! Follows `docs/tutorial.md`: runs its commands in order in one shell, and checks the exit code and the output of
//! each block against the text.

use std::fmt::Write as _;

use crate::environment::TestEnvironment;
use crate::machine;
use crate::needs::{CaseDefinition, Needs, case};
use crate::process::RunningProcess;
use crate::schemas;

pub(super) const CASES: &[CaseDefinition] = &[case("", commands_print_documented_output)
    .needs(NEEDS)
    .unprivileged("tutorial::commands_print_the_documented_output")];

const NEEDS: &[Needs] = &[Needs::Sandbox, Needs::Program("git"), Needs::Program("bash")];
/// Placeholder in the tutorial for output that differs between machines.
const PLACEHOLDER: char = '…';
/// Marks the end of a block in the output, followed by its exit code.
const END_OF_BLOCK: &str = "==== end of block, code ";

/// Commands with their expected exit code, and the lines that they must print.
struct TutorialBlock {
    commands: String,
    code: i32,
    expected_lines: Vec<String>,
}

/// Parses the blocks of a page: `sh` fences contain commands, and a following `text` fence contains their output.
fn parse_blocks(page: &str) -> Vec<TutorialBlock> {
    let mut blocks: Vec<TutorialBlock> = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let Some(info) = line.strip_prefix("```") else { continue };
        let body: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        match (info.split_once(' ').unwrap_or((info, "")), blocks.last_mut()) {
            (("sh", words), _) => {
                let code = words.strip_prefix("exit=").map_or(0, |code| code.parse().expect("a code"));
                blocks.push(TutorialBlock { commands: body.join("\n"), code, expected_lines: Vec::new() });
            }
            (("text", ""), Some(block)) => block.expected_lines.extend(body.into_iter().map(str::to_owned)),
            (other, _) => panic!("the tutorial has a fence of another kind: {other:?}"),
        }
    }
    blocks
}

/// Returns a script of all blocks. In a block that must succeed, each command must succeed.
fn render_script(blocks: &[TutorialBlock]) -> String {
    // The path of `proctor` is the last argument of `bash`.
    let mut script = "PATH=$(dirname \"$1\"):$PATH\nexec 2>&1\n".to_owned();
    for block in blocks {
        let commands = &block.commands;
        write!(script, "failed=0\ntrap 'failed=$?' ERR\n{commands}\ncode=$?\ntrap - ERR\n").expect("text");
        let code_variable = if block.code == 0 { "$failed" } else { "$code" };
        write!(script, "echo\necho \"{END_OF_BLOCK}{code_variable}\"\n").expect("text");
    }
    script
}

/// Checks whether the output has a line that matches `shown`, apart from placeholders.
fn output_has_line(expected: &str, output: &str) -> bool {
    output.lines().any(|line| {
        let parts: Vec<&str> = expected.split(PLACEHOLDER).map(str::trim).collect();
        let (first, rest) = parts.split_first().expect("a part at least");
        let Some(mut left) = line.trim_start().strip_prefix(first) else { return false };
        for part in rest {
            match left.find(part) {
                Some(at) => left = &left[at + part.len()..],
                None => return false,
            }
        }
        expected.ends_with(PLACEHOLDER) || left.trim().is_empty()
    })
}

fn commands_print_documented_output(env: &TestEnvironment) {
    let page = std::fs::read_to_string(schemas::workspace_root().join("docs/tutorial.md")).expect("the tutorial");
    let blocks = parse_blocks(&page);
    assert!(blocks.len() > 5, "{} blocks", blocks.len());
    let path = env.root().join("followed.sh");
    machine::write(&path, render_script(&blocks));
    machine::make_file_public(&path);
    // The directory in which a user starts after login.
    let login_dir = env.home_dir();
    let wrapper = ["bash", path.to_str().expect("UTF-8")];
    let mut command = env.program_command("proctor", &login_dir, &wrapper);
    command.env("GIT_CONFIG_NOSYSTEM", "1");
    let finished = RunningProcess::start(command).wait();
    let mut outputs = finished.stdout.split(END_OF_BLOCK);
    let mut output = outputs.next().unwrap_or_default().to_owned();
    for block in &blocks {
        let after =
            outputs.next().unwrap_or_else(|| panic!("the script did not reach\n{}\n{finished}", block.commands));
        let (code, rest) = after.split_once('\n').unwrap_or((after, ""));
        assert_eq!(code.parse(), Ok(block.code), "{}\n{output}", block.commands);
        for shown in &block.expected_lines {
            assert!(output_has_line(shown, &output), "`{shown}` was not printed by\n{}\n{output}", block.commands);
        }
        output = rest.to_owned();
    }
    env.finish(env.start_in(&login_dir, &["--version"]));
}
