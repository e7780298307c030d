//! Encodes the messages between a worker and its clients: frames over one socket, each after its length in four bytes
//! (little-endian). An answer is JSON. A request is one byte for its kind, and then JSON.

use std::io::{self, Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// The maximum size of a frame, in bytes.
pub const MAX_FRAME_BYTES: usize = 64 << 20;

/// The message that a worker sends when it is ready.
pub const READY_MESSAGE: &str = "proctor-sql 2";

/// The size of the length before the content of a frame, in bytes.
const HEADER_BYTES: usize = 4;

/// The kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestKind {
    /// To judge a text.
    Judge,
    /// To judge a text, and to run it if the verdict is `ok`.
    Run,
    /// To describe a schema.
    Describe,
}

impl RequestKind {
    /// The kinds; the position of a kind is its byte in a frame.
    const ALL: [Self; 3] = [Self::Judge, Self::Run, Self::Describe];

    fn byte(self) -> u8 {
        match self {
            Self::Judge => 0,
            Self::Run => 1,
            Self::Describe => 2,
        }
    }
}

/// Returns a value as one frame.
///
/// # Errors
/// The frame is larger than [`MAX_FRAME_BYTES`].
pub fn encode_frame<T: Serialize>(value: &T) -> io::Result<Vec<u8>> {
    let mut frame = Vec::new();
    encode_frame_into(&mut frame, value)?;
    Ok(frame)
}

/// Writes a value as one frame to a buffer, and discards the previous content of the buffer. Callers reuse the buffer
/// for the next frame.
///
/// # Errors
/// The frame is larger than [`MAX_FRAME_BYTES`].
pub fn encode_frame_into<T: Serialize>(frame: &mut Vec<u8>, value: &T) -> io::Result<()> {
    encode_tagged(frame, None, value)
}

/// Writes a request as one frame to a buffer, and discards the previous content of the buffer.
///
/// # Errors
/// The frame is larger than [`MAX_FRAME_BYTES`].
pub fn encode_request_into<T: Serialize>(frame: &mut Vec<u8>, kind: RequestKind, request: &T) -> io::Result<()> {
    encode_tagged(frame, Some(kind), request)
}

fn encode_tagged<T: Serialize>(frame: &mut Vec<u8>, kind: Option<RequestKind>, value: &T) -> io::Result<()> {
    reset_buffer(frame);
    frame.resize(HEADER_BYTES, 0);
    frame.extend(kind.map(RequestKind::byte));
    serde_json::to_writer(&mut *frame, value)?;
    let length = frame.len() - HEADER_BYTES;
    let length = u32::try_from(length).ok().filter(|_| length <= MAX_FRAME_BYTES);
    let length = length.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a frame is too large"))?;
    frame[..HEADER_BYTES].copy_from_slice(&length.to_le_bytes());
    Ok(())
}

/// Clears a buffer and reserves the usual size of a frame.
fn reset_buffer(buffer: &mut Vec<u8>) {
    buffer.clear();
    buffer.shrink_to(MAX_KEPT_CAPACITY);
    buffer.reserve(INITIAL_CAPACITY);
}

/// Writes one frame with a single write, so that the other side wakes up once.
///
/// # Errors
/// The frame is larger than [`MAX_FRAME_BYTES`], or the other side has closed the connection.
pub fn write_frame<T: Serialize>(mut to: impl Write, value: &T) -> io::Result<()> {
    to.write_all(&encode_frame(value)?)?;
    to.flush()
}

/// Reads one frame; returns `None` if the other side has closed the connection.
///
/// # Errors
/// The connection ends within a frame, or the frame is invalid.
pub fn read_frame<T: DeserializeOwned>(from: impl Read) -> io::Result<Option<T>> {
    let Some(json) = read_content(from)? else { return Ok(None) };
    Ok(Some(serde_json::from_slice(&json)?))
}

/// A request as it was received.
pub struct ReceivedRequest {
    /// The kind of the request.
    pub kind: RequestKind,
    /// The content of the frame: the byte for the kind, and the JSON.
    content: Vec<u8>,
}

impl ReceivedRequest {
    /// Parses the request.
    ///
    /// # Errors
    /// The JSON is not a request of this type.
    pub fn parse<T: DeserializeOwned>(&self) -> io::Result<T> {
        Ok(serde_json::from_slice(&self.content[1..])?)
    }
}

/// Reads one request; returns `None` if the other side has closed the connection.
///
/// # Errors
/// The connection ends within a frame, or the kind of the request is unknown.
pub fn read_request(from: impl Read) -> io::Result<Option<ReceivedRequest>> {
    let Some(content) = read_content(from)? else { return Ok(None) };
    let kind = content.first().and_then(|byte| RequestKind::ALL.get(usize::from(*byte))).copied();
    let kind = kind.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a request of an unknown kind"))?;
    Ok(Some(ReceivedRequest { kind, content }))
}

/// Reads the content of one frame; returns `None` if the other side has closed the connection.
fn read_content(mut from: impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut head = [0; HEADER_BYTES];
    match from.read(&mut head)? {
        0 => return Ok(None),
        read => from.read_exact(&mut head[read..])?,
    }
    let mut content = vec![0; parse_length(head)?];
    from.read_exact(&mut content)?;
    Ok(Some(content))
}

/// Reads one frame asynchronously; returns `None` if the other side has closed the connection. The previous content of
/// the buffer `bytes` is discarded. Callers reuse the buffer for the next frame.
///
/// # Errors
/// The connection ends within a frame, or the frame is invalid.
pub async fn read_frame_async<T: DeserializeOwned>(
    from: &mut (impl AsyncRead + Unpin),
    bytes: &mut Vec<u8>,
) -> io::Result<Option<T>> {
    reset_buffer(bytes);
    let mut whole = None;
    while whole.is_none_or(|whole| bytes.len() < whole) {
        if from.read_buf(bytes).await? == 0 {
            return if bytes.is_empty() { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
        }
        if let (None, Some(head)) = (whole, bytes.first_chunk::<HEADER_BYTES>()) {
            let length = HEADER_BYTES + parse_length(*head)?;
            bytes.reserve(length.saturating_sub(bytes.len()));
            whole = Some(length);
        }
    }
    match whole {
        Some(whole) if bytes.len() == whole => Ok(Some(serde_json::from_slice(&bytes[HEADER_BYTES..])?)),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "there is more than one frame")),
    }
}

/// The capacity of a buffer before the length of a frame is known, in bytes.
const INITIAL_CAPACITY: usize = 8 << 10;
/// The largest capacity that a buffer keeps between two frames, in bytes.
const MAX_KEPT_CAPACITY: usize = 64 << 10;

fn parse_length(head: [u8; HEADER_BYTES]) -> io::Result<usize> {
    let length = u32::from_le_bytes(head) as usize;
    if length > MAX_FRAME_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame is too large"));
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn received(mut bytes: &[u8]) -> io::Result<Option<Vec<u32>>> {
        read_frame_async(&mut bytes, &mut Vec::new()).await
    }

    #[tokio::test]
    async fn buffer_is_reused_between_frames() {
        let mut buffer = Vec::new();
        for length in [70_000, 3, 0] {
            let sent = vec![7_u32; length];
            let bytes = encode_frame(&sent).expect("small enough");
            assert_eq!(
                read_frame_async::<Vec<u32>>(&mut bytes.as_slice(), &mut buffer).await.expect("a frame"),
                Some(sent)
            );
        }
        assert!(buffer.capacity() <= MAX_KEPT_CAPACITY, "{} bytes are kept", buffer.capacity());
    }

    #[tokio::test]
    async fn reassembles_split_frames() {
        let sent: Vec<u32> = (0..3_000).collect();
        let bytes = encode_frame(&sent).expect("small enough");
        assert_eq!(received(&bytes).await.expect("a frame"), Some(sent.clone()));
        assert_eq!(read_frame::<Vec<u32>>(bytes.as_slice()).expect("a frame"), Some(sent.clone()));
        let (mut ours, mut theirs) = tokio::io::duplex(3);
        let mut buffer = Vec::new();
        let writes = async { tokio::io::AsyncWriteExt::write_all(&mut theirs, &bytes).await };
        let (written, cut) = tokio::join!(writes, read_frame_async::<Vec<u32>>(&mut ours, &mut buffer));
        written.expect("writes");
        assert_eq!(cut.expect("a frame"), Some(sent));
    }

    #[test]
    fn requests_keep_their_kind() {
        let mut frame = Vec::new();
        for kind in RequestKind::ALL {
            encode_request_into(&mut frame, kind, &[7_u32, 8]).expect("small enough");
            let received = read_request(frame.as_slice()).expect("a request").expect("not the end");
            assert_eq!((received.kind, received.parse::<Vec<u32>>().expect("numbers")), (kind, vec![7, 8]));
        }
        frame[HEADER_BYTES] = 9;
        let unknown = read_request(frame.as_slice()).err().expect("an unknown kind");
        assert_eq!(unknown.kind(), io::ErrorKind::InvalidData);
        assert!(read_request(0_u32.to_le_bytes().as_slice()).is_err(), "a request without a kind");
    }

    #[tokio::test]
    async fn rejects_invalid_frames() {
        let bytes = encode_frame(&[7_u32]).expect("small enough");
        assert!(received(&[]).await.expect("the end").is_none());
        for length in 1..bytes.len() {
            let error = received(&bytes[..length]).await.expect_err("it is cut off");
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{length}");
        }
        let too_large = u32::MAX.to_le_bytes();
        for bad in [[bytes.as_slice(), &bytes].concat(), too_large.to_vec()] {
            assert_eq!(received(&bad).await.expect_err("bad").kind(), io::ErrorKind::InvalidData);
        }
    }
}
