//! Tests of `namespace_setup`.

use super::*;

#[test]
fn decodes_escaped_mount_points() {
    assert_eq!(unescape(b"/a\\040b\\134c"), Path::new("/a b\\c"));
    assert_eq!(unescape(b"/a\\"), Path::new("/a\\"));
}
