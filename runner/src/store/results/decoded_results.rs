//! The stored results that a process has decoded.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use proctor_core::reuse::StoredResult;

/// Maximum size of the encoded results that are kept, in bytes.
const MAX_BYTES: usize = 16 << 20;

/// The stored results that this process has decoded. Decoding a large result takes longer than comparing its bytes.
#[derive(Debug, Default)]
pub(crate) struct DecodedResults(Mutex<Results>);

#[derive(Debug, Default)]
struct Results {
    /// The encoded and the decoded result by file name.
    by_name: HashMap<String, (Vec<u8>, Arc<StoredResult>)>,
    /// The size of the encoded results, in bytes.
    bytes: usize,
}

impl DecodedResults {
    /// Returns the result in the file `name`, which contains `bytes`; `None` if it is damaged or of another version.
    pub(super) fn get_or_decode(&self, name: String, bytes: Vec<u8>) -> Option<Arc<StoredResult>> {
        if let Some((known, result)) = self.lock().by_name.get(&name)
            && *known == bytes
        {
            return Some(Arc::clone(result));
        }
        let result = Arc::new(StoredResult::decode(&bytes)?);
        let mut results = self.lock();
        if let Some((known, _)) = results.by_name.remove(&name) {
            results.bytes -= known.len();
        }
        if results.bytes + bytes.len() > MAX_BYTES {
            *results = Results::default();
        }
        if bytes.len() <= MAX_BYTES {
            results.bytes += bytes.len();
            results.by_name.insert(name, (bytes, Arc::clone(&result)));
        }
        Some(result)
    }

    fn lock(&self) -> MutexGuard<'_, Results> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::results::tests::result;

    #[test]
    fn decodes_other_bytes_of_the_same_name() {
        let results = DecodedResults::default();
        let get = |bytes: Vec<u8>| results.get_or_decode("a".to_owned(), bytes);
        let (first, second) = (result("a", "/1"), result("a", "/2"));
        let known = get(first.encode()).expect("decodes");
        assert!(Arc::ptr_eq(&known, &get(first.encode()).expect("known")));
        assert_eq!(*get(second.encode()).expect("decodes"), second);
        let mut damaged = second.encode();
        damaged[20] ^= 1;
        assert_eq!(get(damaged), None);
        assert_eq!(results.lock().bytes, second.encode().len());
    }
}
