//! Follows `docs/tutorial.md`: runs its commands in order in one shell, and checks the exit code and the output of
//! each block against the text.

use std::fmt::Write as _;

use crate::environment::TestEnvironment;
use crate::machine;
use crate::needs::{Case, Needs, case};
use crate::process::Running;
use crate::schemas;

pub(super) const CASES: &[Case] =
    &[case("", followed).needs(NEEDS).unprivileged("tutorial::every_command_does_what_the_text_says")];

const NEEDS: &[Needs] = &[Needs::Sandbox, Needs::Program("git"), Needs::Program("bash")];
/// Placeholder in the tutorial for output that differs between machines.
const ANYTHING: char = '…';
/// Marks the end of a block in the output, followed by its exit code.
const END_OF_BLOCK: &str = "==== end of block, code ";

/// Commands with their expected exit code, and the lines that they must print.
struct Block {
    commands: String,
    code: i32,
    shown: Vec<String>,
}

/// Parses the blocks of a page: `sh` fences contain commands, and a following `text` fence contains their output.
fn blocks(page: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let Some(info) = line.strip_prefix("```") else { continue };
        let body: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        match (info.split_once(' ').unwrap_or((info, "")), blocks.last_mut()) {
            (("sh", words), _) => {
                let code = words.strip_prefix("exit=").map_or(0, |code| code.parse().expect("a code"));
                blocks.push(Block { commands: body.join("\n"), code, shown: Vec::new() });
            }
            (("text", ""), Some(block)) => block.shown.extend(body.into_iter().map(str::to_owned)),
            (other, _) => panic!("the tutorial has a fence of another kind: {other:?}"),
        }
    }
    blocks
}

/// Returns a script of all blocks. In a block that must succeed, each command must succeed.
fn script(blocks: &[Block]) -> String {
    // The path of `proctor` is the last argument of `bash`.
    let mut script = "PATH=$(dirname \"$1\"):$PATH\nexec 2>&1\n".to_owned();
    for block in blocks {
        let commands = &block.commands;
        write!(script, "failed=0\ntrap 'failed=$?' ERR\n{commands}\ncode=$?\ntrap - ERR\n").expect("text");
        let told = if block.code == 0 { "$failed" } else { "$code" };
        write!(script, "echo\necho \"{END_OF_BLOCK}{told}\"\n").expect("text");
    }
    script
}

/// Checks whether the output has a line that matches `shown`, apart from placeholders.
fn was_printed(shown: &str, output: &str) -> bool {
    output.lines().any(|line| {
        let parts: Vec<&str> = shown.split(ANYTHING).map(str::trim).collect();
        let (first, rest) = parts.split_first().expect("a part at least");
        let Some(mut left) = line.trim_start().strip_prefix(first) else { return false };
        for part in rest {
            match left.find(part) {
                Some(at) => left = &left[at + part.len()..],
                None => return false,
            }
        }
        shown.ends_with(ANYTHING) || left.trim().is_empty()
    })
}

fn followed(env: &TestEnvironment) {
    let page = std::fs::read_to_string(schemas::project().join("docs/tutorial.md")).expect("the tutorial");
    let blocks = blocks(&page);
    assert!(blocks.len() > 5, "{} blocks", blocks.len());
    let path = env.root().join("followed.sh");
    machine::write(&path, script(&blocks));
    machine::open_file_to_all(&path);
    // The directory in which a user starts after login.
    let place = env.home();
    let wrapper = ["bash", path.to_str().expect("UTF-8")];
    let mut command = env.command_of("proctor", &place, &wrapper);
    command.env("GIT_CONFIG_NOSYSTEM", "1");
    let finished = Running::start(command).wait();
    let mut outputs = finished.stdout.split(END_OF_BLOCK);
    let mut output = outputs.next().unwrap_or_default().to_owned();
    for block in &blocks {
        let after =
            outputs.next().unwrap_or_else(|| panic!("the script did not reach\n{}\n{finished}", block.commands));
        let (code, rest) = after.split_once('\n').unwrap_or((after, ""));
        assert_eq!(code.parse(), Ok(block.code), "{}\n{output}", block.commands);
        for shown in &block.shown {
            assert!(was_printed(shown, &output), "`{shown}` was not printed by\n{}\n{output}", block.commands);
        }
        output = rest.to_owned();
    }
    env.finish(env.start_in(&place, &["--version"]));
}
