//! The table of the resource limits of a step. Plans, specs, the operator's config and the options of `proctor exec` all
//! have one value for each limit, so a limit is added to the table and where it is enforced.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::limit::Limit;
use crate::model::outcome::LimitKind;
use crate::text::humanize::size;

/// The unit of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitUnit {
    /// Bytes; specs can also use units such as MiB.
    Bytes,
    /// A number of items.
    Count,
    /// Seconds.
    Seconds,
}

/// The definition of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitDefinition {
    /// The key in documents, such as `open_files`.
    pub key: &'static str,
    /// The name in reports, such as `open files`.
    pub label: &'static str,
    /// The unit.
    pub unit: LimitUnit,
    /// The value if neither the spec nor the operator sets one.
    pub built_in: Limit,
    /// The limited resource, as a phrase.
    pub description: &'static str,
}

/// Defines [`PerLimit`]. A row has the field, its type parameter, the label, the unit, the built-in value and the
/// description. A row added after a release needs `#[serde(default)]`, because earlier records lack the field; they had
/// no such limit.
macro_rules! limits {
    (@choose Bytes, $bytes:expr, $number:expr) => { $bytes };
    (@choose Number, $bytes:expr, $number:expr) => { $number };
    ($($(#[$attribute:meta])* $field:ident: $value:ident, $label:literal, $unit:ident, $built_in:expr, $description:literal;)+) => {
        /// A value for each limit. Limits in bytes have the first type, other limits the second.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct PerLimit<Bytes, Number = Bytes> {
            $(
                #[doc = concat!($description, ".")]
                $(#[$attribute])*
                pub $field: $value,
            )+
        }

        /// All limits.
        pub static LIMIT_DEFINITIONS: PerLimit<LimitDefinition> = PerLimit {
            $($field: LimitDefinition {
                key: stringify!($field),
                label: $label,
                unit: LimitUnit::$unit,
                built_in: $built_in,
                description: $description,
            },)+
        };

        impl<Bytes, Number> PerLimit<Bytes, Number> {
            /// Converts each value.
            pub fn map<B, N>(
                self,
                mut bytes: impl FnMut(&'static LimitDefinition, Bytes) -> B,
                mut number: impl FnMut(&'static LimitDefinition, Number) -> N,
            ) -> PerLimit<B, N> {
                PerLimit { $($field: limits!(@choose $value, bytes, number)(&LIMIT_DEFINITIONS.$field, self.$field),)+ }
            }

            /// Combines the values with those of another table.
            pub fn zip<B, N>(self, other: PerLimit<B, N>) -> PerLimit<(Bytes, B), (Number, N)> {
                PerLimit { $($field: (self.$field, other.$field),)+ }
            }
        }

        impl<T> PerLimit<T> {
            /// Converts each value.
            pub fn map_all<U>(self, mut convert: impl FnMut(&'static LimitDefinition, T) -> U) -> PerLimit<U> {
                PerLimit { $($field: convert(&LIMIT_DEFINITIONS.$field, self.$field),)+ }
            }

            /// Returns each limit with its value, in the order of the table.
            pub fn entries(self) -> impl Iterator<Item = (&'static LimitDefinition, T)> {
                [$((&LIMIT_DEFINITIONS.$field, self.$field),)+].into_iter()
            }
        }

        impl PerLimit<Limit> {
            /// No limit at all.
            pub const UNLIMITED: Self = Self { $($field: Limit::Unlimited,)+ };
            /// The values if neither the spec nor the operator sets one.
            pub const BUILT_IN: Self = Self { $($field: $built_in,)+ };
        }

        impl<Bytes: JsonSchema, Number: JsonSchema> JsonSchema for PerLimit<Bytes, Number>
        where
            Self: LimitDocument,
        {
            fn schema_name() -> Cow<'static, str> {
                Self::NAME.into()
            }

            fn json_schema(generator: &mut SchemaGenerator) -> Schema {
                let mut properties = Map::new();
                $(
                    let mut property = generator.subschema_for::<$value>();
                    Self::describe(&LIMIT_DEFINITIONS.$field, &mut property);
                    properties.insert(stringify!($field).to_owned(), property.to_value());
                )+
                document_schema::<Self>(properties)
            }
        }
    };
}

limits! {
    memory: Bytes, "memory", Bytes, Limit::Unlimited, "Memory, in bytes";
    pids: Number, "processes", Count, Limit::Max(4096), "Number of processes and threads";
    disk: Bytes, "disk", Bytes, Limit::Max(2 << 30), "Size of the step's writable layer, in bytes";
    output: Bytes, "output", Bytes, Limit::Max(64 << 20), "Number of bytes that are stored of each output stream";
    cpu_seconds: Number, "CPU time", Seconds, Limit::Unlimited, "CPU time of one process, in seconds";
    // Far above what compilers, test runners and bundlers open (node's file watchers and linkers of large Rust
    // workspaces need several thousand). Low enough for programs that close every descriptor number up to the limit:
    // closing a billion, which some container runtimes allow, takes minutes. A lower hard limit of the host still
    // applies.
    open_files: Number, "open files", Count, Limit::Max(65_536), "Number of open files of one process";
}

/// The resource limits of one attempt.
pub type Limits = PerLimit<Limit>;

/// Resource limits, each of which can be unset.
pub type LimitSettings = PerLimit<Option<Limit>>;

/// A document with a value for each limit.
pub(crate) trait LimitDocument {
    /// The name of the type in schemas.
    const NAME: &'static str;
    /// The description of the type in schemas.
    const DESCRIPTION: &'static str;
    /// True if each limit must have a value.
    const REQUIRED: bool;

    /// Completes the schema of one value.
    fn describe(definition: &LimitDefinition, property: &mut Schema) {
        property.insert("description".to_owned(), format!("{}.", definition.description).into());
    }
}

impl LimitDocument for Limits {
    const NAME: &'static str = "Limits";
    const DESCRIPTION: &'static str = "Resource limits of one attempt.";
    const REQUIRED: bool = true;
}

impl LimitDocument for LimitSettings {
    const NAME: &'static str = "LimitSettings";
    const DESCRIPTION: &'static str = "Resource limits, each of which can be unset.";
    const REQUIRED: bool = false;
}

fn document_schema<D: LimitDocument>(properties: Map<String, Value>) -> Schema {
    let mut schema = json_schema!({
        "description": D::DESCRIPTION,
        "type": "object",
        "additionalProperties": false,
    });
    if D::REQUIRED {
        let names: Vec<Value> = properties.keys().map(|name| name.as_str().into()).collect();
        schema.insert("required".to_owned(), names.into());
    }
    schema.insert("properties".to_owned(), properties.into());
    schema
}

impl LimitDefinition {
    /// Returns a value of this limit for people, such as `2 GiB` or `unlimited`.
    pub fn format(&self, limit: Limit) -> String {
        match (limit, self.unit) {
            (Limit::Unlimited, _) => "unlimited".to_owned(),
            (Limit::Max(bytes), LimitUnit::Bytes) => size(bytes),
            (Limit::Max(number), LimitUnit::Count) => number.to_string(),
            (Limit::Max(seconds), LimitUnit::Seconds) => format!("{seconds} s"),
        }
    }
}

impl Limits {
    /// Returns all limits as a phrase: `memory unlimited, processes 4096, …`.
    pub fn phrase(self) -> String {
        let parts = self.entries().map(|(limit, value)| format!("{} {}", limit.label, limit.format(value)));
        parts.collect::<Vec<_>>().join(", ")
    }

    /// Returns a limit that a step hit as a phrase, such as `512 MiB memory`; only its name if it is unlimited.
    pub fn hit_phrase(self, hit: LimitKind) -> String {
        let definitions = &LIMIT_DEFINITIONS;
        let (limit, definition) = match hit {
            LimitKind::Memory => (self.memory, &definitions.memory),
            LimitKind::Disk | LimitKind::Inodes => (self.disk, &definitions.disk),
            LimitKind::Pids => (self.pids, &definitions.pids),
            LimitKind::CpuSeconds => (self.cpu_seconds, &definitions.cpu_seconds),
        };
        let name = hit.as_str();
        match (limit, hit) {
            (Limit::Unlimited, _) => name.to_owned(),
            (Limit::Max(bytes), LimitKind::Inodes) => format!("{} {name}", max_files(bytes)),
            _ => format!("{} {name}", definition.format(limit)),
        }
    }
}

/// Number of bytes of `disk` per allowed file. An empty file also uses kernel memory, which the size limit of a tmpfs
/// does not count.
const BYTES_PER_FILE: u64 = 16 << 10;
/// Minimum number of allowed files.
const MIN_FILES: u64 = 4096;

/// Returns the number of files allowed for a disk limit of `bytes`.
pub fn max_files(bytes: u64) -> u64 {
    (bytes / BYTES_PER_FILE).max(MIN_FILES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renders_limits() {
        let limits = Limits { memory: Limit::Max(512 << 20), cpu_seconds: Limit::Max(10), ..Limits::BUILT_IN };
        assert_eq!(
            limits.phrase(),
            "memory 512 MiB, processes 4096, disk 2 GiB, output 64 MiB, CPU time 10 s, open files 65536"
        );
        assert!(Limits::UNLIMITED.entries().all(|(kind, limit)| kind.format(limit) == "unlimited"));
    }

    #[test]
    fn requires_each_limit_of_a_plan_and_no_setting() {
        let text = serde_json::to_string(&Limits::BUILT_IN).expect("JSON");
        assert_eq!(serde_json::from_str::<Limits>(&text).expect("reads"), Limits::BUILT_IN);
        serde_json::from_str::<Limits>("{}").expect_err("a plan has every limit");
        serde_json::from_str::<Limits>(&text.replace("pids", "pid")).expect_err("an unknown limit");
        assert_eq!(serde_json::from_str::<LimitSettings>("{}").expect("reads"), LimitSettings::default());
        let required = schemars::schema_for!(Limits).to_value()["required"].as_array().map(Vec::len);
        assert_eq!(required, Some(Limits::BUILT_IN.entries().count()));
    }
}
