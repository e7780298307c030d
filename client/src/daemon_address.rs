//! Describes where a daemon listens, which daemons are trusted, and which versions are compatible.

use std::path::PathBuf;

/// A socket at which a daemon may listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DaemonAddress {
    /// Absolute path of the socket.
    pub socket: PathBuf,
    /// Users whose daemon is trusted there.
    pub trust: DaemonTrust,
}

/// Users whose daemon is trusted. A trusted daemon's verdicts are believed, and it receives the caller's environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DaemonTrust {
    /// Any user, because the user or the operator named the socket explicitly.
    AnyUser,
    /// This user, or root.
    OwnOrRoot(u32),
}

impl DaemonTrust {
    /// Returns whether a daemon of user `uid` is trusted.
    pub fn trusts_user(self, uid: u32) -> bool {
        match self {
            Self::AnyUser => true,
            Self::OwnOrRoot(own) => uid == own || uid == 0,
        }
    }
}

/// Compatibility of two versions of Proctor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compatibility {
    /// The versions are equal.
    Same,
    /// The versions differ but are compatible under semantic versioning.
    Compatible,
    /// The versions may be incompatible.
    Incompatible,
}

/// Compares two versions under semantic versioning: the major version must be equal, and while it is 0, the minor
/// version too.
pub fn compatibility(ours: &str, theirs: &str) -> Compatibility {
    if ours == theirs {
        return Compatibility::Same;
    }
    match (breaking_version(ours), breaking_version(theirs)) {
        (Some(ours), Some(theirs)) if ours == theirs => Compatibility::Compatible,
        _ => Compatibility::Incompatible,
    }
}

/// Returns the part of a version that compatible versions share, or `None` if the version is invalid.
fn breaking_version(version: &str) -> Option<(u64, u64)> {
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
    fn trusts_only_own_user_and_root() {
        assert_eq!([7, 0, 8].map(|uid| DaemonTrust::OwnOrRoot(7).trusts_user(uid)), [true, true, false]);
        assert!(DaemonTrust::AnyUser.trusts_user(8));
    }

    #[test]
    fn compares_versions_by_semver() {
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
