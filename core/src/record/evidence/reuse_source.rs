//! Names the execution whose result a step reuses.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::cache::TransparentCache;
use crate::model::names::RunId;
use crate::record::evidence::StepEvidence;
use crate::record::evidence::result_origin::ResultOrigin;
use crate::text::digest::Sha256Hex;
use crate::text::humanize::count;

/// The word that every output uses for a step or skill whose result was reused.
pub const CACHED: &str = "cached";

/// Returns the number of cached steps among all steps of a run, as a phrase; `None` if there are none.
pub fn cached_of_steps(cached: usize, steps: usize) -> Option<String> {
    (cached > 0).then(|| format!("{cached} of {} {CACHED}", count(steps, "step")))
}

/// Returns a note about the cached steps of a skill; `None` if there are none.
pub fn cached_skill_note(cached: usize, steps: usize) -> Option<String> {
    if cached > 0 && cached == steps { Some(CACHED.to_owned()) } else { cached_of_steps(cached, steps) }
}

/// The earlier execution whose result a step reuses, and the inputs that make the result valid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReuseSource {
    /// The run that executed the step.
    pub run_id: RunId,
    /// The end of the execution, in UTC, RFC 3339. For a step with `per_file`, the end of the oldest execution that the
    /// passes of its files can come from.
    pub executed_at: String,
    /// The sha256 of the inputs that the execution read. All of them are the same now.
    pub inputs_sha256: Sha256Hex,
    /// Number of these inputs: paths that were looked up, found or not; 0 for a whole tree.
    pub inputs: u64,
    /// True if the execution took place on a worker, which does not report what a step reads: the whole tree and everything
    /// else that the worker got are the same; absent otherwise.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub whole_tree: bool,
    /// The caches of the execution, whose content does not change the result as the spec declares; absent if there were
    /// none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub transparent_caches: Vec<TransparentCache>,
    /// The machine that executed the step; absent if it was this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<ResultOrigin>,
}

impl ReuseSource {
    /// Returns the source of the result, as a phrase.
    pub fn phrase(&self) -> String {
        let inputs = match self.whole_tree {
            true => "the whole tree".to_owned(),
            false => count(usize::try_from(self.inputs).unwrap_or(usize::MAX), "input"),
        };
        let origin = self.origin.as_ref().map(|origin| format!(" of `{}` (key {})", origin.host, origin.short_key()));
        let origin = origin.unwrap_or_default();
        let mut phrase =
            format!("{CACHED} from run {}{origin}, executed {}, {inputs} unchanged", self.run_id, self.executed_at);
        if !self.transparent_caches.is_empty() {
            let paths = self.transparent_caches.iter().map(|cache| format!("`{}`", cache.path));
            phrase.push_str(&format!(", with transparent caches: {}", paths.collect::<Vec<_>>().join(", ")));
        }
        phrase
    }
}

impl StepEvidence {
    /// Returns the transparent caches of the earlier executions whose results the step has, or some of its files.
    pub fn reused_caches(&self) -> impl Iterator<Item = &TransparentCache> {
        let whole = self.reused.iter().flat_map(|source| &source.transparent_caches);
        whole.chain(self.checked_files.iter().flat_map(|files| &files.transparent_caches))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::cache::CacheTrust;
    use crate::model::plan::RelPath;

    #[test]
    fn notes_count_cached_steps() {
        assert_eq!((cached_skill_note(0, 2), cached_skill_note(0, 0)), (None, None));
        assert_eq!(cached_skill_note(1, 2).as_deref(), Some("1 of 2 steps cached"));
        assert_eq!(cached_skill_note(2, 2).as_deref(), Some("cached"));
        assert_eq!(cached_of_steps(1, 1).as_deref(), Some("1 of 1 step cached"));
    }

    #[test]
    fn phrase_names_run_time_and_number_of_inputs() {
        let source = |inputs| ReuseSource {
            run_id: RunId::new("r1").expect("an id"),
            executed_at: "2026-01-02T03:04:05.678Z".to_owned(),
            inputs_sha256: Sha256Hex::digest(b""),
            inputs,
            whole_tree: false,
            transparent_caches: Vec::new(),
            origin: None,
        };
        let phrase = |number| source(number).phrase();
        let origin = ResultOrigin { key_id: Sha256Hex::digest(b""), host: "builder".to_owned() };
        assert_eq!(
            ReuseSource { origin: Some(origin), ..source(1) }.phrase(),
            "cached from run r1 of `builder` (key e3b0c44298fc1c14), executed 2026-01-02T03:04:05.678Z, 1 input unchanged"
        );
        assert_eq!(phrase(1), "cached from run r1, executed 2026-01-02T03:04:05.678Z, 1 input unchanged");
        assert_eq!(phrase(12), "cached from run r1, executed 2026-01-02T03:04:05.678Z, 12 inputs unchanged");
        let of_worker = ReuseSource { whole_tree: true, ..source(0) }.phrase();
        assert_eq!(of_worker, "cached from run r1, executed 2026-01-02T03:04:05.678Z, the whole tree unchanged");
        let cache = |path| TransparentCache { path: RelPath::new(path).expect("a path"), trust: CacheTrust::None };
        let with_caches = ReuseSource { transparent_caches: vec![cache("target"), cache("a/b")], ..source(1) };
        assert!(with_caches.phrase().ends_with("1 input unchanged, with transparent caches: `target`, `a/b`"));
    }
}
