//! Detects secrets in an environment and computes the byte patterns of their common encodings.

use std::collections::BTreeSet;

use crate::model::drift::display_path;
use crate::text::escape::escape_output;

/// Minimum length of a secret, in bytes. Shorter values are often ordinary words, and removing them would make the
/// output unreadable.
pub const MIN_SECRET_BYTES: usize = 8;
/// Maximum length of a secret that is also searched for in other encodings, in bytes.
const MAX_ENCODED_SECRET_BYTES: usize = 4 << 10;

/// A variable is secret if its name contains one of these, ignoring separators such as `_`.
const SECRET_NAME_PARTS: [&str; 15] = [
    "TOKEN",
    "SECRET",
    "PASSWORD",
    "PASSWD",
    "PASSPHRASE",
    "CREDENTIAL",
    "COOKIE",
    "BEARER",
    "APIKEY",
    "ACCESSKEY",
    "PRIVATEKEY",
    "SESSIONKEY",
    "SIGNINGKEY",
    "ENCRYPTIONKEY",
    "AUTHCONFIG",
];
/// A variable is secret if the last word of its name is one of these, ignoring numbers. Examples are `HTTP_AUTH` and
/// `STRIPE_KEY_2`, but not `AUTHOR` and `KEY_TYPE`, whose values are ordinary words.
const SECRET_LAST_WORDS: [&str; 11] =
    ["AUTH", "AUTHORIZATION", "OAUTH", "CRED", "CREDS", "DSN", "JWT", "KEY", "PASS", "PAT", "PWD"];
/// Variables that match the rules above but are not secret.
const NON_SECRET_NAMES: [&str; 2] = ["PWD", "OLDPWD"];
/// Minimum length of a user name in a URL that counts as a token.
const MIN_TOKEN_USER_BYTES: usize = 20;

/// Returns the secrets of an environment. `is_path` returns whether an absolute path exists; such a value names the
/// location of a secret and is not secret itself.
pub(super) fn find_secrets<'e>(
    environment: impl IntoIterator<Item = (&'e str, &'e str)>,
    is_path: impl Fn(&str) -> bool,
) -> BTreeSet<String> {
    let mut secrets = BTreeSet::new();
    for (name, value) in environment {
        let value = value.trim();
        if is_secret_name(name) && !(value.starts_with('/') && is_path(value)) {
            secrets.insert(value.to_owned());
            // Tools print multi-line keys with a prefix on each line, so each line is a secret too.
            secrets.extend(value.lines().map(|line| line.trim().to_owned()));
        }
        for header in header_values(name, value) {
            secrets.extend(percent_decode(header));
            secrets.insert(header.to_owned());
        }
        for password in passwords_in_urls(value) {
            secrets.extend(percent_decode(password));
            secrets.insert(password.to_owned());
        }
    }
    secrets.retain(|secret| secret.len() >= MIN_SECRET_BYTES && !super::REDACTION_MARK.contains(secret.as_str()));
    secrets
}

/// Returns whether a variable with this name holds a secret.
pub fn is_secret_name(name: &str) -> bool {
    let words = split_into_words(name);
    let joined = words.concat();
    let named = |word: &&String| !word.bytes().all(|byte| byte.is_ascii_digit());
    let last = words.iter().rev().find(named).map(|word| word.trim_end_matches(|c: char| c.is_ascii_digit()));
    !NON_SECRET_NAMES.contains(&name)
        && (SECRET_NAME_PARTS.iter().any(|part| joined.contains(part))
            || last.is_some_and(|last| SECRET_LAST_WORDS.contains(&last)))
}

/// Splits a name into words in upper case: `npm_authToken` becomes `NPM`, `AUTH`, `TOKEN`.
fn split_into_words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut before = ' ';
    for c in name.chars() {
        let begins = !c.is_ascii_alphanumeric() || before.is_ascii_lowercase() && c.is_ascii_uppercase();
        if begins {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut().filter(|_| c.is_ascii_alphanumeric()) {
            word.push(c.to_ascii_uppercase());
        }
        before = c;
    }
    words
}

/// Returns the values of OpenTelemetry export headers. Variables such as `OTEL_EXPORTER_OTLP_HEADERS` contain
/// `name=value,name=value`.
fn header_values<'v>(name: &str, value: &'v str) -> impl Iterator<Item = &'v str> {
    let is_list = name.starts_with("OTEL_EXPORTER_OTLP_") && name.ends_with("HEADERS");
    let pairs = value.split(',').filter(move |_| is_list);
    pairs.filter_map(|pair| pair.split_once('=')).map(|(_, value)| value.trim())
}

/// Returns the passwords in URLs of the form `scheme://user:password@host`, and user names that are tokens.
fn passwords_in_urls(value: &str) -> impl Iterator<Item = &str> {
    let authority = |rest: &'_ str| rest.find(|c: char| "/?#".contains(c) || c.is_whitespace()).unwrap_or(rest.len());
    value.split("://").skip(1).filter_map(move |rest| {
        let (user, _) = rest[..authority(rest)].rsplit_once('@')?;
        match user.split_once(':') {
            Some((_, password)) => Some(password),
            None => Some(user).filter(|user| user.len() >= MIN_TOKEN_USER_BYTES),
        }
    })
}

fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut parts = text.split('%');
    bytes.extend_from_slice(parts.next()?.as_bytes());
    for part in parts {
        bytes.push(u8::from_str_radix(part.get(..2)?, 16).ok()?);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).ok()
}

/// Returns the byte patterns to search for: the secret itself, its escaped forms in Proctor's documents, JSON, XML and
/// URLs, and its base64 forms at each alignment.
pub(super) fn search_patterns(secret: &str) -> BTreeSet<Vec<u8>> {
    let mut patterns = BTreeSet::from([secret.as_bytes().to_vec()]);
    if secret.len() <= MAX_ENCODED_SECRET_BYTES {
        patterns.insert(escape_output(secret.as_bytes()).into_bytes());
        patterns.insert(display_path(secret.as_bytes()).into_bytes());
        patterns.insert(json_escaped(secret).into_bytes());
        patterns.extend(XML_ESCAPE_TABLES.iter().map(|entities| xml_escaped(secret, entities)));
        for digits in [b"0123456789ABCDEF", b"0123456789abcdef"] {
            patterns.insert(percent_encode(secret, digits));
        }
        for specials in [b"+/", b"-_"] {
            patterns.extend((0..3).map(|shift| aligned_base64(secret.as_bytes(), shift, *specials)));
        }
    }
    patterns
}

fn json_escaped(secret: &str) -> String {
    let quoted = serde_json::Value::from(secret).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

/// The escape tables of different XML writers: all five characters with `&apos;`, with a numeric apostrophe (two
/// forms), without the apostrophe, and without quotes.
const XML_ESCAPE_TABLES: [&[(char, &str)]; 5] = [
    &[('&', "&amp;"), ('<', "&lt;"), ('>', "&gt;"), ('"', "&quot;"), ('\'', "&apos;")],
    &[('&', "&amp;"), ('<', "&lt;"), ('>', "&gt;"), ('"', "&quot;"), ('\'', "&#39;")],
    &[('&', "&amp;"), ('<', "&lt;"), ('>', "&gt;"), ('"', "&quot;"), ('\'', "&#x27;")],
    &[('&', "&amp;"), ('<', "&lt;"), ('>', "&gt;"), ('"', "&quot;")],
    &[('&', "&amp;"), ('<', "&lt;"), ('>', "&gt;")],
];

fn xml_escaped(secret: &str, entities: &[(char, &str)]) -> Vec<u8> {
    let mut text = String::with_capacity(secret.len());
    for c in secret.chars() {
        match entities.iter().find(|(of, _)| *of == c) {
            Some((_, entity)) => text.push_str(entity),
            None => text.push(c),
        }
    }
    text.into_bytes()
}

fn percent_encode(secret: &str, digits: &[u8; 16]) -> Vec<u8> {
    let mut encoded = Vec::with_capacity(secret.len());
    for byte in secret.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            encoded.push(byte);
        } else {
            encoded.extend([b'%', digits[usize::from(byte >> 4)], digits[usize::from(byte & 15)]]);
        }
    }
    encoded
}

/// Returns the part of a base64 encoding (RFC 4648) of `secret` that does not depend on the `shift` bytes before it and
/// on the bytes after it. `specials` are the last two characters of the alphabet.
fn aligned_base64(secret: &[u8], shift: usize, specials: [u8; 2]) -> Vec<u8> {
    const ALPHABET: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    let bytes = [&[0; 2][..shift], secret].concat();
    let sextet = |index: usize| {
        let (byte, bit) = (index * 6 / 8, index * 6 % 8);
        let pair = u16::from_be_bytes([bytes[byte], bytes.get(byte + 1).copied().unwrap_or(0)]);
        usize::from((pair >> (10 - bit)) & 63)
    };
    let chars = (shift * 8).div_ceil(6)..bytes.len() * 8 / 6;
    chars.map(sextet).map(|value| if value < 62 { ALPHABET[value] } else { specials[value - 62] }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(variables: &[(&str, &str)]) -> Vec<String> {
        find_secrets(variables.iter().copied(), |path| path == "/there").into_iter().collect()
    }

    #[test]
    fn recognizes_secret_variable_names() {
        let secret = [
            "GITHUB_TOKEN",
            "AWS_SECRET_ACCESS_KEY",
            "ANTHROPIC_API_KEY",
            "OPENAI_APIKEY",
            "npm_config__authToken",
            "PGPASSWORD",
            "MYSQL_PWD",
            "SMTP_PASS",
            "lowercase_cred",
            "HTTP_AUTH",
            "SENTRY_DSN",
            "SESSION_COOKIE",
            "SSH_PRIVATE_KEY",
            "STRIPE_KEY_2",
            "DEPLOY_KEY3",
            "DOCKER_AUTH_CONFIG",
            "apiKey",
        ];
        let plain = [
            "PATH",
            "PWD",
            "OLDPWD",
            "GIT_AUTHOR_NAME",
            "KEYBOARD",
            "LANG",
            "BYPASS",
            "KEY_TYPE",
            "AUTH_METHOD",
            "_",
            "2",
        ];
        assert_eq!(secret.map(is_secret_name), [true; 17]);
        assert_eq!(plain.map(is_secret_name), [false; 11]);
    }

    #[test]
    fn ignores_short_values_and_paths() {
        assert_eq!(find(&[("A_TOKEN", "short"), ("CREDENTIALS", "/there"), ("LANG", "long enough")]), [""; 0]);
        assert_eq!(
            find(&[("CREDENTIALS", "/not/there"), ("X_TOKEN", "[redacted]"), ("Y_TOKEN", "redacted")]),
            ["/not/there"]
        );
    }

    #[test]
    fn finds_passwords_in_urls() {
        assert_eq!(find(&[("DB", "pg://u:p%40ssw0rd@h:5/d?x=a@b")]), ["p%40ssw0rd", "p@ssw0rd"]);
        assert_eq!(find(&[("INDEX", "a https://ghp_0123456789abcdef@h/x,b://u:password2@h")]).len(), 2);
        assert_eq!(find(&[("URL", "https://host:8080/@scope/x"), ("SSH", "ssh://git@h/x")]), [""; 0]);
    }

    #[test]
    fn finds_otlp_header_values() {
        let headers = "api-key=hush%20hush-1, x=short,authorization=Bearer hush-2";
        let secrets = ["Bearer hush-2", "hush hush-1", "hush%20hush-1"];
        assert_eq!(find(&[("OTEL_EXPORTER_OTLP_HEADERS", headers)]), secrets);
        assert_eq!(find(&[("OTEL_EXPORTER_OTLP_TRACES_HEADERS", headers)]), secrets);
        assert_eq!(find(&[("OTEL_RESOURCE_ATTRIBUTES", headers)]), [""; 0]);
    }

    #[test]
    fn finds_each_line_of_a_key() {
        assert_eq!(find(&[("PRIVATE_KEY", "first line\n  second line\nend\n")]).len(), 3);
    }

    #[test]
    fn finds_base64_at_each_alignment() {
        let within = |shift| String::from_utf8(aligned_base64(b"s3cr3t-value", shift, *b"+/")).expect("ASCII");
        // Expected values: `printf 's3cr3t-value' | base64`, then with `a` and `ab` before the secret.
        assert_eq!("czNjcjN0LXZhbHVl", within(0));
        assert!("YXMzY3IzdC12YWx1ZQ==".contains(&within(1)) && within(1).len() == 15);
        assert!("YWJzM2NyM3QtdmFsdWU=".contains(&within(2)) && within(2).len() == 15);
    }

    #[test]
    fn patterns_include_escaped_forms() {
        let shapes = search_patterns("a\"b\nc d?e");
        for shape in ["a\\\"b\\nc d?e", "a%22b%0Ac%20d%3Fe", "a%22b%0ac%20d%3fe", "a\"b\\x0ac d?e"] {
            assert!(shapes.contains(shape.as_bytes()), "{shape}");
        }
    }
}
