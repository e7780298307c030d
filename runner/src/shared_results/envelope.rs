//! Signs bytes, and verifies signatures, in the form of DSSE (Dead Simple Signing Envelope).

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proctor_core::text::digest::Sha256Hex;
use serde::{Deserialize, Serialize};

use super::keys::{SigningKey, TrustedKeys};

/// Maximum number of signatures of an envelope that are checked.
const MAX_SIGNATURES: usize = 16;

#[derive(Serialize, Deserialize)]
struct Envelope {
    payload: String,
    #[serde(rename = "payloadType")]
    payload_type: String,
    signatures: Vec<EnvelopeSignature>,
}

#[derive(Serialize, Deserialize)]
struct EnvelopeSignature {
    keyid: String,
    sig: String,
}

/// The reason why an envelope is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EnvelopeRefusal {
    /// The document is not an envelope of this type.
    NotReadable,
    /// The envelope has no signature.
    Unsigned,
    /// The envelope is signed only by keys that are not trusted.
    UnknownKey,
    /// A signature of a trusted key does not fit the content.
    WrongSignature,
}

impl fmt::Display for EnvelopeRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotReadable => "it is damaged",
            Self::Unsigned => "it is not signed",
            Self::UnknownKey => "it is signed by a key that is not in `trusted_keys`",
            Self::WrongSignature => "its signature does not match its content",
        })
    }
}

/// Returns the bytes that a signature covers.
fn signed_bytes(payload_type: &str, payload: &[u8]) -> Vec<u8> {
    let mut bytes = format!("DSSEv1 {} {payload_type} {} ", payload_type.len(), payload.len()).into_bytes();
    bytes.extend_from_slice(payload);
    bytes
}

/// Returns an envelope with a signed payload.
pub(crate) fn seal(key: &SigningKey, payload_type: &str, payload: &[u8]) -> Vec<u8> {
    let sig = STANDARD.encode(key.sign(&signed_bytes(payload_type, payload)));
    let envelope = Envelope {
        payload: STANDARD.encode(payload),
        payload_type: payload_type.to_owned(),
        signatures: vec![EnvelopeSignature { keyid: key.id.to_string(), sig }],
    };
    // Serializing these types cannot fail.
    serde_json::to_vec(&envelope).unwrap_or_default()
}

/// Returns the payload of an envelope, and the id of the trusted key that signed it.
///
/// # Errors
/// No trusted key signed it.
pub(crate) fn open(
    bytes: &[u8],
    payload_type: &str,
    trusted: &TrustedKeys,
) -> Result<(Vec<u8>, Sha256Hex), EnvelopeRefusal> {
    let envelope: Envelope = serde_json::from_slice(bytes).map_err(|_| EnvelopeRefusal::NotReadable)?;
    let payload = STANDARD.decode(&envelope.payload).map_err(|_| EnvelopeRefusal::NotReadable)?;
    if envelope.payload_type != payload_type {
        return Err(EnvelopeRefusal::NotReadable);
    }
    let signed = signed_bytes(payload_type, &payload);
    let mut refusal = EnvelopeRefusal::Unsigned;
    for signature in envelope.signatures.iter().take(MAX_SIGNATURES) {
        let Ok(id) = Sha256Hex::try_from(signature.keyid.clone()) else {
            refusal = EnvelopeRefusal::UnknownKey;
            continue;
        };
        let sig = STANDARD.decode(&signature.sig).unwrap_or_default();
        match trusted.verify(&id, &signed, &sig) {
            Some(true) => return Ok((payload, id)),
            Some(false) => return Err(EnvelopeRefusal::WrongSignature),
            None => refusal = EnvelopeRefusal::UnknownKey,
        }
    }
    Err(refusal)
}

#[cfg(test)]
mod tests {
    use super::super::keys::tests::test_keys;
    use super::*;

    const TYPE: &str = "application/x.test";

    #[test]
    fn signed_bytes_follow_the_protocol() {
        assert_eq!(signed_bytes("http://example.com/HelloWorld", b"hello world"), {
            // The example of the specification of DSSE.
            b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
        });
    }

    #[test]
    fn payload_comes_back_with_the_key() {
        let (key, trusted) = test_keys();
        let sealed = seal(&key, TYPE, b"payload");
        assert_eq!(open(&sealed, TYPE, &trusted), Ok((b"payload".to_vec(), key.id.clone())));
        assert_eq!(open(&sealed, TYPE, &TrustedKeys::default()), Err(EnvelopeRefusal::UnknownKey));
        assert_eq!(open(&sealed, "application/x.other", &trusted), Err(EnvelopeRefusal::NotReadable));
    }

    #[test]
    fn refuses_changed_and_unsigned_envelopes() {
        let (key, trusted) = test_keys();
        let sealed: Envelope = serde_json::from_slice(&seal(&key, TYPE, b"payload")).expect("an envelope");
        let bytes = |envelope: &Envelope| serde_json::to_vec(envelope).expect("JSON");
        let mut changed: Envelope = serde_json::from_slice(&bytes(&sealed)).expect("an envelope");
        changed.payload = STANDARD.encode(b"other");
        assert_eq!(open(&bytes(&changed), TYPE, &trusted), Err(EnvelopeRefusal::WrongSignature));
        changed.signatures[0].sig = "?".to_owned();
        assert_eq!(open(&bytes(&changed), TYPE, &trusted), Err(EnvelopeRefusal::WrongSignature));
        changed.signatures[0].keyid = "nothing".to_owned();
        assert_eq!(open(&bytes(&changed), TYPE, &trusted), Err(EnvelopeRefusal::UnknownKey));
        changed.signatures.clear();
        assert_eq!(open(&bytes(&changed), TYPE, &trusted), Err(EnvelopeRefusal::Unsigned));
        let whole = bytes(&sealed);
        assert_eq!(open(&whole[..whole.len() - 1], TYPE, &trusted), Err(EnvelopeRefusal::NotReadable));
    }
}
