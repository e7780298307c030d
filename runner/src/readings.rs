//! Caches parsed specs by the hash of their bytes, which determines the result. Without the cache, one request
//! would parse the same spec twice, and the next request again.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use proctor_core::digest::Sha256Hex;
use proctor_core::spec::Reading;

use crate::error::EngineError;
use crate::spec_file::SpecFile;

/// Maximum number of specs in the cache.
const MOST: usize = 8;
/// Maximum size of a spec in the cache, in bytes: the parsed form takes about ten times as much memory.
const LONGEST: usize = 128 << 10;

/// The last valid specs, most recently used first.
#[derive(Debug, Default)]
pub(crate) struct Readings(Mutex<VecDeque<(Sha256Hex, Arc<Reading>)>>);

impl Readings {
    /// Returns the parsed spec.
    ///
    /// # Errors
    /// The spec is invalid; the error contains all problems.
    pub(crate) fn of(&self, file: &SpecFile) -> Result<Arc<Reading>, EngineError> {
        if let Some(known) = self.known(&file.sha256) {
            return Ok(known);
        }
        let reading = Arc::new(file.parse()?);
        if file.bytes.len() <= LONGEST {
            let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            kept.push_front((file.sha256.clone(), Arc::clone(&reading)));
            kept.truncate(MOST);
        }
        Ok(reading)
    }

    fn known(&self, sha256: &Sha256Hex) -> Option<Arc<Reading>> {
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

    fn file(comment: &str) -> SpecFile {
        let bytes = format!(
            "# {comment}\nversion: 1\nprofiles: {{ p: {{ include: [s] }} }}\nskills: {{ s: {{ steps: [{{ name: a, cmd: \"true\" }}] }} }}\n"
        )
        .into_bytes();
        SpecFile { path: "spec.yaml".into(), sha256: Sha256Hex::of(&bytes), bytes }
    }

    #[test]
    fn the_same_bytes_are_read_once() {
        let readings = Readings::default();
        let first = readings.of(&file("one")).expect("sound");
        assert!(Arc::ptr_eq(&first, &readings.of(&file("one")).expect("sound")));
        assert!(!Arc::ptr_eq(&first, &readings.of(&file("two")).expect("sound")));
    }

    #[test]
    fn so_many_are_kept_and_those_that_are_used() {
        let readings = Readings::default();
        let first = readings.of(&file("first")).expect("sound");
        for other in 0..MOST {
            readings.of(&file(&other.to_string())).expect("sound");
            assert!(Arc::ptr_eq(&first, &readings.of(&file("first")).expect("sound")), "used again and again");
        }
        assert_eq!(readings.0.lock().expect("whole").len(), MOST);
    }

    #[test]
    fn what_is_wrong_is_told_each_time() {
        let readings = Readings::default();
        let bytes = b"version: 9\n".to_vec();
        let wrong = SpecFile { path: "spec.yaml".into(), sha256: Sha256Hex::of(&bytes), bytes };
        assert!(readings.of(&wrong).is_err() && readings.of(&wrong).is_err());
        let long = file(&"x".repeat(LONGEST));
        let (one, again) = (readings.of(&long).expect("sound"), readings.of(&long).expect("sound"));
        assert!(!Arc::ptr_eq(&one, &again), "too long to be kept");
    }
}
