//! Parses and writes the syntax of git's config files (git-config(1)).

/// One setting with its section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConfigSetting {
    /// The name of the section, in lower case.
    pub(crate) section: Vec<u8>,
    /// The quoted part of the section's header.
    pub(crate) subsection: Option<Vec<u8>>,
    /// The name of the setting, in lower case.
    key: Vec<u8>,
    /// The value; `None` for a setting without a value, which means true.
    pub(crate) value: Option<Vec<u8>>,
}

impl ConfigSetting {
    /// Checks whether this is the setting `key` of a section, in any subsection.
    pub(crate) fn has_name(&self, section: &str, key: &str) -> bool {
        self.section == section.as_bytes() && self.key == key.as_bytes()
    }

    /// Returns whether the included file has to be read, or `None` if the setting is not an include.
    pub(crate) fn include_applies(&self, holds: impl Fn(&[u8]) -> bool) -> Option<bool> {
        match &self.subsection {
            None if self.has_name("include", "path") => Some(true),
            Some(condition) if self.has_name("includeif", "path") => Some(holds(condition)),
            _ => None,
        }
    }

    /// Writes the setting in a form that all parsers read in the same way.
    pub(crate) fn write(&self, text: &mut Vec<u8>) {
        text.push(b'[');
        text.extend_from_slice(&self.section);
        if let Some(subsection) = &self.subsection {
            text.extend_from_slice(b" \"");
            for byte in subsection {
                if matches!(byte, b'"' | b'\\') {
                    text.push(b'\\');
                }
                text.push(*byte);
            }
            text.push(b'"');
        }
        text.extend_from_slice(b"]\n\t");
        text.extend_from_slice(&self.key);
        if let Some(value) = &self.value {
            text.extend_from_slice(b" = \"");
            for byte in value {
                match byte {
                    b'"' | b'\\' => text.extend_from_slice(&[b'\\', *byte]),
                    b'\n' => text.extend_from_slice(b"\\n"),
                    b'\t' => text.extend_from_slice(b"\\t"),
                    0x08 => text.extend_from_slice(b"\\b"),
                    other => text.push(*other),
                }
            }
            text.push(b'"');
        }
        text.push(b'\n');
    }
}

/// Returns the settings of a file, in their order.
///
/// # Errors
/// The number of the first line with a syntax error.
pub(crate) fn parse(bytes: &[u8]) -> Result<Vec<ConfigSetting>, usize> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let mut parser = ConfigParser { rest: bytes, line: 1 };
    parser.parse_settings().ok_or(parser.line)
}

struct ConfigParser<'a> {
    rest: &'a [u8],
    line: usize,
}

impl ConfigParser<'_> {
    fn parse_settings(&mut self) -> Option<Vec<ConfigSetting>> {
        let (mut settings, mut section) = (Vec::new(), None);
        while let Some(byte) = self.peek() {
            match byte {
                b'#' | b';' => self.skip_line(),
                b'[' => section = Some(self.parse_header()?),
                byte if byte.is_ascii_whitespace() => {
                    self.next();
                }
                byte if byte.is_ascii_alphabetic() => {
                    let (section, subsection) = section.clone()?;
                    let key = self.parse_name(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
                    let value = self.parse_after_key()?;
                    settings.push(ConfigSetting { section, subsection, key, value });
                }
                _ => return None,
            }
        }
        Some(settings)
    }

    fn peek(&self) -> Option<u8> {
        self.rest.first().copied()
    }

    /// Returns the next byte; a line end of two bytes counts as one.
    fn next(&mut self) -> Option<u8> {
        if self.rest.starts_with(b"\r\n") {
            self.rest = &self.rest[1..];
        }
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        self.line += usize::from(*first == b'\n');
        Some(*first)
    }

    fn skip_line(&mut self) {
        while self.next().is_some_and(|byte| byte != b'\n') {}
    }

    fn skip_blanks(&mut self) {
        while self.peek().is_some_and(|byte| matches!(byte, b' ' | b'\t')) {
            self.next();
        }
    }

    /// Reads a name and converts it to lower case.
    fn parse_name(&mut self, belongs: impl Fn(u8) -> bool) -> Vec<u8> {
        let mut name = Vec::new();
        while let Some(byte) = self.peek().filter(|byte| belongs(*byte)) {
            name.push(byte.to_ascii_lowercase());
            self.next();
        }
        name
    }

    /// Parses a header from its opening to its closing bracket.
    fn parse_header(&mut self) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
        self.next();
        self.skip_blanks();
        let section = self.parse_name(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'));
        self.skip_blanks();
        let subsection = match self.next()? {
            b']' => return Some((section, None)).filter(|(section, _)| !section.is_empty()),
            b'"' => self.parse_quoted()?,
            _ => return None,
        };
        self.skip_blanks();
        (self.next()? == b']' && !section.is_empty()).then_some((section, Some(subsection)))
    }

    /// Parses the rest of a quoted subsection.
    fn parse_quoted(&mut self) -> Option<Vec<u8>> {
        let mut text = Vec::new();
        loop {
            match self.next()? {
                b'"' => return Some(text),
                b'\n' => return None,
                b'\\' => text.push(self.next().filter(|byte| *byte != b'\n')?),
                byte => text.push(byte),
            }
        }
    }

    /// Parses the text after a key: nothing, or `=` and a value.
    #[expect(clippy::option_option, reason = "a wrong line is not a setting without a value")]
    fn parse_after_key(&mut self) -> Option<Option<Vec<u8>>> {
        self.skip_blanks();
        match self.peek() {
            None => Some(None),
            Some(b'=') => {
                self.next();
                self.parse_value().map(Some)
            }
            Some(b'#' | b';') => {
                self.skip_line();
                Some(None)
            }
            Some(b'\n' | b'\r') => (self.next()? == b'\n').then_some(None),
            Some(_) => None,
        }
    }

    /// Parses a value up to the end of its line, without surrounding blanks.
    fn parse_value(&mut self) -> Option<Vec<u8>> {
        self.skip_blanks();
        let (mut value, mut kept, mut is_quoted) = (Vec::new(), 0, false);
        loop {
            match self.next() {
                None | Some(b'\n') if is_quoted => return None,
                None | Some(b'\n') => break,
                Some(b'"') => {
                    is_quoted = !is_quoted;
                    kept = value.len();
                }
                Some(b'#' | b';') if !is_quoted => {
                    self.skip_line();
                    break;
                }
                Some(b'\\') => match self.next()? {
                    b'\n' => continue,
                    escaped => {
                        value.push(unescape(escaped)?);
                        kept = value.len();
                    }
                },
                Some(byte) => {
                    value.push(byte);
                    if is_quoted || !byte.is_ascii_whitespace() {
                        kept = value.len();
                    }
                }
            }
        }
        value.truncate(kept);
        Some(value)
    }
}

fn unescape(byte: u8) -> Option<u8> {
    match byte {
        b'n' => Some(b'\n'),
        b't' => Some(b'\t'),
        b'b' => Some(0x08),
        b'"' | b'\\' => Some(byte),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summarize(text: &str) -> Vec<String> {
        let settings = parse(text.as_bytes()).expect("parses");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let one = |setting: &ConfigSetting| {
            let subsection = setting.subsection.as_deref().map(|name| format!(".{}", text(name))).unwrap_or_default();
            let value = setting.value.as_deref().map(|value| format!("={}", text(value))).unwrap_or_default();
            format!("{}{subsection}.{}{value}", text(&setting.section), text(&setting.key))
        };
        settings.iter().map(one).collect()
    }

    #[test]
    fn parses_config_as_git_does() {
        let text = "\u{feff}# c\n[Core]\n\tBare = false ; no\n\tflag\n[a \"B\\\"c\"] d = \" x ; y \" z  \n\
                    e=one\\\n  two\\n\\t\\\"\r\n[f.g]h=#\n\ti =\n";
        let expected =
            ["core.bare=false", "core.flag", "a.B\"c.d= x ; y  z", "a.B\"c.e=one  two\n\t\"", "f.g.h=", "f.g.i="];
        assert_eq!(summarize(text), expected);
    }

    #[test]
    fn reports_line_of_syntax_error() {
        for (text, line) in
            [("x = 1", 1), ("[a]\n\n-x", 3), ("[a\n]", 2), ("[a]\nb = \"c\n", 3), ("[a]\nb = \\q\n", 2), ("[]\n", 1)]
        {
            assert_eq!(parse(text.as_bytes()), Err(line), "{text:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn round_trips_settings(
            subsection in proptest::option::of("[ -~]{0,12}"),
            value in proptest::option::of("[ -~\n\t\u{8}]{0,24}"),
        ) {
            let bytes = |text: String| text.into_bytes();
            let setting = ConfigSetting {
                section: b"core".to_vec(),
                subsection: subsection.map(bytes),
                key: b"key".to_vec(),
                value: value.map(bytes),
            };
            let mut text = Vec::new();
            setting.write(&mut text);
            proptest::prop_assert_eq!(parse(&text), Ok(vec![setting]));
        }
    }
}
