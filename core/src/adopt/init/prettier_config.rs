//! Finds settings of prettier that the layout of a generated spec does not follow.

/// Settings of prettier with a value that the layout of a generated spec does not follow.
const UNUSUAL_SETTINGS: [(&str, &[&str]); 3] =
    [("singleQuote", &["true"]), ("bracketSpacing", &["false"]), ("tabWidth", &["1", "3", "4", "8"])];

/// Returns whether a file has the name of a configuration of prettier.
pub(super) fn is_prettier_config(name: &str) -> bool {
    name.starts_with(".prettierrc") || name.starts_with("prettier.config.")
}

/// Returns the first setting in a configuration of prettier, in any of its formats, that the layout of a generated spec
/// does not follow.
pub(super) fn unusual_prettier_setting(config: &str) -> Option<&'static str> {
    let is_set = |(name, values): &&(&str, &[&str])| {
        config.match_indices(name).any(|(at, _)| {
            let rest = config[at + name.len()..].trim_start_matches(['"', '\'']).trim_start();
            let Some(value) = rest.strip_prefix([':', '=']) else { return false };
            let value = value.trim_start();
            let end = value.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(value.len());
            values.contains(&&value[..end])
        })
    };
    UNUSUAL_SETTINGS.iter().find(is_set).map(|(name, _)| *name)
}
