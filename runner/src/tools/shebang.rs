//! Reads which programs the first line of a script names.

/// Returns the programs that a line behind `#!` names: the interpreter, and the program that `env` looks up.
pub(super) fn programs(line: &str) -> Vec<String> {
    let mut words = line.split_ascii_whitespace();
    let Some(interpreter) = words.next() else { return Vec::new() };
    let mut named = vec![interpreter.to_owned()];
    if interpreter.rsplit('/').next() == Some("env") {
        named.extend(looked_up(words));
    }
    named
}

/// The program that `env` starts with these arguments. Options that take a value are known; `-S` splits its value
/// into words, which have been split already.
fn looked_up<'a>(words: impl Iterator<Item = &'a str>) -> Option<String> {
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
    fn names_the_interpreter_and_what_env_looks_up() {
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
            assert_eq!(programs(line), named, "{line}");
        }
    }
}
