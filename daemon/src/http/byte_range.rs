//! Parses the requested byte range, given by `offset` and `limit` or by a `Range` header (RFC 9110, section 14). A
//! header that is not a single byte range is ignored, as the RFC requires.

use proctor_core::api::Problem;

use super::query_parameters::{invalid_request, parse_number};
use super::request_head::RequestHead;

/// A requested byte range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestedRange {
    /// The whole output.
    Whole,
    /// At most `limit` bytes from `offset` on. The range may be empty at the end; an offset beyond the end is an
    /// error.
    Part { offset: u64, limit: u64 },
    /// The range of a header; it must not be empty.
    Header(HeaderRange),
}

/// The range in a `Range` header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HeaderRange {
    /// The offsets of the first and the last byte, inclusive.
    Between { first: u64, last: u64 },
    /// The last bytes of the output; the value is their number.
    Last(u64),
}

impl RequestedRange {
    /// Returns the range of a request.
    ///
    /// # Errors
    /// `offset` or `limit` is not a number, or is combined with a `Range` header.
    pub(super) fn from_request(head: &RequestHead) -> Result<Self, Problem> {
        let offset = head.query.parse_with("offset", "a number of bytes", parse_number)?;
        let limit = head
            .query
            .parse_with("limit", "a number of bytes, at least 1", |text| parse_number(text).filter(|n| *n > 0))?;
        if offset.is_some() || limit.is_some() {
            if head.headers.contains_key(http::header::RANGE) {
                let detail = "`offset` and `limit` cannot be combined with the header `Range`".to_owned();
                return Err(invalid_request(detail).with_hint("send one of them"));
            }
            return Ok(Self::Part { offset: offset.unwrap_or(0), limit: limit.unwrap_or(u64::MAX) });
        }
        // `If-Range` never matches, because responses have no validators.
        let header = head.header(&http::header::RANGE)?.filter(|_| !head.headers.contains_key(http::header::IF_RANGE));
        Ok(header.and_then(HeaderRange::parse).map_or(Self::Whole, Self::Header))
    }

    /// Returns the start of the range as far as it is known without the total length.
    pub(super) fn probable_start(self) -> u64 {
        match self {
            Self::Part { offset, .. } => offset,
            Self::Header(HeaderRange::Between { first, .. }) => first,
            Self::Whole | Self::Header(HeaderRange::Last(_)) => 0,
        }
    }

    /// Returns the bytes of the range within `length` bytes, or `None` if the range cannot be satisfied.
    pub(super) fn resolve(self, length: u64) -> Option<std::ops::Range<u64>> {
        match self {
            Self::Whole => Some(0..length),
            Self::Part { offset, limit } => {
                (offset <= length).then(|| offset..offset.saturating_add(limit).min(length))
            }
            Self::Header(HeaderRange::Between { first, last }) => {
                (first < length).then(|| first..last.saturating_add(1).min(length))
            }
            Self::Header(HeaderRange::Last(count)) => {
                (count > 0 && length > 0).then(|| length.saturating_sub(count)..length)
            }
        }
    }
}

impl HeaderRange {
    fn parse(header: &str) -> Option<Self> {
        let (unit, spec) = header.split_once('=')?;
        let (first, last) = spec.trim().split_once('-')?;
        if !unit.trim().eq_ignore_ascii_case("bytes") {
            return None;
        }
        match (first.trim(), last.trim()) {
            ("", last) => parse_number(last).map(Self::Last),
            (first, "") => parse_number(first).map(|first| Self::Between { first, last: u64::MAX }),
            (first, last) => {
                let (first, last) = (parse_number(first)?, parse_number(last)?);
                (first <= last).then_some(Self::Between { first, last })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve_header(header: &str, length: u64) -> Option<std::ops::Range<u64>> {
        HeaderRange::parse(header).map_or(RequestedRange::Whole, RequestedRange::Header).resolve(length)
    }

    #[test]
    fn parses_range_header_per_rfc() {
        for (header, found) in [
            ("bytes=0-0", Some(0..1)),
            ("bytes=2-", Some(2..10)),
            ("bytes=-3", Some(7..10)),
            ("bytes=-99", Some(0..10)),
            ("bytes=5-99999999999", Some(5..10)),
            ("Bytes = 1 - 2", Some(1..3)),
            ("bytes=10-", None),
            ("bytes=-0", None),
            // Not a single byte range, so the header is ignored.
            ("bytes=3-2", Some(0..10)),
            ("bytes=0-1,4-5", Some(0..10)),
            ("lines=1-2", Some(0..10)),
            ("bytes=-", Some(0..10)),
            ("bytes=99999999999999999999-", Some(0..10)),
        ] {
            assert_eq!(resolve_header(header, 10), found, "{header}");
        }
        assert_eq!(resolve_header("bytes=-1", 0), None);
    }

    #[test]
    fn offset_is_at_most_the_length() {
        let part = |offset, limit| RequestedRange::Part { offset, limit }.resolve(10);
        assert_eq!(part(0, 4), Some(0..4));
        assert_eq!(part(8, u64::MAX), Some(8..10));
        assert_eq!(part(10, 1), Some(10..10));
        assert_eq!(part(11, 1), None);
        assert_eq!(part(u64::MAX, u64::MAX), None);
    }
}
