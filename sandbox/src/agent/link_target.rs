//! Encodes the targets of symbolic links that a server could change.
//!
//! Some servers store `./a` and `b//c` as `a` and `b/c`, or refuse absolute targets. Such a target travels in the name of a
//! single path component, which every server keeps, and the agent restores it.

use std::borrow::Cow;

/// The beginning of an encoded target.
const PREFIX: &str = "proctor-link:";
/// The longest target of a link, in bytes.
const MAX_TARGET: usize = 4095;

/// Returns a target as it is sent to a worker; `None` if it is too long to be encoded.
pub fn sent_link_target(target: &[u8]) -> Option<Cow<'_, str>> {
    if let Some(text) = std::str::from_utf8(target).ok().filter(|text| is_kept(text)) {
        return Some(Cow::Borrowed(text));
    }
    let mut encoded = PREFIX.to_owned();
    for byte in target {
        match byte {
            b'%' | b'/' | 0x80.. => encoded.push_str(&format!("%{byte:02x}")),
            _ => encoded.push(char::from(*byte)),
        }
    }
    (encoded.len() <= MAX_TARGET).then_some(Cow::Owned(encoded))
}

/// Returns whether every server keeps a target as it is.
fn is_kept(target: &str) -> bool {
    !target.starts_with(PREFIX) && target.split('/').all(|part| !part.is_empty() && part != ".")
}

/// Returns the target of a link from the one that a worker got; `None` if it is damaged.
pub(crate) fn received_link_target(target: &[u8]) -> Option<Cow<'_, [u8]>> {
    let Some(encoded) = target.strip_prefix(PREFIX.as_bytes()) else { return Some(Cow::Borrowed(target)) };
    let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|value| u8::try_from(value).ok());
    let mut decoded = Vec::with_capacity(encoded.len());
    let mut rest = encoded;
    while let [first, tail @ ..] = rest {
        rest = match (first, tail) {
            (b'%', [high, low, tail @ ..]) => {
                decoded.push(digit(high)? << 4 | digit(low)?);
                tail
            }
            (b'%', _) => return None,
            _ => {
                decoded.push(*first);
                tail
            }
        };
    }
    Some(Cow::Owned(decoded))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_targets_are_sent_as_they_are() {
        for target in ["a", "../a/b", "..", "a/../b", "ü:x", "-"] {
            assert!(
                matches!(sent_link_target(target.as_bytes()), Some(Cow::Borrowed(sent)) if sent == target),
                "{target}"
            );
        }
    }

    #[test]
    fn other_targets_are_restored() {
        let long = "/x".repeat(1_000);
        for target in [".", "./a", "a/./b", "a//b", "a/", "/", "/usr/bin/env", "//a", "%2f/", "proctor-link:a", &long] {
            let sent = sent_link_target(target.as_bytes()).expect("encoded");
            assert!(sent != target && !sent.contains('/'), "{sent}");
            assert_eq!(received_link_target(sent.as_bytes()).expect("decoded"), target.as_bytes());
        }
        let bytes = b"\xff\xfe/\n";
        let sent = sent_link_target(bytes).expect("encoded").into_owned();
        assert_eq!(received_link_target(sent.as_bytes()).expect("decoded"), bytes.as_slice());
    }

    #[test]
    fn long_and_damaged_targets_are_refused() {
        assert_eq!(sent_link_target("/".repeat(MAX_TARGET).as_bytes()), None);
        for damaged in ["proctor-link:%2", "proctor-link:%", "proctor-link:%zz", "proctor-link:%+1"] {
            assert_eq!(received_link_target(damaged.as_bytes()), None, "{damaged}");
        }
    }
}
