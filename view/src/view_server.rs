//! Answers the requests of the kernel for one view.

use std::io::IoSlice;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::rc::Rc;

use proctor_core::model::drift::display_path;
use proctor_core::model::trace::{AccessTrace, EntryKind, NoTrace, PathState};
use proctor_core::model::withheld::{WithheldCollector, WithheldPaths};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use crate::directory_listing::{DirectoryListing, KeptListings, read_directory};
use crate::file_meta::{FileMeta, ProcessIds};
use crate::host_files::{HostFiles, examine, examine_at, path_below};
use crate::node_table::{Node, NodeTable};
use crate::protocol::{self, AnswerBody, Operation, REQUEST_BUFFER, ROOT_NODE, Request};
use crate::recorder::{Recorder, is_unchanged};
use crate::view_export::ViewExport;

/// Directories of the host's root that a view shows without content: a sandbox mounts its own file systems there.
const HOLLOW: [&[u8]; 3] = [b"/proc", b"/sys", b"/dev"];
/// An empty directory that exists only in the view, in one of the directories without content. It is a mount point for
/// file systems that no path may reach: the sandbox covers its parent directory.
pub const HIDDEN_MOUNT_POINT: &str = "/dev/hidden";

/// The reason why a server stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ViewEnd {
    /// The caller requested it.
    Stopped,
    /// No process uses the view any more.
    Unmounted,
}

/// The server of one view, and the accesses that it has recorded.
#[derive(Debug)]
pub struct ViewServer {
    device: OwnedFd,
    exports: Vec<ViewExport>,
    /// The devices of the exports.
    base_devices: Vec<u64>,
    nodes: NodeTable,
    host: HostFiles,
    listings: KeptListings,
    /// The optional features of the kernel, as in its INIT request.
    kernel_flags: u32,
    recorder: Recorder,
    /// Host paths that show the tree of a step with `inputs`, or a part of it, besides its export. They are withheld.
    aliases: Vec<Vec<u8>>,
    withheld: WithheldCollector,
    /// The user whose rights the server has.
    ids: ProcessIds,
}

/// The answer to a request: a body, or an error.
type Answer = Result<AnswerBody, Errno>;

impl ViewServer {
    /// Creates the server of a view that was mounted with `device`, a non-blocking descriptor of `/dev/fuse`. The server
    /// accesses the host with the rights of this process. `aliases` are paths that it withholds.
    pub fn new(device: OwnedFd, exports: Vec<ViewExport>, aliases: Vec<Vec<u8>>) -> Self {
        let base_devices =
            exports.iter().map(|export| rustix::fs::fstat(&export.base).map_or(0, |stat| stat.st_dev)).collect();
        Self {
            device,
            exports,
            base_devices,
            nodes: NodeTable::default(),
            host: HostFiles::default(),
            listings: KeptListings::default(),
            kernel_flags: 0,
            recorder: Recorder::default(),
            aliases,
            withheld: WithheldCollector::default(),
            ids: ProcessIds::of_this_process(),
        }
    }

    /// Answers requests until `stop` is readable and no request is waiting, or until the view is unmounted.
    ///
    /// # Errors
    /// The device fails. The view then answers no further request.
    pub fn serve(&mut self, stop: BorrowedFd<'_>) -> Result<ViewEnd, Errno> {
        let mut buffer = vec![0; REQUEST_BUFFER];
        loop {
            // A command usually waits for the answer before its next request, so there is rarely a second one to read.
            let mut fds = [PollFd::new(&self.device, PollFlags::IN), PollFd::from_borrowed_fd(stop, PollFlags::IN)];
            rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, None))?;
            if fds[0].revents().is_empty() && !fds[1].revents().is_empty() {
                return Ok(ViewEnd::Stopped);
            }
            match rustix::io::read(&self.device, &mut buffer) {
                Ok(length) => self.handle(&buffer[..length])?,
                // ENOENT: the request was interrupted before it was read.
                Err(Errno::AGAIN | Errno::INTR | Errno::NOENT) => {}
                Err(Errno::NODEV) => return Ok(ViewEnd::Unmounted),
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Compares everything that was recorded with the host once more, and returns the trace. Call it after the command
    /// has ended.
    ///
    /// # Errors
    /// The reason why there is no trace.
    pub fn into_trace(mut self) -> Result<AccessTrace, NoTrace> {
        if self.recorder.no_trace().is_none()
            && let Some(changed) = self.find_change()
        {
            self.recorder.doubt(changed);
        }
        self.recorder.into_trace()
    }

    /// Returns the paths that the command looked for and that were withheld.
    pub fn withheld(&self) -> WithheldPaths {
        self.withheld.paths()
    }

    fn find_change(&self) -> Option<NoTrace> {
        self.recorder.records().iter().find_map(|record| {
            let export = &self.exports[record.export];
            let is_same = match examine(export, &record.path) {
                Ok((meta, _)) if !self.shows(record.export, &record.path, meta.is_directory()) => {
                    record.state == PathState::Absent
                }
                Ok((meta, target)) => {
                    let state = meta.state(&export.owners, target.as_deref());
                    is_unchanged(record, &state, Some(&meta.stamp())) && self.has_same_listing(record)
                }
                Err(Errno::NOENT | Errno::NOTDIR) => record.state == PathState::Absent,
                Err(_) => false,
            };
            (!is_same).then(|| NoTrace::changed(&record.path))
        })
    }

    fn has_same_listing(&self, record: &crate::recorder::Record) -> bool {
        let Some(expected) = record.listing else { return true };
        let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY;
        let opened = crate::host_files::open_below(&self.exports[record.export], &record.path, flags);
        opened.and_then(read_directory).is_ok_and(|mut listing| {
            self.remove_withheld(record.export, &record.path, &mut listing);
            listing.digest() == expected
        })
    }

    /// Returns whether the view shows a path of the host that exists.
    fn shows(&self, export: usize, path: &[u8], is_directory: bool) -> bool {
        match &self.exports[export] {
            tree @ ViewExport { inputs: Some(inputs), .. } => inputs.shows(path_below(tree, path), is_directory),
            _ => !self.aliases.iter().any(|alias| alias == path),
        }
    }

    fn remove_withheld(&self, export: usize, directory: &[u8], listing: &mut DirectoryListing) {
        if self.exports[export].inputs.is_some() || !self.aliases.is_empty() {
            listing.retain(|name, kind| self.shows(export, &join(directory, name), kind == EntryKind::Directory));
        }
    }

    /// Answers the lookup of a withheld path: the command sees that nothing exists there.
    fn withhold(&mut self, export: usize, path: &Rc<[u8]>) -> AnswerBody {
        let tree = &self.exports[export];
        self.withheld.add(if tree.inputs.is_some() { path_below(tree, path) } else { path });
        self.recorder.record_lookup(export, path, PathState::Absent, None);
        AnswerBody::absent_entry()
    }

    fn handle(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        let Some(request) = Request::parse(bytes) else {
            self.fail("the kernel sent a request that cannot be parsed".to_owned());
            return Err(Errno::PROTO);
        };
        let answer = self.answer(&request);
        if request.is_one_way() {
            return Ok(());
        }
        let (error, body) = match &answer {
            Ok(body) => (None, body.0.as_slice()),
            Err(errno) => (Some(*errno), &[][..]),
        };
        let header = protocol::answer_header(request.unique, error, body.len());
        match rustix::io::writev(&self.device, &[IoSlice::new(&header), IoSlice::new(body)]) {
            // ENOENT: the process that waited for the answer was killed.
            Ok(_) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => {
                self.fail(format!("the kernel refused an answer: {errno}"));
                Err(errno)
            }
        }
    }

    fn answer(&mut self, request: &Request<'_>) -> Answer {
        let node = request.node;
        match &request.operation {
            Operation::Init { major, minor, max_readahead, flags } => {
                self.kernel_flags = *flags;
                AnswerBody::init(*major, *minor, *max_readahead, *flags).ok_or(Errno::PROTO)
            }
            Operation::Lookup { name } => self.look_up(node, name),
            Operation::Forget { lookups } => {
                self.forget(node, *lookups);
                Ok(AnswerBody::default())
            }
            Operation::BatchForget { nodes } => {
                nodes.iter().for_each(|(node, lookups)| self.forget(*node, *lookups));
                Ok(AnswerBody::default())
            }
            Operation::GetAttr => self.read_attributes(node),
            Operation::ReadLink => self.read_link(node),
            // If the kernel's cache contains nothing of the file, a READ request precedes every access to its content.
            // OPEN and RELEASE requests would add nothing to that, and would double the number of requests.
            Operation::Open => self.answer_open(protocol::NO_OPEN_SUPPORT, AnswerBody::opened_file()),
            Operation::Read { offset, size } => self.read_file(node, *offset, *size),
            Operation::OpenDir => self.answer_open(protocol::NO_OPENDIR_SUPPORT, AnswerBody::opened_directory()),
            Operation::ReadDir { offset, size } => self.list(node, *offset, *size),
            Operation::StatFs => {
                let export = self.nodes.get(node).map_or(0, |node| node.export);
                let base = &self.exports.get(export).ok_or(Errno::STALE)?.base;
                Ok(AnswerBody::file_system(&rustix::fs::fstatvfs(base)?))
            }
            Operation::Release | Operation::ReleaseDir | Operation::Interrupt | Operation::Destroy => {
                Ok(AnswerBody::default())
            }
            Operation::Write => Err(Errno::ROFS),
            Operation::Unsupported => Err(Errno::NOSYS),
        }
    }

    fn forget(&mut self, key: u64, lookups: u64) {
        if self.nodes.forget(key, lookups) {
            self.host.close(key);
        }
    }

    fn node(&mut self, key: u64) -> Result<Rc<Node>, Errno> {
        self.nodes.get(key).ok_or_else(|| {
            self.fail(format!("the kernel named the unknown node {key}"));
            Errno::STALE
        })
    }

    fn look_up(&mut self, parent: u64, name: &[u8]) -> Answer {
        if parent == ROOT_NODE {
            return self.look_up_export(name);
        }
        let dir = self.node(parent)?;
        if matches!(name, b"" | b"." | b"..") || name.contains(&b'/') {
            self.fail("the kernel sent an invalid name".to_owned());
            return Err(Errno::INVAL);
        }
        let path: Rc<[u8]> = join(&dir.path, name).into();
        if dir.is_hollow {
            let is_mount_point = *path == *HIDDEN_MOUNT_POINT.as_bytes();
            return Ok(if is_mount_point { self.enter_mount_point(&dir, path) } else { AnswerBody::absent_entry() });
        }
        let export = dir.export;
        let opened = match self.host.directory(parent, &dir, &self.exports[export]) {
            Ok(opened) => opened,
            Err(errno) => return Err(self.refused_access("open", &dir, errno)),
        };
        match examine_at(&*opened, name) {
            Ok((meta, _)) if !self.shows(export, &path, meta.is_directory()) => Ok(self.withhold(export, &path)),
            Ok((meta, target)) => Ok(self.enter(export, path, meta, target)),
            Err(Errno::NOENT) => {
                self.recorder.record_lookup(export, &path, PathState::Absent, None);
                Ok(AnswerBody::absent_entry())
            }
            // A property of the name alone.
            Err(Errno::NAMETOOLONG) => Err(Errno::NAMETOOLONG),
            Err(Errno::ACCESS) => Err(self.refused_access("search", &dir, Errno::ACCESS)),
            Err(errno) => Err(self.wrong_answer("look up", &path, errno)),
        }
    }

    /// Returns the error for a directory that the server may not search. If the error follows from the mode and the owner
    /// of the directory, or of one above it, the trace contains them, and the kernel gives the step the same error. The
    /// owner, however, can permit itself the access in the sandbox, and the server cannot. Any other reason, such as an
    /// access control list, is not a part of a trace.
    fn refused_access(&mut self, what: &str, dir: &Node, errno: Errno) -> Errno {
        if errno != Errno::ACCESS || dir.meta.uid == self.ids.uid {
            return self.wrong_answer(what, &dir.path, errno);
        }
        if !self.mode_refuses_search(dir) {
            let message = format!("the mode of {} does not explain why it is refused", display_path(&dir.path));
            self.recorder.doubt(NoTrace::NotDescribable { message });
        }
        errno
    }

    /// Returns whether the mode of a directory, or of one above it, refuses a search by the step's user.
    fn mode_refuses_search(&self, dir: &Node) -> bool {
        let export = &self.exports[dir.export];
        let top = export.host_path.len();
        let ends = (top..dir.path.len()).filter(|end| *end == top || dir.path[*end] == b'/');
        // Paths below a directory without search permission cannot be examined.
        let mut examined = ends.chain([dir.path.len()]).map_while(|end| examine(export, &dir.path[..end]).ok());
        examined.any(|(meta, _)| !self.ids.may_search(&meta))
    }

    fn look_up_export(&mut self, name: &[u8]) -> Answer {
        let number = std::str::from_utf8(name).ok().and_then(|name| name.parse::<usize>().ok());
        let Some((number, export)) = number.and_then(|number| Some((number, self.exports.get(number)?))) else {
            return Ok(AnswerBody::absent_entry());
        };
        let path: Rc<[u8]> = export.host_path.as_slice().into();
        let (meta, target) = examine(export, &path)?;
        Ok(self.enter(number, path, meta, target))
    }

    /// Records a file that exists, and answers its lookup.
    fn enter(&mut self, export: usize, path: Rc<[u8]>, meta: FileMeta, target: Option<Rc<[u8]>>) -> AnswerBody {
        let state = meta.state(&self.exports[export].owners, target.as_deref());
        let record = self.recorder.record_lookup(export, &path, state, Some(meta.stamp()));
        let is_hollow = meta.is_directory() && HOLLOW.contains(&&*path);
        let shown_inode = self.shown_inode(export, &meta);
        let key = self.nodes.add(Node { export, path, meta, target, record, is_hollow });
        AnswerBody::entry(key, &self.ids.shown_meta(&meta), shown_inode)
    }

    /// Answers the lookup of a directory that does not exist on the host.
    fn enter_mount_point(&mut self, dir: &Node, path: Rc<[u8]>) -> AnswerBody {
        let meta = FileMeta { ino: u64::MAX, ..dir.meta };
        let node = Node { export: dir.export, path, meta, target: None, record: None, is_hollow: true };
        AnswerBody::entry(self.nodes.add(node), &meta, meta.ino)
    }

    /// Returns the inode number that programs see. A view is one device, so files of other devices of the host get
    /// numbers that are unlikely to be in use.
    fn shown_inode(&self, export: usize, meta: &FileMeta) -> u64 {
        if meta.dev == self.base_devices[export] {
            meta.ino
        } else {
            meta.ino ^ meta.dev.wrapping_mul(0x9e37_79b9_7f4a_7c15)
        }
    }

    fn read_attributes(&mut self, key: u64) -> Answer {
        if key == ROOT_NODE {
            let stat = rustix::fs::fstat(&self.exports.first().ok_or(Errno::STALE)?.base)?;
            return Ok(AnswerBody::attributes_of(&FileMeta::from(&stat), ROOT_NODE));
        }
        let node = self.node(key)?;
        if node.is_hollow {
            return Ok(AnswerBody::attributes_of(&node.meta, self.shown_inode(node.export, &node.meta)));
        }
        let (meta, target) = match examine(&self.exports[node.export], &node.path) {
            Ok(found) if found.0.is_same_file(&node.meta) => found,
            Ok(_) => return Err(self.wrong_answer("examine", &node.path, Errno::STALE)),
            Err(errno) => return Err(self.wrong_answer("examine", &node.path, errno)),
        };
        let state = meta.state(&self.exports[node.export].owners, target.as_deref());
        self.recorder.record_lookup(node.export, &node.path, state, Some(meta.stamp()));
        Ok(AnswerBody::attributes_of(&self.ids.shown_meta(&meta), self.shown_inode(node.export, &meta)))
    }

    fn read_link(&mut self, key: u64) -> Answer {
        let node = self.node(key)?;
        node.target.as_ref().map(|target| AnswerBody(target.to_vec())).ok_or(Errno::INVAL)
    }

    /// Answers OPEN or OPENDIR: if the kernel can do without these requests, it sends no other one.
    fn answer_open(&self, feature: u32, opened: AnswerBody) -> Answer {
        if self.kernel_flags & feature != 0 { Err(Errno::NOSYS) } else { Ok(opened) }
    }

    fn read_file(&mut self, key: u64, offset: u64, size: usize) -> Answer {
        let node = self.node(key)?;
        self.recorder.record_read(node.record);
        let file = self.host.file(key, &node, &self.exports[node.export]);
        // The kernel asks for whole pages, and knows the size of the file.
        let rest = usize::try_from(node.meta.size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let mut content = vec![0; size.min(rest)];
        match file.and_then(|file| read_fully(&file, &mut content, offset)) {
            Ok(length) => {
                content.truncate(length);
                Ok(AnswerBody(content))
            }
            Err(errno) => Err(self.wrong_answer("read", &node.path, errno)),
        }
    }

    fn list(&mut self, key: u64, offset: u64, size: usize) -> Answer {
        if key == ROOT_NODE {
            return Ok(DirectoryListing::empty(ROOT_NODE).answer(offset, size));
        }
        // The first part is always read again: a kernel that has dropped its cache must not get an old listing.
        if let Some(listing) = self.listings.get(key).filter(|_| offset > 0) {
            return Ok(listing.answer(offset, size));
        }
        let node = self.node(key)?;
        if node.is_hollow {
            return Ok(DirectoryListing::empty(node.meta.ino).answer(offset, size));
        }
        let opened = self.host.directory(key, &node, &self.exports[node.export]);
        match opened.and_then(|dir| read_directory(&*dir)) {
            Ok(mut listing) => {
                self.remove_withheld(node.export, &node.path, &mut listing);
                self.recorder.record_listing(node.record, listing.digest());
                let answer = listing.answer(offset, size);
                self.listings.keep(key, listing);
                Ok(answer)
            }
            Err(errno) => Err(self.wrong_answer("list", &node.path, errno)),
        }
    }

    /// Records that an answer is an error that the host might not have returned. The result of the command does not
    /// count.
    fn wrong_answer(&mut self, what: &str, path: &[u8], errno: Errno) -> Errno {
        self.fail(format!("cannot {what} {}: {errno}", display_path(path)));
        errno
    }

    fn fail(&mut self, message: String) {
        self.recorder.doubt(NoTrace::Failed { message });
    }
}

fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let separator: &[u8] = if dir == b"/" { b"" } else { b"/" };
    [dir, separator, name].concat()
}

/// Reads until the buffer is full or the file ends: the kernel takes a short answer as the end of the file.
fn read_fully(file: &OwnedFd, buffer: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let mut length = 0;
    while length < buffer.len() {
        match rustix::io::pread(file, &mut buffer[length..], offset + length as u64) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(length)
}
