//! One command under one policy.
