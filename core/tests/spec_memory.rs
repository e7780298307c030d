//! Memory limit for hostile specs: they are rejected in less than 16 MiB in addition to their own size. This is a
//! separate program, because the counting allocator applies to the whole process.

use peak_alloc::PeakAlloc;
use proctor_core::spec::{self, Code};

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

const MAX_PEAK_BYTES: usize = 16 << 20;

/// Returns the codes with which `bytes` are rejected, and the peak memory use.
fn measure_rejection(bytes: &[u8]) -> (Vec<Code>, usize) {
    ALLOCATOR.reset_peak_usage();
    let before = ALLOCATOR.current_usage();
    let found = spec::parse(bytes).expect_err("hostile");
    let peak = ALLOCATOR.peak_usage() - before;
    (found.iter().map(|problem| problem.code).collect(), peak)
}

fn alias_bomb() -> String {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..64 {
        let before = level - 1;
        text.push_str(&format!("a{level}: &a{level} [{}]\n", vec![format!("*a{before}"); 10].join(", ")));
    }
    text
}

fn block_depth(levels: usize) -> String {
    (0..levels).map(|level| format!("{}a:\n", " ".repeat(level))).collect()
}

/// A single test, because allocations of parallel tests would count as well.
#[test]
fn rejects_hostile_specs_with_little_memory() {
    let megabyte = |unit: &str| unit.repeat((1 << 20) / unit.len());
    let unknown_keys: String = (0..40_000).map(|number| format!("k{number}: 1\n")).collect();
    let aliases = format!("a: &a x\nb: [{}]\n", "*a, ".repeat(200_000));
    let cases: Vec<(&str, String, Code)> = vec![
        ("alias bomb", alias_bomb(), Code::Alias),
        ("many aliases", aliases, Code::Alias),
        ("100 MB", "a".repeat(100 << 20), Code::TooLarge),
        ("flow maps 10,000 deep", "{a: ".repeat(10_000), Code::TooDeep),
        ("flow lists 10,000 deep", "[".repeat(10_000), Code::TooDeep),
        ("closed lists 10,000 deep", "[".repeat(10_000) + &"]".repeat(10_000), Code::TooDeep),
        ("block lists 10,000 deep", "- ".repeat(10_000), Code::TooDeep),
        ("block maps 1,000 deep", block_depth(1_000), Code::TooDeep),
        (
            "deep behind a comment's odd line break",
            "# c\u{85}".to_owned() + &"{a: ".repeat(64_000),
            Code::ForbiddenCharacter,
        ),
        ("256 KiB of open maps", "{a: ".repeat(64 << 10), Code::TooDeep),
        ("one scalar", megabyte("x"), Code::WrongType),
        ("one quoted scalar that never ends", "\"".to_owned() + &"x".repeat((1 << 20) - 1), Code::Syntax),
        ("unknown keys", unknown_keys, Code::UnknownKey),
        ("a million values", "[".to_owned() + &megabyte("a,")[2..], Code::TooManyValues),
        ("tags", "a: [".to_owned() + &"!t x, ".repeat(150_000) + "]", Code::Tag),
        ("anchors", (0..40_000).map(|number| format!("k{number}: &a{number} 1\n")).collect(), Code::Alias),
        ("a directive", "%".to_owned() + &"x".repeat(1 << 19) + "\n---\na: 1\n", Code::Directive),
        ("comments", megabyte("# comment\n"), Code::Empty),
    ];
    for (name, text, code) in cases {
        let (codes, peak) = measure_rejection(text.as_bytes());
        assert!(codes.contains(&code), "{name}: {code} is not in {:?}", codes.iter().take(5).collect::<Vec<_>>());
        assert!(codes.len() <= 257, "{name}: {} diagnostics", codes.len());
        assert!(peak < MAX_PEAK_BYTES, "{name}: {} KiB", peak >> 10);
    }
}
