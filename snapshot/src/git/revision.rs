//! Which commits a revision or a range names, without running a program of the repository.

use git2::{ErrorCode, Object, ObjectType, Oid, Repository, Sort};
use proctor_core::evidence::escape_output;

use super::GitError;
use super::protocol::NamedCommit;
use super::reader::{Opened, unreadable};

/// The longest revision that is looked up, in bytes.
const MAX_TEXT: usize = 4096;
/// How much of a commit's subject is told, in bytes.
const MAX_SUBJECT: usize = 120;
/// Where a plain name is looked for; in more than one of them, it is ambiguous.
const NAMESPACES: [&str; 3] = ["refs/tags/", "refs/heads/", "refs/remotes/"];

/// The commits that `text` names, oldest first, at most `limit`: one revision, `A..B` (what B has
/// and A has not), or `A...B` (what only one of them has). An end that is left out is HEAD.
pub(super) fn resolve(top: &Opened, text: &str, limit: usize) -> Result<Vec<NamedCommit>, GitError> {
    let lookup = Lookup { top, text };
    lookup.check_form()?;
    let ids = match range(text) {
        None => vec![lookup.commit(text)?],
        Some(range) => lookup.walk(&range, limit)?,
    };
    ids.into_iter().map(|id| named(top, id)).collect()
}

/// Two ends of a range.
struct Range<'a> {
    from: &'a str,
    to: &'a str,
    /// `...`: what either of them has alone.
    symmetric: bool,
}

fn range(text: &str) -> Option<Range<'_>> {
    let (from, to, symmetric) = match text.split_once("...") {
        Some((from, to)) => (from, to, true),
        None => text.split_once("..").map(|(from, to)| (from, to, false))?,
    };
    let [from, to] = [from, to].map(|end| if end.is_empty() { "HEAD" } else { end });
    Some(Range { from, to, symmetric })
}

struct Lookup<'a> {
    top: &'a Opened,
    /// The whole of what was asked, for messages.
    text: &'a str,
}

impl Lookup<'_> {
    fn repository(&self) -> &Repository {
        &self.top.repository
    }

    fn refused(&self, problem: impl Into<String>, mend: impl Into<String>) -> GitError {
        GitError::Revision {
            path: self.top.worktree.clone(),
            revision: escape_output(self.text.as_bytes()),
            problem: problem.into(),
            mend: mend.into(),
        }
    }

    fn failed(&self, error: &git2::Error) -> GitError {
        unreadable(&self.top.worktree, error)
    }

    /// Names that look like options or hold control characters are none that git makes.
    fn check_form(&self) -> Result<(), GitError> {
        let is_odd = |text: &str| text.starts_with('-') || text.chars().any(char::is_control);
        let ends = range(self.text).map_or(vec![self.text], |range| vec![range.from, range.to]);
        if self.text.is_empty() || self.text.len() > MAX_TEXT || ends.into_iter().any(is_odd) {
            let mend = "name a commit as `git rev-parse` takes it, such as `HEAD`, `main~2`, `v1.0` or an id";
            return Err(self.refused("it is no revision", mend));
        }
        Ok(())
    }

    fn commit(&self, text: &str) -> Result<Oid, GitError> {
        let object = self.object(text)?;
        let peeled = object.peel(ObjectType::Commit).map_err(|_| {
            let kind = object.kind().map_or("something", |kind| kind.str());
            self.refused(
                format!("`{}` names a {kind} and no commit", escape_output(text.as_bytes())),
                "name a commit, or a tag of one",
            )
        })?;
        Ok(peeled.id())
    }

    fn object(&self, text: &str) -> Result<Object<'_>, GitError> {
        // What is written as a whole id is one, whatever branches are called.
        if text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            let id = Oid::from_str(text).map_err(|error| self.failed(&error))?;
            return self.repository().find_object(id, None).map_err(|error| self.unknown(text, &error));
        }
        self.check_unambiguous(text)?;
        let spelled = text.strip_prefix('@').filter(|rest| !rest.starts_with('{'));
        let spelled = spelled.map_or_else(|| text.to_owned(), |rest| format!("HEAD{rest}"));
        self.repository().revparse_single(&spelled).map_err(|error| self.unknown(text, &error))
    }

    /// Git warns of a name that a tag and a branch share, and takes one of them; we take none.
    fn check_unambiguous(&self, text: &str) -> Result<(), GitError> {
        let plain = text.split(['~', '^', '@', ':']).next().unwrap_or(text);
        if plain.is_empty() || plain == "HEAD" || plain.starts_with("refs/") {
            return Ok(());
        }
        let target = |namespace: &str| {
            let found = self.repository().find_reference(&format!("{namespace}{plain}")).ok()?;
            Some((found.name_bytes().to_vec(), found.peel(ObjectType::Any).ok()?.id()))
        };
        let found: Vec<(Vec<u8>, Oid)> = NAMESPACES.iter().filter_map(|namespace| target(namespace)).collect();
        if found.iter().all(|(_, id)| *id == found[0].1) {
            return Ok(());
        }
        let names: Vec<String> = found.iter().map(|(name, _)| format!("`{}`", escape_output(name))).collect();
        Err(self.refused(format!("it is ambiguous: {}", names.join(", ")), "write the one that is meant in full"))
    }

    fn unknown(&self, text: &str, error: &git2::Error) -> GitError {
        let shown = escape_output(text.as_bytes());
        match error.code() {
            ErrorCode::Ambiguous => {
                self.refused(format!("`{shown}` begins the ids of several objects"), "write more of the id")
            }
            ErrorCode::NotFound | ErrorCode::InvalidSpec | ErrorCode::UnbornBranch | ErrorCode::GenericError => self
                .refused(
                    format!("`{shown}` names nothing in `{}`", self.top.worktree.display()),
                    "`git log --oneline --all` lists its commits; what only a remote has must be fetched first",
                ),
            _ => self.failed(error),
        }
    }

    fn walk(&self, range: &Range<'_>, limit: usize) -> Result<Vec<Oid>, GitError> {
        let (from, to) = (self.commit(range.from)?, self.commit(range.to)?);
        let walk = || {
            let mut walk = self.repository().revwalk()?;
            walk.set_sorting(Sort::TOPOLOGICAL | Sort::REVERSE)?;
            walk.push(to)?;
            if range.symmetric {
                walk.push(from)?;
                match self.repository().merge_bases(from, to) {
                    Ok(bases) => bases.iter().try_for_each(|base| walk.hide(*base))?,
                    // Two histories that have nothing in common.
                    Err(error) if error.code() == ErrorCode::NotFound => {}
                    Err(error) => return Err(error),
                }
            } else {
                walk.hide(from)?;
            }
            walk.take(limit + 1).collect::<Result<Vec<Oid>, _>>()
        };
        let found = walk().map_err(|error| self.failed(&error))?;
        match found.len() {
            0 => Err(self.refused(
                "the range holds no commit",
                "the newer end stands last: `main..HEAD` is what HEAD has and main has not",
            )),
            many if many > limit => Err(self.refused(
                format!("the range holds more than {limit} commits"),
                "verify it in parts, or name its last commit alone",
            )),
            _ => Ok(found),
        }
    }
}

/// A commit as it is told of.
pub(super) fn named(top: &Opened, id: Oid) -> Result<NamedCommit, GitError> {
    let commit = top.repository.find_commit(id).map_err(|error| unreadable(&top.worktree, &error))?;
    let line = commit.message_bytes().trim_ascii_start().split(|byte| *byte == b'\n').next().unwrap_or_default();
    let subject = escape_output(&line[..line.len().min(MAX_SUBJECT)]);
    Ok(NamedCommit { id: id.to_string(), subject })
}
