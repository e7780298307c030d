//! Rule for the imports between the sources of a crate: there are no circles.
//!
//! A source imports another one if it names an item that the other one defines: in a `use`, or in a path that starts
//! with `crate`, `self`, `super`, a submodule or an imported module. Names are followed through re-exports to the
//! source that defines the item, and a re-export by itself is not an import. Tests do not count. A circle is a strongly
//! connected component of at least two sources; a module with its one submodule is not a circle.

mod import_graph;
mod source_module;

use super::source_texts::{SourceTexts, TidyFindings};
use import_graph::ImportGraph;

/// Reports the import circles of each crate.
pub(super) fn import_circles(texts: &SourceTexts) -> TidyFindings {
    let crates = texts.keys().filter_map(|path| path.strip_suffix("/Cargo.toml")).filter(|path| !path.contains('/'));
    let circles = crates.flat_map(|name| ImportGraph::for_crate(texts, name).circles());
    let finding = |circle: Vec<String>| {
        format!(
            "these sources import each other in a circle; move the shared items to a module that imports none of the \
             others: {}",
            circle.join(", ")
        )
    };
    circles.map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::super::source_texts::texts;
    use super::*;

    fn circles(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        ImportGraph::for_crate(&texts(files), "a").circles()
    }

    #[test]
    fn reports_circle() {
        let texts = texts(&[
            ("a/Cargo.toml", ""),
            ("a/src/lib.rs", "mod one;\nmod two;\n"),
            ("a/src/one.rs", "use crate::two::Two;\npub(crate) struct One(Two);\n"),
            ("a/src/two.rs", "pub(crate) fn two(_: super::one::One) {}\npub(crate) struct Two;\n"),
        ]);
        let found = import_circles(&texts);
        assert!(found.len() == 1 && found[0].contains("a/src/one.rs, a/src/two.rs"), "{found:?}");
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
