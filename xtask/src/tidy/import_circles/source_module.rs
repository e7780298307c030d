//! Reads from a source which items it defines, and which paths it names. The reader knows no macros and no types;
//! it works on the words of the text without comments, strings and tests.

use std::collections::{BTreeMap, BTreeSet};

/// The parts of a path, such as `crate`, `model`, `plan`, `Plan`.
pub(super) type ItemPath = Vec<String>;

/// The items and paths of a source.
#[derive(Debug, Default)]
pub(super) struct SourceModule {
    /// The names of the items that the source defines at any level.
    pub(super) definitions: BTreeSet<String>,
    /// The imported names with their paths.
    pub(super) imports: BTreeMap<String, Import>,
    /// The modules whose names are imported with `*`.
    pub(super) globs: Vec<ItemPath>,
    /// The paths of two or more parts outside of imports.
    pub(super) paths: BTreeSet<ItemPath>,
}

/// An imported name.
#[derive(Debug)]
pub(super) struct Import {
    pub(super) path: ItemPath,
    /// True if the import is only a re-export, and the source itself does not use the name.
    pub(super) is_reexport: bool,
}

/// The words that precede the name of an item.
const ITEM_WORDS: [&str; 9] = ["fn", "struct", "enum", "trait", "type", "const", "static", "union", "macro_rules!"];

impl SourceModule {
    pub(super) fn parse(text: &str) -> Self {
        let words = words(text);
        let words = without_tests(&words);
        let mut module = Self::default();
        let mut names = BTreeSet::new();
        let mut at = 0;
        let mut is_public = false;
        while at < words.len() {
            let word = words[at];
            let next = words.get(at + 1).copied().unwrap_or_default();
            if word == "pub" {
                // `pub(in path)` names a module, but is not an import.
                at = if next == "(" { end_of_group(&words, at + 1) } else { at + 1 };
                is_public = true;
                continue;
            }
            if word == "use" && is_name(next) | (next == "{") {
                at = module.read_import(&words, at + 1, is_public);
            } else if ITEM_WORDS.contains(&word) && is_name(next) {
                module.definitions.insert(next.to_owned());
                at += 2;
            } else if is_name(word) {
                names.insert(word);
                at = module.read_path(&words, at);
            } else {
                at += 1;
            }
            is_public = false;
        }
        for (name, import) in &mut module.imports {
            import.is_reexport &= !names.contains(name.as_str());
        }
        module
    }

    /// Reads the tree of a `use`, and returns the position after it.
    fn read_import(&mut self, words: &[&str], from: usize, is_public: bool) -> usize {
        let end = from + words[from..].iter().position(|word| *word == ";").unwrap_or(words.len() - from);
        self.read_import_tree(&words[from..end], &[], is_public);
        end + 1
    }

    fn read_import_tree(&mut self, tree: &[&str], prefix: &[String], is_public: bool) {
        let mut path = prefix.to_vec();
        for (at, word) in tree.iter().enumerate() {
            match *word {
                "{" => {
                    let inner = &tree[at + 1..end_of_group(tree, at) - 1];
                    return split_list(inner).for_each(|part| self.read_import_tree(part, &path, is_public));
                }
                "*" => return self.globs.push(path),
                "as" => {
                    let name = tree.get(at + 1).copied().unwrap_or_default();
                    return self.add_import(name, path, is_public);
                }
                "::" => {}
                "self" if !path.is_empty() => {}
                part => path.push(part.to_owned()),
            }
        }
        if let Some(name) = path.last().cloned() {
            self.add_import(&name, path, is_public);
        }
    }

    fn add_import(&mut self, name: &str, path: ItemPath, is_public: bool) {
        if name != "_" {
            self.imports.insert(name.to_owned(), Import { path, is_reexport: is_public });
        }
    }

    /// Reads the path that starts at a name, and returns the position after it.
    fn read_path(&mut self, words: &[&str], from: usize) -> usize {
        let mut path = vec![words[from].to_owned()];
        let mut at = from + 1;
        while words.get(at) == Some(&"::") && words.get(at + 1).is_some_and(|word| is_name(word)) {
            path.push(words[at + 1].to_owned());
            at += 2;
        }
        let follows_value = from > 0 && matches!(words[from - 1], "." | "::" | "$");
        if path.len() > 1 && !follows_value {
            self.paths.insert(path);
        }
        at
    }
}

fn is_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Returns the position after the bracket that closes the one at `from`.
fn end_of_group(words: &[&str], from: usize) -> usize {
    let mut depth = 0;
    for (at, word) in words.iter().enumerate().skip(from) {
        match *word {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    words.len()
}

/// Splits at the commas that are in no brackets.
fn split_list<'w, 't>(words: &'w [&'t str]) -> impl Iterator<Item = &'w [&'t str]> {
    let mut depth = 0;
    words.split(move |word| {
        match *word {
            "{" => depth += 1,
            "}" => depth -= 1,
            _ => {}
        }
        depth == 0 && *word == ","
    })
}

/// Leaves out each item with the attribute `#[cfg(test)]`.
fn without_tests<'t>(words: &[&'t str]) -> Vec<&'t str> {
    const ATTRIBUTE: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let mut kept = Vec::with_capacity(words.len());
    let mut at = 0;
    while at < words.len() {
        if words[at..].starts_with(&ATTRIBUTE) {
            at += ATTRIBUTE.len();
            while at < words.len() && words[at] != ";" && words[at] != "{" {
                at = if matches!(words[at], "(" | "[") { end_of_group(words, at) } else { at + 1 };
            }
            at = if words.get(at) == Some(&"{") { end_of_group(words, at) } else { at + 1 };
        } else {
            kept.push(words[at]);
            at += 1;
        }
    }
    kept
}

/// Splits a source into names and punctuation, without comments and literals.
fn words(text: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if let Some(length) = literal_length(rest) {
            length
        } else if first.is_alphanumeric() || first == '_' {
            let length = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            let length =
                if rest[length..].starts_with('!') && rest.starts_with("macro_rules") { length + 1 } else { length };
            words.push(&rest[..length]);
            length
        } else if rest.starts_with("::") {
            words.push("::");
            2
        } else {
            if !first.is_whitespace() {
                words.push(&rest[..first.len_utf8()]);
            }
            first.len_utf8()
        };
        rest = &rest[length..];
    }
    words
}

/// Returns the length of the string, character or lifetime at the start of `text`.
fn literal_length(text: &str) -> Option<usize> {
    let raw = text.strip_prefix("br").or_else(|| text.strip_prefix('r')).filter(|rest| rest.starts_with(['"', '#']));
    if let Some(rest) = raw {
        let hashes = rest.bytes().take_while(|byte| *byte == b'#').count();
        let end = format!("\"{}", "#".repeat(hashes));
        let body = rest[hashes..].strip_prefix('"')?;
        return Some(text.len() - body.len() + body.find(&end)? + end.len());
    }
    if let Some(body) = text.strip_prefix('"') {
        return Some(1 + quoted_length(body, b'"'));
    }
    let body = text.strip_prefix('\'')?;
    let first = body.chars().next()?;
    let is_character = first == '\\' || body[first.len_utf8()..].starts_with('\'');
    Some(if is_character { 1 + quoted_length(body, b'\'') } else { 1 })
}

/// Returns the length of a literal after its opening quote.
fn quoted_length(body: &str, quote: u8) -> usize {
    let mut is_escaped = false;
    for (at, byte) in body.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            byte if byte == quote => return at + 1,
            _ => {}
        }
    }
    body.len()
}
