//! Decides which of a caller's variables are secret. A value is not secret if it is the path of an existing file
//! that the caller can reach.

use std::collections::BTreeMap;
use std::path::Path;

use proctor_core::model::names::VarName;
use proctor_core::text::redact::Redactor;
use proctor_sandbox::FsCredentials;

/// A group that owns no files. The caller's real groups are not known here, so a path that only they can reach
/// counts as a secret.
const UNUSED_GROUP: u32 = 65_534;

/// Returns the redactor of the secrets in the caller's environment and among the variables that are `set` for a
/// command. Paths are looked up with the rights of `owner`, or with ours.
pub(crate) fn caller_redactor(
    caller: &BTreeMap<String, String>,
    set: Option<&BTreeMap<VarName, String>>,
    owner: Option<u32>,
) -> Redactor {
    let set = || set.into_iter().flatten().map(|(name, value)| (name.as_str(), value.as_str()));
    let variables = || caller.iter().map(|(name, value)| (name.as_str(), value.as_str())).chain(set());
    let build_redactor = || Redactor::from_environment(variables(), |path| Path::new(path).exists());
    match owner {
        None => build_redactor(),
        Some(uid) => {
            let looked = FsCredentials { uid, gid: UNUSED_GROUP }.run(build_redactor);
            looked.unwrap_or_else(|_| Redactor::from_environment(variables(), |_| false))
        }
    }
}
