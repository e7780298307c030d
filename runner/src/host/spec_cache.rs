//! Caches parsed specs by the hash of their bytes, which determines the result. Without the cache, one request
//! would parse the same spec twice, and the next request again.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use proctor_core::spec::ParsedSpec;
use proctor_core::text::digest::Sha256Hex;

use crate::error::EngineError;
use crate::host::spec_file::SpecFile;

/// Maximum number of specs in the cache.
const MAX_SPECS: usize = 8;
/// Maximum size of a spec in the cache, in bytes: the parsed form takes about ten times as much memory.
const MAX_SPEC_BYTES: usize = 128 << 10;

/// The last valid specs, most recently used first.
#[derive(Debug, Default)]
pub(crate) struct SpecCache(Mutex<VecDeque<(Sha256Hex, Arc<ParsedSpec>)>>);

impl SpecCache {
    /// Returns the parsed spec.
    ///
    /// # Errors
    /// The spec is invalid; the error contains all problems.
    pub(crate) fn get_or_parse(&self, file: &SpecFile) -> Result<Arc<ParsedSpec>, EngineError> {
        if let Some(known) = self.get(&file.sha256) {
            return Ok(known);
        }
        let reading = Arc::new(file.parse()?);
        if file.bytes.len() <= MAX_SPEC_BYTES {
            let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            kept.push_front((file.sha256.clone(), Arc::clone(&reading)));
            kept.truncate(MAX_SPECS);
        }
        Ok(reading)
    }

    fn get(&self, sha256: &Sha256Hex) -> Option<Arc<ParsedSpec>> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.iter().position(|(known, _)| known == sha256)?;
        let found = kept.remove(at)?;
        let reading = Arc::clone(&found.1);
        kept.push_front(found);
        Some(reading)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proctor_core::model::plan::RelPath;

    fn file(comment: &str) -> SpecFile {
        let bytes = format!(
            "# {comment}\nversion: 1\nprofiles: {{ p: {{ include: [s] }} }}\nskills: {{ s: {{ steps: [{{ name: a, cmd: \"true\" }}] }} }}\n"
        )
        .into_bytes();
        SpecFile {
            path: "spec.yaml".into(),
            sha256: Sha256Hex::digest(&bytes),
            bytes,
            directory: RelPath::repository(),
            included: Vec::new(),
        }
    }

    #[test]
    fn parses_same_bytes_once() {
        let cache = SpecCache::default();
        let first = cache.get_or_parse(&file("one")).expect("sound");
        assert!(Arc::ptr_eq(&first, &cache.get_or_parse(&file("one")).expect("sound")));
        assert!(!Arc::ptr_eq(&first, &cache.get_or_parse(&file("two")).expect("sound")));
    }

    #[test]
    fn keeps_most_recently_used_specs() {
        let cache = SpecCache::default();
        let first = cache.get_or_parse(&file("first")).expect("sound");
        for other in 0..MAX_SPECS {
            cache.get_or_parse(&file(&other.to_string())).expect("sound");
            assert!(Arc::ptr_eq(&first, &cache.get_or_parse(&file("first")).expect("sound")), "used again and again");
        }
        assert_eq!(cache.0.lock().expect("whole").len(), MAX_SPECS);
    }

    #[test]
    fn does_not_cache_invalid_or_long_specs() {
        let cache = SpecCache::default();
        let bytes = b"version: 9\n".to_vec();
        let wrong = SpecFile {
            path: "spec.yaml".into(),
            sha256: Sha256Hex::digest(&bytes),
            bytes,
            directory: RelPath::repository(),
            included: Vec::new(),
        };
        assert!(cache.get_or_parse(&wrong).is_err() && cache.get_or_parse(&wrong).is_err());
        let long = file(&"x".repeat(MAX_SPEC_BYTES));
        let (one, again) = (cache.get_or_parse(&long).expect("sound"), cache.get_or_parse(&long).expect("sound"));
        assert!(!Arc::ptr_eq(&one, &again), "too long to be kept");
    }
}
