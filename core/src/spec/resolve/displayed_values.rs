//! Formats values of a plan for `explain` and for diagnostics.

use crate::model::plan::Limit;
use crate::spec::size::ByteSize;

pub(super) fn show_count(limit: &Limit) -> String {
    match limit {
        Limit::Max(count) => count.to_string(),
        Limit::Unlimited => "unlimited".to_owned(),
    }
}

pub(super) fn show_size(limit: &Limit) -> String {
    match limit {
        Limit::Max(bytes) => ByteSize(*bytes).to_string(),
        Limit::Unlimited => "unlimited".to_owned(),
    }
}

pub(super) fn show_list<'a>(items: impl Iterator<Item = &'a str>) -> String {
    let items: Vec<&str> = items.collect();
    if items.is_empty() { "none".to_owned() } else { items.join(", ") }
}
