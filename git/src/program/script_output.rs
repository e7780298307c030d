//! Splits the output of our scripts into parts. Each part follows a line with its name, its exit code and its
//! length.

/// The parts of an output: name, exit code, text.
pub(crate) struct ScriptOutput<'a>(Vec<(&'a str, u8, &'a [u8])>);

impl<'a> ScriptOutput<'a> {
    pub(crate) fn parse(mut printed: &'a [u8]) -> Option<Self> {
        let mut parts = Vec::new();
        while !printed.is_empty() {
            let end = printed.iter().position(|b| *b == b'\n')?;
            let mut words = std::str::from_utf8(&printed[..end]).ok()?.split(' ');
            let (name, code, length) =
                (words.next()?, words.next()?.parse().ok()?, words.next()?.parse::<usize>().ok()?);
            let rest = &printed[end + 1..];
            parts.push((name, code, rest.get(..length)?));
            printed = &rest[length..];
        }
        Some(Self(parts))
    }

    /// Returns the text of a part if its command succeeded.
    pub(crate) fn bytes(&self, name: &str) -> Option<&'a [u8]> {
        self.0.iter().find(|(part, code, _)| *part == name && *code == 0).map(|(.., text)| *text)
    }

    pub(crate) fn text(&self, name: &str) -> Option<String> {
        let text = std::str::from_utf8(self.bytes(name)?).ok()?.trim_end();
        Some(text.to_owned()).filter(|text| !text.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_parts_by_length() {
        let parts = ScriptOutput::parse(b"head 0 3\nab\nbranch 1 0\nindex 0 9\nx 0 1\n\0\0\0").expect("reads");
        assert_eq!((parts.text("head").as_deref(), parts.bytes("branch")), (Some("ab"), None));
        assert_eq!(parts.bytes("index"), Some(&b"x 0 1\n\0\0\0"[..]));
        assert!(ScriptOutput::parse(b"head 0 9\nab").is_none() && ScriptOutput::parse(b"head").is_none());
    }
}
