//! Keeps the files that the kernel knows, by the keys that the server gave them. Each path has its own key, and no key is
//! used twice.

use std::collections::HashMap;
use std::rc::Rc;

use crate::file_meta::FileMeta;
use crate::protocol::ROOT_NODE;
use crate::recorder::RecordId;

/// A file that the kernel knows.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    /// The number of the export that it belongs to.
    pub(crate) export: usize,
    /// The absolute path on the host.
    pub(crate) path: Rc<[u8]>,
    /// The attributes at the time of its lookup.
    pub(crate) meta: FileMeta,
    /// The text of a symbolic link.
    pub(crate) target: Option<Rc<[u8]>>,
    /// Its entry in the trace; `None` if the trace has reached its bound.
    pub(crate) record: Option<RecordId>,
    /// `true` for a directory whose content is not part of the view.
    pub(crate) is_hollow: bool,
}

/// The nodes by key and by path.
#[derive(Debug, Default)]
pub(crate) struct NodeTable {
    nodes: HashMap<u64, CountedNode>,
    keys: HashMap<(usize, Rc<[u8]>), u64>,
    last_key: u64,
}

#[derive(Debug)]
struct CountedNode {
    node: Rc<Node>,
    /// The number of lookups that the kernel has not forgotten.
    lookups: u64,
}

impl NodeTable {
    pub(crate) fn get(&self, key: u64) -> Option<Rc<Node>> {
        self.nodes.get(&key).map(|counted| Rc::clone(&counted.node))
    }

    /// Adds a node, or counts another lookup of a known one, and returns its key. Another file at the same path gets
    /// another key.
    pub(crate) fn add(&mut self, node: Node) -> u64 {
        let at = (node.export, Rc::clone(&node.path));
        if let Some(key) = self.keys.get(&at).copied()
            && let Some(known) = self.nodes.get_mut(&key)
            && known.node.meta.is_same_file(&node.meta)
        {
            known.lookups += 1;
            return key;
        }
        self.last_key = self.last_key.max(ROOT_NODE) + 1;
        self.keys.insert(at, self.last_key);
        self.nodes.insert(self.last_key, CountedNode { node: Rc::new(node), lookups: 1 });
        self.last_key
    }

    /// Removes a node when the kernel has forgotten all of its lookups; returns whether it did.
    pub(crate) fn forget(&mut self, key: u64, lookups: u64) -> bool {
        let Some(counted) = self.nodes.get_mut(&key) else { return false };
        counted.lookups = counted.lookups.saturating_sub(lookups);
        if counted.lookups > 0 {
            return false;
        }
        if let Some(CountedNode { node, .. }) = self.nodes.remove(&key) {
            let at = (node.export, Rc::clone(&node.path));
            if self.keys.get(&at) == Some(&key) {
                self.keys.remove(&at);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(path: &str, ino: u64) -> Node {
        let meta = FileMeta { ino, ..FileMeta::for_test() };
        Node { export: 0, path: path.as_bytes().into(), meta, target: None, record: None, is_hollow: false }
    }

    #[test]
    fn keeps_node_until_each_lookup_is_forgotten() {
        let mut table = NodeTable::default();
        let key = table.add(node("/a", 1));
        assert_eq!(table.add(node("/a", 1)), key);
        assert!(!table.forget(key, 1) && table.get(key).is_some());
        assert!(table.forget(key, 1) && table.get(key).is_none());
        assert_ne!(table.add(node("/a", 1)), key, "a key is never used again");
    }

    #[test]
    fn hard_links_have_separate_keys() {
        let mut table = NodeTable::default();
        assert_ne!(table.add(node("/a", 1)), table.add(node("/b", 1)));
    }

    #[test]
    fn replaced_file_gets_new_key() {
        let mut table = NodeTable::default();
        let old = table.add(node("/a", 1));
        let new = table.add(node("/a", 2));
        assert!(old != new && table.get(old).is_some());
        assert!(table.forget(old, 1));
        assert_eq!(table.add(node("/a", 2)), new);
    }
}
