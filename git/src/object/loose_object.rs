//! Encodes objects as git stores single ones (gitrepository-layout(5)). Equal objects have equal bytes on every machine.

use std::io::{self, Write as _};

use flate2::Compression;
use flate2::write::ZlibEncoder;

use crate::object::object_id::{ObjectId, ObjectKind};

/// Level of the compression: most of the gain for little time.
const LEVEL: u32 = 1;
/// Number of hex digits of an id that name the directory of an object.
const DIRECTORY_DIGITS: usize = 2;

/// A file below `objects/` of a git directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LooseObject {
    /// The id of the object.
    pub id: ObjectId,
    /// The content of the file.
    pub file: Vec<u8>,
}

impl LooseObject {
    /// Encodes an object.
    ///
    /// # Errors
    /// The compression failed.
    pub(crate) fn encode(id: ObjectId, kind: ObjectKind, content: &[u8]) -> io::Result<Self> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::new(LEVEL));
        encoder.write_all(format!("{} {}\0", kind.as_str(), content.len()).as_bytes())?;
        encoder.write_all(content)?;
        Ok(Self { id, file: encoder.finish()? })
    }

    /// Returns the path of the file below `objects/`.
    pub fn path(&self) -> String {
        let id = self.id.to_string();
        let (directory, name) = id.split_at(DIRECTORY_DIGITS);
        format!("{directory}/{name}")
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;
    use crate::object::object_id::{ObjectFormat, object_id};

    #[test]
    fn encodes_header_and_content() {
        for content in [&b""[..], b"hi\n", &[7; 100_000]] {
            let id = object_id(ObjectFormat::Sha1, ObjectKind::Blob, content);
            let object = LooseObject::encode(id, ObjectKind::Blob, content).expect("encodes");
            let mut decoded = Vec::new();
            flate2::read::ZlibDecoder::new(object.file.as_slice()).read_to_end(&mut decoded).expect("decodes");
            assert_eq!(decoded, [format!("blob {}\0", content.len()).as_bytes(), content].concat());
            assert_eq!(object, LooseObject::encode(id, ObjectKind::Blob, content).expect("encodes"));
        }
    }

    #[test]
    fn path_consists_of_directory_and_name() {
        let id = ObjectId::from_hex("45b983be36b73c0788dc9cbcb76cbb80fc7bb057".as_bytes()).expect("an id");
        let object = LooseObject { id, file: Vec::new() };
        assert_eq!(object.path(), "45/b983be36b73c0788dc9cbcb76cbb80fc7bb057");
    }
}
