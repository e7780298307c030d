//! Configurations as they are published, and hostile ones.
