//! Evaluates a toolchain check: the version in its output must be in the required range.

use proctor_core::model::plan::VersionDemand;
use semver::{Version, VersionReq};

/// The result of one check's version requirement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VersionCheck {
    /// The version in the output; `None` if no version was found.
    pub version: Option<String>,
    /// True if the version meets the requirement.
    pub satisfied: bool,
}

/// Finds the first version in `stdout`, or else in `stderr` (where java prints it), and compares it with `demand`.
/// A pre-release satisfies only a range that names one, as in cargo.
pub(crate) fn check_version(demand: &VersionDemand, stdout: &str, stderr: &str) -> VersionCheck {
    let version = first_version(stdout).or_else(|| first_version(stderr));
    let satisfied = match demand {
        VersionDemand::Any => true,
        VersionDemand::Range { range } => match (VersionReq::parse(range), &version) {
            (Ok(range), Some((_, version))) => range.matches(version),
            _ => false,
        },
    };
    VersionCheck { version: version.map(|(text, _)| text), satisfied }
}

/// Finds the first text of the form `N.N` or `N.N.N`, with a pre-release suffix if there is one. Returns the text,
/// and the version padded to three numbers.
fn first_version(text: &str) -> Option<(String, Version)> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || ".-+".contains(c);
    text.split(|c| !is_part(c)).find_map(|word| {
        let start = word.find(|c: char| c.is_ascii_digit())?;
        // `x86_64` and `sha256` contain no version; `v1.2`, `go1.22` and `jq-1.6` do.
        let candidate = word[start..].trim_end_matches(['.', '-', '+']);
        parse_padded(candidate).map(|version| (candidate.to_owned(), version))
    })
}

fn parse_padded(text: &str) -> Option<Version> {
    let numbers_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (numbers, rest) = text.split_at(numbers_end);
    let mut parts = Vec::new();
    for part in numbers.trim_end_matches('.').split('.') {
        parts.push(part.parse::<u64>().ok()?);
    }
    if parts.len() < 2 {
        return None;
    }
    parts.resize(3, 0);
    let plain = format!("{}.{}.{}", parts[0], parts[1], parts[2]);
    let suffix = if is_pre_release(rest) { rest } else { "" };
    Version::parse(&format!("{plain}{suffix}")).or_else(|_| Version::parse(&plain)).ok()
}

/// Returns whether the text after the numbers names a pre-release. A distribution's revision (`-14+deb12u1`) does
/// not.
fn is_pre_release(rest: &str) -> bool {
    let words = ["alpha", "beta", "rc", "pre", "dev", "nightly", "canary"];
    rest.strip_prefix('-').is_some_and(|rest| words.iter().any(|word| rest.starts_with(word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_version_in_tool_output() {
        let cases = [
            ("cargo 1.95.0 (f2d3ce0bd 2026-03-21)", "1.95.0", "1.95.0"),
            ("git version 2.47.3", "2.47.3", "2.47.3"),
            ("Python 3.11.7", "3.11.7", "3.11.7"),
            ("v20.20.2", "20.20.2", "20.20.2"),
            ("go version go1.22 linux/amd64", "1.22", "1.22.0"),
            ("jq-1.6", "1.6", "1.6.0"),
            ("clippy 0.1.95 (59807616e1 2026-04-14)", "0.1.95", "0.1.95"),
            ("rustc 1.97.0-nightly (abc)", "1.97.0-nightly", "1.97.0-nightly"),
            ("gcc (Debian 12.2.0-14+deb12u1) 12.2.0", "12.2.0-14+deb12u1", "12.2.0"),
            ("GNU Make 4.3", "4.3", "4.3.0"),
            ("openssl 3.0.15.1", "3.0.15.1", "3.0.15"),
        ];
        for (text, shown, parsed) in cases {
            let found = first_version(text).expect(text);
            assert_eq!((found.0.as_str(), found.1.to_string().as_str()), (shown, parsed), "{text}");
        }
        assert_eq!(first_version("x86_64 sha256 42"), None);
    }

    #[test]
    fn range_requires_matching_version() {
        let range = VersionDemand::Range { range: ">=1.80, <2".into() };
        assert!(check_version(&range, "cargo 1.95.0", "").satisfied);
        assert!(check_version(&range, "", "cargo 1.95.0").satisfied);
        assert!(!check_version(&range, "cargo 1.70.0", "").satisfied);
        assert!(!check_version(&range, "no number", "").satisfied);
        assert!(!check_version(&range, "cargo 1.95.0-nightly", "").satisfied);
        let gcc = VersionDemand::Range { range: ">=12".into() };
        assert!(check_version(&gcc, "gcc (Debian 12.2.0-14+deb12u1) 12.2.0", "").satisfied);
        assert_eq!(check_version(&VersionDemand::Any, "hello", ""), VersionCheck { version: None, satisfied: true });
    }
}
