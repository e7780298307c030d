//! Rule for the imports between the sources of a crate: circles stay small and few.
//!
//! A source imports another one if it names an item that the other one defines: in a `use`, or in a path that starts
//! with `crate`, `self`, `super`, a submodule or an imported module. Names are followed through re-exports to the
//! source that defines the item, and a re-export by itself is not an import. Tests do not count. A circle is a
//! strongly connected component of at least two sources; a module with its one submodule is no circle.

mod import_graph;
mod source_module;

use super::source_texts::{SourceTexts, TidyFindings};
use import_graph::ImportGraph;

/// The number of circles in a crate, and the number of sources in the largest one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct CircleLimit {
    circles: usize,
    largest: usize,
}

/// The present circles of crates that have any; a limit may only be lowered. Other crates have none.
const LIMITS: [(&str, CircleLimit); 2] =
    [("cli", CircleLimit { circles: 6, largest: 28 }), ("daemon", CircleLimit { circles: 5, largest: 19 })];

/// Checks the import circles of each crate.
pub(super) fn import_circles(texts: &SourceTexts) -> TidyFindings {
    check_circles(texts, &LIMITS)
}

fn check_circles(texts: &SourceTexts, limits: &[(&str, CircleLimit)]) -> TidyFindings {
    let crates = texts.keys().filter_map(|path| path.strip_suffix("/Cargo.toml")).filter(|path| !path.contains('/'));
    let unknown = |name: &&(&str, CircleLimit)| !texts.contains_key(&format!("{}/Cargo.toml", name.0));
    let stale = limits.iter().filter(unknown).map(|(name, _)| format!("{name}: the crate with a limit does not exist"));
    crates
        .flat_map(|name| {
            let limit = limits.iter().find(|(limited, _)| *limited == name).map(|(_, limit)| *limit);
            check_crate(name, &ImportGraph::for_crate(texts, name).circles(), limit)
        })
        .chain(stale)
        .collect()
}

fn check_crate(name: &str, circles: &[Vec<String>], limit: Option<CircleLimit>) -> TidyFindings {
    let found = CircleLimit { circles: circles.len(), largest: circles.iter().map(Vec::len).max().unwrap_or_default() };
    let limit = limit.unwrap_or(CircleLimit { circles: 0, largest: 0 });
    let mut findings = TidyFindings::new();
    if found.circles > limit.circles || found.largest > limit.largest {
        let members: Vec<String> = circles.iter().map(|circle| circle.join(", ")).collect();
        findings.push(format!(
            "{name}: {} import circles of up to {} sources, but at most {} of {} are allowed; move the shared items \
             to a module that imports none of the others: {}",
            found.circles,
            found.largest,
            limit.circles,
            limit.largest,
            members.join("; ")
        ));
    } else if found != limit {
        findings.push(format!(
            "{name}: {} import circles of up to {} sources; lower the limit in xtask/src/tidy/import_circles.rs",
            found.circles, found.largest
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::source_texts::texts;
    use super::*;

    fn limit(circles: usize, largest: usize) -> Vec<(&'static str, CircleLimit)> {
        vec![("a", CircleLimit { circles, largest })]
    }

    fn circles(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        ImportGraph::for_crate(&texts(files), "a").circles()
    }

    #[test]
    fn reports_circle_over_limit() {
        let texts = texts(&[
            ("a/Cargo.toml", ""),
            ("a/src/lib.rs", "mod one;\nmod two;\n"),
            ("a/src/one.rs", "use crate::two::Two;\npub(crate) struct One(Two);\n"),
            ("a/src/two.rs", "pub(crate) fn two(_: super::one::One) {}\npub(crate) struct Two;\n"),
        ]);
        let found = check_circles(&texts, &[]);
        assert!(found.len() == 1 && found[0].contains("a/src/one.rs, a/src/two.rs"), "{found:?}");
        assert_eq!(check_circles(&texts, &limit(1, 2)), TidyFindings::new());
        assert_eq!(check_circles(&texts, &limit(2, 2)).len(), 1, "a limit must not be higher than the figure");
        assert_eq!(check_circles(&texts, &[("b", CircleLimit { circles: 0, largest: 0 })]).len(), 2);
    }

    #[test]
    fn follows_reexports_to_definition() {
        let shared = "pub(crate) struct Shared;\n";
        let found = circles(&[
            ("a/src/lib.rs", "mod outer;\n"),
            (
                "a/src/outer.rs",
                "mod shared;\nmod user;\nmod other;\npub(crate) use shared::Shared;\nuse user::f;\nuse other::g;\nfn h() { f(); g(); }\n",
            ),
            ("a/src/outer/shared.rs", shared),
            ("a/src/outer/user.rs", "use super::Shared;\npub(crate) fn f() -> Shared { Shared }\n"),
            ("a/src/outer/other.rs", "pub(crate) fn g() -> super::Shared { super::Shared }\n"),
        ]);
        assert_eq!(found, Vec::<Vec<String>>::new());
    }

    #[test]
    fn finds_circle_through_module_path() {
        let found = circles(&[
            ("a/src/lib.rs", "mod one;\nmod two;\nmod three;\n"),
            ("a/src/one.rs", "use crate::{two};\npub(crate) fn one() { two::inner::f() }\n"),
            ("a/src/two.rs", "pub(crate) mod inner;\n"),
            ("a/src/two/inner.rs", "pub(crate) fn f() { super::super::three::g() }\n"),
            ("a/src/three.rs", "pub(crate) fn g() { crate::one::one() }\n"),
        ]);
        assert_eq!(found, [["a/src/one.rs", "a/src/three.rs", "a/src/two/inner.rs"].map(str::to_owned).to_vec()]);
    }

    #[test]
    fn ignores_tests_comments_and_single_submodule() {
        let found = circles(&[
            ("a/src/lib.rs", "mod one;\nmod two;\n"),
            (
                "a/src/one.rs",
                "// crate::two::f()\nmod part;\npub(crate) fn f() -> &'static str { part::p(); \"crate::two::f\" }\n",
            ),
            ("a/src/one/part.rs", "pub(crate) fn p() { super::f(); }\n"),
            ("a/src/one/tests.rs", "use crate::two::f;\n"),
            ("a/src/two.rs", "fn f() { crate::one::f(); }\n#[cfg(test)]\nmod tests {\n    use crate::one::f;\n}\n"),
        ]);
        assert_eq!(found, Vec::<Vec<String>>::new());
    }
}
