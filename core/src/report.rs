//! Runs as other programs and readers have them: one pure function a format.

pub mod html;
