//! Writes a `GIT binary patch`: both contents completely, as a zlib stream in base 85 (git's `diff.c` and
//! `base85.c`). The content is not compressed; the stream contains stored blocks only (RFC 1950, RFC 1951 3.2.4).

/// The characters of git's base 85, in order.
const ALPHABET: &[u8; 85] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~";
/// Number of bytes in a line.
const LINE: usize = 52;
/// Number of bytes in a stored block.
const BLOCK: usize = 65_535;
/// The modulus of Adler-32.
const ADLER: u32 = 65_521;

/// Writes the change, and its reverse for `git apply --reverse`.
pub(super) fn write_binary_patch([old, new]: [&[u8]; 2], text: &mut Vec<u8>) {
    text.extend_from_slice(b"GIT binary patch\n");
    for content in [new, old] {
        text.extend_from_slice(format!("literal {}\n", content.len()).as_bytes());
        for chunk in zlib_stream(content).chunks(LINE) {
            push_line(chunk, text);
        }
        text.push(b'\n');
    }
}

fn push_line(bytes: &[u8], text: &mut Vec<u8>) {
    // `A` to `Z` mean 1 to 26 bytes, `a` to `z` mean 27 to 52.
    let length = u8::try_from(bytes.len()).unwrap_or_default();
    text.push(if length <= 26 { b'A' + length - 1 } else { b'a' + length - 27 });
    for group in bytes.chunks(4) {
        let mut word = [0; 4];
        word[..group.len()].copy_from_slice(group);
        let mut value = u32::from_be_bytes(word);
        let mut digits = [0; 5];
        for digit in digits.iter_mut().rev() {
            *digit = ALPHABET[(value % 85) as usize];
            value /= 85;
        }
        text.extend_from_slice(&digits);
    }
    text.push(b'\n');
}

fn zlib_stream(content: &[u8]) -> Vec<u8> {
    let mut stream = vec![0x78, 0x01];
    let mut blocks = content.chunks(BLOCK).peekable();
    if blocks.peek().is_none() {
        push_block(&[], true, &mut stream);
    }
    while let Some(block) = blocks.next() {
        push_block(block, blocks.peek().is_none(), &mut stream);
    }
    stream.extend_from_slice(&adler32(content).to_be_bytes());
    stream
}

fn push_block(block: &[u8], last: bool, stream: &mut Vec<u8>) {
    let length = u16::try_from(block.len()).unwrap_or_default();
    stream.push(u8::from(last));
    stream.extend_from_slice(&length.to_le_bytes());
    stream.extend_from_slice(&(!length).to_le_bytes());
    stream.extend_from_slice(block);
}

fn adler32(content: &[u8]) -> u32 {
    let (mut a, mut b) = (1, 0);
    for byte in content {
        a = (a + u32::from(*byte)) % ADLER;
        b = (b + a) % ADLER;
    }
    b << 16 | a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adler32_matches_rfc_1950() {
        assert_eq!(adler32(b"Wikipedia"), 0x11e6_0398);
        assert_eq!(adler32(b""), 1);
    }

    #[test]
    fn marks_last_stored_block() {
        assert_eq!(zlib_stream(b""), [0x78, 1, 1, 0, 0, 0xff, 0xff, 0, 0, 0, 1]);
        let long = zlib_stream(&vec![0; BLOCK + 1]);
        assert_eq!((long[2], long[2 + 5 + BLOCK]), (0, 1));
    }
}
