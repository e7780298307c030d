//! Encodes the answers of `proctor-git`.

pub mod answer_frames;
pub mod codec;
pub mod listing_encoding;
