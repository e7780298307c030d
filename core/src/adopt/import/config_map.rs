//! Typed access by key to a foreign configuration, with merge keys (`<<`) expanded. A value of the wrong type
//! is an error and is never converted.

use crate::spec::quoted;
use crate::spec::yaml::{Node, YamlValue};

/// Maximum nesting of merge keys.
const MAX_MERGE_DEPTH: usize = 16;

/// A key or a value that has no meaning in the configuration. Each variant holds the key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ConfigMapError {
    /// The value is a list or a map instead of a string.
    #[error("`{0}` is not text")]
    NotText(String),
    /// The value is neither a string nor a list of strings.
    #[error("`{0}` is not a list of texts")]
    NotTextList(String),
    /// The value is not a boolean.
    #[error("`{0}` is neither true nor false")]
    NotFlag(String),
    /// The value is not a list.
    #[error("`{0}` is not a list")]
    NotList(String),
    /// The value is not a map.
    #[error("`{0}` is not a map")]
    NotMap(String),
    /// The key is unknown.
    #[error("its key {} is unknown", quoted(.0))]
    UnknownKey(String),
}

/// A map of the configuration.
#[derive(Debug, Clone)]
pub(super) struct ConfigMap<'t, 'a> {
    /// The keys and values in their original order.
    entries: Vec<(&'t str, &'t Node<'a>)>,
}

impl<'t, 'a> ConfigMap<'t, 'a> {
    /// Returns the map at a node; `None` if the node is not a map.
    pub(super) fn from_node(node: &'t Node<'a>) -> Option<Self> {
        Self::expand_merges(node, MAX_MERGE_DEPTH)
    }

    fn expand_merges(node: &'t Node<'a>, merges: usize) -> Option<Self> {
        let YamlValue::Map(entries) = &node.value else { return None };
        let own = entries.iter().filter(|(key, _)| key.text != "<<");
        let mut map = Self { entries: own.map(|(key, value)| (key.text.as_ref(), value)).collect() };
        for (_, merged) in entries.iter().filter(|(key, _)| key.text == "<<") {
            let sources = match &merged.value {
                YamlValue::Seq(items) => items.iter().collect(),
                _ => vec![merged],
            };
            for source in sources {
                let source = Self::expand_merges(source, merges.checked_sub(1)?)?;
                let new = source.entries.into_iter().filter(|(key, _)| map.get(key).is_none());
                let new: Vec<_> = new.collect();
                map.entries.extend(new);
            }
        }
        Some(map)
    }

    /// Iterates over the keys and values in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&'t str, &'t Node<'a>)> + '_ {
        self.entries.iter().copied()
    }

    /// Returns the value of a key, unless it is `null`.
    pub(super) fn get(&self, key: &str) -> Option<&'t Node<'a>> {
        let found = self.entries.iter().find(|(name, _)| *name == key);
        found.map(|(_, node)| *node).filter(|node| !node.is_null())
    }

    /// Checks that every key is in `known`.
    ///
    /// # Errors
    /// A key is not.
    pub(super) fn reject_unknown_keys(&self, known: &[&str]) -> Result<(), ConfigMapError> {
        match self.entries.iter().find(|(key, _)| !known.contains(key)) {
            Some((key, _)) => Err(ConfigMapError::UnknownKey((*key).to_owned())),
            None => Ok(()),
        }
    }

    /// Returns a string value.
    ///
    /// # Errors
    /// The value is a list or a map.
    pub(super) fn text(&self, key: &str) -> Result<Option<&'t str>, ConfigMapError> {
        self.get(key).map(|node| scalar_text(node).ok_or_else(|| ConfigMapError::NotText(key.to_owned()))).transpose()
    }

    /// Returns a list of strings. A single string counts as a list of one, as in both hook runners.
    ///
    /// # Errors
    /// The value is neither.
    pub(super) fn texts(&self, key: &str) -> Result<Option<Vec<&'t str>>, ConfigMapError> {
        let Some(node) = self.get(key) else { return Ok(None) };
        let texts = match &node.value {
            YamlValue::Seq(items) => items.iter().map(scalar_text).collect(),
            _ => scalar_text(node).map(|text| vec![text]),
        };
        texts.map(Some).ok_or_else(|| ConfigMapError::NotTextList(key.to_owned()))
    }

    /// Returns a boolean in YAML 1.1 spelling (`yes`, `on`, …).
    ///
    /// # Errors
    /// The value is not a boolean.
    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>, ConfigMapError> {
        let Some(node) = self.get(key) else { return Ok(None) };
        let flag = match scalar_text(node).unwrap_or_default().to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" => Some(true),
            "false" | "no" | "off" => Some(false),
            _ => None,
        };
        flag.map(Some).ok_or_else(|| ConfigMapError::NotFlag(key.to_owned()))
    }

    /// Returns a list of values of any type.
    ///
    /// # Errors
    /// The value is not a list.
    pub(super) fn list(&self, key: &str) -> Result<Option<&'t [Node<'a>]>, ConfigMapError> {
        match self.get(key).map(|node| &node.value) {
            None => Ok(None),
            Some(YamlValue::Seq(items)) => Ok(Some(items)),
            Some(_) => Err(ConfigMapError::NotList(key.to_owned())),
        }
    }

    /// Returns a map.
    ///
    /// # Errors
    /// The value is not a map.
    pub(super) fn map(&self, key: &str) -> Result<Option<Self>, ConfigMapError> {
        self.get(key)
            .map(|node| Self::from_node(node).ok_or_else(|| ConfigMapError::NotMap(key.to_owned())))
            .transpose()
    }
}

/// Returns the text of a scalar.
pub(super) fn scalar_text<'t>(node: &'t Node<'_>) -> Option<&'t str> {
    match &node.value {
        YamlValue::Scalar { text, .. } => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::diagnostic_collector::DiagnosticCollector;
    use crate::spec::yaml::{self, YamlFileKind};

    #[test]
    fn expands_merge_keys_and_prefers_own_keys() {
        let text = b"a: &a { x: 1, y: 2 }\nb: &b { z: 3 }\nc: { <<: [*a, *b], x: 9 }\nd: { <<: 5 }\n";
        let mut report = DiagnosticCollector::default();
        let root = yaml::parse_file(YamlFileKind::Foreign, text, &mut report).expect("a tree");
        assert!(report.finish().is_empty());
        let root = ConfigMap::from_node(&root).expect("a map");
        let c = root.map("c").expect("a map").expect("there");
        assert_eq!(c.iter().map(|(key, _)| key).collect::<Vec<_>>(), ["x", "y", "z"]);
        assert_eq!(c.text("x"), Ok(Some("9")));
        assert!(root.map("d").is_err());
        assert!(c.flag("y").is_err());
        assert_eq!(c.texts("z"), Ok(Some(vec!["3"])));
    }
}
