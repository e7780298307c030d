//! Caches of a wider scope than the caller accepts.

use super::GateScenario;
use crate::decision::gate::GateCode;
use crate::model::cache::{CacheEnd, CacheEvidence, CacheShown, CacheTrust};
use crate::model::plan::RelPath;

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
        let world = GateScenario::new().with(|w| w.skills[1].measured.caches = vec![cache(none), cache(trust)]);
        world.with(|w| w.requirements.max_cache_trust = most).finding_codes()
    };
    for (trust, most) in [(none, none), (none, branch), (branch, branch), (branch, default), (default, default)] {
        assert!(codes(trust, most).is_empty(), "{trust} {most}");
    }
    for (trust, most) in [(branch, none), (default, none), (default, branch)] {
        assert_eq!(codes(trust, most), [GateCode::CacheTooWide], "{trust} {most}");
    }
}
