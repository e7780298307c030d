//! Serializes an exit code: `None` is written as -1; -1 and `null` are read as `None`.

use serde::de::Error as _;
use serde::{Deserialize as _, Deserializer, Serializer};

#[expect(clippy::trivially_copy_pass_by_ref, clippy::ref_option, reason = "serde demands this signature")]
pub(super) fn serialize<S: Serializer>(code: &Option<u8>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_i16(code.map_or(-1, i16::from))
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u8>, D::Error> {
    match Option::<i16>::deserialize(deserializer)? {
        None | Some(-1) => Ok(None),
        Some(code) => u8::try_from(code).map(Some).map_err(|_| D::Error::custom("an exit code is from -1 to 255")),
    }
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    #[test]
    fn serializes_missing_exit_code_as_minus_one() {
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        struct ExitCodeWrapper(#[serde(with = "super")] Option<u8>);
        for (code, text) in [(Some(0), "0"), (Some(255), "255"), (None, "-1")] {
            assert_eq!(serde_json::to_string(&ExitCodeWrapper(code)).expect("serialises"), text);
            assert_eq!(serde_json::from_str::<ExitCodeWrapper>(text).expect("deserialises"), ExitCodeWrapper(code));
        }
        assert_eq!(
            serde_json::from_str::<ExitCodeWrapper>("null").expect("earlier versions wrote it"),
            ExitCodeWrapper(None)
        );
        for bad in ["-2", "256", "\"0\"", "1.5"] {
            assert!(serde_json::from_str::<ExitCodeWrapper>(bad).is_err(), "{bad}");
        }
    }
}
