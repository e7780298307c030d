//! Checks the names in a tree: names that leave the tree, and names that some system treats as `.git`.

/// Characters that HFS+ ignores when it compares names, as in git's `utf8.c`.
const HFS_IGNORED: [std::ops::RangeInclusive<char>; 4] =
    ['\u{200c}'..='\u{200f}', '\u{202a}'..='\u{202e}', '\u{206a}'..='\u{206f}', '\u{feff}'..='\u{feff}'];
/// Maximum length of a name on Linux file systems, in bytes (NAME_MAX).
const MAX_NAME: usize = 255;

/// Returns why a file cannot have this name, or `None` if the name is valid.
pub(crate) fn name_problem(name: &[u8]) -> Option<&'static str> {
    match name {
        b"" => Some("has a part without a name"),
        b"." | b".." => Some("leads out of the tree"),
        _ if name.contains(&b'/') => Some("has a part with a slash in it"),
        _ if name.contains(&0) => Some("has a part with a NUL byte in it"),
        _ if name.len() > MAX_NAME => Some("has a part of more than 255 bytes"),
        _ if is_git_dir_on_any_file_system(name) => {
            Some("is named `.git`, or has a name that some file systems treat as `.git`")
        }
        _ => None,
    }
}

/// Checks whether a file system treats `name`, or a part of it, as `.git`: case-insensitive file systems, NTFS
/// (`git~1`, `.git ` and `.git:x`, with `\` between parts), and HFS+.
fn is_git_dir_on_any_file_system(name: &[u8]) -> bool {
    name.split(|byte| *byte == b'\\').any(|part| is_git_dir_on_ntfs(part) || is_git_dir_on_hfs(part))
}

fn is_git_dir_on_ntfs(name: &[u8]) -> bool {
    let stem = name.split(|byte| *byte == b':').next().unwrap_or(name);
    let end = stem.iter().rposition(|byte| !matches!(byte, b' ' | b'.')).map_or(0, |at| at + 1);
    let stem = &stem[..end];
    stem.eq_ignore_ascii_case(b".git") || stem.eq_ignore_ascii_case(b"git~1")
}

fn is_git_dir_on_hfs(name: &[u8]) -> bool {
    if name.is_ascii() {
        return name.eq_ignore_ascii_case(b".git");
    }
    let Ok(text) = std::str::from_utf8(name) else { return false };
    let kept: String = text.chars().filter(|c| !HFS_IGNORED.iter().any(|range| range.contains(c))).collect();
    kept.eq_ignore_ascii_case(".git")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_every_spelling_of_git_dir() {
        let bad = [".git", ".GIT", ".Git", ".git ", ".git. .", "git~1", "GIT~1", ".git::$INDEX_ALLOCATION", "a\\.git"];
        for name in bad.iter().chain(&[".g\u{200c}it", "\u{feff}.git", ".git\\config", "..", ".", "", "a/b"]) {
            assert!(name_problem(name.as_bytes()).is_some(), "{name:?}");
        }
        for name in [".gitignore", ".gitmodules", "git", ".github", "a.git", "git~2", "...", ".git-x", "a\\b", "\u{e4}"]
        {
            assert_eq!(name_problem(name.as_bytes()), None, "{name:?}");
        }
        assert_eq!(name_problem(b"\xff\xfe"), None);
        assert!(name_problem(&[b'a'; 256]).is_some() && name_problem(&[b'a'; 255]).is_none());
    }
}
