//! Compares statements without regard to white space, to detect a repeated statement.

/// Returns a text that is equal for statements which differ only in white space outside of quotes, and in semicolons
/// at the end.
pub(crate) fn statement_key(statement: &str) -> String {
    let mut key = String::with_capacity(statement.len());
    let mut quote = None;
    let mut is_after_space = false;
    for c in statement.trim().trim_end_matches(|c: char| c == ';' || c.is_whitespace()).chars() {
        if quote.is_none() && c.is_whitespace() {
            is_after_space = true;
            continue;
        }
        if is_after_space {
            key.push(' ');
            is_after_space = false;
        }
        match quote {
            Some(open) if open == c => quote = None,
            None if matches!(c, '\'' | '"' | '`') => quote = Some(c),
            _ => {}
        }
        key.push(c);
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignores_space_outside_of_quotes() {
        assert_eq!(statement_key(" SELECT  1\n;\n"), statement_key("SELECT 1"));
        assert_ne!(statement_key("SELECT 'a  b'"), statement_key("SELECT 'a b'"));
        assert_ne!(statement_key("SELECT 'it''s  x'"), statement_key("SELECT 'it''s x'"));
        assert_eq!(statement_key("SELECT 'it''s',  x"), statement_key("SELECT 'it''s', x"));
        assert_ne!(statement_key("SELECT a b"), statement_key("SELECT ab"));
    }
}
