//! Which of a caller's variables are secrets: where one names a path that is there, it is none, and
//! what is there is the caller's to know.

use std::collections::BTreeMap;
use std::path::Path;

use proctor_core::redact::Redactor;
use proctor_sandbox::Reader;

/// A group that owns no file: a caller's own is not known here, and a value that only it makes a
/// path is a secret all the same.
const NO_GROUP: u32 = 65_534;

/// What takes the secrets of a caller out of everything that leaves us: those of its environment, and
/// of the variables that it gives to one command. Paths are looked for with the rights of `owner`, or
/// with ours.
pub(crate) fn secrets_of(
    caller: &BTreeMap<String, String>,
    given: &BTreeMap<String, String>,
    owner: Option<u32>,
) -> Redactor {
    let variables = || caller.iter().chain(given).map(|(name, value)| (name.as_str(), value.as_str()));
    let look = || Redactor::of(variables(), |path| Path::new(path).exists());
    match owner {
        None => look(),
        Some(uid) => {
            let looked = Reader { uid, gid: NO_GROUP }.look(look);
            looked.unwrap_or_else(|_| Redactor::of(variables(), |_| false))
        }
    }
}
