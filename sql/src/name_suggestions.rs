//! Finds the existing names that are closest to a misspelt one.

use strsim::damerau_levenshtein;

/// The maximum number of suggestions.
const MAX_SUGGESTIONS: usize = 3;

/// Returns the `names` that are close to `wrong`, the closest first. Names that differ only in case, underscores or a
/// plural `s` count as close.
pub fn suggest_names<'a>(wrong: &str, names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let wrong = normalize_name(wrong);
    let mut found: Vec<(usize, &str)> = names
        .into_iter()
        .filter_map(|name| name_distance(&wrong, &normalize_name(name)).map(|distance| (distance, name)))
        .collect();
    found.sort();
    found.dedup();
    // If a name differs in spelling conventions only, it is the only suggestion.
    let is_certain = found.first().is_some_and(|(distance, _)| *distance == 0);
    found.retain(|(distance, _)| !is_certain || *distance == 0);
    found.into_iter().take(MAX_SUGGESTIONS).map(|(_, name)| name.to_owned()).collect()
}

/// Returns the `names` of which `wrong` may be a typing error: one or two letters changed, missing, doubled or
/// exchanged.
pub fn typo_candidates<'a>(wrong: &str, names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let wrong = normalize_name(wrong);
    let allowed = match wrong.chars().count() {
        0..=3 => return Vec::new(),
        4..=7 => 1,
        _ => 2,
    };
    let mut found: Vec<(usize, &str)> = names
        .into_iter()
        .filter_map(|name| {
            bounded_edit_distance(&wrong, &normalize_name(name), allowed).map(|distance| (distance, name))
        })
        .collect();
    found.sort();
    found.dedup();
    found.into_iter().take(MAX_SUGGESTIONS).map(|(_, name)| name.to_owned()).collect()
}

/// Reports whether two names are so close that one may be a misspelling of the other.
pub fn is_similar(one: &str, other: &str) -> bool {
    name_distance(&normalize_name(one), &normalize_name(other)).is_some()
}

/// Returns the distance of two normalized names; `None` if they are too different.
fn name_distance(wrong: &str, name: &str) -> Option<usize> {
    if wrong.is_empty() || name.is_empty() {
        return None;
    }
    if wrong.trim_end_matches('s') == name.trim_end_matches('s') {
        return Some(0);
    }
    let length = wrong.chars().count().max(name.chars().count());
    let allowed = match length {
        0..=2 => 0,
        3..=4 => 1,
        5..=7 => 2,
        _ => length / 3,
    };
    let is_part = wrong.len() >= 4 && (name.contains(wrong) || (name.len() >= 4 && wrong.contains(name)));
    bounded_edit_distance(wrong, name, allowed).or_else(|| is_part.then_some(allowed + 1))
}

/// Returns the edit distance if it is at most `allowed`. Names whose lengths differ by more are not compared, since a
/// name may be as long as a statement.
fn bounded_edit_distance(one: &str, other: &str, allowed: usize) -> Option<usize> {
    let apart = one.chars().count().abs_diff(other.chars().count());
    (apart <= allowed).then(|| damerau_levenshtein(one, other)).filter(|distance| *distance <= allowed)
}

fn normalize_name(name: &str) -> String {
    name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggests_only_similar_names() {
        let columns = ["name", "email", "tier", "created_at", "updated_at", "id"];
        let cases: &[(&str, &[&str])] = &[
            ("nmae", &["name"]),
            ("teir", &["tier"]),
            ("CreatedAt", &["created_at"]),
            ("emails", &["email"]),
            ("premium", &[]),
            ("x", &[]),
            ("", &[]),
        ];
        for (wrong, expected) in cases {
            assert_eq!(suggest_names(wrong, columns), *expected, "{wrong}");
        }
    }
}
