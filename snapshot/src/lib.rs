//! What a tree is, and what changed in it.
