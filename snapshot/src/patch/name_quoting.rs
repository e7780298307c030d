//! Writes names in a patch, quoted as a C string if a reader could misparse them.

/// Returns a prefix and a path as git writes them, quoted if they contain anything but plain characters. Spaces are
/// quoted too, since the line with both names is split at a space.
pub(super) fn quote_name(prefix: &[u8], path: &[u8]) -> Vec<u8> {
    let whole = [prefix, path].concat();
    let is_plain = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\');
    if whole.iter().all(is_plain) {
        return whole;
    }
    let mut text = vec![b'"'];
    for byte in whole {
        match byte {
            b'"' | b'\\' => text.extend([b'\\', byte]),
            b'\n' => text.extend(b"\\n"),
            b'\t' => text.extend(b"\\t"),
            b' ' | b'!'..=b'~' => text.push(byte),
            other => text.extend(format!("\\{other:03o}").into_bytes()),
        }
    }
    text.push(b'"');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_unusual_names_as_git_does() {
        let cases: [(&[u8], &str); 5] = [
            (b"src/a-b.rs", "a/src/a-b.rs"),
            (b"a b", "\"a/a b\""),
            (b"q\"\\", "\"a/q\\\"\\\\\""),
            (b"n\n\t\x01", "\"a/n\\n\\t\\001\""),
            (b"\xc3\xa9\xff", "\"a/\\303\\251\\377\""),
        ];
        for (path, expected) in cases {
            assert_eq!(String::from_utf8_lossy(&quote_name(b"a/", path)), expected);
        }
    }
}
