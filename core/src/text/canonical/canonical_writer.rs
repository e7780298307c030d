//! Serializes a value directly to canonical JSON, without building a tree.
//!
//! Members are written in the order in which serde emits them, each followed by a comma. At the end of an object, the
//! writer sorts the written members and replaces the last comma with the closing bracket.

use std::borrow::Cow;

use serde::Serialize;
use serde::ser::{self, Error as _};
use serde_json::{Error, Value};

use super::{format_number, write_string};

/// Writer for one document.
pub(super) struct CanonicalWriter<'a> {
    out: Vec<u8>,
    /// The members of all open objects, outermost first.
    members: Vec<Member>,
    /// Buffer for sorting members.
    sort_buffer: Vec<u8>,
    /// Keys of the outermost object that are omitted.
    omitted_keys: &'a [&'a str],
}

/// The position of a written member, including its comma.
struct Member {
    key: Cow<'static, str>,
    start: usize,
    end: usize,
}

impl<'a> CanonicalWriter<'a> {
    pub(super) fn new(left_out: &'a [&'a str]) -> Self {
        Self { out: Vec::with_capacity(1 << 10), members: Vec::new(), sort_buffer: Vec::new(), omitted_keys: left_out }
    }

    /// Returns the canonical JSON of a value.
    ///
    /// # Errors
    /// Returns an error if a map has keys that are not strings, numbers or booleans, or if the value's own serializer
    /// fails.
    pub(super) fn write<T: Serialize + ?Sized>(mut self, value: &T) -> Result<Vec<u8>, Error> {
        value.serialize(&mut self)?;
        Ok(self.out)
    }

    fn put(&mut self, text: &str) {
        self.out.extend_from_slice(text.as_bytes());
    }

    /// Opens an object that contains only the content of an enum variant.
    fn open_variant(&mut self, variant: &str) {
        self.put("{");
        write_string(variant, &mut self.out);
        self.put(":");
    }

    fn begin_object(&mut self, close: &'static str) -> JsonObjectWriter<'_, 'a> {
        let is_outermost = self.out.is_empty();
        self.put("{");
        JsonObjectWriter { first: self.members.len(), is_outermost, key: None, close, writer: self }
    }

    fn begin_array(&mut self, close: &'static str) -> JsonArrayWriter<'_, 'a> {
        self.put("[");
        JsonArrayWriter { is_empty: true, close, writer: self }
    }

    /// Sorts the members from index `first` by key. If a key occurs twice, the later member is kept.
    fn sort_members(&mut self, first: usize) {
        let members = &mut self.members[first..];
        let (Some(start), Some(end)) = (members.first().map(|one| one.start), members.last().map(|one| one.end)) else {
            return;
        };
        if members.is_sorted_by(|one, next| one.key < next.key) {
            return;
        }
        // The sort is stable, so the later of two members with equal keys stays last.
        members.sort_by(|one, other| one.key.cmp(&other.key));
        self.sort_buffer.clear();
        for (at, member) in members.iter().enumerate() {
            if members.get(at + 1).is_none_or(|next| next.key != member.key) {
                self.sort_buffer.extend_from_slice(&self.out[member.start..member.end]);
            }
        }
        self.out.truncate(start);
        debug_assert!(start + self.sort_buffer.len() <= end);
        self.out.extend_from_slice(&self.sort_buffer);
    }
}

/// An object that is being written.
pub(super) struct JsonObjectWriter<'w, 'a> {
    writer: &'w mut CanonicalWriter<'a>,
    first: usize,
    is_outermost: bool,
    /// The last written key of a map, until its value is written.
    key: Option<String>,
    close: &'static str,
}

impl JsonObjectWriter<'_, '_> {
    fn member<T: Serialize + ?Sized>(&mut self, key: Cow<'static, str>, value: &T) -> Result<(), Error> {
        if self.is_outermost && self.writer.omitted_keys.contains(&&*key) {
            return Ok(());
        }
        let start = self.writer.out.len();
        write_string(&key, &mut self.writer.out);
        self.writer.put(":");
        value.serialize(&mut *self.writer)?;
        self.writer.put(",");
        self.writer.members.push(Member { key, start, end: self.writer.out.len() });
        Ok(())
    }

    fn close(self) {
        self.writer.sort_members(self.first);
        if self.writer.members.len() > self.first {
            self.writer.out.pop();
        }
        self.writer.members.truncate(self.first);
        self.writer.put(self.close);
    }
}

/// An array that is being written.
pub(super) struct JsonArrayWriter<'w, 'a> {
    writer: &'w mut CanonicalWriter<'a>,
    is_empty: bool,
    close: &'static str,
}

impl JsonArrayWriter<'_, '_> {
    fn item<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        if !std::mem::replace(&mut self.is_empty, false) {
            self.writer.put(",");
        }
        value.serialize(&mut *self.writer)
    }

    fn close(self) {
        self.writer.put(self.close);
    }
}

macro_rules! whole_numbers {
    ($($method:ident: $type:ty),*) => {
        $(fn $method(self, number: $type) -> Result<(), Error> {
            let text = number.to_string();
            self.put(&text);
            Ok(())
        })*
    };
}

impl<'w, 'a> ser::Serializer for &'w mut CanonicalWriter<'a> {
    type Ok = ();
    type Error = Error;
    type SerializeSeq = JsonArrayWriter<'w, 'a>;
    type SerializeTuple = JsonArrayWriter<'w, 'a>;
    type SerializeTupleStruct = JsonArrayWriter<'w, 'a>;
    type SerializeTupleVariant = JsonArrayWriter<'w, 'a>;
    type SerializeMap = JsonObjectWriter<'w, 'a>;
    type SerializeStruct = JsonObjectWriter<'w, 'a>;
    type SerializeStructVariant = JsonObjectWriter<'w, 'a>;

    whole_numbers!(
        serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64,
        serialize_u8: u8, serialize_u16: u16, serialize_u32: u32, serialize_u64: u64
    );

    fn serialize_bool(self, value: bool) -> Result<(), Error> {
        self.put(if value { "true" } else { "false" });
        Ok(())
    }

    fn serialize_f32(self, number: f32) -> Result<(), Error> {
        self.serialize_f64(f64::from(number))
    }

    fn serialize_f64(self, number: f64) -> Result<(), Error> {
        match serde_json::Number::from_f64(number) {
            Some(number) => self.put(&format_number(&number)),
            None => self.put("null"),
        }
        Ok(())
    }

    fn serialize_char(self, value: char) -> Result<(), Error> {
        self.serialize_str(value.encode_utf8(&mut [0; 4]))
    }

    fn serialize_str(self, text: &str) -> Result<(), Error> {
        write_string(text, &mut self.out);
        Ok(())
    }

    fn serialize_bytes(self, bytes: &[u8]) -> Result<(), Error> {
        self.collect_seq(bytes)
    }

    fn serialize_none(self) -> Result<(), Error> {
        self.serialize_unit()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Error> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), Error> {
        self.put("null");
        Ok(())
    }

    fn serialize_unit_struct(self, _name: &'static str) -> Result<(), Error> {
        self.serialize_unit()
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Result<(), Error> {
        self.serialize_str(variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Result<(), Error> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<(), Error> {
        self.open_variant(variant);
        value.serialize(&mut *self)?;
        self.put("}");
        Ok(())
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<JsonArrayWriter<'w, 'a>, Error> {
        Ok(self.begin_array("]"))
    }

    fn serialize_tuple(self, _: usize) -> Result<JsonArrayWriter<'w, 'a>, Error> {
        Ok(self.begin_array("]"))
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<JsonArrayWriter<'w, 'a>, Error> {
        Ok(self.begin_array("]"))
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<JsonArrayWriter<'w, 'a>, Error> {
        self.open_variant(variant);
        Ok(self.begin_array("]}"))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<JsonObjectWriter<'w, 'a>, Error> {
        Ok(self.begin_object("}"))
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<JsonObjectWriter<'w, 'a>, Error> {
        Ok(self.begin_object("}"))
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<JsonObjectWriter<'w, 'a>, Error> {
        self.open_variant(variant);
        Ok(self.begin_object("}}"))
    }
}

macro_rules! items {
    ($($trait:ident: $method:ident),*) => {
        $(impl ser::$trait for JsonArrayWriter<'_, '_> {
            type Ok = ();
            type Error = Error;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
                self.item(value)
            }

            fn end(self) -> Result<(), Error> {
                self.close();
                Ok(())
            }
        })*
    };
}
items!(
    SerializeSeq: serialize_element,
    SerializeTuple: serialize_element,
    SerializeTupleStruct: serialize_field,
    SerializeTupleVariant: serialize_field
);

macro_rules! fields {
    ($($trait:ident),*) => {
        $(impl ser::$trait for JsonObjectWriter<'_, '_> {
            type Ok = ();
            type Error = Error;

            fn serialize_field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Result<(), Error> {
                self.member(Cow::Borrowed(key), value)
            }

            fn end(self) -> Result<(), Error> {
                self.close();
                Ok(())
            }
        })*
    };
}
fields!(SerializeStruct, SerializeStructVariant);

impl ser::SerializeMap for JsonObjectWriter<'_, '_> {
    type Ok = ();
    type Error = Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Error> {
        self.key = Some(match serde_json::to_value(key)? {
            Value::String(key) => key,
            Value::Number(number) => number.to_string(),
            Value::Bool(key) => key.to_string(),
            _ => return Err(Error::custom("the key of a map is not a string")),
        });
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        let key = self.key.take().ok_or_else(|| Error::custom("a map has a value without a key"))?;
        self.member(Cow::Owned(key), value)
    }

    fn end(self) -> Result<(), Error> {
        self.close();
        Ok(())
    }
}
