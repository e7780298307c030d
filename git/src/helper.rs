//! Starts `proctor-git` and waits for its answer, with a deadline and a bound on the size of the answer.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::error::GitError;
use crate::files::repo_path::RepoPath;
use crate::owner_rights::OwnerRights;
use crate::program::{self, CheckoutProgram, GitProgram};
use crate::protocol::{
    ChangedFiles, CommitObjects, CommitRef, CommitTree, CommitTreeContent, CommittedFile, GitAnswer, GitHistory,
    GitRequest, GitSourceFile, NamedCommit, Push, ResolvedPush, StagedCommit, StagedIndex, WantedLeaf, WantedObjects,
    WorktreeListing,
};
use crate::repository_paths::{OriginalRepository, RepositoryPaths};
use crate::wire::answer_frames::{self, AnswerError, AnswerFrame, BlobPieces, EarlyFrame, EarlyIndex};

/// Default deadline for one answer of the helper.
const DEFAULT_DEADLINE: Duration = Duration::from_secs(60);
/// Deadline for reading the tree of a commit.
const TREE_DEADLINE: Duration = Duration::from_secs(600);
/// Maximum size of an answer, in bytes.
const ANSWER_BYTES: usize = 512 << 20;
/// Size of the pipe for answers, and minimum free space of the buffer for each read, in bytes.
const PIPE_BYTES: usize = 1 << 20;
const READ_BYTES: usize = 64 << 10;
/// Maximum number of bytes kept of the helper's standard error.
const STDERR_BYTES: usize = 4 << 10;

/// Receives frames that arrive before the answer; an error ends the conversation.
type EarlyFrameHandler<'a> = &'a mut dyn FnMut(EarlyFrame) -> Result<(), AnswerError>;

/// The program that reads repositories in a separate process.
#[derive(Debug, Clone)]
pub struct GitHelper {
    /// Absolute path of the program.
    pub exe: PathBuf,
    /// Deadline for one answer.
    pub deadline: Duration,
    /// Runs the `git` program for formats that libgit2 cannot read.
    program: Option<Arc<dyn GitProgram>>,
}

impl GitHelper {
    /// Creates the helper at `exe`, with a deadline of 60 seconds.
    pub fn new(exe: impl Into<PathBuf>) -> Self {
        Self { exe: exe.into(), deadline: DEFAULT_DEADLINE, program: None }
    }

    /// Returns the helper with a `git` program for formats that libgit2 cannot read.
    #[must_use]
    pub fn with_program(self, program: Arc<dyn GitProgram>) -> Self {
        Self { program: Some(program), ..self }
    }

    /// Returns the helper for checkouts of one repository.
    #[must_use]
    pub fn for_checkouts(self, of: OriginalRepository) -> Self {
        let program =
            self.program.map(|program| -> Arc<dyn GitProgram> { Arc::new(CheckoutProgram { program, original: of }) });
        Self { program, ..self }
    }

    /// Returns the `git` program for formats that libgit2 cannot read.
    pub fn program(&self) -> Option<&dyn GitProgram> {
        self.program.as_deref()
    }

    /// Lists the tree of the repository whose work tree is `repo`. The index of the outermost repository may be passed
    /// to `on_early_index` before the rest is known. If `sent_early` is set in the complete listing, `tracked` does not
    /// contain the paths of this index; otherwise the early index must be ignored.
    ///
    /// # Errors
    /// The repository is refused or cannot be read; [`GitError`] contains the reason and how to fix it.
    pub fn list(&self, repo: &Path, on_early_index: &mut dyn FnMut(EarlyIndex)) -> Result<WorktreeListing, GitError> {
        let mut early_index = None;
        let question = self.encode_request(&GitRequest::List { repo: repo.to_owned() })?;
        let answer = self.exchange(repo, question, &mut |early| {
            let EarlyFrame::Index(frame) = early else { return Err(AnswerError::OtherQuestion) };
            early_index = Some(Arc::clone(&frame.index));
            on_early_index(frame);
            Ok(())
        })?;
        match answer {
            GitAnswer::List(mut listing) => {
                match (listing.sent_early, listing.indexes.first_mut(), early_index) {
                    (true, Some(first), Some(output)) => *first = output,
                    (false, ..) => {}
                    _ => return Err(self.helper_error("its answer does not match the start of the answer".into())),
                }
                Ok(listing)
            }
            GitAnswer::Refused { why } => self.retry_with_program(why, program::listing_task::list),
            _ => Err(self.helper_error("it answered a different request".into())),
        }
    }

    /// Reports for each path whether the rules on disk ignore it. None of the paths may be a directory.
    ///
    /// # Errors
    /// The errors of [`GitHelper::list`].
    pub fn are_ignored(&self, repo: &Path, paths: &[&[u8]]) -> Result<Vec<bool>, GitError> {
        self.query_ignored(repo, None, &[], paths)
    }

    /// Reports for each directory, then for each other path, whether the rules on disk ignore it. If the paths of
    /// submodules are given, the helper does not read the index to find them.
    ///
    /// # Errors
    /// The errors of [`GitHelper::list`].
    pub fn query_ignored(
        &self,
        repo: &Path,
        submodules: Option<&[RepoPath]>,
        directories: &[&[u8]],
        paths: &[&[u8]],
    ) -> Result<Vec<bool>, GitError> {
        let count = directories.len() + paths.len();
        if count == 0 {
            return Ok(Vec::new());
        }
        let owned = |paths: &[&[u8]]| paths.iter().map(|path| RepoPath(path.to_vec())).collect();
        let request = GitRequest::Ignored {
            repo: repo.to_owned(),
            submodules: submodules.map(<[RepoPath]>::to_vec),
            directories: owned(directories),
            paths: owned(paths),
        };
        match self.send(repo, &request)? {
            GitAnswer::Ignored { ignored } if ignored.len() == count => Ok(ignored),
            GitAnswer::Refused { why } => self.retry_with_program(why, |program, places| {
                program::ignore_task::query_ignored(program, places, directories, paths)
            }),
            _ => Err(self.helper_error("it answered a different request".into())),
        }
    }

    /// Asks the `git` program instead if libgit2 cannot read the format and the program is available.
    fn retry_with_program<T>(
        &self,
        why: GitError,
        query: impl FnOnce(&dyn GitProgram, &RepositoryPaths) -> Result<T, GitError>,
    ) -> Result<T, GitError> {
        match (why, self.program()) {
            (GitError::Format { places, .. }, Some(program)) => query(program, &places),
            (why, _) => Err(why),
        }
    }

    /// Returns the commits that a revision or a range of `repo` names, oldest first; at most `limit`.
    ///
    /// # Errors
    /// [`GitError::Revision`] if the revision names no commit or too many; otherwise the errors of
    /// [`GitHelper::list`].
    pub fn resolve(&self, repo: &Path, revision: &str, limit: usize) -> Result<Vec<NamedCommit>, GitError> {
        let request = GitRequest::Resolve { repo: repo.to_owned(), revision: revision.to_owned(), limit };
        match self.send_commit_request(repo, &request)? {
            GitAnswer::Resolved { commits } if !commits.is_empty() => Ok(commits),
            _ => Err(self.helper_error("it answered a different request".into())),
        }
    }

    /// Returns the contents of a push from `repo`, and the commits that have to be verified for it.
    ///
    /// # Errors
    /// [`GitError::Revision`] if an id names no object, [`GitError::TooMany`] if there are more commits than the
    /// limit; otherwise the errors of [`GitHelper::list`].
    pub fn resolve_push(&self, repo: &Path, push: &Push) -> Result<ResolvedPush, GitError> {
        match self.send_commit_request(repo, &GitRequest::Pushed { repo: repo.to_owned(), push: push.clone() })? {
            GitAnswer::Pushed(pushed) if pushed.tips.len() == push.tips.len() => Ok(pushed),
            _ => Err(self.helper_error("it answered a different request".into())),
        }
    }

    /// Returns the commit that an index of `repo` would make. Nothing is written.
    ///
    /// # Errors
    /// [`GitError::Revision`] if paths are in conflict or the file is not an index; otherwise the errors of
    /// [`GitHelper::list`].
    pub fn staged_commit(&self, repo: &Path, index: &StagedIndex) -> Result<StagedCommit, GitError> {
        match self.send(repo, &GitRequest::Staged { repo: repo.to_owned(), index: index.clone() })? {
            GitAnswer::Staged(commit) => Ok(commit),
            GitAnswer::Refused { why } => Err(staged_error(why)),
            _ => Err(self.helper_error("it answered a different request".into())),
        }
    }

    /// Returns the files in which a tree differs from the merge base of `base` (HEAD if it is `None`) and the verified
    /// commit. The tree is that of `target`, or the work tree.
    ///
    /// # Errors
    /// [`GitError::Revision`] if the base names no commit; otherwise the errors of [`GitHelper::list`].
    pub fn changed_files(
        &self,
        repo: &Path,
        base: Option<&str>,
        target: Option<&CommitRef>,
    ) -> Result<ChangedFiles, GitError> {
        let request =
            GitRequest::Changed { repo: repo.to_owned(), base: base.map(str::to_owned), target: target.cloned() };
        match self.send(repo, &request)? {
            GitAnswer::Changed(changed) => Ok(changed),
            GitAnswer::Refused { why } => self.retry_with_program(why, |program, places| {
                program::change_task::changed_files(program, places, base, target)
            }),
            _ => Err(self.helper_error("it answered a different request".into())),
        }
    }

    /// Returns the id of a commit's tree, the texts of single files and, on request, the identity of the tree.
    ///
    /// # Errors
    /// The errors of [`GitHelper::tree`].
    pub fn content(
        &self,
        repo: &Path,
        commit: &CommitRef,
        paths: Vec<RepoPath>,
        identity: bool,
    ) -> Result<CommitTreeContent, GitError> {
        let count = paths.len();
        let request = GitRequest::Content { repo: repo.to_owned(), commit: commit.clone(), paths, identity };
        match self.send_commit_request(repo, &request)? {
            GitAnswer::Content(content) if content.texts.len() == count => Ok(content),
            _ => Err(self.helper_error("it answered a different request".into())),
        }
    }

    /// Returns the hashes of single files in a commit's tree.
    ///
    /// # Errors
    /// The errors of [`GitHelper::tree`].
    pub fn files(
        &self,
        repo: &Path,
        commit: &CommitRef,
        paths: Vec<RepoPath>,
    ) -> Result<Vec<Option<CommittedFile>>, GitError> {
        let count = paths.len();
        match self
            .send_commit_request(repo, &GitRequest::Files { repo: repo.to_owned(), commit: commit.clone(), paths })?
        {
            GitAnswer::Files { files } if files.len() == count => Ok(files),
            _ => Err(self.helper_error("it answered a different request".into())),
        }
    }

    /// Returns the entries of a commit's tree.
    ///
    /// # Errors
    /// [`GitError::Tree`] if the commit's tree is refused, [`GitError::Missing`] if objects are missing;
    /// otherwise the errors of [`GitHelper::list`].
    pub fn tree(&self, repo: &Path, commit: &CommitRef, submodules: bool) -> Result<CommitTree, GitError> {
        let request = GitRequest::Tree { repo: repo.to_owned(), commit: commit.clone(), submodules };
        match self.with_tree_deadline().send_commit_request(repo, &request)? {
            GitAnswer::Tree(tree) => Ok(tree),
            _ => Err(self.helper_error("it answered a different request".into())),
        }
    }

    /// Sends the contents of the `wanted` files and links of a commit's tree to `take`, in the order of their
    /// numbers. `held_bytes` is the size of the files that the caller has already. Stops if `take` fails.
    ///
    /// # Errors
    /// The same as those of [`GitHelper::tree`]; [`GitError::Helper`] if `take` fails.
    pub fn blobs(
        &self,
        repo: &Path,
        (commit, submodules): (&CommitRef, bool),
        (wanted, held_bytes): (Vec<WantedLeaf>, u64),
        take: &mut dyn FnMut(&BlobPieces) -> Result<(), AnswerError>,
    ) -> Result<(), GitError> {
        let request =
            GitRequest::Blobs { repo: repo.to_owned(), commit: commit.clone(), submodules, wanted, held_bytes };
        let mut early = |early| match early {
            EarlyFrame::Blobs(pieces) => take(&pieces),
            EarlyFrame::Index(_) => Err(AnswerError::OtherQuestion),
        };
        match self.with_tree_deadline().send_commit_request_with(repo, &request, &mut early)? {
            GitAnswer::Blobs => Ok(()),
            _ => Err(self.helper_error("it answered a different request".into())),
        }
    }

    /// Returns packs of a commit, its trees and blobs, the tags that lead to it, and other blobs.
    ///
    /// # Errors
    /// [`GitError::Unreadable`] if the commit or one of its trees is missing; otherwise the errors of
    /// [`GitHelper::list`].
    pub fn objects(&self, repo: &Path, wanted: &WantedObjects) -> Result<CommitObjects, GitError> {
        let request = GitRequest::Objects { repo: repo.to_owned(), wanted: wanted.clone() };
        match self.with_tree_deadline().send_commit_request(repo, &request)? {
            GitAnswer::Objects(found) => Ok(found),
            _ => Err(self.helper_error("it answered a different request".into())),
        }
    }

    /// Returns the helper with a longer deadline, for answers whose duration depends on the size of the tree.
    fn with_tree_deadline(&self) -> Self {
        Self { deadline: self.deadline.max(TREE_DEADLINE), ..self.clone() }
    }

    /// Returns the refs of `repo` and of its `nested` repositories, and the ignore rules in their git directories.
    ///
    /// # Errors
    /// The errors of [`GitHelper::list`].
    pub fn history(&self, repo: &Path, nested: &[RepoPath]) -> Result<GitHistory, GitError> {
        self.history_with_sources(repo, nested).map(|(history, _)| history)
    }

    /// Returns the same as [`GitHelper::history`], and the files that it was read from; `None` if they cannot be
    /// determined.
    pub(crate) fn history_with_sources(
        &self,
        repo: &Path,
        nested: &[RepoPath],
    ) -> Result<(GitHistory, Option<Vec<GitSourceFile>>), GitError> {
        match self.send_commit_request(repo, &GitRequest::History { repo: repo.to_owned(), nested: nested.to_vec() })? {
            GitAnswer::History { history, sources } => Ok((history, sources)),
            _ => Err(self.helper_error("it answered a different request".into())),
        }
    }

    fn send(&self, repo: &Path, request: &GitRequest) -> Result<GitAnswer, GitError> {
        self.exchange(repo, self.encode_request(request)?, &mut |_| Ok(()))
    }

    /// Asks about commits. If libgit2 cannot read the format, the `git` program runs first, and its output is sent
    /// with a second request. A refusal becomes an error.
    fn send_commit_request(&self, repo: &Path, request: &GitRequest) -> Result<GitAnswer, GitError> {
        self.send_commit_request_with(repo, request, &mut |_| Ok(()))
    }

    fn send_commit_request_with(
        &self,
        repo: &Path,
        request: &GitRequest,
        early: EarlyFrameHandler<'_>,
    ) -> Result<GitAnswer, GitError> {
        let answer = match (self.exchange(repo, self.encode_request(request)?, early)?, self.program()) {
            (GitAnswer::Refused { why: GitError::Format { places, objects, .. } }, Some(program)) => {
                let output = program::history_task::query_history(program, &places, request, objects)?;
                let question = [self.encode_request(request)?, b"\n".to_vec(), output].concat();
                self.exchange(repo, question, early)?
            }
            (answer, _) => answer,
        };
        match answer {
            GitAnswer::Refused { why } => Err(why),
            answer => Ok(answer),
        }
    }

    fn encode_request(&self, request: &GitRequest) -> Result<Vec<u8>, GitError> {
        serde_json::to_vec(request).map_err(|error| self.helper_error(error.to_string()))
    }

    fn exchange(&self, repo: &Path, question: Vec<u8>, early: EarlyFrameHandler<'_>) -> Result<GitAnswer, GitError> {
        let failed = |problem: String| self.helper_error(problem);
        let mut child = self.spawn(repo)?;
        let talked =
            HelperExchange::new(&mut child, question).and_then(|talk| talk.run(Instant::now() + self.deadline, early));
        if !matches!(talked, Ok(ExchangeResult::Complete { .. })) {
            // `kill` fails only if the process has already exited.
            let _ = child.kill();
        }
        let status = child.wait().map_err(|error| failed(error.to_string()))?;
        match talked.map_err(|error| failed(error.to_string()))? {
            ExchangeResult::DeadlinePassed => {
                Err(GitError::Deadline { path: repo.to_owned(), deadline: self.deadline })
            }
            ExchangeResult::TooLarge => Err(failed(format!("its answer is larger than {ANSWER_BYTES} bytes"))),
            ExchangeResult::Malformed(error) => Err(failed(error.to_string())),
            ExchangeResult::Complete { complaint, .. } if !status.success() => {
                Err(failed(format!("{status}: {}", proctor_core::record::evidence::escape_output(&complaint).trim())))
            }
            ExchangeResult::Complete { answer: Some(answer), .. } => Ok(*answer),
            ExchangeResult::Complete { answer: None, .. } => Err(failed("EOF: it ended without an answer".into())),
        }
    }

    /// Starts the helper as the owner of `repo` if we are root, otherwise as the current user. If the owner cannot reach the
    /// repository, the helper starts as root, makes it reachable, and becomes the owner.
    fn spawn(&self, repo: &Path) -> Result<Child, GitError> {
        let exe = File::open(&self.exe).map_err(|error| self.helper_error(error.to_string()))?;
        let found = std::fs::metadata(repo);
        let found = found.map_err(|error| GitError::Io { path: repo.to_owned(), problem: error.to_string() })?;
        let owner = (rustix::process::geteuid().is_root() && found.uid() != 0).then_some((found.uid(), found.gid()));
        // The owner may be unable to reach the program by its path, and only needs to execute it.
        let program = match owner {
            Some(_) => PathBuf::from(format!("/proc/self/fd/{}", exe.as_raw_fd())),
            None => self.exe.clone(),
        };
        #[expect(clippy::disallowed_methods, reason = "this is the git helper's launcher")]
        let mut command = Command::new(program);
        command.arg0("proctor-git").env_clear().current_dir("/");
        command.env("HOME", "/nonexistent").env("XDG_CONFIG_HOME", "/nonexistent");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let rights = owner.and_then(|(uid, gid)| OwnerRights::find(repo, uid, gid));
        if let Some(rights) = &rights {
            command.args(rights.arguments());
        } else if let Some((uid, gid)) = owner {
            // std clears the supplementary groups when root changes its uid.
            command.gid(gid).uid(uid);
        }
        command.spawn().map_err(|error| self.helper_error(format!("cannot start it: {error}")))
    }

    fn helper_error(&self, problem: String) -> GitError {
        GitError::Helper { exe: self.exe.clone(), problem }
    }
}

/// Replaces the error for a format that libgit2 cannot read, since the `git` program reads such an index only for
/// worktrees, not for staged content.
fn staged_error(why: GitError) -> GitError {
    match why {
        GitError::Format { places, what, mend, .. } => GitError::Unsupported {
            path: places.worktree,
            what,
            mend: format!("the worktree and commits can be verified, but staged changes cannot; or {mend}"),
        },
        other => other,
    }
}

/// The result of a conversation.
enum ExchangeResult {
    Complete { answer: Option<Box<GitAnswer>>, complaint: Vec<u8> },
    DeadlinePassed,
    TooLarge,
    Malformed(AnswerError),
}

/// The three pipes of the helper, with buffers for the transferred bytes.
struct HelperExchange {
    request: Vec<u8>,
    written: usize,
    stdin: Option<OwnedFd>,
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
    received: Vec<u8>,
    answer: Option<Box<GitAnswer>>,
    error_output: Vec<u8>,
}

impl HelperExchange {
    fn new(child: &mut Child, question: Vec<u8>) -> io::Result<Self> {
        let stdin = child.stdin.take().map(OwnedFd::from);
        let stdout = child.stdout.take().map(OwnedFd::from);
        let stderr = child.stderr.take().map(OwnedFd::from);
        for fd in [&stdin, &stdout, &stderr].into_iter().flatten() {
            rustix::io::ioctl_fionbio(fd, true)?;
        }
        if let Some(stdout) = &stdout {
            // A larger pipe carries a large answer in fewer pieces. The call may fail if the user's quota for pipes
            // is exhausted.
            let _ = rustix::pipe::fcntl_setpipe_size(stdout, PIPE_BYTES);
        }
        let (received, complaint) = (Vec::new(), Vec::new());
        Ok(Self {
            request: question,
            written: 0,
            stdin,
            stdout,
            stderr,
            received,
            answer: None,
            error_output: complaint,
        })
    }

    /// Writes and reads until both outputs are closed, the deadline passes, or a bound is exceeded.
    fn run(mut self, deadline: Instant, early: EarlyFrameHandler<'_>) -> io::Result<ExchangeResult> {
        while self.stdout.is_some() || self.stderr.is_some() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(ExchangeResult::DeadlinePassed);
            }
            self.wait_for_pipes(left)?;
            self.write_request()?;
            read_into(&mut self.stdout, &mut self.received)?;
            read_into(&mut self.stderr, &mut self.error_output)?;
            self.error_output.truncate(STDERR_BYTES);
            if self.received.len() > ANSWER_BYTES {
                return Ok(ExchangeResult::TooLarge);
            }
            if let Err(error) = self.handle_frames(early) {
                return Ok(ExchangeResult::Malformed(error));
            }
        }
        Ok(ExchangeResult::Complete { answer: self.answer, complaint: self.error_output })
    }

    /// Handles the frames that have been received completely.
    fn handle_frames(&mut self, early: EarlyFrameHandler<'_>) -> Result<(), AnswerError> {
        while let Some(frame) = answer_frames::take_frame(&mut self.received)? {
            match frame {
                _ if self.answer.is_some() => return Err(AnswerError::AfterAnswer),
                AnswerFrame::EarlyIndex(output) => output.map_or(Ok(()), |output| early(EarlyFrame::Index(output)))?,
                AnswerFrame::Blobs(pieces) => early(EarlyFrame::Blobs(pieces))?,
                AnswerFrame::Answer(answer) => self.answer = Some(answer),
            }
        }
        Ok(())
    }

    fn wait_for_pipes(&self, left: Duration) -> io::Result<()> {
        let out = self.stdin.as_ref().map(|fd| PollFd::new(fd, PollFlags::OUT));
        let ins = [&self.stdout, &self.stderr].into_iter().flatten().map(|fd| PollFd::new(fd, PollFlags::IN));
        let mut fds: Vec<_> = out.into_iter().chain(ins).collect();
        let timeout =
            Timespec { tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX), tv_nsec: left.subsec_nanos().into() };
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn write_request(&mut self) -> io::Result<()> {
        while let Some(fd) = &self.stdin {
            let rest = &self.request[self.written..];
            match rustix::io::write(fd, rest) {
                _ if rest.is_empty() => self.stdin = None,
                Ok(count) => self.written += count,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                // The helper exited without reading the whole request; its status and standard error explain why.
                Err(Errno::PIPE) => self.stdin = None,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Reads the available bytes, and closes the pipe at its end.
fn read_into(pipe: &mut Option<OwnedFd>, bytes: &mut Vec<u8>) -> io::Result<()> {
    let Some(fd) = pipe else { return Ok(()) };
    bytes.reserve(READ_BYTES);
    match rustix::io::read(fd, spare_capacity(bytes)) {
        Ok(0) => *pipe = None,
        Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// The ignore rules of one real tree, queried in batches; the answers are cached.
#[derive(Debug)]
pub struct IgnoreQuery {
    helper: GitHelper,
    repo: PathBuf,
    /// The paths of submodules, if they are known.
    submodules: Option<Vec<RepoPath>>,
    cached: Mutex<HashMap<Vec<u8>, bool>>,
}

impl IgnoreQuery {
    /// Creates a query for the rules of the work tree `repo`.
    pub fn new(helper: GitHelper, repo: impl Into<PathBuf>) -> Self {
        Self { helper, repo: repo.into(), submodules: None, cached: Mutex::new(HashMap::new()) }
    }

    /// Sets the paths of submodules if they are known. The helper then does not read the index, and the cost of a
    /// query does not depend on the size of the index.
    #[must_use]
    pub fn with_submodules(self, submodules: Option<Vec<RepoPath>>) -> Self {
        Self { submodules, ..self }
    }

    /// Reports for each path whether it is ignored. A path that ends in `/` is a directory; it is ignored if all
    /// its content is, whatever the names. All other paths must not be directories. The helper is asked once about
    /// all paths that are not cached, and not at all if there are none.
    ///
    /// # Errors
    /// The errors of [`GitHelper::list`].
    pub fn are_ignored(&self, paths: &[&[u8]]) -> Result<Vec<bool>, GitError> {
        let mut known = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        let new = paths.iter().copied().filter(|path| !known.contains_key(*path));
        let (directories, new): (Vec<&[u8]>, Vec<&[u8]>) = new.partition(|path| path.ends_with(b"/"));
        let bare: Vec<&[u8]> = directories.iter().map(|path| &path[..path.len() - 1]).collect();
        let answers = self.helper.query_ignored(&self.repo, self.submodules.as_deref(), &bare, &new)?;
        known.extend(directories.iter().chain(&new).map(|path| path.to_vec()).zip(answers));
        Ok(paths.iter().map(|path| known.get(*path).copied().unwrap_or(false)).collect())
    }
}
