//! Parses the first line of a script for the programs that it names.

/// Returns the programs in a line after `#!`: the interpreter, and the program that `env` looks up.
pub(super) fn parse_programs(line: &str) -> Vec<String> {
    let mut words = line.split_ascii_whitespace();
    let Some(interpreter) = words.next() else { return Vec::new() };
    let mut named = vec![interpreter.to_owned()];
    if interpreter.rsplit('/').next() == Some("env") {
        named.extend(env_program(words));
    }
    named
}

/// Returns the program that `env` starts with these arguments. Skips the values of known options. The value of `-S`
/// needs no special treatment, because the line is already split into words.
fn env_program<'a>(words: impl Iterator<Item = &'a str>) -> Option<String> {
    let mut skips_value = false;
    for word in words {
        let word = word.strip_prefix("--split-string=").or_else(|| word.strip_prefix("-S")).unwrap_or(word);
        if std::mem::take(&mut skips_value) || word.is_empty() {
            continue;
        }
        match word {
            "-u" | "--unset" | "-C" | "--chdir" | "-a" | "--argv0" => skips_value = true,
            "-vS" | "-iS" | "-ivS" | "-viS" | "--split-string" => {}
            word if word.starts_with('-') || word.contains('=') => {}
            word => return Some(word.trim_matches(['"', '\'']).to_owned()),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_interpreter_and_env_program() {
        for (line, named) in [
            ("/bin/sh", &["/bin/sh"] as &[&str]),
            ("/usr/bin/python3 -I", &["/usr/bin/python3"]),
            ("/usr/bin/env python3", &["/usr/bin/env", "python3"]),
            ("/usr/bin/env -S python3 -I", &["/usr/bin/env", "python3"]),
            ("/usr/bin/env -Spython3 -I", &["/usr/bin/env", "python3"]),
            ("/usr/bin/env -iS A=1 -u B node --x", &["/usr/bin/env", "node"]),
            ("/usr/bin/env --split-string=bash -e", &["/usr/bin/env", "bash"]),
            ("/usr/bin/env", &["/usr/bin/env"]),
            ("", &[]),
        ] {
            assert_eq!(parse_programs(line), named, "{line}");
        }
    }
}
