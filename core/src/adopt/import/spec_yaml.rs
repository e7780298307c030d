//! Formats parts of a generated spec as YAML. The layout is stable under formatters such as prettier, which also check
//! the spec.

use super::shell_words::quote_all;
use crate::model::plan::FileRules;
use crate::spec::{SpecCommand, SpecText};
use crate::text::escape::escape_output;

/// Maximum width of a line with the skills of a profile.
const MAX_PROFILE_WIDTH: usize = 130;

/// Formats the field of a step that holds a command: as a list if it fits on a line, otherwise as a string that is
/// split into the same words, or as a list with one word in each line.
pub(super) fn command_field(key: &str, words: &[String]) -> String {
    let line = format!("        {key}: {}\n", flow_list(words));
    if line_fits(&line) {
        return line;
    }
    let text = quote_all(words);
    let argv = SpecCommand::Line(SpecText(text.clone())).argv();
    if argv.is_ok_and(|argv| argv.words() == words) {
        if is_plain_line(&text) {
            return format!("        {key}: {text}\n");
        }
        if is_block_scalar(&text) {
            let lines = text.lines().map(|line| format!("          {line}").trim_end().to_owned() + "\n");
            return format!("        {key}: |-\n{}", lines.collect::<String>());
        }
    }
    let words: String = words.iter().map(|word| format!("          - {}\n", yaml_scalar(word))).collect();
    format!("        {key}:\n{words}")
}

/// Formats the field `files` of a step.
pub(crate) fn files_field(rules: &FileRules) -> String {
    let lists = [
        ("include", &rules.include),
        ("exclude", &rules.exclude),
        ("types", &rules.types),
        ("types_or", &rules.types_or),
        ("exclude_types", &rules.exclude_types),
    ];
    let given: Vec<(&str, &Vec<String>)> = lists.into_iter().filter(|(_, list)| !list.is_empty()).collect();
    let fields: Vec<String> = given.iter().map(|(key, list)| format!("{key}: {}", flow_list(list))).collect();
    let line = match fields.is_empty() {
        true => "        files: {}\n".to_owned(),
        false => format!("        files: {{ {} }}\n", fields.join(", ")),
    };
    if line_fits(&line) {
        return line;
    }
    given.iter().fold("        files:\n".to_owned(), |text, (key, list)| text + &list_field("          ", key, list))
}

/// Formats a field with a list.
pub(super) fn list_field(indent: &str, key: &str, list: &[String]) -> String {
    let line = format!("{indent}{key}: {}\n", flow_list(list));
    if line_fits(&line) {
        return line;
    }
    let items: String = list.iter().map(|item| format!("{indent}  - {}\n", list_item(item))).collect();
    format!("{indent}{key}:\n{items}")
}

/// Formats a profile with these skills, in as few lines as possible.
pub(super) fn profile_field<'n>(profile: &str, skills: impl Iterator<Item = &'n str>) -> String {
    let (mut text, mut line) = (String::new(), format!("  {}: {{ include: [", yaml_scalar(profile)));
    for (number, skill) in skills.enumerate() {
        let name = yaml_scalar(skill);
        let separator = if number > 0 { ", " } else { "" };
        if number > 0 && line.len() + separator.len() + name.len() > MAX_PROFILE_WIDTH {
            text.push_str(&format!("{line},\n"));
            line = format!("      {name}");
        } else {
            line.push_str(&format!("{separator}{name}"));
        }
    }
    format!("{text}{line}] }}\n")
}

/// Formats an element of a list of patterns. A pattern of several lines is a block scalar.
fn list_item(item: &str) -> String {
    if !item.contains('\n') || !is_block_scalar(item) {
        return yaml_scalar(item);
    }
    let lines = item.lines().map(|line| format!("              {line}").trim_end().to_owned());
    format!("|-\n{}", lines.collect::<Vec<_>>().join("\n"))
}

/// Returns whether a flow-style list fits on this line. Formatters break lines above 80 characters.
pub(super) fn line_fits(line: &str) -> bool {
    line.trim_end().chars().count() <= 80
}

/// Returns whether a text is a valid plain scalar that every YAML parser reads as this string.
fn is_plain_line(text: &str) -> bool {
    let first = text.starts_with(|c: char| c.is_ascii_alphabetic());
    let ambiguous = text.contains(": ") || text.contains(" #") || text.ends_with(':') || text.ends_with(' ');
    first
        && text.contains(' ')
        && !ambiguous
        && !text.contains('\t')
        && !text.chars().any(needs_escape)
        && !contains_ci_command(text)
}

/// Returns whether to write a text as a block scalar. The text must survive unchanged and be easier to read than a
/// quoted string. It must contain nothing that a terminal or the log of a CI system interprets when the spec is
/// shown.
fn is_block_scalar(text: &str) -> bool {
    let safe = |line: &str| {
        !line.ends_with([' ', '\t']) && !line.trim_start().starts_with("::") && !line.chars().any(needs_escape)
    };
    let plain = !text.ends_with('\n')
        && !text.starts_with([' ', '\t', '\n'])
        && !contains_ci_command(text)
        && !text.contains('\r');
    plain && text.lines().all(safe)
}

/// Returns whether the log of a CI system would interpret a part of a line as a command.
fn contains_ci_command(text: &str) -> bool {
    ["##[", "##vso[", "##teamcity["].iter().any(|command| text.contains(command))
}

/// Returns whether a character must be escaped in a spec: YAML requires it, or the character would change the
/// direction of the displayed text.
fn needs_escape(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// Formats strings as a flow-style list.
pub(super) fn flow_list(words: &[String]) -> String {
    format!("[{}]", words.iter().map(|word| yaml_scalar(word)).collect::<Vec<_>>().join(", "))
}

/// Formats a string as a scalar that every YAML parser reads as this string.
pub(super) fn yaml_scalar(text: &str) -> String {
    let first = text.trim_start_matches('-').starts_with(|c: char| c.is_ascii_alphabetic());
    let plain = text.chars().all(|c| c.is_ascii_alphanumeric() || "._-/".contains(c));
    let words = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    if first && plain && !words.contains(&text.to_ascii_lowercase().as_str()) {
        return text.to_owned();
    }
    quote_yaml(text)
}

/// Quotes a string with double quotes. Uses single quotes if it contains double quotes and needs no other escape,
/// as formatters prefer.
fn quote_yaml(text: &str) -> String {
    let is_bare = |c: char| c != '\\' && c != '\t' && c != '\n' && !needs_escape(c);
    if text.contains('"') && text.chars().all(is_bare) && !contains_ci_command(text) {
        return format!("'{}'", text.replace('\'', "''"));
    }
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            c if needs_escape(c) => out.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    if contains_ci_command(&out) { out.replace("##", "#\\u0023") } else { out }
}

/// Formats a text for a `#` comment: a single line of limited length.
pub(super) fn comment_text(text: &str) -> String {
    const MAX_COMMENT_CHARS: usize = 400;
    let shown: String = text.chars().take(MAX_COMMENT_CHARS).collect();
    escape_output(shown.as_bytes()).replace(['\n', '\t'], " ").replace("##", "# #")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_scalars_when_necessary() {
        let cases = [
            ("black", "black"),
            ("yes", "\"yes\""),
            ("1.5", "\"1.5\""),
            ("a: b", "\"a: b\""),
            ("--exit-zero", "--exit-zero"),
            ("{files}", "\"{files}\""),
            ("\u{85}\u{2028}\u{1}\n\"\\", "\"\\u0085\\u2028\\u0001\\n\\\"\\\\\""),
        ];
        for (text, yaml) in cases {
            assert_eq!(yaml_scalar(text), yaml);
        }
    }

    #[test]
    fn formats_commands_by_their_length() {
        let field =
            |words: &[&str]| command_field("cmd", &words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        let long = "x".repeat(70);
        assert_eq!(field(&["ruff", "check", "{files}"]), "        cmd: [ruff, check, \"{files}\"]\n");
        assert_eq!(field(&["a", &long, "$x", "{files}"]), format!("        cmd: a {long} '$x' {{files}}\n"));
        assert_eq!(
            field(&["a", &long, "\nb\n  c\n", "{files}"]),
            format!("        cmd: |-\n          a {long} '\n          b\n            c\n          ' {{files}}\n")
        );
        assert_eq!(field(&["a", &long, "x: y"]), format!("        cmd: |-\n          a {long} 'x: y'\n"));
        assert_eq!(
            field(&["a", &long, "x\ty"]),
            format!("        cmd:\n          - a\n          - {long}\n          - \"x\\ty\"\n")
        );
    }

    #[test]
    fn formats_files_by_their_length() {
        let rules = FileRules { types: vec!["text".to_owned()], ..FileRules::default() };
        assert_eq!(files_field(&FileRules::default()), "        files: {}\n");
        assert_eq!(files_field(&rules), "        files: { types: [text] }\n");
        let long = "x".repeat(70);
        let rules = FileRules { exclude: vec![long.clone(), "(?x)\n  a".to_owned()], ..rules };
        let expected = format!(
            "        files:\n          exclude:\n            - {long}\n            - |-\n              (?x)\n                a\n          \
             types: [text]\n"
        );
        assert_eq!(files_field(&rules), expected);
    }
}
