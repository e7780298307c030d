//! Resolves a revision or a range to commits, without running a program of the repository.

use git2::{ErrorCode, Object, ObjectType, Oid, Repository, Sort};
use proctor_core::record::evidence::escape_output;

use crate::error::GitError;
use crate::object::object_error::ObjectError;
use crate::object::object_id::ObjectId;
use crate::program::program_output::ProgramOutput;
use crate::protocol::NamedCommit;
use crate::repository::history::{HistoryBackend, RepositoryHistory};
use crate::repository::object_reader::{ObjectReader, from_oid};

/// The longest revision that is looked up, in bytes.
const MAX_TEXT: usize = 4096;
/// Maximum length of a commit's subject in results, in bytes.
const MAX_SUBJECT: usize = 120;
/// The namespaces in which a plain name is looked up; a name in more than one of them is ambiguous.
const NAMESPACES: [&str; 3] = ["refs/tags/", "refs/heads/", "refs/remotes/"];

/// Returns the commits that `text` names, oldest first, at most `limit`. `text` is one revision, `A..B` (commits
/// that B has and A lacks), or `A...B` (commits that only one of them has). An omitted end means HEAD.
pub(crate) fn resolve(history: &RepositoryHistory<'_>, text: &str, limit: usize) -> Result<Vec<NamedCommit>, GitError> {
    let question = RevisionQuery { history, text };
    if !is_well_formed(text) {
        let mend = "name a commit in the syntax of `git rev-parse`, such as `HEAD`, `main~2`, `v1.0` or an id";
        return Err(question.error("it is not a revision", mend));
    }
    let ids = match (&history.backend, history.program_output()?) {
        (_, Some(output)) => question.resolve_with_program(output, limit)?,
        (HistoryBackend::Libgit2(opened), None) => {
            Libgit2Lookup { query: &question, repository: &opened.repository }.resolve(limit)?
        }
        (_, None) => Vec::new(),
    };
    let objects = history.objects()?;
    let named = |id| named_commit(&objects, id).map_err(|error| history.unreadable(error.to_string()));
    ids.into_iter().map(named).collect()
}

/// The two ends of a range.
pub(crate) struct RevisionRange<'a> {
    pub(crate) from: &'a str,
    pub(crate) to: &'a str,
    /// True if the range is `...`: the commits that only one of the ends has.
    pub(crate) symmetric: bool,
}

/// Parses a range; returns `None` for a single revision.
pub(crate) fn parse_range(text: &str) -> Option<RevisionRange<'_>> {
    let (from, to, symmetric) = match text.split_once("...") {
        Some((from, to)) => (from, to, true),
        None => text.split_once("..").map(|(from, to)| (from, to, false))?,
    };
    let [from, to] = [from, to].map(|end| if end.is_empty() { "HEAD" } else { end });
    Some(RevisionRange { from, to, symmetric })
}

/// Checks whether a text may be a revision or a range. Git never creates names that look like options or contain
/// control characters.
pub(crate) fn is_well_formed(text: &str) -> bool {
    let is_odd = |text: &str| text.starts_with('-') || text.chars().any(char::is_control);
    let ends = parse_range(text).map_or(vec![text], |range| vec![range.from, range.to]);
    !text.is_empty() && text.len() <= MAX_TEXT && !ends.into_iter().any(is_odd)
}

/// Returns the name in a revision that several refs may share, or `None` if the revision is a full ref name or a
/// whole id.
pub(crate) fn ambiguous_name(text: &str) -> Option<&str> {
    let plain = text.split(['~', '^', '@', ':']).next().unwrap_or(text);
    (!plain.is_empty() && plain != "HEAD" && !plain.starts_with("refs/") && !is_full_id(text)).then_some(plain)
}

/// Checks whether a text has the form of a whole id. It is then always an id, even if a branch has this name.
fn is_full_id(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The requested revision, for messages.
struct RevisionQuery<'a> {
    history: &'a RepositoryHistory<'a>,
    /// The whole text.
    text: &'a str,
}

impl RevisionQuery<'_> {
    fn error(&self, problem: impl Into<String>, mend: impl Into<String>) -> GitError {
        GitError::Revision {
            path: self.history.paths.worktree.clone(),
            revision: escape_output(self.text.as_bytes()),
            problem: problem.into(),
            mend: mend.into(),
        }
    }

    fn not_found_error(&self, text: &str) -> GitError {
        let shown = escape_output(text.as_bytes());
        self.error(
            format!("`{shown}` names nothing in `{}`", self.history.worktree().display()),
            "`git log --oneline --all` lists its commits; fetch commits that exist only in a remote",
        )
    }

    fn not_a_commit_error(&self, text: &str, kind: &str) -> GitError {
        self.error(
            format!("`{}` names a {kind}, not a commit", escape_output(text.as_bytes())),
            "name a commit, or a tag of one",
        )
    }

    fn ambiguous_error(&self, names: &[Vec<u8>]) -> GitError {
        let names: Vec<String> = names.iter().map(|name| format!("`{}`", escape_output(name))).collect();
        self.error(format!("it is ambiguous: {}", names.join(", ")), "write the full name of the intended ref")
    }

    /// Returns the commits of a walk, if their number is within the limit.
    fn check_count<T>(&self, found: Vec<T>, limit: usize) -> Result<Vec<T>, GitError> {
        match found.len() {
            0 => Err(self.error(
                "the range contains no commit",
                "put the newer end last: `main..HEAD` selects the commits of HEAD that main does not have",
            )),
            many if many > limit => Err(self.error(
                format!("the range contains more than {limit} commits"),
                "verify it in parts, or name only its last commit",
            )),
            _ => Ok(found),
        }
    }

    /// Resolves the revision with the output of the `git` program.
    fn resolve_with_program(&self, output: &ProgramOutput<'_>, limit: usize) -> Result<Vec<ObjectId>, GitError> {
        let Some(range) = parse_range(self.text) else { return Ok(vec![self.program_end(output, "to", self.text)?]) };
        self.program_end(output, "from", range.from)?;
        self.program_end(output, "to", range.to)?;
        self.check_count(output.walked_commits().map_err(|error| self.history.unreadable(error.to_string()))?, limit)
    }

    fn program_end(&self, output: &ProgramOutput<'_>, name: &str, text: &str) -> Result<ObjectId, GitError> {
        let end = output.revision_end(name);
        let named: Vec<_> = end.candidates.into_iter().filter_map(|(space, id)| Some((space, id?))).collect();
        if let Some(plain) = ambiguous_name(text).filter(|_| named.iter().any(|(_, id)| *id != named[0].1)) {
            let full = |(space, _): &(&str, ObjectId)| format!("refs/{space}/{plain}").into_bytes();
            return Err(self.ambiguous_error(&named.iter().map(full).collect::<Vec<_>>()));
        }
        match (end.commit, end.kind) {
            (Some(commit), _) => Ok(commit),
            (None, Some(kind)) => Err(self.not_a_commit_error(text, &kind)),
            (None, None) => Err(self.not_found_error(text)),
        }
    }
}

/// Resolves a revision in a repository that libgit2 can read.
struct Libgit2Lookup<'a> {
    query: &'a RevisionQuery<'a>,
    repository: &'a Repository,
}

impl Libgit2Lookup<'_> {
    fn resolve(&self, limit: usize) -> Result<Vec<ObjectId>, GitError> {
        let ids = match parse_range(self.query.text) {
            None => vec![self.find_commit(self.query.text)?],
            Some(range) => self.walk_range(&range, limit)?,
        };
        ids.into_iter()
            .map(|id| from_oid(id).map_err(|error| self.query.history.unreadable(error.to_string())))
            .collect()
    }

    fn libgit2_error(&self, error: &git2::Error) -> GitError {
        self.query.history.unreadable(error.message())
    }

    fn find_commit(&self, text: &str) -> Result<Oid, GitError> {
        let object = self.find_object(text)?;
        let peeled = object
            .peel(ObjectType::Commit)
            .map_err(|_| self.query.not_a_commit_error(text, object.kind().map_or("something", |kind| kind.str())))?;
        Ok(peeled.id())
    }

    fn find_object(&self, text: &str) -> Result<Object<'_>, GitError> {
        if text.len() == 40 && is_full_id(text) {
            let id = Oid::from_str(text).map_err(|error| self.libgit2_error(&error))?;
            return self.repository.find_object(id, None).map_err(|error| self.lookup_error(text, &error));
        }
        self.check_unambiguous(text)?;
        let spelled = text.strip_prefix('@').filter(|rest| !rest.starts_with('{'));
        let spelled = spelled.map_or_else(|| text.to_owned(), |rest| format!("HEAD{rest}"));
        self.repository.revparse_single(&spelled).map_err(|error| self.lookup_error(text, &error))
    }

    /// Refuses a name that a tag and a branch share. Git would warn and choose one of them.
    fn check_unambiguous(&self, text: &str) -> Result<(), GitError> {
        let Some(plain) = ambiguous_name(text) else { return Ok(()) };
        let target = |namespace: &str| {
            let found = self.repository.find_reference(&format!("{namespace}{plain}")).ok()?;
            Some((found.name_bytes().to_vec(), found.peel(ObjectType::Any).ok()?.id()))
        };
        let found: Vec<(Vec<u8>, Oid)> = NAMESPACES.iter().filter_map(|namespace| target(namespace)).collect();
        if found.iter().all(|(_, id)| *id == found[0].1) {
            return Ok(());
        }
        Err(self.query.ambiguous_error(&found.into_iter().map(|(name, _)| name).collect::<Vec<_>>()))
    }

    fn lookup_error(&self, text: &str, error: &git2::Error) -> GitError {
        match error.code() {
            ErrorCode::Ambiguous => {
                let shown = escape_output(text.as_bytes());
                self.query.error(format!("several ids of objects begin with `{shown}`"), "write more digits of the id")
            }
            ErrorCode::NotFound | ErrorCode::InvalidSpec | ErrorCode::UnbornBranch | ErrorCode::GenericError => {
                self.query.not_found_error(text)
            }
            _ => self.libgit2_error(error),
        }
    }

    fn walk_range(&self, range: &RevisionRange<'_>, limit: usize) -> Result<Vec<Oid>, GitError> {
        let (from, to) = (self.find_commit(range.from)?, self.find_commit(range.to)?);
        let walk = || {
            let mut walk = self.repository.revwalk()?;
            walk.set_sorting(Sort::TOPOLOGICAL | Sort::REVERSE)?;
            walk.push(to)?;
            if range.symmetric {
                walk.push(from)?;
                match self.repository.merge_bases(from, to) {
                    Ok(bases) => bases.iter().try_for_each(|base| walk.hide(*base))?,
                    // The two histories have no common commit.
                    Err(error) if error.code() == ErrorCode::NotFound => {}
                    Err(error) => return Err(error),
                }
            } else {
                walk.hide(from)?;
            }
            walk.take(limit + 1).collect::<Result<Vec<Oid>, _>>()
        };
        self.query.check_count(walk().map_err(|error| self.libgit2_error(&error))?, limit)
    }
}

/// Returns a commit with its id and subject.
pub(crate) fn named_commit(objects: &ObjectReader<'_>, id: ObjectId) -> Result<NamedCommit, ObjectError> {
    let message = objects.commit(id)?.message;
    let line = message.trim_ascii_start().split(|byte| *byte == b'\n').next().unwrap_or_default();
    let subject = escape_output(&line[..line.len().min(MAX_SUBJECT)]);
    Ok(NamedCommit { id: id.to_string(), subject })
}
