//! The content store and the action cache of a server.

mod action_cache;
mod batches;
mod byte_stream;
mod capabilities;
