//! Finds the relations that a change of the schema affects besides those that it names: tables that inherit from a table,
//! and with `CASCADE` everything that depends on it.

use std::collections::BTreeSet;

use super::catalog_reader::{DatabaseContent, Relation};
use super::definitions;

/// Returns the relations that a command affects; `names` are the objects that it names.
pub(super) fn find<'c>(content: &'c DatabaseContent, sql: &str, names: &BTreeSet<&str>) -> Vec<&'c Relation> {
    let (cascades, is_only) = (definitions::has_cascade(sql), definitions::has_only(sql));
    let mut reached: BTreeSet<u32> = BTreeSet::new();
    let is_named = |relation: &Relation| names.contains(relation.name.as_str());
    let mut open: Vec<u32> = oids(content, &is_named);
    if cascades && open.is_empty() {
        // The objects that depend on a type, an index or a schema are unknown.
        open = oids(content, &|_| true);
    }
    while let Some(oid) = open.pop() {
        let Some(relation) = content.relations.get(&oid).filter(|_| reached.insert(oid)) else { continue };
        if !is_only {
            open.extend(&relation.children);
        }
        if cascades {
            let references = |other: &Relation| {
                let table = content.catalog.tables.iter().find(|table| table.name == other.name);
                table.is_some_and(|table| table.foreign_keys.iter().any(|key| key.referenced_table == relation.name))
            };
            let shows = |other: &Relation| {
                other.definition.as_ref().is_some_and(|facts| facts.relations.iter().any(|used| used.oid == oid))
            };
            open.extend(oids(content, &|other| references(other) || shows(other)));
        }
    }
    reached.iter().filter_map(|oid| content.relations.get(oid)).collect()
}

fn oids(content: &DatabaseContent, is_wanted: &dyn Fn(&Relation) -> bool) -> Vec<u32> {
    content.relations.iter().filter(|(_, relation)| is_wanted(relation)).map(|(oid, _)| *oid).collect()
}
