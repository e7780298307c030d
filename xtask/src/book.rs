//! `cargo xtask book`: a preprocessor for mdBook (`[preprocessor.published]` of `book.toml`). Pages link to files
//! in `docs/` and to files outside of it. In the book, links to outside files lead to the published repository.

use std::io::{Read, Write};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Maximum size of a book, in bytes.
const MAX_BOOK: u64 = 256 << 20;
/// The start of a link to a file outside of `docs/`.
const OUTSIDE_LINK: &str = "](../";
/// The published location of these files.
const PUBLISHED_LINK: &str = concat!("](", env!("CARGO_PKG_REPOSITORY"), "/blob/main/");

/// Reads mdBook's input for a preprocessor, and writes the book with the links replaced.
pub(crate) fn rewrite_links(input: impl Read, mut output: impl Write) -> Result<()> {
    let input: Value = serde_json::from_reader(input.take(MAX_BOOK)).context("the input is not JSON from mdBook")?;
    let Value::Array(parts) = input else { bail!("the input is not a list of a context and a book") };
    let Some(mut book) = parts.into_iter().nth(1) else { bail!("the input contains no book") };
    replace_links(&mut book);
    serde_json::to_writer(&mut output, &book).context("the book could not be written")
}

/// Replaces the links in every chapter, including nested ones.
fn replace_links(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (name, value) in members {
                match value {
                    Value::String(text) if name == "content" => *text = text.replace(OUTSIDE_LINK, PUBLISHED_LINK),
                    other => replace_links(other),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(replace_links),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn rewrites_links_to_files_outside_docs() {
        let chapter = |content: &str| json!({ "Chapter": { "name": "](../a", "content": content, "sub_items": [] } });
        let mut outer = chapter("[a](../README.md#x) [b](b.md)");
        outer["Chapter"]["sub_items"] = json!([chapter("[c](../schemas/x.json)")]);
        let input = json!([{ "root": "/x" }, { "items": [outer] }]).to_string();
        let mut written = Vec::new();
        rewrite_links(input.as_bytes(), &mut written).expect("written");
        let book: Value = serde_json::from_slice(&written).expect("JSON");
        let chapter = &book["items"][0]["Chapter"];
        let base = "https://github.com/proctor-verify/proctor/blob/main";
        assert_eq!(chapter["content"], format!("[a]({base}/README.md#x) [b](b.md)"));
        assert_eq!(chapter["sub_items"][0]["Chapter"]["content"], format!("[c]({base}/schemas/x.json)"));
        assert_eq!(chapter["name"], "](../a");
        for other in ["{}", "[1]", "no JSON"] {
            assert!(rewrite_links(other.as_bytes(), Vec::new()).is_err(), "{other}");
        }
    }
}
