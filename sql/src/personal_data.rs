//! Recognises personal data in sample values by the name of the column and by the form of the values, and masks it.
//!
//! This is a heuristic: it finds the usual names in English, and values with a checkable form. A value of another form
//! in a column with another name is not found.

use serde_json::Value;

/// Words in the name of a column that stand for a secret. The values of such a column are not shown at all.
const SECRET_WORDS: [&str; 11] =
    ["password", "passwd", "passphrase", "pwd", "secret", "token", "apikey", "pin", "cvv", "cvc", "otp"];
/// Words in the name of a column that stand for personal data.
const PERSONAL_WORDS: [&str; 46] = [
    "email",
    "mail",
    "phone",
    "telephone",
    "tel",
    "mobile",
    "cellphone",
    "fax",
    "ssn",
    "iban",
    "bic",
    "address",
    "addr",
    "street",
    "zip",
    "zipcode",
    "postcode",
    "postal",
    "birth",
    "birthday",
    "birthdate",
    "birthplace",
    "dob",
    "born",
    "firstname",
    "lastname",
    "fullname",
    "surname",
    "forename",
    "nickname",
    "username",
    "login",
    "maiden",
    "passport",
    "license",
    "licence",
    "iin",
    "nin",
    "tin",
    "ip",
    "latitude",
    "longitude",
    "lat",
    "lng",
    "lon",
    "salary",
];
/// Pairs of adjacent words in the name of a column that stand for personal data.
const PERSONAL_PAIRS: [(&str, &str); 14] = [
    ("first", "name"),
    ("last", "name"),
    ("middle", "name"),
    ("full", "name"),
    ("family", "name"),
    ("given", "name"),
    ("user", "name"),
    ("card", "number"),
    ("credit", "card"),
    ("account", "number"),
    ("tax", "id"),
    ("national", "id"),
    ("social", "security"),
    ("api", "key"),
];
/// Words in the name of a table whose column `name` contains names of persons.
const PERSON_WORDS: [&str; 28] = [
    "customer",
    "customers",
    "person",
    "persons",
    "people",
    "user",
    "users",
    "employee",
    "employees",
    "patient",
    "patients",
    "student",
    "students",
    "contact",
    "contacts",
    "member",
    "members",
    "client",
    "clients",
    "teacher",
    "teachers",
    "guest",
    "guests",
    "passenger",
    "passengers",
    "candidate",
    "candidates",
    "staff",
];
/// The replacement for a value of a secret.
const SECRET_MASK: &str = "***";

/// The reason to mask the values of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sensitivity {
    /// The values are personal data. Their form is shown.
    Personal,
    /// The values are secrets. Nothing of them is shown.
    Secret,
}

/// Returns the sensitivity of a column according to its name.
pub(crate) fn of_column(table: &str, column: &str) -> Option<Sensitivity> {
    let words = name_words(column);
    let has = |list: &[&str]| words.iter().any(|word| list.contains(&word.as_str()));
    let has_pair =
        |(first, second): &(&str, &str)| words.windows(2).any(|pair| pair[0] == *first && pair[1] == *second);
    if has(&SECRET_WORDS) || has_pair(&("api", "key")) {
        return Some(Sensitivity::Secret);
    }
    let is_person = || name_words(table).iter().any(|word| PERSON_WORDS.contains(&word.as_str()));
    let is_personal = has(&PERSONAL_WORDS) || PERSONAL_PAIRS.iter().any(has_pair) || (words == ["name"] && is_person());
    is_personal.then_some(Sensitivity::Personal)
}

/// Reports whether a value has the form of personal data: an e-mail address, a telephone number, the number of a card
/// or an account, or a social security number.
pub(crate) fn is_personal_value(value: &Value) -> bool {
    match value {
        Value::String(text) => is_personal_text(text),
        Value::Number(number) => is_card_number(&number.to_string()),
        Value::Array(values) => values.iter().any(is_personal_value),
        Value::Object(fields) => fields.values().any(is_personal_value),
        Value::Null | Value::Bool(_) => false,
    }
}

/// Masks a value. A personal value keeps its form: letters become `x`, and digits become `0`.
pub(crate) fn mask(value: &Value, sensitivity: Sensitivity) -> Value {
    match (sensitivity, value) {
        (_, Value::Null) => Value::Null,
        (Sensitivity::Secret, _) => Value::from(SECRET_MASK),
        (Sensitivity::Personal, Value::String(text)) => Value::from(mask_text(text)),
        (Sensitivity::Personal, other) => Value::from(mask_text(&other.to_string())),
    }
}

fn mask_text(text: &str) -> String {
    let mask_sign = |sign: char| match sign {
        sign if sign.is_numeric() => '0',
        sign if sign.is_uppercase() => 'X',
        sign if sign.is_alphabetic() => 'x',
        sign if sign.is_ascii() => sign,
        _ => '?',
    };
    text.chars().map(mask_sign).collect()
}

/// Splits a name into words in lower case: at signs that are neither letters nor digits, and before upper-case letters
/// in `camelCase`.
fn name_words(name: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut previous = ' ';
    for sign in name.chars() {
        let starts_word = !previous.is_alphabetic() || (sign.is_uppercase() && previous.is_lowercase());
        if sign.is_alphabetic() {
            if starts_word || words.is_empty() {
                words.push(String::new());
            }
            if let Some(word) = words.last_mut() {
                word.extend(sign.to_lowercase());
            }
        }
        previous = sign;
    }
    words
}

fn is_personal_text(text: &str) -> bool {
    contains_email(text)
        || number_runs(text).any(|run| is_phone(run) || is_ssn(run) || is_card_number(run))
        || contains_iban(text)
}

fn contains_email(text: &str) -> bool {
    let is_local = |sign: char| sign.is_alphanumeric() || matches!(sign, '.' | '_' | '-' | '+');
    text.match_indices('@').any(|(at, _)| {
        let domain = text[at + 1..].split(|sign: char| !sign.is_alphanumeric() && !matches!(sign, '.' | '-')).next();
        let domain = domain.unwrap_or_default().trim_end_matches('.');
        let has_ending = domain.rsplit_once('.').is_some_and(|(name, ending)| {
            !name.is_empty() && ending.chars().count() >= 2 && ending.chars().all(char::is_alphabetic)
        });
        has_ending && text[..at].ends_with(is_local)
    })
}

/// Returns the parts of a text that consist of digits and the signs within telephone and card numbers.
fn number_runs(text: &str) -> impl Iterator<Item = &str> {
    let is_other = |sign: char| !sign.is_ascii_digit() && !matches!(sign, ' ' | '-' | '(' | ')' | '+' | '.' | '/');
    text.split(is_other).map(str::trim).filter(|run| !run.is_empty())
}

fn digits(run: &str) -> Vec<u32> {
    run.chars().filter_map(|sign| sign.to_digit(10)).collect()
}

/// Reports whether a text is a telephone number: with a country code, or in the form `(ddd) ddd-dddd`.
fn is_phone(run: &str) -> bool {
    let count = digits(run).len();
    if run.starts_with('+') || run.starts_with("00") && run.contains([' ', '-', '/']) {
        return (8..=15).contains(&count);
    }
    let form: String = run.chars().map(|sign| if sign.is_ascii_digit() { 'd' } else { sign }).collect();
    matches!(form.as_str(), "(ddd) ddd-dddd" | "(ddd)ddd-dddd" | "ddd-ddd-dddd" | "ddd.ddd.dddd" | "d-ddd-ddd-dddd")
}

fn is_ssn(run: &str) -> bool {
    let form: String = run.chars().map(|sign| if sign.is_ascii_digit() { 'd' } else { sign }).collect();
    form == "ddd-dd-dddd"
}

/// Reports whether a text has 13 to 19 digits whose last one is their check digit (Luhn).
fn is_card_number(run: &str) -> bool {
    if !run.chars().all(|sign| sign.is_ascii_digit() || matches!(sign, ' ' | '-')) {
        return false;
    }
    let digits = digits(run);
    let doubled = |digit: u32| if digit > 4 { 2 * digit - 9 } else { 2 * digit };
    let sum: u32 =
        digits.iter().rev().enumerate().map(|(at, digit)| if at % 2 == 1 { doubled(*digit) } else { *digit }).sum();
    (13..=19).contains(&digits.len()) && sum.is_multiple_of(10) && digits.iter().any(|digit| *digit != 0)
}

fn contains_iban(text: &str) -> bool {
    let compact: String = text.chars().filter(|sign| *sign != ' ').collect();
    let words = [text, compact.as_str()];
    words.iter().flat_map(|text| text.split(|sign: char| !sign.is_ascii_alphanumeric())).any(is_iban)
}

/// Reports whether a word is the number of a bank account (IBAN): its remainder modulo 97 is 1.
fn is_iban(word: &str) -> bool {
    let is_formed = (15..=34).contains(&word.len())
        && word.bytes().take(2).all(|byte| byte.is_ascii_uppercase())
        && word.bytes().skip(2).take(2).all(|byte| byte.is_ascii_digit());
    if !is_formed {
        return false;
    }
    let (head, rest) = word.split_at(4);
    let mut values = rest.chars().chain(head.chars()).map(|sign| sign.to_digit(36));
    let remainder = values.try_fold(0, |remainder, value| {
        let value = value?;
        Some(if value > 9 { (remainder * 100 + value) % 97 } else { (remainder * 10 + value) % 97 })
    });
    remainder == Some(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn recognises_columns_by_name() {
        use Sensitivity::{Personal, Secret};
        let cases = [
            ("customers", "email", Some(Personal)),
            ("t", "contactEmail", Some(Personal)),
            ("t", "E_MAIL_1", Some(Personal)),
            ("t", "HomePhone", Some(Personal)),
            ("t", "first_name", Some(Personal)),
            ("t", "DateOfBirth", Some(Personal)),
            ("t", "shipping_address", Some(Personal)),
            ("customers", "name", Some(Personal)),
            ("products", "name", None),
            ("customers", "company_name", None),
            ("t", "password_hash", Some(Secret)),
            ("t", "api_key", Some(Secret)),
            ("t", "session-token", Some(Secret)),
            ("t", "pinned", None),
            ("t", "total", None),
            ("t", "shipping", None),
        ];
        for (table, column, expected) in cases {
            assert_eq!(of_column(table, column), expected, "{table}.{column}");
        }
    }

    #[test]
    fn recognises_values_by_form() {
        let personal = [
            json!("ann@example.org"),
            json!("write to Ann.B+x@mail.example.com, please"),
            json!("+49 170 1234567"),
            json!("(415) 555-0132"),
            json!("415-555-0132"),
            json!("123-45-6789"),
            json!("4111 1111 1111 1111"),
            json!(4_111_111_111_111_111_i64),
            json!("DE89 3704 0044 0532 0130 00"),
            json!("GB82WEST12345698765432"),
            json!(["a", {"b": "ann@example.org"}]),
        ];
        for value in personal {
            assert!(is_personal_value(&value), "{value}");
        }
        let ordinary = [
            json!("2026-01-02"),
            json!("2026-01-02 03:04:05"),
            json!("4111 1111 1111 1112"),
            json!("12.50"),
            json!("192-168"),
            json!("@home"),
            json!("a@b"),
            json!("DE89370400440532013001"),
            json!(12_345),
            json!(null),
            json!("0000000000000000"),
            json!("978-3-16-148410-0"),
        ];
        for value in ordinary {
            assert!(!is_personal_value(&value), "{value}");
        }
    }

    #[test]
    fn masks_keep_the_form_only() {
        let mask_personal = |value| mask(&value, Sensitivity::Personal);
        assert_eq!(mask_personal(json!("Ann B. <ann@example.org> +49")), json!("Xxx X. <xxx@xxxxxxx.xxx> +00"));
        assert_eq!(mask_personal(json!(-1984)), json!("-0000"));
        assert_eq!(mask_personal(json!("Äö 東 ½")), json!("Xx x 0"));
        assert_eq!(mask_personal(json!(null)), json!(null));
        assert_eq!(mask(&json!("hunter2"), Sensitivity::Secret), json!("***"));
    }

    proptest! {
        #[test]
        fn masked_text_has_no_letter_or_digit_of_the_original(text in "\\PC{0,40}") {
            for sign in mask_text(&text).chars() {
                prop_assert!(!sign.is_alphanumeric() || matches!(sign, 'x' | 'X' | '0'), "{text}");
            }
            let _ = is_personal_text(&text);
        }
    }
}
