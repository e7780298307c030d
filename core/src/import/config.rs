//! Values of a foreign configuration, by key, with merge keys (`<<`) laid out. A value of another shape than
//! the tool takes is told as a reason, and never read as something else.

use crate::spec::quoted;
use crate::spec::yaml::{Node, Value};

/// How deep merge keys may lead to merge keys.
const MAX_MERGES: usize = 16;

/// A map of the configuration.
#[derive(Debug, Clone)]
pub(super) struct Map<'t, 'a> {
    /// Its keys in their order.
    entries: Vec<(&'t str, &'t Node<'a>)>,
}

impl<'t, 'a> Map<'t, 'a> {
    /// The map that a value is.
    pub(super) fn of(node: &'t Node<'a>) -> Option<Self> {
        Self::merged(node, MAX_MERGES)
    }

    fn merged(node: &'t Node<'a>, merges: usize) -> Option<Self> {
        let Value::Map(entries) = &node.value else { return None };
        let own = entries.iter().filter(|(key, _)| key.text != "<<");
        let mut map = Self { entries: own.map(|(key, value)| (key.text.as_ref(), value)).collect() };
        for (_, merged) in entries.iter().filter(|(key, _)| key.text == "<<") {
            let sources = match &merged.value {
                Value::Seq(items) => items.iter().collect(),
                _ => vec![merged],
            };
            for source in sources {
                let source = Self::merged(source, merges.checked_sub(1)?)?;
                let new = source.entries.into_iter().filter(|(key, _)| map.get(key).is_none());
                let new: Vec<_> = new.collect();
                map.entries.extend(new);
            }
        }
        Some(map)
    }

    /// Its keys and values, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&'t str, &'t Node<'a>)> + '_ {
        self.entries.iter().copied()
    }

    /// The value of a key, unless it is nothing (`null`).
    pub(super) fn get(&self, key: &str) -> Option<&'t Node<'a>> {
        let found = self.entries.iter().find(|(name, _)| *name == key);
        found.map(|(_, node)| *node).filter(|node| !node.is_null())
    }

    /// The first key that is none of `known`.
    pub(super) fn unknown(&self, known: &[&str]) -> Option<&'t str> {
        self.entries.iter().map(|(key, _)| *key).find(|key| !known.contains(key))
    }

    /// A text.
    ///
    /// # Errors
    /// It is a list or a map.
    pub(super) fn text(&self, key: &str) -> Result<Option<&'t str>, String> {
        self.get(key).map(|node| scalar(node).ok_or_else(|| format!("`{key}` is no text"))).transpose()
    }

    /// A list of texts; a single one is a list too, as both tools take it.
    ///
    /// # Errors
    /// It is something else.
    pub(super) fn texts(&self, key: &str) -> Result<Option<Vec<&'t str>>, String> {
        let Some(node) = self.get(key) else { return Ok(None) };
        let texts = match &node.value {
            Value::Seq(items) => items.iter().map(scalar).collect(),
            _ => scalar(node).map(|text| vec![text]),
        };
        texts.map(Some).ok_or_else(|| format!("`{key}` is no list of texts"))
    }

    /// A yes or a no, as YAML 1.1 writes them.
    ///
    /// # Errors
    /// It is something else.
    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>, String> {
        let Some(node) = self.get(key) else { return Ok(None) };
        let flag = match scalar(node).unwrap_or_default().to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" => Some(true),
            "false" | "no" | "off" => Some(false),
            _ => None,
        };
        flag.map(Some).ok_or_else(|| format!("`{key}` is neither true nor false"))
    }

    /// A list of anything.
    ///
    /// # Errors
    /// It is something else.
    pub(super) fn list(&self, key: &str) -> Result<Option<&'t [Node<'a>]>, String> {
        match self.get(key).map(|node| &node.value) {
            None => Ok(None),
            Some(Value::Seq(items)) => Ok(Some(items)),
            Some(_) => Err(format!("`{key}` is no list")),
        }
    }

    /// A map.
    ///
    /// # Errors
    /// It is something else.
    pub(super) fn map(&self, key: &str) -> Result<Option<Self>, String> {
        self.get(key).map(|node| Self::of(node).ok_or_else(|| format!("`{key}` is no map"))).transpose()
    }
}

/// The text of a scalar.
pub(super) fn scalar<'t>(node: &'t Node<'_>) -> Option<&'t str> {
    match &node.value {
        Value::Scalar { text, .. } => Some(text),
        _ => None,
    }
}

/// A key that is not known, as a reason.
pub(super) fn unknown_key(key: &str) -> String {
    format!("its key {} is not known here", quoted(key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::report::Report;
    use crate::spec::yaml::{self, Kind};

    #[test]
    fn merge_keys_are_laid_out_and_own_keys_win() {
        let text = b"a: &a { x: 1, y: 2 }\nb: &b { z: 3 }\nc: { <<: [*a, *b], x: 9 }\nd: { <<: 5 }\n";
        let mut report = Report::default();
        let root = yaml::parse_as(Kind::Foreign, text, &mut report).expect("a tree");
        assert!(report.finish().is_empty());
        let root = Map::of(&root).expect("a map");
        let c = root.map("c").expect("a map").expect("there");
        assert_eq!(c.iter().map(|(key, _)| key).collect::<Vec<_>>(), ["x", "y", "z"]);
        assert_eq!(c.text("x"), Ok(Some("9")));
        assert!(root.map("d").is_err());
        assert!(c.flag("y").is_err());
        assert_eq!(c.texts("z"), Ok(Some(vec!["3"])));
    }
}
