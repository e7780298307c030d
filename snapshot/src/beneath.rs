//! Opens below a directory.
