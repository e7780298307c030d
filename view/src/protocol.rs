//! Parses requests of the kernel's FUSE protocol and builds the answers, as defined by `linux/fuse.h`. Numbers have the
//! byte order of the machine.

use rustix::io::Errno;

use crate::file_meta::FileMeta;

/// The oldest supported minor version of the protocol (Linux 4.20), with a configurable number of pages per request.
pub const MIN_MINOR_VERSION: u32 = 28;
/// The protocol version that this server implements.
const VERSION: (u32, u32) = (7, 31);
/// Maximum number of bytes that the kernel requests in one read.
pub(crate) const MAX_READ: usize = 64 * 4096;
/// Size of the buffer for a request. No request of a read-only file system is longer than a name or a list of
/// forgotten nodes, and the kernel demands at least 8 KiB.
pub(crate) const REQUEST_BUFFER: usize = 64 << 10;

const MAX_WRITE: u32 = 4096;
const HEADER_BYTES: usize = 40;
/// Seconds for which the kernel may cache an answer: as long as the view exists.
const FOREVER: u64 = 1_000_000_000;

const ASYNC_READ: u32 = 1 << 0;
/// The kernel accepts ENOSYS as the answer to OPEN, and then sends neither OPEN nor RELEASE.
pub(crate) const NO_OPEN_SUPPORT: u32 = 1 << 17;
const PARALLEL_DIROPS: u32 = 1 << 18;
const MAX_PAGES: u32 = 1 << 22;
const CACHE_SYMLINKS: u32 = 1 << 23;

/// The flag that avoids OPENDIR and RELEASEDIR.
pub(crate) const NO_OPENDIR_SUPPORT: u32 = 1 << 24;

const FOPEN_KEEP_CACHE: u32 = 1 << 1;
const FOPEN_CACHE_DIR: u32 = 1 << 3;

/// The key of the directory that contains the exports.
pub(crate) const ROOT_NODE: u64 = 1;

/// A request without its key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Operation<'a> {
    Init {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u32,
    },
    Lookup {
        name: &'a [u8],
    },
    Forget {
        lookups: u64,
    },
    BatchForget {
        nodes: Vec<(u64, u64)>,
    },
    GetAttr,
    ReadLink,
    Open,
    Read {
        offset: u64,
        size: usize,
    },
    Release,
    OpenDir,
    ReadDir {
        offset: u64,
        size: usize,
    },
    ReleaseDir,
    StatFs,
    /// A request to stop another request. The server has already answered every earlier request.
    Interrupt,
    Destroy,
    /// A request to change something.
    Write,
    /// A request that the kernel does not need.
    Unsupported,
}

/// A request of the kernel.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Request<'a> {
    /// The key of the request, for its answer.
    pub(crate) unique: u64,
    /// The node that the request concerns.
    pub(crate) node: u64,
    pub(crate) operation: Operation<'a>,
}

impl<'a> Request<'a> {
    /// Parses a request; returns `None` for malformed bytes.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (header, body) = bytes.split_at_checked(HEADER_BYTES)?;
        let (opcode, unique, node) = (u32_at(header, 4)?, u64_at(header, 8)?, u64_at(header, 16)?);
        Some(Self { unique, node, operation: Operation::parse(opcode, body)? })
    }

    /// Returns whether the kernel expects no answer.
    pub(crate) fn is_one_way(&self) -> bool {
        matches!(self.operation, Operation::Forget { .. } | Operation::BatchForget { .. } | Operation::Interrupt)
    }
}

impl<'a> Operation<'a> {
    fn parse(opcode: u32, body: &'a [u8]) -> Option<Self> {
        let size_at = |at| u32_at(body, at).map(|size| (size as usize).min(MAX_READ));
        Some(match opcode {
            1 => Self::Lookup { name: body.strip_suffix(b"\0")? },
            2 => Self::Forget { lookups: u64_at(body, 0)? },
            3 => Self::GetAttr,
            5 => Self::ReadLink,
            14 => Self::Open,
            15 => Self::Read { offset: u64_at(body, 8)?, size: size_at(16)? },
            17 => Self::StatFs,
            18 => Self::Release,
            26 => Self::Init {
                major: u32_at(body, 0)?,
                minor: u32_at(body, 4)?,
                max_readahead: u32_at(body, 8)?,
                flags: u32_at(body, 12)?,
            },
            27 => Self::OpenDir,
            28 => Self::ReadDir { offset: u64_at(body, 8)?, size: size_at(16)? },
            29 => Self::ReleaseDir,
            36 => Self::Interrupt,
            38 => Self::Destroy,
            42 => Self::BatchForget { nodes: parse_forgotten(body)? },
            // SETATTR, SYMLINK, MKNOD, MKDIR, UNLINK, RMDIR, RENAME, LINK, WRITE, SETXATTR, REMOVEXATTR, CREATE,
            // FALLOCATE, RENAME2, COPY_FILE_RANGE, TMPFILE
            4 | 6 | 8..=13 | 16 | 21 | 24 | 35 | 43 | 45 | 47 | 51 => Self::Write,
            _ => Self::Unsupported,
        })
    }
}

fn parse_forgotten(body: &[u8]) -> Option<Vec<(u64, u64)>> {
    let count = u32_at(body, 0)? as usize;
    (0..count).map(|index| Some((u64_at(body, 8 + 16 * index)?, u64_at(body, 16 + 16 * index)?))).collect()
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The body of an answer, as bytes.
#[derive(Debug, Default)]
pub(crate) struct AnswerBody(pub(crate) Vec<u8>);

impl AnswerBody {
    fn u16(&mut self, value: u16) -> &mut Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    /// Answers INIT; `None` if the kernel's version is too old.
    pub(crate) fn init(major: u32, minor: u32, max_readahead: u32, flags: u32) -> Option<Self> {
        if major != VERSION.0 || minor < MIN_MINOR_VERSION {
            return None;
        }
        let mut body = Self::default();
        body.u32(VERSION.0).u32(VERSION.1.min(minor)).u32(max_readahead);
        let wanted = ASYNC_READ | NO_OPEN_SUPPORT | PARALLEL_DIROPS | MAX_PAGES | CACHE_SYMLINKS | NO_OPENDIR_SUPPORT;
        body.u32(flags & wanted);
        let (background, congestion) = (64, 48);
        body.u16(background).u16(congestion).u32(MAX_WRITE);
        let time_granularity = 1;
        body.u32(time_granularity).u16((MAX_READ / 4096) as u16).u16(0);
        body.0.resize(64, 0);
        Some(body)
    }

    /// Answers LOOKUP for a file that exists.
    pub(crate) fn entry(node: u64, meta: &FileMeta, shown_inode: u64) -> Self {
        let mut body = Self::default();
        let generation = 0;
        body.u64(node).u64(generation).u64(FOREVER).u64(FOREVER).u32(0).u32(0).attributes(meta, shown_inode);
        body
    }

    /// Answers LOOKUP for an absent file, in a form that the kernel caches.
    pub(crate) fn absent_entry() -> Self {
        let mut body = Self::default();
        body.u64(0).u64(0).u64(FOREVER);
        body.0.resize(128, 0);
        body
    }

    /// Answers GETATTR.
    pub(crate) fn attributes_of(meta: &FileMeta, shown_inode: u64) -> Self {
        let mut body = Self::default();
        body.u64(FOREVER).u32(0).u32(0).attributes(meta, shown_inode);
        body
    }

    fn attributes(&mut self, meta: &FileMeta, shown_inode: u64) {
        self.u64(shown_inode).u64(meta.size).u64(meta.blocks);
        let times = [meta.atime_ns, meta.mtime_ns, meta.ctime_ns];
        for time in times {
            self.u64(time.div_euclid(1_000_000_000).cast_unsigned());
        }
        for time in times {
            self.u32(time.rem_euclid(1_000_000_000) as u32);
        }
        self.u32(meta.mode).u32(meta.links).u32(meta.uid).u32(meta.gid).u32(meta.device_number).u32(4096).u32(0);
    }

    /// Answers OPEN. Reads name the node, so the handle has no meaning.
    pub(crate) fn opened_file() -> Self {
        let mut body = Self::default();
        body.u64(0).u32(FOPEN_KEEP_CACHE).u32(0);
        body
    }

    /// Answers OPENDIR.
    pub(crate) fn opened_directory() -> Self {
        let mut body = Self::default();
        body.u64(0).u32(FOPEN_KEEP_CACHE | FOPEN_CACHE_DIR).u32(0);
        body
    }

    /// Appends an entry of a directory unless the answer would become longer than `max`; returns whether it did.
    pub(crate) fn push_directory_entry(&mut self, entry: &DirectoryEntry<'_>, max: usize) -> bool {
        let DirectoryEntry { inode, next, kind, name } = *entry;
        let length = (24 + name.len()).next_multiple_of(8);
        if self.0.len() + length > max {
            return false;
        }
        let end = self.0.len() + length;
        self.u64(inode).u64(next).u32(name.len() as u32).u32(kind).0.extend_from_slice(name);
        self.0.resize(end, 0);
        true
    }

    /// Answers STATFS.
    pub(crate) fn file_system(stats: &rustix::fs::StatVfs) -> Self {
        let mut body = Self::default();
        body.u64(stats.f_blocks).u64(stats.f_bfree).u64(stats.f_bavail).u64(stats.f_files).u64(stats.f_ffree);
        body.u32(stats.f_bsize as u32).u32(stats.f_namemax as u32).u32(stats.f_frsize as u32).u32(0);
        body.0.resize(80, 0);
        body
    }
}

/// An entry of a directory in the form of the protocol.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DirectoryEntry<'a> {
    pub(crate) inode: u64,
    /// The offset of the entry after this one.
    pub(crate) next: u64,
    /// The type, as in `d_type`.
    pub(crate) kind: u32,
    pub(crate) name: &'a [u8],
}

/// Returns the header of an answer with this many bytes after it.
pub(crate) fn answer_header(unique: u64, error: Option<Errno>, body_length: usize) -> [u8; 16] {
    let mut header = [0; 16];
    let error = error.map_or(0, |errno| -errno.raw_os_error());
    header[..4].copy_from_slice(&((16 + body_length) as u32).to_ne_bytes());
    header[4..8].copy_from_slice(&error.to_ne_bytes());
    header[8..].copy_from_slice(&unique.to_ne_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(opcode: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&((HEADER_BYTES + body.len()) as u32).to_ne_bytes());
        bytes.extend_from_slice(&opcode.to_ne_bytes());
        bytes.extend_from_slice(&7_u64.to_ne_bytes());
        bytes.extend_from_slice(&9_u64.to_ne_bytes());
        bytes.resize(HEADER_BYTES, 0);
        bytes.extend_from_slice(body);
        bytes
    }

    #[test]
    fn parses_names_and_numbers() {
        let bytes = request(1, b"name\0");
        let parsed = Request::parse(&bytes).expect("a request");
        assert_eq!(parsed, Request { unique: 7, node: 9, operation: Operation::Lookup { name: b"name" } });
        let body = [0_u64, 4096, 1 << 20].map(u64::to_ne_bytes).concat();
        let bytes = request(15, &body);
        let read = Request::parse(&bytes).expect("a request").operation;
        assert_eq!(read, Operation::Read { offset: 4096, size: MAX_READ });
    }

    #[test]
    fn rejects_truncated_requests() {
        let bytes = request(15, &[0; 12]);
        assert_eq!(Request::parse(&bytes), None);
        assert_eq!(Request::parse(&bytes[..20]), None);
        assert_eq!(Request::parse(&request(1, b"no end")), None);
        assert_eq!(Request::parse(&request(42, &5_u64.to_ne_bytes())), None);
    }

    #[test]
    fn refuses_old_kernels() {
        assert!(AnswerBody::init(7, 27, 0, 0).is_none() && AnswerBody::init(8, 40, 0, 0).is_none());
        let new = AnswerBody::init(7, 45, 1 << 17, u32::MAX).expect("supported");
        assert_eq!((new.0.len(), u32_at(&new.0, 4)), (64, Some(31)));
    }

    #[test]
    fn answers_have_the_sizes_of_the_protocol() {
        let meta = FileMeta::for_test();
        assert_eq!(AnswerBody::entry(2, &meta, 3).0.len(), 128);
        assert_eq!(AnswerBody::absent_entry().0.len(), 128);
        assert_eq!(AnswerBody::attributes_of(&meta, 3).0.len(), 104);
        assert_eq!(AnswerBody::opened_directory().0.len(), 16);
    }

    #[test]
    fn directory_entries_stay_within_the_requested_size() {
        let entry = DirectoryEntry { inode: 1, next: 2, kind: 8, name: b"abc" };
        let mut body = AnswerBody::default();
        assert!(body.push_directory_entry(&entry, 40) && !body.push_directory_entry(&entry, 40));
        assert_eq!(body.0.len(), 32);
    }
}
