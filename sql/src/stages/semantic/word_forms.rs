//! Splits questions and names into words, and decides whether two words are related.

/// The maximum number of words of a question that are read.
const MAX_WORDS: usize = 400;

/// A word of a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct QuestionWord {
    /// The word as written.
    pub text: String,
    /// The word in lower case, without a possessive ending.
    pub lower: String,
    /// The singular of `lower`.
    pub stem: String,
    /// True if the word was quoted; a quoted text may consist of several words.
    pub is_quoted: bool,
    /// True if the word starts a sentence.
    pub is_sentence_start: bool,
    /// True if a comma, a full stop or similar precedes it.
    pub is_after_punctuation: bool,
}

/// Returns the words of a question, at most [`MAX_WORDS`]. A quoted text is one word.
pub(super) fn split_question(question: &str) -> Vec<QuestionWord> {
    let mut found: Vec<QuestionWord> = Vec::new();
    let (mut is_first, mut is_after_pause) = (true, false);
    let mut rest = question;
    while let Some(first) = rest.chars().next()
        && found.len() < MAX_WORDS
    {
        if let Some((inner, length)) = quoted_text(question, rest, first) {
            found.push(question_word(inner, true, is_first, is_after_pause));
            (is_first, is_after_pause) = (false, false);
            rest = &rest[length..];
        } else if first.is_alphanumeric() {
            let length = word_length(rest);
            found.push(question_word(&rest[..length], false, is_first, is_after_pause));
            (is_first, is_after_pause) = (false, false);
            rest = &rest[length..];
        } else {
            is_first |= matches!(first, '.' | '?' | '!' | ':' | '\n');
            is_after_pause |= matches!(first, ',' | '.' | '?' | '!' | ':' | ';' | '(' | ')' | '\n');
            if first == '%' {
                found.push(question_word("percent", false, false, false));
            }
            rest = &rest[first.len_utf8()..];
        }
    }
    found
}

fn question_word(text: &str, is_quoted: bool, is_first: bool, is_after_pause: bool) -> QuestionWord {
    let lower = text.to_lowercase();
    let lower = lower.trim_end_matches("'s").trim_end_matches("’s").to_owned();
    QuestionWord {
        text: text.to_owned(),
        stem: stem(&lower),
        lower,
        is_quoted,
        is_sentence_start: is_first,
        is_after_punctuation: is_after_pause,
    }
}

/// Returns the quoted text at the start of `rest`, and its length with the quotes. An apostrophe within a word is not a
/// quote.
fn quoted_text<'a>(question: &str, rest: &'a str, first: char) -> Option<(&'a str, usize)> {
    let close = match first {
        '"' | '`' | '\'' => first,
        '“' => '”',
        '‘' => '’',
        _ => return None,
    };
    let before = question[..question.len() - rest.len()].chars().next_back();
    if before.is_some_and(char::is_alphanumeric) {
        return None;
    }
    let begin = first.len_utf8();
    let mut from = begin;
    loop {
        let end = from + rest[from..].find(close)?;
        let after = end + close.len_utf8();
        if !rest[after..].chars().next().is_some_and(char::is_alphanumeric) {
            return (end > begin).then(|| (&rest[begin..end], after));
        }
        from = after;
    }
}

/// Returns the length of the word at the start of `rest`. A sign between two letters or digits belongs to the word:
/// `2016/6/23`, `o'clock`.
fn word_length(rest: &str) -> usize {
    let mut signs = rest.char_indices().peekable();
    let mut end = 0;
    let mut before = ' ';
    while let Some((at, sign)) = signs.next() {
        let next = signs.peek().map(|(_, next)| *next).unwrap_or(' ');
        let is_inner = match sign {
            '\'' | '’' => next.is_alphabetic(),
            '.' | ',' | ':' | '/' => before.is_ascii_digit() && next.is_ascii_digit(),
            '-' | '_' => next.is_alphanumeric(),
            _ => sign.is_alphanumeric(),
        };
        if !is_inner {
            break;
        }
        end = at + sign.len_utf8();
        before = sign;
    }
    end
}

/// Splits a name into words: `orderDate`, `order_date` and `Order Date` give the same two words.
pub(super) fn name_words(name: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut current = String::new();
    let signs: Vec<char> = name.chars().collect();
    for (at, sign) in signs.iter().enumerate() {
        if !sign.is_alphanumeric() {
            found.extend((!current.is_empty()).then(|| std::mem::take(&mut current)));
            continue;
        }
        let before = at.checked_sub(1).and_then(|before| signs.get(before));
        let is_hump = sign.is_uppercase()
            && (before.is_some_and(|before| before.is_lowercase())
                || (before.is_some_and(|before| before.is_uppercase())
                    && signs.get(at + 1).is_some_and(|next| next.is_lowercase())));
        if is_hump && !current.is_empty() {
            found.push(std::mem::take(&mut current));
        }
        current.extend(sign.to_lowercase());
    }
    found.extend((!current.is_empty()).then_some(current));
    found.into_iter().map(|part| stem(&part)).collect()
}

/// Returns the singular of a word, as far as its spelling shows.
pub(super) fn stem(word: &str) -> String {
    let cut = |ending: &str, instead: &str| word.strip_suffix(ending).map(|rest| format!("{rest}{instead}"));
    let found = match word {
        _ if word.len() <= 3 || word.ends_with("ss") || word.ends_with("us") || word.ends_with("is") => None,
        _ if word.ends_with("ies") && word.len() > 4 => cut("ies", "y"),
        _ if ["sses", "shes", "ches", "xes"].iter().any(|ending| word.ends_with(ending)) => cut("es", ""),
        _ => cut("s", ""),
    };
    found.unwrap_or_else(|| word.to_owned())
}

/// Reports whether two words have a common root: `spending` and `spent`, `populated` and `population`, `customer` and
/// `cust`.
pub(super) fn are_related(one: &str, other: &str) -> bool {
    if one == other {
        return true;
    }
    let common = one.chars().zip(other.chars()).take_while(|(a, b)| a == b).count();
    let shorter = one.chars().count().min(other.chars().count());
    (common >= 4 && common + 1 >= shorter) || common >= 6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_questions_into_words() {
        let texts = |question: &str| split_question(question).into_iter().map(|word| word.text).collect::<Vec<_>>();
        assert_eq!(texts("Who's on 2016/6/23?"), ["Who's", "on", "2016/6/23"]);
        assert_eq!(texts("event \"Women's Soccer\", 'it is'"), ["event", "Women's Soccer", "it is"]);
        assert_eq!(texts("over 5%"), ["over", "5", "percent"]);
        assert_eq!(split_question("customers' names of Ann's.")[2].lower, "of");
        assert_eq!(split_question("of Ann's.")[1].lower, "ann");
    }

    #[test]
    fn splits_names_into_words() {
        for name in ["orderDates", "order_date", "Order Date", "OrderDate"] {
            assert_eq!(name_words(name), ["order", "date"], "{name}");
        }
        assert_eq!(name_words("countryID"), ["country", "id"]);
    }

    #[test]
    fn recognizes_related_words() {
        for (one, other) in [("spending", "spent"), ("populated", "population"), ("length", "length")] {
            assert!(are_related(one, other), "{one} {other}");
        }
        for (one, other) in [("name", "nation"), ("cost", "customer"), ("id", "idea")] {
            assert!(!are_related(one, other), "{one} {other}");
        }
    }
}
