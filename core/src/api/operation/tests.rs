//! Tests of `operation`.

use std::collections::BTreeSet;

use super::*;

#[test]
fn operation_routes_and_ids_are_unique() {
    let routes: BTreeSet<_> = OperationDescription::ALL.iter().map(|outline| (outline.path, outline.method)).collect();
    let names: BTreeSet<_> = OperationDescription::ALL.iter().map(|outline| outline.id).collect();
    assert_eq!((routes.len(), names.len()), (OperationDescription::ALL.len(), OperationDescription::ALL.len()));
}

#[test]
fn path_placeholders_match_path_parameters() {
    for outline in OperationDescription::ALL {
        let segments = outline.path.split('/').filter_map(|segment| segment.strip_prefix('{')?.strip_suffix('}'));
        let of_path = outline.parameters.iter().filter(|parameter| parameter.location == ParameterLocation::Path);
        assert!(segments.eq(of_path.map(|parameter| parameter.name)), "{}", outline.id);
    }
}
