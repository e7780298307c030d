//! Where a daemon may be, who may stand behind it, and whether it speaks as we do.

use std::path::PathBuf;

/// A socket at which a daemon may listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The socket, as an absolute path.
    pub socket: PathBuf,
    /// Whose daemon is believed there.
    pub trust: Trust,
}

/// Whose daemon is believed. What it says is taken for a verdict, and it is told the caller's
/// environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// Whoever listens: a person or the operator named the socket.
    Named,
    /// That of this user, or root's.
    OwnOrRoot(u32),
}

impl Trust {
    /// Whether a daemon of `uid` is believed.
    pub fn covers(self, uid: u32) -> bool {
        match self {
            Self::Named => true,
            Self::OwnOrRoot(own) => uid == own || uid == 0,
        }
    }
}

/// Whether two versions of proctor understand each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compatibility {
    /// They are the same.
    Same,
    /// They differ, and by the rules of semver.org neither may have broken what the other asks.
    Compatible,
    /// They may not.
    Incompatible,
}

/// Compares two versions by the rules of semver.org: the number of the major version decides, and
/// while that is 0, that of the minor one.
pub fn compatibility(ours: &str, theirs: &str) -> Compatibility {
    if ours == theirs {
        return Compatibility::Same;
    }
    match (breaking(ours), breaking(theirs)) {
        (Some(ours), Some(theirs)) if ours == theirs => Compatibility::Compatible,
        _ => Compatibility::Incompatible,
    }
}

/// What two versions that understand each other have in common; `None` where it is no version.
fn breaking(version: &str) -> Option<(u64, u64)> {
    let mut numbers = version.split(['.', '-', '+']).map(|part| part.parse::<u64>().ok());
    match (numbers.next()??, numbers.next()??) {
        (0, minor) => Some((0, minor)),
        (major, _) => Some((major, 0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_at_a_usual_place_is_ours_or_roots() {
        assert_eq!([7, 0, 8].map(|uid| Trust::OwnOrRoot(7).covers(uid)), [true, true, false]);
        assert!(Trust::Named.covers(8));
    }

    #[test]
    fn versions_agree_as_semver_has_it() {
        use Compatibility::{Compatible, Incompatible, Same};
        let cases = [
            ("0.1.0", "0.1.0", Same),
            ("0.1.0", "0.1.7", Compatible),
            ("0.1.0", "0.2.0", Incompatible),
            ("1.2.0", "1.9.3-rc.1", Compatible),
            ("1.2.0", "2.0.0", Incompatible),
            ("1.2.0", "", Incompatible),
            ("1.2.0", "new", Incompatible),
        ];
        for (ours, theirs, expected) in cases {
            assert_eq!(compatibility(ours, theirs), expected, "{ours} {theirs}");
        }
    }
}
