//! Names another machine whose result a step reuses.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::text::digest::Sha256Hex;

/// Number of digits of a key's id that are displayed.
const SHORT_KEY: usize = 16;

/// Another machine whose result a step reuses.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResultOrigin {
    /// The key that signed the result: the sha256 of the public key.
    pub key_id: Sha256Hex,
    /// The name of the machine, as the signed record states it.
    pub host: String,
}

impl ResultOrigin {
    /// Returns the machine and the key, as a phrase.
    pub fn phrase(&self) -> String {
        format!("`{}` (key {})", self.host, self.short_key())
    }

    /// Returns the first digits of the key's id, for display.
    pub fn short_key(&self) -> String {
        self.key_id.prefix(SHORT_KEY)
    }
}
