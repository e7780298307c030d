//! Converts the version requirements of a repository to ranges in the syntax of toolchain checks (cargo's). A
//! requirement without an exact equivalent gives a wider range or none, never a narrower one.

use semver::VersionReq;

/// Returns the range if it parses.
fn validated(range: String) -> Option<String> {
    (range.len() <= 100 && VersionReq::parse(&range).is_ok()).then_some(range)
}

/// Returns the range from this version on: `1.85` of `rust-version`, `1.22.3` of a `go` directive.
pub(super) fn at_least(version: &str) -> Option<String> {
    let is_plain = version.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    if is_plain { validated(format!(">={version}")) } else { None }
}

/// Returns the range from the first Rust version that supports an edition.
pub(super) fn for_edition(edition: &str) -> Option<String> {
    let version = match edition {
        "2018" => "1.31",
        "2021" => "1.56",
        "2024" => "1.85",
        _ => return None,
    };
    at_least(version)
}

/// Converts `requires-python` (PEP 440) or Poetry's `python`.
pub(super) fn from_python(text: &str) -> Option<String> {
    let parts: Option<Vec<String>> = text.split(',').map(|part| python_comparison(part.trim())).collect();
    let parts: Vec<String> = parts?.into_iter().filter(|part| !part.is_empty()).collect();
    if parts.is_empty() { None } else { validated(parts.join(", ")) }
}

/// Converts one comparison. Returns an empty text if omitting it only widens the range.
fn python_comparison(part: &str) -> Option<String> {
    let at = part.find(|c: char| c.is_ascii_digit())?;
    let (operator, version) = (part[..at].trim(), part[at..].trim());
    let is_star = version.ends_with(".*");
    let version = version.trim_end_matches(".*");
    if !version.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return None;
    }
    match operator {
        ">=" | "<" | "^" | "~" if !is_star => Some(format!("{operator}{version}")),
        ">" => Some(format!(">={version}")),
        // In PEP 440, `<=3.11` means 3.11.0 at most; in cargo's syntax it includes every 3.11.
        "<=" => Some(format!("<={version}")),
        "==" | "" => Some(if is_star { format!("{version}.*") } else { format!("={version}") }),
        "~=" => compatible_release(version),
        "!=" => Some(String::new()),
        _ => None,
    }
}

/// Converts `~=3.9` to `>=3.9, <4`, and `~=3.9.2` to `>=3.9.2, <3.10`.
fn compatible_release(version: &str) -> Option<String> {
    let numbers: Vec<u64> = version.split('.').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    match numbers[..] {
        [major, _] => Some(format!(">={version}, <{}", major.checked_add(1)?)),
        [major, minor, _] => Some(format!(">={version}, <{major}.{}", minor.checked_add(1)?)),
        _ => None,
    }
}

/// Converts `engines.node`. Returns `None` for alternatives (`||`) and hyphen ranges (`18 - 20`).
pub(super) fn from_node_engines(text: &str) -> Option<String> {
    let mut parts = Vec::new();
    let mut operator = String::new();
    for word in text.split_whitespace() {
        if matches!(word, ">" | ">=" | "<" | "<=" | "=" | "^" | "~") {
            operator = word.to_owned();
            continue;
        }
        parts.push(node_comparison(&format!("{operator}{word}"))?);
        operator.clear();
    }
    if parts.is_empty() || !operator.is_empty() { None } else { validated(parts.join(", ")) }
}

fn node_comparison(part: &str) -> Option<String> {
    let at = part.find(|c: char| c.is_ascii_digit())?;
    let (operator, version) = part.split_at(at);
    let numbers = version.trim_end_matches(".x").trim_end_matches(".*");
    let count = numbers.split('.').count();
    let operator = operator.trim_end_matches('v');
    match operator {
        "" | "=" if version != numbers || count < 3 => Some(format!("{}{numbers}", if count == 1 { "^" } else { "~" })),
        "" | "=" => Some(format!("={numbers}")),
        ">" if count < 3 => Some(format!(">={numbers}")),
        ">" | ">=" | "<" | "<=" | "^" | "~" => Some(format!("{operator}{numbers}")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn converts_python_and_node_ranges() {
        let python_cases: &[(&str, Option<&str>)] = &[
            (">=3.9", Some(">=3.9")),
            (">=3.9,<4.0", Some(">=3.9, <4.0")),
            (">= 3.9, != 3.9.1", Some(">=3.9")),
            ("~=3.9", Some(">=3.9, <4")),
            ("~=3.9.2", Some(">=3.9.2, <3.10")),
            ("==3.11.*", Some("3.11.*")),
            ("^3.10", Some("^3.10")),
            ("*", None),
            (">=3.9rc1", None),
            ("", None),
        ];
        for (text, range) in python_cases {
            assert_eq!(from_python(text).as_deref(), *range, "{text}");
        }
        let node_cases: &[(&str, Option<&str>)] = &[
            (">=18", Some(">=18")),
            (">= 18", Some(">=18")),
            (">=18 <21", Some(">=18, <21")),
            ("^20.1.0", Some("^20.1.0")),
            ("20", Some("^20")),
            ("20.x", Some("^20")),
            ("20.1", Some("~20.1")),
            ("v20.1.2", Some("=20.1.2")),
            ("18 || 20", None),
            ("18 - 20", None),
            ("*", None),
            ("lts/*", None),
        ];
        for (text, range) in node_cases {
            assert_eq!(from_node_engines(text).as_deref(), *range, "{text}");
        }
        assert_eq!(at_least("1.22.3").as_deref(), Some(">=1.22.3"));
        assert_eq!(at_least("1.22rc1"), None);
        assert_eq!(for_edition("2024").as_deref(), Some(">=1.85"));
    }
}
