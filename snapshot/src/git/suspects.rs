//! Which names no rule of a work tree can ignore, told without libgit2: it is asked about all others. What a rule
//! means is not decided here.

use std::rc::Rc;

/// The patterns that hold in a directory: its own, and those of the directories around it.
pub(super) struct Suspects {
    around: Option<Rc<Suspects>>,
    own: Vec<Pattern>,
}

/// What a name must hold that a pattern matches, in lower case. Nothing where any name may match.
#[derive(Debug, PartialEq, Eq)]
struct Pattern(Vec<Vec<u8>>);

impl Suspects {
    /// The patterns of the text of a file of rules, and those around it. Without a text, any name is suspect.
    pub(super) fn new(text: Option<&[u8]>, around: Option<Rc<Self>>) -> Rc<Self> {
        let own = text.map_or_else(|| vec![Pattern(Vec::new())], patterns);
        Rc::new(Self { around, own })
    }

    /// Whether a rule may match something of this name, a directory or not. Where none may, it is ignored exactly
    /// where the directory that it is in is.
    pub(super) fn hold(&self, name: &[u8]) -> bool {
        let name = name.to_ascii_lowercase();
        std::iter::successors(Some(self), |of| of.around.as_deref())
            .any(|of| of.own.iter().any(|pattern| pattern.may_match(&name)))
    }
}

impl Pattern {
    fn may_match(&self, name: &[u8]) -> bool {
        self.0.iter().all(|part| name.windows(part.len()).any(|window| window == part))
    }
}

fn patterns(text: &[u8]) -> Vec<Pattern> {
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    text.split(|byte| *byte == b'\n').filter_map(pattern_of).collect()
}

/// The pattern of a line, as gitignore(5) has it. A line that takes something back ignores nothing.
fn pattern_of(line: &[u8]) -> Option<Pattern> {
    if line.starts_with(b"#") || line.starts_with(b"!") || line.trim_ascii().is_empty() {
        return None;
    }
    let line = line.trim_ascii();
    let is_odd = |byte: &u8| *byte == b'\\' || (byte.is_ascii_control() && *byte != b'\t');
    let line = line.strip_suffix(b"/").unwrap_or(line);
    let (line, range) = line.split_at(line.iter().position(|byte| *byte == b'[').unwrap_or(line.len()));
    // What matches has a name that the last part matches. In a range, no slash need be the end of a part. A last
    // line `.` without an end matches all, to libgit2.
    let last = line.rsplit(|byte| *byte == b'/').next().unwrap_or(line);
    if line.iter().any(is_odd) || range.iter().any(|byte| is_odd(byte) || *byte == b'/') || last == b"." {
        return Some(Pattern(Vec::new()));
    }
    let parts = last.split(|byte| matches!(byte, b'*' | b'?')).filter(|part| !part.is_empty());
    Some(Pattern(parts.map(<[u8]>::to_ascii_lowercase).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suspects(text: &str, name: &str) -> bool {
        Suspects::new(Some(text.as_bytes()), None).hold(name.as_bytes())
    }

    #[test]
    fn what_a_pattern_may_match_is_suspect() {
        for (text, name) in [
            ("target/", "target"),
            ("/a/b/target", "TARGET"),
            ("*.o\n", "x.o"),
            ("\u{feff}build", "build"),
            ("# x\n!y\nout\r\n", "out"),
            (" #odd", " #odd"),
            ("a?c*e", "abcde"),
            ("*", "x"),
            ("a/**", "x"),
            (".", "x"),
            ("a//", "x"),
            ("x[a/b]y", "xay"),
            ("*.py[co]", "a.pyc"),
            ("\\#x", "#x"),
            ("foo\u{b}bar", "foo"),
            ("foo   ", "foo"),
        ] {
            assert!(suspects(text, name), "{text:?} {name:?}");
        }
        assert!(Suspects::new(None, None).hold(b"x"));
    }

    /// Every line of up to four of these pieces, for every name: what libgit2 ignores by it is suspect.
    #[test]
    fn what_libgit2_ignores_is_suspect() {
        const PIECES: [&str; 14] = ["", "a", "b", "/", "*", "?", "[ab]", "[a/b]", "!", "\\", " ", "#", ".", "\r"];
        const NAMES: [&str; 7] = ["a", "ab", "b.a", "#a", " a", "A", "a b"];
        let room = tempfile::tempdir().expect("a room");
        let repository = git2::Repository::init(room.path()).expect("a repository");
        let count = PIECES.len();
        let mut ignored = 0;
        for number in 0..count.pow(4) {
            let piece = |nth: u32| PIECES[number / count.pow(nth) % count];
            let line = [piece(3), piece(2), piece(1), piece(0)].concat();
            repository.clear_ignore_rules().expect("clears");
            repository.add_ignore_rule(&line).expect("adds");
            for name in NAMES {
                let asked = [name.to_owned(), format!("{name}/")];
                if asked.iter().any(|path| repository.is_path_ignored(path).expect("answers")) {
                    ignored += 1;
                    assert!(suspects(&line, name), "{line:?} {name:?}");
                }
            }
        }
        assert!(ignored > 1000, "only {ignored} were ignored");
    }

    #[test]
    fn what_no_pattern_can_match_is_not() {
        for (text, name) in [
            ("", "x"),
            ("#x\n!x\n\n", "x"),
            ("target/\n*.o\n", "src"),
            ("a/b", "a"),
            ("*.py[co]", "src"),
            ("a?c", "ab"),
            ("doc/*.txt", "doc"),
        ] {
            assert!(!suspects(text, name), "{text:?} {name:?}");
        }
        let around = Suspects::new(Some(b"outer"), None);
        let inner = Suspects::new(Some(b"inner"), Some(around));
        assert!(inner.hold(b"outer") && inner.hold(b"inner") && !inner.hold(b"other"));
    }
}
