//! Parses HTTP/1.1 responses without a runtime; the caller passes the received bytes. Supports only the two body
//! encodings that the daemon uses: content length and chunks.

/// Maximum length in bytes of a head; `MAX_LINE` limits the line before a chunk.
const MAX_HEAD: usize = 64 << 10;
const MAX_LINE: usize = 1 << 10;

/// A response being parsed.
#[derive(Debug, Default)]
pub(crate) struct ResponseParser {
    buffer: Vec<u8>,
    state: ResponseState,
}

/// Part of the response that is expected next.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum ResponseState {
    #[default]
    Head,
    /// Remaining bytes of a body with a content length.
    Sized(usize),
    ChunkSize,
    /// Remaining bytes of a chunk.
    Chunk(usize),
    ChunkEnd,
    Trailers,
    Ended,
}

/// A piece of a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ResponsePart {
    /// The head, with its status code.
    Head(u16),
    /// Bytes of the body.
    Body(Vec<u8>),
    /// The end of the response. Another response may follow.
    End,
}

impl ResponseParser {
    /// Adds received bytes.
    pub(crate) fn push_bytes(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next piece, or `None` if more bytes are needed.
    ///
    /// # Errors
    /// The response is invalid or unsupported; the text describes why.
    pub(crate) fn next_part(&mut self) -> Result<Option<ResponsePart>, &'static str> {
        loop {
            self.state = match self.state {
                ResponseState::Head => {
                    let Some(head) = self.take_until(b"\r\n\r\n", MAX_HEAD)? else { return Ok(None) };
                    let (status, state) = parse_head(&head)?;
                    self.state = state;
                    return Ok(Some(ResponsePart::Head(status)));
                }
                ResponseState::Sized(0) | ResponseState::Ended => {
                    self.state = ResponseState::Head;
                    return Ok(Some(ResponsePart::End));
                }
                ResponseState::Chunk(0) => ResponseState::ChunkEnd,
                ResponseState::Sized(left) => return Ok(self.take_body(left, ResponseState::Sized)),
                ResponseState::Chunk(left) => return Ok(self.take_body(left, ResponseState::Chunk)),
                ResponseState::ChunkSize => {
                    let Some(line) = self.take_until(b"\r\n", MAX_LINE)? else { return Ok(None) };
                    match parse_chunk_size(&line)? {
                        0 => ResponseState::Trailers,
                        size => ResponseState::Chunk(size),
                    }
                }
                ResponseState::ChunkEnd => match self.take_until(b"\r\n", 0)? {
                    Some(_) => ResponseState::ChunkSize,
                    None => return Ok(None),
                },
                ResponseState::Trailers => match self.take_until(b"\r\n", MAX_HEAD)? {
                    Some(line) if line.is_empty() => ResponseState::Ended,
                    Some(_) => ResponseState::Trailers,
                    None => return Ok(None),
                },
            };
        }
    }

    /// Removes the bytes up to and including `end` and returns those before it, or `None` if `end` was not received
    /// yet.
    fn take_until(&mut self, end: &[u8], max_bytes: usize) -> Result<Option<Vec<u8>>, &'static str> {
        match self.buffer.windows(end.len()).take(max_bytes + 1).position(|window| window == end) {
            Some(at) => {
                let mut taken: Vec<u8> = self.buffer.drain(..at + end.len()).collect();
                taken.truncate(at);
                Ok(Some(taken))
            }
            None if self.buffer.len() >= max_bytes + end.len() => Err("a line of it is too long, or is malformed"),
            None => Ok(None),
        }
    }

    fn take_body(&mut self, left: usize, state: impl FnOnce(usize) -> ResponseState) -> Option<ResponsePart> {
        let count = left.min(self.buffer.len());
        self.state = state(left - count);
        (count > 0).then(|| ResponsePart::Body(self.buffer.drain(..count).collect()))
    }
}

/// Parses a head. Returns the status code and the state that follows.
fn parse_head(head: &[u8]) -> Result<(u16, ResponseState), &'static str> {
    let head = std::str::from_utf8(head).map_err(|_| "its head is not text")?;
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1.1 "));
    let status = status.and_then(|rest| rest.get(..3)).and_then(|digits| digits.parse().ok());
    let status = status.filter(|status| (200..600).contains(status)).ok_or("it has no status")?;
    let (mut length, mut is_chunked) = (None, false);
    for line in lines {
        let (name, value) = line.split_once(':').ok_or("a field of its head has no name")?;
        let value = value.trim_matches([' ', '\t']);
        if name.eq_ignore_ascii_case("content-length") {
            let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
            let number = value.parse().ok().filter(|_| is_number && length.is_none());
            length = Some(number.ok_or("its length is not a number")?);
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            is_chunked = value.eq_ignore_ascii_case("chunked") && !is_chunked;
            if !is_chunked {
                return Err("its body has an encoding that was not requested");
            }
        }
    }
    match (length, is_chunked) {
        (Some(length), false) => Ok((status, ResponseState::Sized(length))),
        (None, true) => Ok((status, ResponseState::ChunkSize)),
        (None, false) if status == 204 => Ok((status, ResponseState::Ended)),
        _ => Err("its head does not specify the length of its body"),
    }
}

/// Parses the size of a chunk; extensions are ignored.
fn parse_chunk_size(line: &[u8]) -> Result<usize, &'static str> {
    let digits = line.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    let is_hex = !digits.is_empty() && digits.iter().all(u8::is_ascii_hexdigit);
    let text = std::str::from_utf8(digits).ok().filter(|_| is_hex);
    text.and_then(|text| usize::from_str_radix(text, 16).ok()).ok_or("a chunk of it has no size")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses a text that arrives in parts of the given size.
    fn parse_all(text: &str, part: usize) -> Result<Vec<ResponsePart>, &'static str> {
        let (mut answer, mut pieces) = (ResponseParser::default(), Vec::new());
        for bytes in text.as_bytes().chunks(part) {
            answer.push_bytes(bytes);
            while let Some(piece) = answer.next_part()? {
                match (pieces.last_mut(), piece) {
                    (Some(ResponsePart::Body(before)), ResponsePart::Body(more)) => before.extend(more),
                    (_, piece) => pieces.push(piece),
                }
            }
        }
        Ok(pieces)
    }

    #[test]
    fn parses_sized_and_chunked_bodies_in_any_split() {
        let text = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc\
            HTTP/1.1 503 No\r\ntransfer-encoding: chunked\r\nx: y:z\r\n\r\n2\r\nde\r\nA;x=1\r\nfghijklmno\r\n0\r\na: b\r\n\r\n\
            HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
        let body = |text: &str| ResponsePart::Body(text.into());
        let first = [ResponsePart::Head(200), body("abc"), ResponsePart::End];
        let second = [ResponsePart::Head(503), body("defghijklmno"), ResponsePart::End];
        let last = [ResponsePart::Head(204), ResponsePart::End, ResponsePart::Head(200), ResponsePart::End];
        let expected: Vec<ResponsePart> = first.into_iter().chain(second).chain(last).collect();
        for part in 1..=text.len() {
            assert_eq!(parse_all(text, part), Ok(expected.clone()), "in parts of {part}");
        }
    }

    #[test]
    fn reports_no_end_of_incomplete_response() {
        let texts = [
            "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nab",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n",
        ];
        for text in texts {
            assert_eq!(
                parse_all(text, 7),
                Ok(vec![ResponsePart::Head(200), ResponsePart::Body(b"ab".into())]),
                "{text}"
            );
        }
    }

    #[test]
    fn rejects_invalid_responses() {
        let heads = [
            "SSH-2.0-x",
            "HTTP/1.0 200 OK\r\ncontent-length: 0",
            "HTTP/1.1 2x0 OK\r\ncontent-length: 0",
            "HTTP/1.1 100 Continue",
            "HTTP/1.1 200 OK",
            "HTTP/1.1 200 OK\r\ncontent-length: -1",
            "HTTP/1.1 200 OK\r\ncontent-length: +1",
            "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 1",
            "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip",
            "HTTP/1.1 200 OK\r\nno field",
        ];
        for head in heads {
            assert!(parse_all(&format!("{head}\r\n\r\n"), 9).is_err(), "{head}");
        }
        let chunks = ["x\r\n", "\r\n", "-1\r\n", "1\r\nabc", "fffffffffffffffff\r\n"];
        for chunk in chunks {
            assert!(
                parse_all(&format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{chunk}"), 64).is_err(),
                "{chunk}"
            );
        }
        assert!(parse_all(&"x".repeat(MAX_HEAD + 4), 4096).is_err(), "a head without an end");
    }
}
