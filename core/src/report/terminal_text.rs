//! Makes untrusted text safe for a terminal and for the log of a CI system.

use crate::record::evidence::escape_output;

/// Escapes control and bidirectional characters, bytes that are not valid UTF-8, and lines that a CI system would run as
/// a command. Escaping is idempotent.
pub fn escape_for_terminal(bytes: &[u8]) -> String {
    let escaped = escape_output(bytes);
    escaped.split_inclusive('\n').map(disable_ci_commands).collect()
}

/// Disables CI commands by escaping their second character. GitHub runs `::command` at the start of a line and
/// `##[command]` anywhere in it, Azure `##vso[`, TeamCity `##teamcity[`. The arrow `:::` of compilers is not a command.
fn disable_ci_commands(line: &str) -> String {
    let trimmed = line.trim_start();
    let line = match trimmed.strip_prefix("::") {
        Some(rest) if !rest.starts_with(':') => format!("{}:\\x3a{rest}", &line[..line.len() - trimmed.len()]),
        _ => line.to_owned(),
    };
    ["[", "vso[", "teamcity["]
        .iter()
        .fold(line, |line, word| line.replace(&format!("##{word}"), &format!("#\\x23{word}")))
}
