//! Starts `proctor-git` and waits for its answer, with a deadline and a bound on what it says.

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

use super::GitError;
use super::frames::{self, Ahead, BlobPieces, Early, Frame};
use super::program::{self, CheckoutOf, GitProgram, OverCheckout, Places};
use super::protocol::{
    Answer, CommitContent, CommitRef, CommitTree, CommittedFile, GitHistory, Listing, NamedCommit, Push, Pushed,
    RepoPath, Request, StagedIndex,
};
use crate::snapshot::Snapshot;

/// How long one answer of the helper may take by default.
const DEADLINE: Duration = Duration::from_secs(60);
/// How long it may take to read the tree of a commit.
const TREE_DEADLINE: Duration = Duration::from_secs(600);
/// How many bytes an answer may have.
const ANSWER_BYTES: usize = 512 << 20;
/// How many bytes of an answer may wait in the pipe, and how many are taken at least at a time where they are there.
const PIPE_BYTES: usize = 1 << 20;
const PIECE_BYTES: usize = 64 << 10;
/// How many bytes of the helper's complaint are kept.
const COMPLAINT_BYTES: usize = 4 << 10;

/// Takes what is sent before an answer; an error ends the conversation.
type Take<'a> = &'a mut dyn FnMut(Early) -> Result<(), String>;

/// The program that reads repositories for us.
#[derive(Debug, Clone)]
pub struct GitHelper {
    /// Where it is: an absolute path.
    pub exe: PathBuf,
    /// How long one answer may take.
    pub deadline: Duration,
    /// Who is asked what libgit2 cannot tell.
    program: Option<Arc<dyn GitProgram>>,
}

impl GitHelper {
    /// The helper at `exe`, with a deadline of 60 seconds.
    pub fn new(exe: impl Into<PathBuf>) -> Self {
        Self { exe: exe.into(), deadline: DEADLINE, program: None }
    }

    /// The same helper, which leaves to the `git` program what libgit2 cannot tell.
    #[must_use]
    pub fn with_program(self, program: Arc<dyn GitProgram>) -> Self {
        Self { program: Some(program), ..self }
    }

    /// The same helper for checkouts of one repository.
    #[must_use]
    pub fn over_checkouts(self, of: CheckoutOf) -> Self {
        let program = self.program.map(|program| -> Arc<dyn GitProgram> { Arc::new(OverCheckout { program, of }) });
        Self { program, ..self }
    }

    /// Who is asked what libgit2 cannot tell.
    pub(crate) fn program(&self) -> Option<&dyn GitProgram> {
        self.program.as_deref()
    }

    /// Lists the tree of the repository whose work tree is `repo`. The index of the outermost repository may be
    /// told to `ahead` before the rest is known; where the listing then says `told_ahead`, what it tracks is not in
    /// `tracked`, and else what was told does not count.
    ///
    /// # Errors
    /// The repository is refused or cannot be read; [`GitError`] says why and how to mend it.
    pub fn list(&self, repo: &Path, ahead: &mut dyn FnMut(Ahead)) -> Result<Listing, GitError> {
        let mut told = None;
        let question = self.question(&Request::List { repo: repo.to_owned() })?;
        let answer = self.ask_with(repo, question, &mut |early| {
            let Early::Index(said) = early else { return Err("it answered another question".to_owned()) };
            told = Some(Arc::clone(&said.index));
            ahead(said);
            Ok(())
        })?;
        match answer {
            Answer::List(mut listing) => {
                match (listing.told_ahead, listing.indexes.first_mut(), told) {
                    (true, Some(first), Some(told)) => *first = told,
                    (false, ..) => {}
                    _ => return Err(self.failed("its answer is not that which it began with".into())),
                }
                Ok(listing)
            }
            Answer::Refused { why } => self.by_program(why, program::listing::list),
            _ => Err(self.failed("it answered another question".into())),
        }
    }

    /// Says for each path, none of them a directory, whether the rules on disk ignore it.
    ///
    /// # Errors
    /// As [`GitHelper::list`].
    pub fn ignored(&self, repo: &Path, paths: &[&[u8]]) -> Result<Vec<bool>, GitError> {
        self.ignored_among(repo, None, &[], paths)
    }

    /// Says for each directory, then for each path that is none, whether the rules on disk ignore it.
    /// Where submodules are need not be looked up in the index if it is said.
    ///
    /// # Errors
    /// As [`GitHelper::list`].
    pub(crate) fn ignored_among(
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
        let request = Request::Ignored {
            repo: repo.to_owned(),
            submodules: submodules.map(<[RepoPath]>::to_vec),
            directories: owned(directories),
            paths: owned(paths),
        };
        match self.ask(repo, &request)? {
            Answer::Ignored { ignored } if ignored.len() == count => Ok(ignored),
            Answer::Refused { why } => {
                self.by_program(why, |program, places| program::ignore::ignored(program, places, directories, paths))
            }
            _ => Err(self.failed("it answered another question".into())),
        }
    }

    /// Has the `git` program answer where libgit2 cannot read the format, and where it is at hand.
    fn by_program<T>(
        &self,
        why: GitError,
        asked: impl FnOnce(&dyn GitProgram, &Places) -> Result<T, GitError>,
    ) -> Result<T, GitError> {
        match (why, self.program()) {
            (GitError::Format { places, .. }, Some(program)) => asked(program, &places),
            (why, _) => Err(why),
        }
    }

    /// The commits that a revision or a range of `repo` names, oldest first; at most `limit`.
    ///
    /// # Errors
    /// [`GitError::Revision`] where it names none or too many; else as [`GitHelper::list`].
    pub fn resolve(&self, repo: &Path, revision: &str, limit: usize) -> Result<Vec<NamedCommit>, GitError> {
        let request = Request::Resolve { repo: repo.to_owned(), revision: revision.to_owned(), limit };
        match self.ask_of_commits(repo, &request)? {
            Answer::Resolved { commits } if !commits.is_empty() => Ok(commits),
            _ => Err(self.failed("it answered another question".into())),
        }
    }

    /// What a push from `repo` sends, and which commits are to be looked at for that.
    ///
    /// # Errors
    /// [`GitError::Revision`] where an id names nothing, [`GitError::TooMany`] where there are more commits
    /// than asked for; else as [`GitHelper::list`].
    pub fn pushed(&self, repo: &Path, push: &Push) -> Result<Pushed, GitError> {
        match self.ask_of_commits(repo, &Request::Pushed { repo: repo.to_owned(), push: push.clone() })? {
            Answer::Pushed(pushed) if pushed.tips.len() == push.tips.len() => Ok(pushed),
            _ => Err(self.failed("it answered another question".into())),
        }
    }

    /// The commit that an index of `repo` would make. Nothing is written.
    ///
    /// # Errors
    /// [`GitError::Revision`] where paths are in conflict, or it is no index; else as [`GitHelper::list`].
    pub fn staged(&self, repo: &Path, index: &StagedIndex) -> Result<NamedCommit, GitError> {
        match self.ask(repo, &Request::Staged { repo: repo.to_owned(), index: index.clone() })? {
            Answer::Staged(commit) => Ok(commit),
            Answer::Refused { why } => Err(of_staged(why)),
            _ => Err(self.failed("it answered another question".into())),
        }
    }

    /// What a checkout of a commit would be.
    ///
    /// # Errors
    /// As [`GitHelper::tree`].
    pub fn content(&self, repo: &Path, commit: &CommitRef) -> Result<CommitContent, GitError> {
        match self.ask_of_commits(repo, &Request::Content { repo: repo.to_owned(), commit: commit.clone() })? {
            Answer::Content(content) => Ok(content),
            _ => Err(self.failed("it answered another question".into())),
        }
    }

    /// What single files of a commit's tree are.
    ///
    /// # Errors
    /// As [`GitHelper::tree`].
    pub fn files_of(
        &self,
        repo: &Path,
        commit: &CommitRef,
        paths: Vec<RepoPath>,
    ) -> Result<Vec<Option<CommittedFile>>, GitError> {
        let count = paths.len();
        match self.ask_of_commits(repo, &Request::Files { repo: repo.to_owned(), commit: commit.clone(), paths })? {
            Answer::Files { files } if files.len() == count => Ok(files),
            _ => Err(self.failed("it answered another question".into())),
        }
    }

    /// Returns what stands at each path of a commit's tree.
    ///
    /// # Errors
    /// [`GitError::Tree`] where the commit's tree is refused, [`GitError::Missing`] where objects are not here; else as
    /// [`GitHelper::list`].
    pub fn tree(&self, repo: &Path, commit: &CommitRef, submodules: bool) -> Result<CommitTree, GitError> {
        let request = Request::Tree { repo: repo.to_owned(), commit: commit.clone(), submodules };
        match self.patient().ask_of_commits(repo, &request)? {
            Answer::Tree(tree) => Ok(tree),
            _ => Err(self.failed("it answered another question".into())),
        }
    }

    /// Has the contents of the `wanted` files and links of a commit's tree sent to `take`, in the order of their
    /// numbers. Ends early where `take` fails.
    ///
    /// # Errors
    /// As [`GitHelper::tree`]; [`GitError::Helper`] with what `take` says.
    pub fn blobs(
        &self,
        repo: &Path,
        (commit, submodules): (&CommitRef, bool),
        wanted: Vec<u32>,
        take: &mut dyn FnMut(&BlobPieces) -> Result<(), String>,
    ) -> Result<(), GitError> {
        let request = Request::Blobs { repo: repo.to_owned(), commit: commit.clone(), submodules, wanted };
        let mut early = |early| match early {
            Early::Blobs(pieces) => take(&pieces),
            Early::Index(_) => Err("it answered another question".to_owned()),
        };
        match self.patient().ask_of_commits_with(repo, &request, &mut early)? {
            Answer::Blobs => Ok(()),
            _ => Err(self.failed("it answered another question".into())),
        }
    }

    /// The same helper for answers whose time goes by the size of the tree.
    fn patient(&self) -> Self {
        Self { deadline: self.deadline.max(TREE_DEADLINE), ..self.clone() }
    }

    /// Returns the refs of `repo` and of the repositories inside it that are `nested`, and the ignore rules in their git
    /// directories.
    ///
    /// # Errors
    /// As [`GitHelper::list`].
    pub fn history(&self, repo: &Path, nested: &[RepoPath]) -> Result<GitHistory, GitError> {
        match self.ask_of_commits(repo, &Request::History { repo: repo.to_owned(), nested: nested.to_vec() })? {
            Answer::History(history) => Ok(history),
            _ => Err(self.failed("it answered another question".into())),
        }
    }

    fn ask(&self, repo: &Path, request: &Request) -> Result<Answer, GitError> {
        self.ask_with(repo, self.question(request)?, &mut |_| Ok(()))
    }

    /// Asks about commits. Where libgit2 cannot read the format, the `git` program is asked first, and what it told
    /// goes with the question. No answer is a refusal.
    fn ask_of_commits(&self, repo: &Path, request: &Request) -> Result<Answer, GitError> {
        self.ask_of_commits_with(repo, request, &mut |_| Ok(()))
    }

    fn ask_of_commits_with(&self, repo: &Path, request: &Request, early: Take<'_>) -> Result<Answer, GitError> {
        let answer = match (self.ask_with(repo, self.question(request)?, early)?, self.program()) {
            (Answer::Refused { why: GitError::Format { places, objects, .. } }, Some(program)) => {
                let told = program::history::told(program, &places, request, objects)?;
                let question = [self.question(request)?, b"\n".to_vec(), told].concat();
                self.ask_with(repo, question, early)?
            }
            (answer, _) => answer,
        };
        match answer {
            Answer::Refused { why } => Err(why),
            answer => Ok(answer),
        }
    }

    fn question(&self, request: &Request) -> Result<Vec<u8>, GitError> {
        serde_json::to_vec(request).map_err(|error| self.failed(error.to_string()))
    }

    fn ask_with(&self, repo: &Path, question: Vec<u8>, early: Take<'_>) -> Result<Answer, GitError> {
        let failed = |problem: String| self.failed(problem);
        let mut child = self.spawn(repo)?;
        let talked =
            Conversation::new(&mut child, question).and_then(|talk| talk.until(Instant::now() + self.deadline, early));
        if !matches!(talked, Ok(Talked::Whole { .. })) {
            // An error here means that it has ended by itself.
            let _ = child.kill();
        }
        let status = child.wait().map_err(|error| failed(error.to_string()))?;
        match talked.map_err(|error| failed(error.to_string()))? {
            Talked::Late => Err(GitError::Deadline { path: repo.to_owned(), deadline: self.deadline }),
            Talked::TooMuch => Err(failed(format!("its answer is larger than {ANSWER_BYTES} bytes"))),
            Talked::Garbled(problem) => Err(failed(problem)),
            Talked::Whole { complaint, .. } if !status.success() => {
                Err(failed(format!("{status}: {}", proctor_core::evidence::escape_output(&complaint).trim())))
            }
            Talked::Whole { answer: Some(answer), .. } => Ok(*answer),
            Talked::Whole { answer: None, .. } => Err(failed("EOF: it ended without an answer".into())),
        }
    }

    /// Starts the helper as the owner of `repo` where we are root, as ourselves otherwise.
    fn spawn(&self, repo: &Path) -> Result<Child, GitError> {
        let exe = File::open(&self.exe).map_err(|error| self.failed(error.to_string()))?;
        let found = std::fs::metadata(repo);
        let found = found.map_err(|error| GitError::Io { path: repo.to_owned(), problem: error.to_string() })?;
        let owner = (rustix::process::geteuid().is_root() && found.uid() != 0).then_some((found.uid(), found.gid()));
        // The owner need not be able to reach the program by its path, only to execute it.
        let program = match owner {
            Some(_) => PathBuf::from(format!("/proc/self/fd/{}", exe.as_raw_fd())),
            None => self.exe.clone(),
        };
        #[expect(clippy::disallowed_methods, reason = "this is the git helper's launcher")]
        let mut command = Command::new(program);
        command.arg0("proctor-git").env_clear().current_dir("/");
        command.env("HOME", "/nonexistent").env("XDG_CONFIG_HOME", "/nonexistent");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some((uid, gid)) = owner {
            // Supplementary groups are cleared by std where root gives up its uid.
            command.gid(gid).uid(uid);
        }
        command.spawn().map_err(|error| self.failed(format!("cannot start it: {error}")))
    }

    fn failed(&self, problem: String) -> GitError {
        GitError::Helper { exe: self.exe.clone(), problem }
    }
}

/// Why it cannot be told what an index would make: the index of such a format is read of worktrees alone.
fn of_staged(why: GitError) -> GitError {
    match why {
        GitError::Format { places, what, mend, .. } => GitError::Unsupported {
            path: places.worktree,
            what,
            mend: format!("the worktree and commits can be verified, but staged changes cannot; or {mend}"),
        },
        other => other,
    }
}

/// How a conversation ended.
enum Talked {
    Whole { answer: Option<Box<Answer>>, complaint: Vec<u8> },
    Late,
    TooMuch,
    Garbled(String),
}

/// The three pipes of the helper, and what went through them.
struct Conversation {
    question: Vec<u8>,
    written: usize,
    stdin: Option<OwnedFd>,
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
    received: Vec<u8>,
    answer: Option<Box<Answer>>,
    complaint: Vec<u8>,
}

impl Conversation {
    fn new(child: &mut Child, question: Vec<u8>) -> io::Result<Self> {
        let stdin = child.stdin.take().map(OwnedFd::from);
        let stdout = child.stdout.take().map(OwnedFd::from);
        let stderr = child.stderr.take().map(OwnedFd::from);
        for fd in [&stdin, &stdout, &stderr].into_iter().flatten() {
            rustix::io::ioctl_fionbio(fd, true)?;
        }
        if let Some(stdout) = &stdout {
            // A large answer comes in fewer pieces; what a user may have of pipes can be used up.
            let _ = rustix::pipe::fcntl_setpipe_size(stdout, PIPE_BYTES);
        }
        let (received, complaint) = (Vec::new(), Vec::new());
        Ok(Self { question, written: 0, stdin, stdout, stderr, received, answer: None, complaint })
    }

    /// Writes and reads until both outputs end, the deadline passes or a bound is met.
    fn until(mut self, deadline: Instant, early: Take<'_>) -> io::Result<Talked> {
        while self.stdout.is_some() || self.stderr.is_some() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Talked::Late);
            }
            self.wait(left)?;
            self.write()?;
            read_into(&mut self.stdout, &mut self.received)?;
            read_into(&mut self.stderr, &mut self.complaint)?;
            self.complaint.truncate(COMPLAINT_BYTES);
            if self.received.len() > ANSWER_BYTES {
                return Ok(Talked::TooMuch);
            }
            if let Err(problem) = self.take_frames(early) {
                return Ok(Talked::Garbled(problem));
            }
        }
        Ok(Talked::Whole { answer: self.answer, complaint: self.complaint })
    }

    /// Takes what has come as a whole.
    fn take_frames(&mut self, early: Take<'_>) -> Result<(), String> {
        while let Some(frame) = frames::take(&mut self.received)? {
            match frame {
                _ if self.answer.is_some() => return Err("it says more than its answer".to_owned()),
                Frame::Ahead(told) => told.map_or(Ok(()), |told| early(Early::Index(told)))?,
                Frame::Blobs(pieces) => early(Early::Blobs(pieces))?,
                Frame::Answer(answer) => self.answer = Some(answer),
            }
        }
        Ok(())
    }

    fn wait(&self, left: Duration) -> io::Result<()> {
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

    fn write(&mut self) -> io::Result<()> {
        while let Some(fd) = &self.stdin {
            let rest = &self.question[self.written..];
            match rustix::io::write(fd, rest) {
                _ if rest.is_empty() => self.stdin = None,
                Ok(count) => self.written += count,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                // It ended without reading all; its status and its complaint say why.
                Err(Errno::PIPE) => self.stdin = None,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Reads what is there; the pipe is closed at its end.
fn read_into(pipe: &mut Option<OwnedFd>, bytes: &mut Vec<u8>) -> io::Result<()> {
    let Some(fd) = pipe else { return Ok(()) };
    bytes.reserve(PIECE_BYTES);
    match rustix::io::read(fd, spare_capacity(bytes)) {
        Ok(0) => *pipe = None,
        Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// The ignore rules of one real tree, asked in batches and remembered.
#[derive(Debug)]
pub struct IgnoreQuery {
    helper: GitHelper,
    repo: PathBuf,
    /// Where submodules are, if that is known.
    submodules: Option<Vec<RepoPath>>,
    known: Mutex<HashMap<Vec<u8>, bool>>,
}

impl IgnoreQuery {
    /// The rules of the work tree `repo`.
    pub fn new(helper: GitHelper, repo: impl Into<PathBuf>) -> Self {
        Self { helper, repo: repo.into(), submodules: None, known: Mutex::new(HashMap::new()) }
    }

    /// The same rules of a work tree of which there is a snapshot: where its submodules are need not be
    /// looked up in the index, so that an answer costs the same however large that is.
    #[must_use]
    pub fn knowing(self, snapshot: &Snapshot) -> Self {
        let submodules = snapshot.basis.as_ref().and_then(|basis| basis.known_submodules()).map(<[RepoPath]>::to_vec);
        Self { submodules, ..self }
    }

    /// Says for each path whether it is ignored. One that ends in `/` is a directory, and ignored
    /// where all that lies in it is, whatever its name; no other is a directory. The helper is asked
    /// once for all paths that were not asked before, and not at all where there are none.
    ///
    /// # Errors
    /// As [`GitHelper::list`].
    pub fn ignored(&self, paths: &[&[u8]]) -> Result<Vec<bool>, GitError> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let new = paths.iter().copied().filter(|path| !known.contains_key(*path));
        let (directories, new): (Vec<&[u8]>, Vec<&[u8]>) = new.partition(|path| path.ends_with(b"/"));
        let bare: Vec<&[u8]> = directories.iter().map(|path| &path[..path.len() - 1]).collect();
        let answers = self.helper.ignored_among(&self.repo, self.submodules.as_deref(), &bare, &new)?;
        known.extend(directories.iter().chain(&new).map(|path| path.to_vec()).zip(answers));
        Ok(paths.iter().map(|path| known.get(*path).copied().unwrap_or(false)).collect())
    }
}
