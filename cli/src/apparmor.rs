//! Generates the AppArmor profile that lets the sandbox helper create user namespaces, for the helper's actual path.
//! Proctor does not install the profile: that needs root and is a separate command for the user to run.

use std::path::Path;

/// The profile as packages install it, for helpers in directories owned by root.
const PROFILE: &str = include_str!("../../apparmor/proctor-sandbox");
/// Start of the profile line that lists the helper's paths.
const PLACES: &str = "@{proctor_sandbox} = ";

/// Returns the profile for the helper at `helper`, an absolute path without symbolic links: AppArmor compares with
/// the path that the kernel has resolved.
pub(crate) fn profile(helper: &Path) -> String {
    let helper_line = format!("{PLACES}\"{}\"", escape_glob(&helper.display().to_string()));
    let lines = PROFILE.lines().map(|line| if line.starts_with(PLACES) { helper_line.as_str() } else { line });
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// Escapes the characters that apparmor.d(5), "Globbing", gives a special meaning.
fn escape_glob(path: &str) -> String {
    let mut text = String::with_capacity(path.len());
    for c in path.chars() {
        if matches!(c, '*' | '?' | '[' | ']' | '{' | '}' | '^' | ',' | '"' | '\\' | '@') {
            text.push('\\');
        }
        text.push(c);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generates_profile_for_the_used_helper() {
        let text = profile(Path::new("/home/a b/{x}/proctor-sandbox"));
        let helper_lines: Vec<&str> = text.lines().filter(|line| line.contains("@{proctor_sandbox} =")).collect();
        assert_eq!(helper_lines, ["@{proctor_sandbox} = \"/home/a b/\\{x\\}/proctor-sandbox\""]);
        assert!(text.lines().any(|line| line == "  userns,") && text.ends_with("}\n"), "{text}");
    }

    #[test]
    fn template_has_exactly_one_path_line() {
        assert_eq!(PROFILE.lines().filter(|line| line.starts_with(PLACES)).count(), 1);
    }
}
