//! Tests of the complete list of codes.

use std::collections::BTreeSet;

use super::*;
use crate::decision::gate::GateCode;
use crate::decision::verdict::InconclusiveReason;
use crate::spec::Code as SpecCode;

#[test]
fn numbers_and_names_are_unique() {
    let numbers: BTreeSet<u16> = all().iter().map(|code| code.number).collect();
    let names: BTreeSet<&str> = all().iter().map(|code| code.name).collect();
    assert_eq!((numbers.len(), names.len()), (all().len(), all().len()));
    assert!(numbers.iter().all(|number| (1..1000).contains(number)), "{numbers:?}");
}

#[test]
fn explanations_are_complete() {
    for code in all() {
        let CodeExplanation { meaning: means, reason: why, remedy: mend, example } = code.explanation();
        for sentence in [means, why, mend] {
            assert!(
                sentence.ends_with('.') && sentence.starts_with(|c: char| c.is_uppercase() || c == '`'),
                "{code}: {sentence}"
            );
        }
        assert!(!example.is_empty() && example.lines().all(|line| line.len() <= 100), "{code}: {example}");
    }
}

/// A published code keeps its number and its name.
#[test]
fn published_codes_are_stable() {
    let list: Vec<String> = all().iter().map(|code| format!("{code} {}", code.name())).collect();
    insta::assert_snapshot!(list.join("\n"));
}

#[test]
fn finds_codes_by_number_and_name() {
    let unknown_key = SpecCode::UnknownKey.code();
    for text in ["P0116", "p0116", "116", "0116", "spec::unknown_key"] {
        assert_eq!(ErrorCode::find(text), Some(unknown_key), "{text}");
    }
    for text in ["", "P", "P9999", "P01160", "+116", "spec::", "P-1"] {
        assert_eq!(ErrorCode::find(text), None, "{text}");
    }
    for code in all() {
        let json = serde_json::to_string(&code).expect("writes");
        assert_eq!(serde_json::from_str::<ErrorCode>(&json).expect("reads"), *code);
    }
}

/// The name of a code is the name of its enum followed by its name in documents.
#[test]
fn code_names_match_serialized_names() {
    let word = |value: serde_json::Value| value.as_str().expect("a word").to_owned();
    for code in gate::ALL {
        let word = word(serde_json::to_value(code).expect("JSON"));
        assert_eq!(GateCode::code(code).name(), format!("gate::{word}"));
    }
    for doubt in run::ALL {
        let word = word(serde_json::to_value(doubt).expect("JSON"));
        assert_eq!(InconclusiveReason::code(doubt).name(), format!("run::{word}"));
    }
}
