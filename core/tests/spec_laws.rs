//! Properties of the spec parser on generated input: it never panics, serde_yaml also reads what it accepts, and
//! its spans are inside the text.

use std::path::Path;

use proctor_core::spec::{self, OperatorConfig, Spec};
use proctor_core::text::digest::Sha256Hex;
use proptest::prelude::*;

fn fixtures() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/specs");
    let mut texts = Vec::new();
    for kind in ["good", "bad"] {
        for entry in std::fs::read_dir(root.join(kind)).expect("the fixtures") {
            let path = entry.expect("an entry").path();
            if path.extension().is_some_and(|extension| extension == "yaml") {
                texts.extend(String::from_utf8(std::fs::read(path).expect("a fixture")));
            }
        }
    }
    texts
}

/// Parses a spec and checks the properties that hold for every result. Returns whether the spec was accepted.
fn check_parser_properties(bytes: &[u8]) -> bool {
    match spec::parse(bytes) {
        Ok(reading) => {
            let bytes = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes);
            // serde_yaml replaces merge keys only in untyped values.
            if !bytes.windows(2).any(|pair| pair == b"<<") {
                let other: Spec = serde_yaml::from_slice(bytes).expect("the second reader accepts it");
                let has_profiles = other.profiles.keys().next().is_some();
                assert!(!has_profiles || reading.spec == other, "{:?}\n{other:?}", reading.spec);
            }
            for (profile, _) in reading.spec.profiles.iter() {
                let digest = Sha256Hex::digest(bytes);
                let resolved = spec::resolve(&reading.spec, &profile.value, &OperatorConfig::default(), digest, 1);
                let plan = resolved.expect("an accepted spec has a plan").plan;
                assert!(plan.skills.iter().all(|skill| !skill.steps.is_empty()));
            }
            true
        }
        Err(found) => {
            assert!(!found.is_empty());
            for span in found.iter().filter_map(|problem| problem.span) {
                let (start, end) = (span.start as usize, span.end as usize);
                assert!(start <= end && end <= bytes.len() && span.line > 0 && span.column > 0, "{found:?}");
                if let Ok(text) = std::str::from_utf8(bytes) {
                    assert!(text.get(start..end).is_some(), "{found:?}");
                }
            }
            false
        }
    }
}

/// Generates fragments of specs and of unusual YAML.
fn yaml_fragment() -> impl Strategy<Value = String> {
    let words = [
        "version",
        ": ",
        "1",
        "skills",
        "profiles",
        "steps",
        "cmd",
        "name",
        "a",
        "\n",
        "\n  ",
        "\n    ",
        "- ",
        "[",
        "]",
        "{",
        "}",
        ", ",
        "'",
        "\"",
        "# c",
        "|",
        ">-",
        "~",
        "null",
        "true",
        "0x1F",
        "1e3",
        "017",
        "&a ",
        "*a",
        "!t ",
        "? ",
        "---\n",
        "...\n",
        "%YAML 1.2\n",
        "\t",
        "\r\n",
        "\\",
        "ä",
        "\u{2028}",
        "\u{feff}",
        "include",
        "needs",
        "<<",
        ".inf",
        "\\u0000",
    ];
    prop::sample::select(words.to_vec()).prop_map(str::to_owned)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn parses_or_rejects_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        check_parser_properties(&bytes);
    }

    #[test]
    fn parses_or_rejects_any_yaml_fragments(pieces in prop::collection::vec(yaml_fragment(), 0..60)) {
        check_parser_properties(pieces.concat().as_bytes());
    }

    #[test]
    fn parses_or_rejects_edited_specs(
        fixture in prop::sample::select(fixtures()),
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0..6usize, yaml_fragment()), 1..4),
    ) {
        let mut text = fixture;
        for (at, cut, piece) in edits {
            let mut start = at.index(text.len() + 1);
            while !text.is_char_boundary(start) {
                start -= 1;
            }
            let mut end = (start + cut).min(text.len());
            while !text.is_char_boundary(end) {
                end += 1;
            }
            text.replace_range(start..end, &piece);
        }
        check_parser_properties(text.as_bytes());
    }

    /// Both parsers give the scalars of a spec the same meaning, or the spec is rejected.
    #[test]
    fn parsers_agree_on_scalars(scalar in "[ -~ä]{0,12}", quote in prop::sample::select(vec!["", "'", "\""])) {
        let value = format!("{quote}{scalar}{quote}");
        for place in [
            format!("steps: [{{ name: a, cmd: [x, {value}] }}]"),
            format!("steps: [{{ name: a, cmd: {value} }}]"),
            format!("steps: [{{ name: a, cmd: x, timeout_ms: {value} }}]"),
            format!("steps: [{{ name: a, cmd: x, limits: {{ memory: {value} }} }}]"),
            format!("description: {value}\n    env: {{ A: {value} }}\n    steps: [{{ name: a, cmd: x }}]"),
        ] {
            let text = format!("version: 1\nprofiles: {{ p: {{ include: [s] }} }}\nskills:\n  s:\n    {place}\n");
            check_parser_properties(text.as_bytes());
        }
    }
}

/// Specs with thousands of items, in which a rule that compares every pair would take very long.
#[test]
fn handles_large_specs_quickly() {
    const MANY: usize = 3_000;
    let skill = |name: usize, keys: &str| format!("  s{name}: {{ {keys} steps: [{{ name: a, cmd: x }}] }}\n");
    let with = |include: String, skills: String, rest: &str| {
        format!("version: 1\n{rest}profiles: {{ p: {{ include: [{include}] }} }}\nskills:\n{skills}")
    };
    let all = |prefix: &str| (0..MANY).map(|n| format!("{prefix}{n}")).collect::<Vec<_>>().join(", ");
    let chain = |last: &str| {
        let needs = |n: usize| if n == 0 { format!("needs: [{last}],") } else { format!("needs: [s{}],", n - 1) };
        (0..MANY).map(|n| skill(n, &needs(n))).collect::<String>()
    };
    let plain: String = (0..MANY).map(|n| skill(n, "")).collect();
    let same_check_names: String =
        (0..MANY).map(|n| format!("  \"{}\": {{ required: [{{ cmd: x }}] }}\n", colliding_name(n))).collect();
    let clashing: String =
        (0..MANY).map(|n| format!("  \"{}\": {{ steps: [{{ name: a, cmd: x }}] }}\n", colliding_name(n))).collect();
    let cases = [
        ("a chain of needs", with(all("s"), chain(""), ""), true),
        ("a cycle of needs", with(all("s"), chain(&format!("s{}", MANY - 1)), ""), false),
        ("no include is known", with(all("t"), plain.clone(), ""), false),
        ("nothing is included twice", with(all("s"), plain.clone(), ""), true),
        ("checks of one name", with("s0".into(), skill(0, ""), &format!("toolchains:\n{same_check_names}")), true),
        ("artifacts of one name", with("s0".into(), clashing, ""), false),
        ("warnings without number", with("s0".into(), plain, ""), true),
    ];
    for (name, text, accepted) in cases {
        assert_eq!(check_parser_properties(text.as_bytes()), accepted, "{name}");
    }
}

/// Returns names that differ but become equal when reduced to the characters that file names keep.
fn colliding_name(number: usize) -> String {
    (0..14).map(|bit| if number >> bit & 1 == 1 { '/' } else { ' ' }).chain(['x']).collect()
}
