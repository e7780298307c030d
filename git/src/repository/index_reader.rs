//! Reads an index, with libgit2 if it is not in the common format, and the config that determines how files are
//! converted to blobs.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use git2::{Config, IndexTime, Oid};

use crate::config::bounded_read::io_error;
use crate::config::config_files::read_attributes;
use crate::error::GitError;
use crate::files::repo_path::RepoPath;
use crate::index::{ConversionConfig, GitIndex, IndexEntry, IndexStat, IndexTimestamp, index_parser};
use crate::object::object_id::{ObjectFormat, ObjectId};
use crate::repository::open_repository::{OpenRepository, libgit2_error};

/// The flag of an entry of `git add --intent-to-add`.
const INTENT_TO_ADD: u16 = 1 << 13;
/// The flag of an entry that a sparse checkout omits.
const SKIP_WORKTREE: u16 = 1 << 14;

/// Reads the index of `opened`, whose work tree is at `at` in the outermost one.
///
/// `early_sender` receives the index without its entries and the bytes of its file before they are parsed here. Also
/// returns whether these bytes were passed on and [`index_parser::parse`] finds the same entries in them.
pub(crate) fn read_index(
    opened: &OpenRepository,
    at: &[u8],
    head: Option<Oid>,
    early_sender: Option<EarlyIndexSender<'_>>,
) -> Result<(GitIndex, bool), GitError> {
    let failed = |error: git2::Error| libgit2_error(&opened.worktree, &error);
    // The time is read before the entries, so that an index that is being written does not appear older than it is.
    let written = written_at(opened)?;
    let head_tree = head.map(|head| opened.repository.find_commit(head).map(|commit| commit.tree_id()));
    let file = index_parser::read_bytes(&opened.git_dir.join("index"));
    let mut index = GitIndex {
        at: RepoPath(at.to_vec()),
        format: ObjectFormat::Sha1,
        head_tree: head_tree.transpose().map_err(failed)?.and_then(object_id),
        written,
        entries: Vec::new(),
        rules: conversion_config(opened)?,
    };
    let mut was_sent_early = false;
    if let Some((tell, file)) = early_sender.zip(file.as_deref()) {
        tell(&opened.worktree, &index, file);
        was_sent_early = true;
    }
    match file.as_deref().and_then(index_parser::parse_verified) {
        Some(entries) => index.entries = entries,
        None => {
            index.entries = opened.index()?.iter().filter_map(convert_entry).collect();
            // With `core.ignoreCase`, libgit2 sorts them differently.
            index.entries.sort_by(|one, other| (&one.path, one.stage).cmp(&(&other.path, other.stage)));
            was_sent_early = false;
        }
    }
    Ok((index, was_sent_early))
}

fn object_id(id: Oid) -> Option<ObjectId> {
    ObjectId::from_raw(id.as_bytes())
}

fn convert_entry(entry: git2::IndexEntry) -> Option<IndexEntry> {
    let moment = |time: IndexTime| -> IndexTimestamp { (time.seconds().cast_unsigned(), time.nanoseconds()) };
    Some(IndexEntry {
        mode: entry.mode,
        id: object_id(entry.id)?,
        stage: u8::try_from(entry.flags >> 12 & 3).unwrap_or_default(),
        intent_to_add: entry.flags_extended & INTENT_TO_ADD != 0,
        skip_worktree: entry.flags_extended & SKIP_WORKTREE != 0,
        stat: Some(IndexStat {
            mtime: moment(entry.mtime),
            ctime: moment(entry.ctime),
            ino: entry.ino,
            size: entry.file_size,
        }),
        path: RepoPath(entry.path),
    })
}

/// Returns when the index file was written, or zero if it does not exist.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index keeps the low 32 bits")]
fn written_at(opened: &OpenRepository) -> Result<IndexTimestamp, GitError> {
    let file = opened.git_dir.join("index");
    match file.symlink_metadata() {
        Ok(found) => Ok((found.mtime() as u32, found.mtime_nsec() as u32)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok((0, 0)),
        Err(error) => Err(io_error(&file, &error)),
    }
}

fn conversion_config(opened: &OpenRepository) -> Result<ConversionConfig, GitError> {
    let config = opened.repository.config().and_then(|mut config| config.snapshot());
    let config = config.map_err(|error| libgit2_error(&opened.worktree, &error))?;
    let own = read_attributes(&opened.common_dir.join("info/attributes"));
    Ok(ConversionConfig {
        file_mode: bool_or(&config, "core.filemode", true),
        symlinks: bool_or(&config, "core.symlinks", true),
        // The value `input` also enables a conversion.
        autocrlf: config.get_entry("core.autocrlf").is_ok() && !is_bool(&config, "core.autocrlf", false),
        foreign_attributes: ["core.attributesfile", "attr.tree"].iter().any(|key| config.get_entry(key).is_ok()),
        own_attributes: own.map(RepoPath),
    })
}

fn bool_or(config: &Config, key: &str, otherwise: bool) -> bool {
    config.get_bool(key).unwrap_or(otherwise)
}

fn is_bool(config: &Config, key: &str, value: bool) -> bool {
    config.get_bool(key).is_ok_and(|found| found == value)
}

/// Receives the index of the outermost repository and the bytes of its file, before the listing is complete. If
/// these bytes describe the whole index, its entries and tracked paths are omitted in the listing.
pub(crate) type EarlyIndexSender<'a> = &'a mut dyn FnMut(&Path, &GitIndex, &[u8]);
