//! Reads.
use super::protocol::{Answer, Request};
/// Answers one request.
pub fn answer(_request: &Request) -> Answer {
    unimplemented!()
}
