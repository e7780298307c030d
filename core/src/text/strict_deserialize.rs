//! Deserializes structs from objects only.
//!
//! A derived `Deserialize` also accepts a sequence and assigns its items to the fields by position: it would accept
//! `["/repo", "pr"]` as a request. The formats that Proctor accepts define objects, so this module rejects a sequence
//! wherever a struct is expected, at any depth.
//!
//! Limitation: serde buffers the content of untagged, internally tagged and flattened types, and this module cannot
//! check structs inside such a buffer. The tests in `api` detect request types with that problem.

use std::fmt;

use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error as _, MapAccess, SeqAccess, Unexpected,
    VariantAccess, Visitor,
};

/// The name of an object in JSON.
const JSON_OBJECT: &str = "an object";
/// The name of an object in TOML.
const TOML_TABLE: &str = "a table";

/// Parses a value from JSON.
///
/// # Errors
/// Returns an error if the bytes are not JSON or do not match the type.
pub fn from_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, serde_json::Error> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = T::deserialize(StrictWrapper::new(&mut reader, JSON_OBJECT))?;
    reader.end()?;
    Ok(value)
}

/// Converts a JSON value to a typed value.
///
/// # Errors
/// Returns an error if the JSON does not match the type.
pub fn from_json_value<T: DeserializeOwned>(value: serde_json::Value) -> Result<T, serde_json::Error> {
    T::deserialize(StrictWrapper::new(value, JSON_OBJECT))
}

/// Parses a value from TOML.
///
/// # Errors
/// Returns an error if the text is not TOML or does not match the type.
pub fn from_toml<T: DeserializeOwned>(text: &str) -> Result<T, toml::de::Error> {
    T::deserialize(StrictWrapper::new(toml::Deserializer::parse(text)?, TOML_TABLE))
}

/// Replaces serde's terms in an error message with those of JSON: `array` and `object` instead of `sequence` and `map`.
pub fn use_json_terms(message: &str) -> String {
    let renamed =
        [("sequence", "array"), ("map", "object"), ("unit value", "null")].iter().find_map(|(serde, json)| {
            let rest = message.strip_prefix("invalid type: ")?.strip_prefix(serde)?;
            rest.starts_with(',').then(|| format!("invalid type: {json}{rest}"))
        });
    renamed.unwrap_or_else(|| message.to_owned())
}

/// Wraps a deserializer, or a helper object of one.
struct StrictWrapper<T> {
    inner: T,
    /// The name of an object in error messages.
    object: &'static str,
}

impl<T> StrictWrapper<T> {
    fn new(inner: T, object: &'static str) -> Self {
        Self { inner, object }
    }

    fn wrap<U>(&self, inner: U) -> StrictWrapper<U> {
        StrictWrapper { inner, object: self.object }
    }
}

/// Wraps a visitor. With `expects_struct`, the visitor builds a struct and rejects sequences.
struct StrictVisitor<V> {
    visitor: StrictWrapper<V>,
    expects_struct: bool,
}

impl<T> StrictWrapper<T> {
    fn visitor<V>(&self, visitor: V) -> StrictVisitor<V> {
        StrictVisitor { visitor: self.wrap(visitor), expects_struct: false }
    }

    fn struct_visitor<V>(&self, visitor: V) -> StrictVisitor<V> {
        StrictVisitor { visitor: self.wrap(visitor), expects_struct: true }
    }
}

macro_rules! forward_to_deserializer {
    ($($method:ident($($argument:ident: $type:ty),*) as $wrap:ident;)*) => {
        $(fn $method<V: Visitor<'de>>(self, $($argument: $type,)* visitor: V) -> Result<V::Value, D::Error> {
            let visitor = self.$wrap(visitor);
            self.inner.$method($($argument,)* visitor)
        })*
    };
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for StrictWrapper<D> {
    type Error = D::Error;

    forward_to_deserializer! {
        deserialize_any() as visitor;
        deserialize_bool() as visitor;
        deserialize_i8() as visitor;
        deserialize_i16() as visitor;
        deserialize_i32() as visitor;
        deserialize_i64() as visitor;
        deserialize_i128() as visitor;
        deserialize_u8() as visitor;
        deserialize_u16() as visitor;
        deserialize_u32() as visitor;
        deserialize_u64() as visitor;
        deserialize_u128() as visitor;
        deserialize_f32() as visitor;
        deserialize_f64() as visitor;
        deserialize_char() as visitor;
        deserialize_str() as visitor;
        deserialize_string() as visitor;
        deserialize_bytes() as visitor;
        deserialize_byte_buf() as visitor;
        deserialize_option() as visitor;
        deserialize_unit() as visitor;
        deserialize_unit_struct(name: &'static str) as visitor;
        deserialize_newtype_struct(name: &'static str) as visitor;
        deserialize_seq() as visitor;
        deserialize_tuple(len: usize) as visitor;
        deserialize_tuple_struct(name: &'static str, len: usize) as visitor;
        deserialize_map() as visitor;
        deserialize_struct(name: &'static str, fields: &'static [&'static str]) as struct_visitor;
        deserialize_enum(name: &'static str, variants: &'static [&'static str]) as visitor;
        deserialize_identifier() as visitor;
        deserialize_ignored_any() as visitor;
    }

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

macro_rules! forward_to_visitor {
    ($($method:ident: $type:ty),*) => {
        $(fn $method<E: serde::de::Error>(self, value: $type) -> Result<V::Value, E> {
            self.visitor.inner.$method(value)
        })*
    };
}

impl<'de, V: Visitor<'de>> Visitor<'de> for StrictVisitor<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.expects_struct { f.write_str(self.visitor.object) } else { self.visitor.inner.expecting(f) }
    }

    forward_to_visitor! {
        visit_bool: bool, visit_i8: i8, visit_i16: i16, visit_i32: i32, visit_i64: i64, visit_i128: i128,
        visit_u8: u8, visit_u16: u16, visit_u32: u32, visit_u64: u64, visit_u128: u128,
        visit_f32: f32, visit_f64: f64, visit_char: char,
        visit_str: &str, visit_borrowed_str: &'de str, visit_string: String,
        visit_bytes: &[u8], visit_borrowed_bytes: &'de [u8], visit_byte_buf: Vec<u8>
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.visitor.inner.visit_none()
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.visitor.inner.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        let deserializer = self.visitor.wrap(deserializer);
        self.visitor.inner.visit_some(deserializer)
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        let deserializer = self.visitor.wrap(deserializer);
        self.visitor.inner.visit_newtype_struct(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<V::Value, A::Error> {
        if self.expects_struct {
            return Err(A::Error::invalid_type(Unexpected::Seq, &self));
        }
        let items = self.visitor.wrap(items);
        self.visitor.inner.visit_seq(items)
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<V::Value, A::Error> {
        let members = self.visitor.wrap(members);
        self.visitor.inner.visit_map(members)
    }

    fn visit_enum<A: EnumAccess<'de>>(self, variant: A) -> Result<V::Value, A::Error> {
        let variant = self.visitor.wrap(variant);
        self.visitor.inner.visit_enum(variant)
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for StrictWrapper<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        let deserializer = self.wrap(deserializer);
        self.inner.deserialize(deserializer)
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for StrictWrapper<A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        let seed = self.wrap(seed);
        self.inner.next_element_seed(seed)
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for StrictWrapper<A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        let seed = self.wrap(seed);
        self.inner.next_key_seed(seed)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        let seed = self.wrap(seed);
        self.inner.next_value_seed(seed)
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

impl<'de, A: EnumAccess<'de>> EnumAccess<'de> for StrictWrapper<A> {
    type Error = A::Error;
    type Variant = StrictWrapper<A::Variant>;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self::Variant), A::Error> {
        let seed = self.wrap(seed);
        let object = self.object;
        let (value, variant) = self.inner.variant_seed(seed)?;
        Ok((value, StrictWrapper::new(variant, object)))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for StrictWrapper<A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.inner.unit_variant()
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        let seed = self.wrap(seed);
        self.inner.newtype_variant_seed(seed)
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, A::Error> {
        let visitor = self.visitor(visitor);
        self.inner.tuple_variant(len, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        let visitor = self.struct_visitor(visitor);
        self.inner.struct_variant(fields, visitor)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct StrictOuter {
        name: String,
        #[serde(default)]
        inner: Option<StrictInner>,
        #[serde(default)]
        list: Vec<StrictInner>,
        #[serde(default)]
        by_name: BTreeMap<String, StrictInner>,
        #[serde(default)]
        choice: Option<StrictChoice>,
        #[serde(default)]
        pair: Option<(u8, i64)>,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    struct StrictInner {
        n: u8,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum StrictChoice {
        Unit,
        New(StrictInner),
        Fields { n: u8 },
    }

    #[test]
    fn accepts_objects_like_serde() {
        for text in [
            r#"{"name":"a","inner":{"n":1},"list":[{"n":2}],"by_name":{"x":{"n":3}},"pair":[1,-2]}"#,
            r#"{"name":"a\u0062","inner":null,"choice":"unit"}"#,
            r#"{"name":"a","choice":{"new":{"n":1}}}"#,
            r#"{"name":"a","choice":{"fields":{"n":1}}}"#,
        ] {
            let plain: StrictOuter = serde_json::from_str(text).expect(text);
            assert_eq!(from_json::<StrictOuter>(text.as_bytes()).expect(text), plain);
            let value = serde_json::from_str(text).expect(text);
            assert_eq!(from_json_value::<StrictOuter>(value).expect(text), plain);
        }
        assert!(from_json::<StrictOuter>(br#"{"name":"a"} {}"#).is_err(), "nothing follows the value");
    }

    #[test]
    fn rejects_array_in_place_of_object_at_any_depth() {
        for text in [
            r#"["a"]"#,
            r#"[]"#,
            r#"{"name":"a","inner":[1]}"#,
            r#"{"name":"a","list":[[1]]}"#,
            r#"{"name":"a","by_name":{"x":[1]}}"#,
            r#"{"name":"a","choice":{"new":[1]}}"#,
            r#"{"name":"a","choice":{"fields":[1]}}"#,
        ] {
            let error = from_json::<StrictOuter>(text.as_bytes()).expect_err(text).to_string();
            let error = use_json_terms(&error);
            assert!(error.contains("invalid type: array, expected an object"), "{text}: {error}");
            let value = serde_json::from_str(text).expect(text);
            assert!(from_json_value::<StrictOuter>(value).is_err(), "{text}");
        }
        let other = from_json::<StrictOuter>(b"7").expect_err("a number").to_string();
        assert!(other.contains("expected an object") && !other.contains("struct"), "{other}");
    }

    #[test]
    fn reports_position_of_array_in_place_of_table() {
        from_toml::<StrictOuter>("name = 'a'\n[inner]\nn = 1\n").expect("reads");
        let error = from_toml::<StrictOuter>("name = 'a'\ninner = [1]\n").expect_err("an array");
        assert!(error.message().contains("expected a table"), "{error}");
        assert_eq!(error.span().map(|span| span.start), Some(19), "{error}");
    }

    #[test]
    fn replaces_only_the_found_type() {
        for (message, words) in [
            ("invalid type: map, expected a string", "invalid type: object, expected a string"),
            ("invalid type: sequence, expected u8 at line 1", "invalid type: array, expected u8 at line 1"),
            ("unknown field `map`", "unknown field `map`"),
            ("invalid type: string \"map\", expected u8", "invalid type: string \"map\", expected u8"),
        ] {
            assert_eq!(use_json_terms(message), words);
        }
    }
}
