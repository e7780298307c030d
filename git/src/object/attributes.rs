//! Determines whether git may convert a file when it makes a blob of it: line endings, `$Id$`, an encoding, or a
//! filter program. The result never understates the conversion; if it is uncertain, git itself is asked.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;

use proctor_core::model::drift::display_path;
use rustix::fs::FileType;

use crate::files::{paths, read_beneath};
use crate::index::{ConversionConfig, GitIndex};

/// The largest attributes file that is read, in bytes; git ignores lines of more than 2 KiB.
const ATTRIBUTES_BYTES: u64 = 1 << 20;
/// Attributes that only git itself can apply.
const PROGRAM_ATTRIBUTES: [&[u8]; 2] = [b"filter", b"working-tree-encoding"];

/// The possible conversion of a file's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Conversion {
    /// No conversion: the bytes are the blob.
    Nothing,
    /// Line endings and `$Id$`: if the bytes contain neither CR LF nor `$Id:`, they are the blob.
    Text,
    /// Any result of a program or an encoding.
    Anything,
}

/// The reason why the attributes of a file are not known.
#[derive(Debug, thiserror::Error)]
pub enum AttributesError {
    /// An attributes file is a socket, a device or a FIFO. The `git` program would open it, and block on a FIFO.
    #[error("`{path}` is not a regular file")]
    SpecialFile {
        /// The path, in human-readable form.
        path: String,
    },
    /// An attributes file cannot be read.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// The attributes of one repository, read on demand.
pub struct GitAttributes<'a> {
    index: &'a GitIndex,
    /// The top of the outermost work tree.
    top: BorrowedFd<'a>,
    /// The rules that apply to the whole repository.
    global_rules: AttributeRules,
    /// The rules in the file of each directory.
    directories: HashMap<Vec<u8>, AttributeRules>,
}

impl<'a> GitAttributes<'a> {
    /// Creates a reader of the attributes for the paths of `index`, below the outermost work tree `top`.
    pub fn new(index: &'a GitIndex, top: BorrowedFd<'a>) -> Self {
        let ConversionConfig { autocrlf, foreign_attributes, own_attributes, .. } = &index.rules;
        let mut everywhere = match own_attributes {
            Some(text) if !foreign_attributes => AttributeRules::parse(&text.0),
            _ => AttributeRules::any_program(),
        };
        everywhere.has_rules |= autocrlf;
        Self { index, top, global_rules: everywhere, directories: HashMap::new() }
    }

    /// Returns the possible conversion of the file at `path`, relative to its own repository.
    ///
    /// # Errors
    /// An attributes file cannot be read.
    pub fn conversion(&mut self, path: &[u8]) -> Result<Conversion, AttributesError> {
        let mut found = self.global_rules.conversion_for(path);
        for directory in std::iter::once(&b""[..]).chain(paths::ancestors(path)) {
            if found == Conversion::Anything {
                break;
            }
            if !self.directories.contains_key(directory) {
                let rules = self.read_rules(directory)?;
                self.directories.insert(directory.to_vec(), rules);
            }
            found = found
                .max(self.directories.get(directory).map_or(Conversion::Nothing, |rules| rules.conversion_for(path)));
        }
        Ok(found)
    }

    fn read_rules(&self, directory: &[u8]) -> Result<AttributeRules, AttributesError> {
        let path = paths::join(directory, b".gitattributes");
        let whole = paths::join(&self.index.at.0, &path);
        let Some((_, stat)) = read_beneath::open_entry(self.top, &whole)? else {
            // Git falls back to the file in the index, if it is there.
            return Ok(if self.is_indexed(&path) { AttributeRules::any_program() } else { AttributeRules::default() });
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {}
            FileType::Directory | FileType::Symlink => return Ok(AttributeRules::any_program()),
            _ => return Err(AttributesError::SpecialFile { path: display_path(&whole) }),
        }
        let text = read_beneath::read_content(self.top, &whole, ATTRIBUTES_BYTES)?;
        Ok(text.map_or_else(AttributeRules::any_program, |text| AttributeRules::parse(&text)))
    }

    fn is_indexed(&self, path: &[u8]) -> bool {
        !self.index.entries_at(path).is_empty()
    }
}

/// The relevant content of one attributes file.
#[derive(Debug, Default)]
struct AttributeRules {
    /// True if the file contains any rule.
    has_rules: bool,
    /// The name suffixes of files to which a program may apply; an empty suffix matches every name.
    program_suffixes: Vec<Vec<u8>>,
}

impl AttributeRules {
    /// Any program may apply to any file.
    fn any_program() -> Self {
        Self { has_rules: true, program_suffixes: vec![Vec::new()] }
    }

    fn parse(text: &[u8]) -> Self {
        let lines = || text.split(|b| *b == b'\n').map(<[u8]>::trim_ascii);
        let any = lines().any(|line| !line.is_empty() && !line.starts_with(b"#"));
        Self { has_rules: any, program_suffixes: lines().filter_map(program_suffix).collect() }
    }

    fn conversion_for(&self, path: &[u8]) -> Conversion {
        // Patterns ignore case if `core.ignoreCase` is set.
        let ends_in =
            |end: &Vec<u8>| path.len() >= end.len() && path[path.len() - end.len()..].eq_ignore_ascii_case(end);
        match () {
            () if self.program_suffixes.iter().any(ends_in) => Conversion::Anything,
            () if self.has_rules => Conversion::Text,
            () => Conversion::Nothing,
        }
    }
}

/// Returns the suffix of the names to which a line may apply a program. Only patterns such as `*.png` are
/// supported; any other pattern is assumed to match every name.
fn program_suffix(line: &[u8]) -> Option<Vec<u8>> {
    if line.starts_with(b"#") || !PROGRAM_ATTRIBUTES.iter().any(|program| contains(line, program)) {
        return None;
    }
    let pattern = line.split(u8::is_ascii_whitespace).next().unwrap_or_default();
    let end = pattern.strip_prefix(b"*").unwrap_or_default();
    let plain = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    Some(if end.iter().all(plain) { end.to_vec() } else { Vec::new() })
}

fn contains(text: &[u8], what: &[u8]) -> bool {
    text.windows(what.len()).any(|window| window == what)
}

/// Searches bytes that arrive in pieces for content that git would convert in a text file.
#[derive(Debug, Default)]
pub(crate) struct TextScan {
    last: Vec<u8>,
    found: bool,
}

/// The sequences that git replaces: a line end, and the beginning of an expanded `$Id$`.
const CONVERTED: [&[u8]; 2] = [b"\r\n", b"$Id:"];
/// Number of bytes from the preceding piece that are needed to find the longest sequence.
const OVERLAP: usize = 3;

impl TextScan {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        if self.found {
            return;
        }
        let seam = [&self.last, &bytes[..bytes.len().min(OVERLAP)]].concat();
        self.found = CONVERTED.iter().any(|what| contains(&seam, what) || contains(bytes, what));
        let kept = if bytes.len() >= OVERLAP { bytes } else { &seam };
        self.last = kept[kept.len().saturating_sub(OVERLAP)..].to_vec();
    }

    /// Returns whether content that git might convert was found.
    pub(crate) fn found(&self) -> bool {
        self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conversion_for(text: &str, path: &str) -> Conversion {
        AttributeRules::parse(text.as_bytes()).conversion_for(path.as_bytes())
    }

    #[test]
    fn applies_programs_where_pattern_may_match() {
        use Conversion::{Anything, Nothing, Text};
        for (text, path, expected) in [
            ("", "a.png", Nothing),
            ("# * filter=x\n\n  \n", "a.png", Nothing),
            ("* text=auto", "a.png", Text),
            ("*.png filter=lfs diff=lfs -text", "a.png", Anything),
            ("*.png filter=lfs diff=lfs -text", "d/A.PNG", Anything),
            ("*.png filter=lfs diff=lfs -text", "main.rs", Text),
            ("*.txt working-tree-encoding=UTF-16", "a.txt", Anything),
            ("/only/here.txt filter=x", "elsewhere", Anything),
            ("*.p[n]g filter=x", "a.png", Anything),
            ("\"*.a b\" filter=x", "x", Anything),
            ("[attr]lfs filter=lfs", "x", Anything),
            ("a* filter=x", "x", Anything),
            ("*\tfilter=x\r", "x", Anything),
        ] {
            assert_eq!(conversion_for(text, path), expected, "{text:?} {path}");
        }
    }

    #[test]
    fn finds_convertible_sequences_across_pieces() {
        let found = |pieces: &[&[u8]]| {
            let mut scan = TextScan::default();
            pieces.iter().for_each(|piece| scan.update(piece));
            scan.found()
        };
        for yes in [&[&b"a\r\nb"[..]][..], &[b"a\r", b"\n"], &[b"$", b"I", b"d", b": x$"], &[b"xxxx$Id", b":"]] {
            assert!(found(yes), "{yes:?}");
        }
        for no in [&[&b"a\rb\n"[..]][..], &[b"$Id$"], &[b"\n", b"\r"], &[b"\r", b"x", b"\n"], &[b"", b""]] {
            assert!(!found(no), "{no:?}");
        }
    }
}
