//! Represents a map of a spec: entries in file order, each key with its span.

use std::borrow::Borrow;
use std::fmt;
use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::span::Spanned;

/// A map as written: entries in file order, each key with its span.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpannedMap<K, V>(pub Vec<(Spanned<K>, V)>);

impl<K, V> Default for SpannedMap<K, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Borrow<str>, V> SpannedMap<K, V> {
    /// Returns the entries in file order.
    pub fn iter(&self) -> impl Iterator<Item = (&Spanned<K>, &V)> {
        self.0.iter().map(|(key, value)| (key, value))
    }

    /// Returns the keys in file order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(key, _)| key.value.borrow())
    }

    /// Returns the key and the value of `name`.
    pub fn entry(&self, name: &str) -> Option<(&Spanned<K>, &V)> {
        self.iter().find(|(key, _)| key.value.borrow() == name)
    }

    /// Returns the value of `name`.
    pub fn get(&self, name: &str) -> Option<&V> {
        self.entry(name).map(|(_, value)| value)
    }
}

impl<K: Serialize, V: Serialize> Serialize for SpannedMap<K, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, value) in &self.0 {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

impl<'de, K: Deserialize<'de>, V: Deserialize<'de>> Deserialize<'de> for SpannedMap<K, V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SpannedMapVisitor<K, V>(PhantomData<(K, V)>);
        impl<'de, K: Deserialize<'de>, V: Deserialize<'de>> Visitor<'de> for SpannedMapVisitor<K, V> {
            type Value = SpannedMap<K, V>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut table = SpannedMap::default();
                while let Some(entry) = map.next_entry()? {
                    table.0.push(entry);
                }
                Ok(table)
            }
        }
        deserializer.deserialize_map(SpannedMapVisitor(PhantomData))
    }
}

impl<K: JsonSchema, V: JsonSchema> JsonSchema for SpannedMap<K, V> {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> std::borrow::Cow<'static, str> {
        format!("Table_of_{}", V::schema_name()).into()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let values = generator.subschema_for::<V>();
        let keys = key_schema(&K::json_schema(generator));
        json_schema!({ "type": "object", "propertyNames": keys, "additionalProperties": values })
    }
}

/// Returns the schema for the keys of a map. Keys are always strings, so only the pattern of `schema` matters.
fn key_schema(schema: &Schema) -> serde_json::Value {
    match schema.get("pattern") {
        Some(pattern) => serde_json::json!({ "pattern": pattern }),
        None => serde_json::json!(true),
    }
}
