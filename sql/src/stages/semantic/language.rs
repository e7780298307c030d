//! Detects whether a question is in English. The checks draw conclusions from words that a question does not have, such
//! as a word for a maximum, so a question in another language must not reach them.

use super::question::ParsedQuestion;

/// The minimum number of words from which a question without any English word counts as another language.
const MIN_WORDS: usize = 5;
/// The minimum number of foreign words that can outweigh English ones.
const MIN_FOREIGN_WORDS: usize = 2;

/// Common English words that other languages with Latin letters hardly use.
const ENGLISH_WORDS: &[&str] = &[
    "the", "of", "what", "which", "how", "who", "whose", "whom", "where", "when", "why", "are", "was", "were", "does",
    "did", "has", "have", "had", "with", "and", "by", "for", "from", "to", "that", "than", "all", "each", "every",
    "per", "list", "show", "find", "give", "get", "return", "tell", "display", "many", "much", "more", "less", "not",
    "only", "there", "their", "its", "our", "between", "above", "below", "over", "under", "without", "any", "top",
    "total", "number", "count", "sum", "average", "mean", "sorted", "ordered", "order", "first", "last", "new", "same",
    "other", "who's", "what's", "is", "or", "it", "be", "been", "can", "do", "i", "my", "me", "we", "you", "your",
    "this", "these", "those", "at", "on", "as", "name", "names", "if",
];

/// Common words of other languages, without those that are also common in English.
const FOREIGN_WORDS: &[&str] = &[
    // Spanish and Portuguese
    "el", "los", "las", "del", "que", "qué", "cuál", "cual", "cuáles", "cuántos", "cuántas", "cuantos", "cuantas",
    "cuánto", "cómo", "quién", "por", "para", "una", "uno", "más", "mas", "menos", "todos", "todas", "cada", "dame",
    "muestra", "lista", "tiene", "tienen", "están", "nombres", "qual", "quais", "quantos", "quantas", "quanto", "dos",
    "das", "pelo", "pela", "mais", "são", "foram", "liste", "mostre", "cujo", // French and Italian
    "le", "les", "des", "du", "une", "est", "sont", "quel", "quelle", "quels", "quelles", "combien", "avec", "dans",
    "pour", "qui", "sur", "chaque", "plus", "moins", "donne", "moi", "affiche", "gli", "che", "sono", "quanti",
    "quante", "della", "delle", "dei", "degli", "nel", "ogni", "quale", "quali", "più", "hanno",
    // German and Dutch
    "der", "das", "und", "ist", "sind", "wie", "viele", "welche", "welcher", "welches", "von", "mit", "für", "aus",
    "alle", "jede", "jeder", "jeden", "zeige", "gib", "nach", "haben", "eine", "einen", "het", "een", "zijn",
    "hoeveel", "welke", "geef", "toon", "heeft", // Hindi in Latin letters
    "hai", "hain", "kaun", "kis", "kin", "kya", "kitne", "kitani", "mein", "ka", "ke", "ki", "kee", "ko", "kahaan",
    "sabase", "sabse", "vaala", "vaale",
];

/// Reports whether a question is in English, or too short for a decision.
pub(super) fn is_english(question: &ParsedQuestion) -> bool {
    let words = || question.words.iter().filter(|word| !word.is_quoted);
    let letters = |is_wanted: fn(char) -> bool| {
        words().flat_map(|word| word.text.chars()).filter(|sign| sign.is_alphabetic() && is_wanted(*sign)).count()
    };
    // Characters of other scripts: Cyrillic, Arabic, Chinese and others.
    if letters(|sign| sign >= '\u{370}') > letters(|sign| sign < '\u{370}') {
        return false;
    }
    let count = |list: &[&str]| words().filter(|word| list.contains(&word.lower.as_str())).count();
    let (english, foreign) = (count(ENGLISH_WORDS), count(FOREIGN_WORDS));
    let reads_nothing = english == 0 && question.superlatives.is_empty() && question.requested_order.is_none();
    let has_only_others = reads_nothing && words().count() >= MIN_WORDS;
    let is_outweighed = foreign >= MIN_FOREIGN_WORDS && foreign > english;
    !has_only_others && !is_outweighed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detects_questions_in_other_languages() {
        let english = [
            "top 5 products by price",
            "highest price",
            "customers sorted by signup date",
            "How many flights leave Los Angeles?",
            "total revenue of El Corte Ingles in Las Palmas",
            "papers by Miguel de la Torre y del Rio with the most citations",
            "orders of \"Wie viele Kunden sind das\"",
            "cheapest mobile phone battery charger",
        ];
        for text in english {
            assert!(is_english(&ParsedQuestion::parse(text)), "{text}");
        }
        let others = [
            "¿Cuántos clientes hay en la base de datos?",
            "Combien de clients sont dans la base ?",
            "Wie viele Kunden haben das Produkt bestellt?",
            "kis state kee population sabase adhik hai",
            "Ile produktów sprzedano każdego dnia ubiegłego miesiąca",
            "Сколько клиентов в базе?",
            "哪个州的人口最多",
        ];
        for text in others {
            assert!(!is_english(&ParsedQuestion::parse(text)), "{text}");
        }
    }
}
