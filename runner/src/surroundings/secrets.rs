//! Decides which of a caller's variables are secret. A value is not secret if it is the path of an existing file
//! that the caller can reach.

use std::collections::BTreeMap;
use std::path::Path;

use proctor_core::redact::Redactor;
use proctor_sandbox::Reader;

/// A group that owns no files. The caller's real groups are not known here, so a path that only they can reach
/// counts as a secret.
const NO_GROUP: u32 = 65_534;

/// Returns the redactor for everything that leaves the engine. It knows the secrets in the caller's environment and
/// in the variables that the caller passes to one command. Paths are looked up with the rights of `owner`, or with
/// ours.
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
