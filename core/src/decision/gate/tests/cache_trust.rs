//! Caches of a wider scope than the caller accepts.

use super::{GateScenario, run_id};
use crate::decision::gate::GateCode;
use crate::model::cache::{CacheEnd, CacheEvidence, CacheShown, CacheTrust, TransparentCache};
use crate::model::plan::RelPath;
use crate::record::evidence::ReuseSource;
use crate::text::digest::Sha256Hex;

#[test]
fn rejects_caches_of_wider_scope_than_accepted() {
    let cache = |trust| CacheEvidence {
        path: RelPath::new("target").expect("a path"),
        scope: "branch:feature".into(),
        trust,
        base: None,
        form: CacheShown::Layers,
        end: CacheEnd::Committed,
        reason: None,
    };
    let (none, branch, default) = (CacheTrust::None, CacheTrust::Branch, CacheTrust::Default);
    let codes = |trust, most| {
        let scenario = GateScenario::new().with(|w| w.skills[1].measured.caches = vec![cache(none), cache(trust)]);
        scenario.with(|w| w.requirements.max_cache_trust = most).finding_codes()
    };
    for (trust, most) in [(none, none), (none, branch), (branch, branch), (branch, default), (default, default)] {
        assert!(codes(trust, most).is_empty(), "{trust} {most}");
    }
    for (trust, most) in [(branch, none), (default, none), (default, branch)] {
        assert_eq!(codes(trust, most), [GateCode::CacheTooWide], "{trust} {most}");
    }
}

#[test]
fn rejects_caches_of_the_execution_of_a_cached_step() {
    let source = |trust| ReuseSource {
        run_id: run_id("r1"),
        executed_at: "2026-01-02T03:04:05.000Z".into(),
        inputs_sha256: Sha256Hex::digest(b"inputs"),
        inputs: 3,
        whole_tree: false,
        transparent_caches: vec![TransparentCache { path: RelPath::new("target").expect("a path"), trust }],
        origin: None,
    };
    let codes = |trust, most| {
        let scenario = GateScenario::new().with(|w| w.skills[1].steps[0].reused = Some(source(trust)));
        scenario.with(|w| w.requirements.max_cache_trust = most).finding_codes()
    };
    assert!(codes(CacheTrust::Branch, CacheTrust::Branch).is_empty());
    assert_eq!(codes(CacheTrust::Default, CacheTrust::Branch), [GateCode::CacheTooWide]);
}
