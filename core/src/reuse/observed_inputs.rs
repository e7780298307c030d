//! The inputs that a step read, and their comparison with the current ones.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use sha2::{Digest as _, Sha256};

use crate::model::drift::{Entry, EntryKind};
use crate::model::trace::{AccessTrace, AccessedPath, DamagedTrace, FileStamp, ListingDigest, PathState};
use crate::text::digest::Sha256Hex;
use crate::text::escape::escape_output;

/// Everything that an execution of a step read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObservedInputs {
    /// The accesses to the tree. The paths begin with `/`, which stands for the top of the tree.
    tree: AccessTrace,
    /// The content of each entry of `tree`, in the same order.
    contents: Vec<ContentPin>,
    /// The accesses to other paths of the host.
    host: AccessTrace,
}

/// The recorded content at a path of the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentPin {
    /// The path is a directory, was absent, or is a file that git ignores, for which the stamp counts.
    None,
    /// A covered file or link: the sha256 of its content or target, and whether it is executable.
    Covered {
        /// The sha256.
        sha256: [u8; 32],
        /// True for an executable file.
        executable: bool,
    },
    /// A file in the git directory: the sha256 of its content, or of the entries of an index.
    Git {
        /// The sha256.
        sha256: [u8; 32],
    },
}

/// The part of the host to which a path belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputArea {
    /// The tree; the path is relative to its top.
    Tree,
    /// The rest of the host; the path is absolute.
    Host,
}

/// A recorded input, for display.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedInput {
    /// The path, with control characters escaped: relative to the tree, or absolute.
    pub path: String,
    /// The access.
    pub access: InputAccess,
}

/// The strongest access to a recorded path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputAccess {
    /// The path was looked up, and nothing was there.
    Absent,
    /// The directory was listed.
    Listed,
    /// The content was read.
    Read,
    /// The path was looked up.
    Found,
}

impl fmt::Display for InputAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Absent => "absent",
            Self::Listed => "listed",
            Self::Read => "read",
            Self::Found => "found",
        })
    }
}

/// The current state of a path.
pub type PathNow = (PathState, Option<FileStamp>);

/// Looks up current inputs.
pub trait CurrentInputs {
    /// Returns the covered file, link or nested repository at a path of the tree.
    fn covered(&self, path: &[u8]) -> Option<Entry>;
    /// Returns the state of a path; `None` if it cannot be determined.
    fn state(&self, area: InputArea, path: &[u8]) -> Option<PathNow>;
    /// Returns the entries of a directory; `None` if they cannot be read.
    fn listing(&self, area: InputArea, path: &[u8]) -> Option<ListingDigest>;
    /// Returns the digest of a file in the git directory of the tree; `None` if it cannot be read.
    fn git_content(&self, path: &[u8]) -> Option<[u8; 32]>;
}

/// An input that differs from the recorded one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangedInput {
    /// The path, with control characters escaped: relative to the tree, or absolute.
    pub path: String,
    /// The difference.
    pub difference: &'static str,
}

impl fmt::Display for ChangedInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` {}", self.path, self.difference)
    }
}

impl ObservedInputs {
    /// Combines both parts of a trace with the content of the tree's paths.
    ///
    /// # Errors
    /// The number of contents differs from the number of paths in the tree.
    pub fn new(tree: AccessTrace, contents: Vec<ContentPin>, host: AccessTrace) -> Result<Self, DamagedTrace> {
        if tree.entries().len() != contents.len() {
            return Err(DamagedTrace::CONTENTS);
        }
        Ok(Self { tree, contents, host })
    }

    /// Returns the number of recorded paths.
    pub fn path_count(&self) -> usize {
        self.tree.entries().len() + self.host.entries().len()
    }

    /// Returns the accesses to the tree, with the recorded content.
    pub fn tree(&self) -> impl Iterator<Item = (&AccessedPath, ContentPin)> {
        self.tree.entries().iter().zip(self.contents.iter().copied())
    }

    /// Returns the accesses outside of the tree.
    pub fn host(&self) -> &[AccessedPath] {
        self.host.entries()
    }

    /// Returns the inputs for display: those of the tree, then the others.
    pub fn displayed(&self) -> impl Iterator<Item = ObservedInput> {
        let tree = self.tree.entries().iter().map(|entry| (entry, displayed_tree_path(&entry.path)));
        let host = self.host.entries().iter().map(|entry| (entry, escape_output(&entry.path)));
        tree.chain(host).map(|(entry, path)| ObservedInput { path, access: InputAccess::from_entry(entry) })
    }

    /// Returns a digest of the inputs as the step saw them. It contains stamps only of files whose content is not
    /// recorded: stamps of covered files differ between copies of a tree.
    pub fn digest(&self) -> Sha256Hex {
        let mut hash = Sha256::new();
        for (entry, content) in self.tree() {
            let stamp = if content == ContentPin::None { stamp_bytes(entry) } else { Vec::new() };
            hash_entry(&mut hash, b't', entry, &[&content.encode(), stamp.as_slice()].concat());
        }
        for entry in self.host.entries() {
            hash_entry(&mut hash, b'h', entry, &stamp_bytes(entry));
        }
        Sha256Hex::from_raw(hash.finalize().into())
    }

    /// Returns the paths of covered files of the tree that were read.
    pub fn read_files(&self) -> impl Iterator<Item = &[u8]> {
        let read = self.tree().filter(|(entry, content)| entry.read && matches!(content, ContentPin::Covered { .. }));
        read.map(|(entry, _)| entry.path.strip_prefix(b"/").unwrap_or(&entry.path))
    }

    /// Returns the inputs without the files of the tree at these paths.
    ///
    /// # Errors
    /// Does not occur: a part of valid inputs is valid.
    pub fn without_files(&self, paths: &BTreeSet<&[u8]>) -> Result<Self, DamagedTrace> {
        let stays = |(entry, content): &(&AccessedPath, ContentPin)| {
            let path = entry.path.strip_prefix(b"/").unwrap_or(&entry.path);
            !(matches!(content, ContentPin::Covered { .. }) && paths.contains(path))
        };
        let (entries, contents): (Vec<_>, Vec<_>) =
            self.tree().filter(stays).map(|(entry, content)| (entry.clone(), content)).unzip();
        Self::new(AccessTrace::new(entries)?, contents, self.host.clone())
    }

    /// Returns the union of the inputs of two executions. A path that both have must have the same state, content and
    /// listing.
    ///
    /// # Errors
    /// Together they exceed the bounds of a trace, or a path differs.
    pub fn union(&self, other: &Self) -> Result<Self, DamagedTrace> {
        let mut tree: BTreeMap<&[u8], (AccessedPath, ContentPin)> = BTreeMap::new();
        for (entry, content) in self.tree().chain(other.tree()) {
            let known = tree.entry(&entry.path).or_insert_with(|| (entry.clone(), content));
            if !known.1.can_be_same(content) || (!content.is_covered() && !is_same_path(&known.0, entry)) {
                return Err(DamagedTrace::CONTRADICTION);
            }
            add_access(&mut known.0, entry);
            if known.1 == ContentPin::None {
                known.1 = content;
            }
        }
        let mut host: BTreeMap<&[u8], AccessedPath> = BTreeMap::new();
        for entry in self.host().iter().chain(other.host()) {
            let known = host.entry(&entry.path).or_insert_with(|| entry.clone());
            if !is_same_path(known, entry) {
                return Err(DamagedTrace::CONTRADICTION);
            }
            add_access(known, entry);
        }
        let (entries, contents): (Vec<_>, Vec<_>) = tree.into_values().unzip();
        Self::new(AccessTrace::new(entries)?, contents, AccessTrace::new(host.into_values().collect())?)
    }

    /// Returns the first input that differs from the recorded one; `None` if all are the same.
    pub fn first_change(&self, now: &impl CurrentInputs) -> Option<ChangedInput> {
        let tree = self.tree().find_map(|(entry, content)| tree_change(entry, content, now));
        tree.or_else(|| self.first_host_change(now))
    }

    /// Returns the first input outside of the tree that differs from the recorded one.
    pub fn first_host_change(&self, now: &impl CurrentInputs) -> Option<ChangedInput> {
        self.host.entries().iter().find_map(|entry| host_change(entry, now))
    }

    /// Encodes the inputs.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for part in [
            self.tree.encode(),
            self.contents.iter().flat_map(|content| content.encode()).collect(),
            self.host.encode(),
        ] {
            bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
            bytes.extend_from_slice(&part);
        }
        bytes
    }

    /// Decodes inputs.
    ///
    /// # Errors
    /// The bytes are damaged or of another version.
    pub fn decode(mut bytes: &[u8]) -> Result<Self, DamagedTrace> {
        let mut take = || -> Result<&[u8], DamagedTrace> {
            let (length, rest) = bytes.split_first_chunk::<8>().ok_or(DamagedTrace::CONTENTS)?;
            let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| DamagedTrace::CONTENTS)?;
            let (part, rest) = rest.split_at_checked(length).ok_or(DamagedTrace::CONTENTS)?;
            bytes = rest;
            Ok(part)
        };
        let (tree, contents, host) = (take()?, take()?, take()?);
        if !bytes.is_empty() || contents.len() % ContentPin::BYTES != 0 {
            return Err(DamagedTrace::CONTENTS);
        }
        let contents = contents.chunks_exact(ContentPin::BYTES).map(ContentPin::decode);
        let contents = contents.collect::<Option<_>>().ok_or(DamagedTrace::CONTENTS)?;
        Self::new(AccessTrace::decode(tree)?, contents, AccessTrace::decode(host)?)
    }
}

impl InputAccess {
    fn from_entry(entry: &AccessedPath) -> Self {
        match entry {
            AccessedPath { state: PathState::Absent, .. } => Self::Absent,
            AccessedPath { listing: Some(_), .. } => Self::Listed,
            AccessedPath { read: true, .. } => Self::Read,
            _ => Self::Found,
        }
    }
}

/// Returns a path of the tree relative to its top; `.` for the top.
fn displayed_tree_path(path: &[u8]) -> String {
    let path = path.strip_prefix(b"/").unwrap_or(path);
    escape_output(if path.is_empty() { b"." } else { path })
}

impl ContentPin {
    const BYTES: usize = 33;

    fn is_covered(self) -> bool {
        matches!(self, Self::Covered { .. })
    }

    /// Returns whether two executions can have seen this content at the same path. The content of an object of git is
    /// recorded only if it was read.
    fn can_be_same(self, other: Self) -> bool {
        self == other || matches!((self, other), (Self::None, Self::Git { .. }) | (Self::Git { .. }, Self::None))
    }

    fn encode(self) -> [u8; Self::BYTES] {
        let (tag, sha256) = match self {
            Self::None => (0, [0; 32]),
            Self::Covered { sha256, executable } => (1 + u8::from(executable), sha256),
            Self::Git { sha256 } => (3, sha256),
        };
        let mut bytes = [tag; Self::BYTES];
        bytes[1..].copy_from_slice(&sha256);
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (tag, sha256) = bytes.split_first()?;
        let sha256 = sha256.try_into().ok()?;
        match tag {
            0 => Some(Self::None),
            1 | 2 => Some(Self::Covered { sha256, executable: *tag == 2 }),
            3 => Some(Self::Git { sha256 }),
            _ => None,
        }
    }
}

/// Returns whether two executions can have seen a path in the same state.
fn is_same_path(one: &AccessedPath, other: &AccessedPath) -> bool {
    let is_same_listing = one.listing.is_none() || other.listing.is_none() || one.listing == other.listing;
    // If only one of them read the file, only its modification time counts.
    let less_read = if one.read { other } else { one };
    let more_read = if one.read { one } else { other };
    one.state == other.state && is_same_listing && has_same_stamp(less_read, more_read.stamp.as_ref())
}

/// Adds another access to the same path.
fn add_access(known: &mut AccessedPath, other: &AccessedPath) {
    // For a file that was not read, only the time of modification counts; the rest of its stamp may be outdated.
    if other.read && !known.read {
        known.stamp = other.stamp;
    }
    known.read |= other.read;
    known.listing = known.listing.or(other.listing);
}

fn hash_entry(hash: &mut Sha256, area: u8, entry: &AccessedPath, content: &[u8]) {
    let mut describe = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    describe(&[area, u8::from(entry.read), u8::from(entry.listing.is_some())]);
    describe(&entry.path);
    describe(format!("{:?}", entry.state).as_bytes());
    describe(&entry.listing.map_or([0; 32], |listing| listing.0));
    describe(content);
}

/// Returns the part of a file's stamp that counts; nothing for other paths.
fn stamp_bytes(entry: &AccessedPath) -> Vec<u8> {
    match entry.stamp.filter(|_| matches!(entry.state, PathState::File { .. })) {
        Some(stamp) if entry.read => format!("{stamp:?}").into_bytes(),
        Some(stamp) => stamp.mtime_ns.to_le_bytes().to_vec(),
        None => Vec::new(),
    }
}

fn tree_change(entry: &AccessedPath, content: ContentPin, now: &impl CurrentInputs) -> Option<ChangedInput> {
    let path = entry.path.strip_prefix(b"/").unwrap_or(&entry.path);
    let changed = |difference| Some(ChangedInput { path: displayed_tree_path(path), difference });
    let covered = now.covered(path);
    match (content, covered) {
        (ContentPin::Covered { sha256, executable }, Some(found)) => {
            // The content counts even if the step only looked the file up: many programs, such as git and Python, conclude
            // from an unchanged time that the content is unchanged, and the time in a private copy follows the content.
            if found.sha256.to_raw() != sha256 {
                return changed("has different content");
            }
            let is_link = matches!(entry.state, PathState::Link { .. });
            let same_kind = is_link == (found.kind == EntryKind::Symlink) && found.executable == executable;
            return if same_kind { None } else { changed("has a different kind or mode") };
        }
        (ContentPin::Covered { .. }, None) => return changed("no longer exists"),
        // A repository in the tree appears as a directory, so only a file or link is a change.
        (_, Some(found)) if found.kind != EntryKind::Gitlink => {
            return changed(if entry.state == PathState::Absent { "now exists" } else { "has changed" });
        }
        (_, Some(_) | None) => {}
    }
    let Some((state, stamp)) = now.state(InputArea::Tree, path) else { return changed("cannot be read") };
    if state != entry.state {
        return changed(state_difference(entry, &state));
    }
    if let ContentPin::Git { sha256 } = content {
        return if now.git_content(path) == Some(sha256) { None } else { changed("has different content") };
    }
    if content == ContentPin::None && !has_same_stamp(entry, stamp.as_ref()) {
        return changed("has changed");
    }
    listing_change(entry, InputArea::Tree, path, now).and_then(changed)
}

fn host_change(entry: &AccessedPath, now: &impl CurrentInputs) -> Option<ChangedInput> {
    let changed = |difference| Some(ChangedInput { path: escape_output(&entry.path), difference });
    let Some((state, stamp)) = now.state(InputArea::Host, &entry.path) else { return changed("cannot be read") };
    if state != entry.state {
        return changed(state_difference(entry, &state));
    }
    if !has_same_stamp(entry, stamp.as_ref()) {
        return changed("has changed");
    }
    listing_change(entry, InputArea::Host, &entry.path, now).and_then(changed)
}

/// Returns whether a file is unchanged according to its stamp. A program that only looks a file up can see its time of
/// modification, and can conclude from the time that it need not read the file.
fn has_same_stamp(entry: &AccessedPath, now: Option<&FileStamp>) -> bool {
    match (&entry.state, entry.read) {
        (PathState::Directory { .. }, _) => true,
        (_, true) => entry.stamp.as_ref() == now,
        (PathState::File { .. }, false) => entry.stamp.map(|then| then.mtime_ns) == now.map(|now| now.mtime_ns),
        (_, false) => true,
    }
}

fn state_difference(then: &AccessedPath, now: &PathState) -> &'static str {
    match (&then.state, now) {
        (PathState::Absent, _) => "now exists",
        (_, PathState::Absent) => "no longer exists",
        _ => "has a different kind, size, mode or owner",
    }
}

fn listing_change(
    entry: &AccessedPath,
    area: InputArea,
    path: &[u8],
    now: &impl CurrentInputs,
) -> Option<&'static str> {
    let listing = entry.listing?;
    (now.listing(area, path) != Some(listing)).then_some("has other entries")
}

#[cfg(test)]
mod tests;
