//! Represents paths in a work tree as bytes, and in JSON as lower-case hex.

use serde::{Deserialize, Serialize};

/// A path relative to the top of the work tree, with `/` between its parts.
#[derive(Debug, Default, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RepoPath(pub Vec<u8>);

impl From<RepoPath> for String {
    fn from(path: RepoPath) -> String {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        let digits = |b: u8| [HEX[usize::from(b >> 4)], HEX[usize::from(b & 15)]];
        path.0.iter().flat_map(|b| digits(*b)).map(char::from).collect()
    }
}

/// The text is not a hex-encoded path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a hex-encoded path")]
pub struct InvalidRepoPath(pub String);

impl TryFrom<String> for RepoPath {
    type Error = InvalidRepoPath;
    fn try_from(text: String) -> Result<Self, InvalidRepoPath> {
        let bad = || InvalidRepoPath(text.clone());
        let nibble = |b: u8| match b {
            b'0'..=b'9' => Ok(b - b'0'),
            b'a'..=b'f' => Ok(b - b'a' + 10),
            _ => Err(bad()),
        };
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        if !rest.is_empty() {
            return Err(bad());
        }
        pairs.iter().map(|[high, low]| Ok(nibble(*high)? << 4 | nibble(*low)?)).collect::<Result<_, _>>().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_paths_of_any_bytes() {
        let path = RepoPath((1..=255).collect());
        let text = serde_json::to_string(&path).expect("serialises");
        assert_eq!(serde_json::from_str::<RepoPath>(&text).expect("parses"), path);
        assert!(serde_json::from_str::<RepoPath>("\"0\"").is_err());
        assert!(serde_json::from_str::<RepoPath>("\"0G\"").is_err());
    }
}
