//! Tests of reading answers in all their forms.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn read(answer: &str) -> Result<String, UnreadableAnswer> {
    read_statement(answer)
}

#[track_caller]
fn reads(answer: &str, expected: &str) {
    assert_eq!(read(answer).as_deref(), Ok(expected), "{answer}");
}

#[test]
fn reads_bare_statement() {
    reads("SELECT 1", "SELECT 1");
    reads("  select name\n  from t;\n", "select name\n  from t;");
    reads("-- customers\nSELECT 1;", "-- customers\nSELECT 1;");
    reads("WITH a AS (SELECT 1) SELECT * FROM a", "WITH a AS (SELECT 1) SELECT * FROM a");
    reads("(SELECT 1) UNION (SELECT 2)", "(SELECT 1) UNION (SELECT 2)");
    reads("select 1", "select 1");
    reads("```sql\nSELECT 1; DELETE FROM river\n```", "SELECT 1; DELETE FROM river");
    reads("SELECT ';\n\n' AS x", "SELECT ';\n\n' AS x");
}

#[test]
fn reads_last_complete_sql_block() {
    reads("Here:\n```sql\nSELECT 1\n```\nDone.", "SELECT 1");
    reads("```sql\nSELECT 1\n```\nBetter:\n```SQLite\nSELECT 2\n```", "SELECT 2");
    reads("```\nSELECT 1\n```", "SELECT 1");
    reads("```sql\nSELECT 1\n```\n```sql\nSELECT", "SELECT 1");
    reads("```text\nid | name\n```\n```sql\nSELECT 1\n```\n```\n1\n```", "SELECT 1");
}

#[test]
fn reads_structured_answers() {
    reads(r#"{"sql": "SELECT 1"}"#, "SELECT 1");
    reads(r#"{"explanation": "x", "query": "SELECT 1"}"#, "SELECT 1");
    reads("```json\n{\"sql\": \"SELECT 1\"}\n```", "SELECT 1");
    reads("```sql\n{\"sql\": \"SELECT 1\"}\n```", "SELECT 1");
    reads("sql: |\n  SELECT 1\n  FROM t\n", "SELECT 1\n  FROM t".replace("\n  ", "\n").as_str());
    reads("```yaml\nexplanation: rows\nsql: SELECT 1\n```", "SELECT 1");
    reads("---\nquery: SELECT 1\n", "SELECT 1");
}

#[test]
fn reads_tool_calls_of_both_formats() {
    let arguments = json!({ "sql": "SELECT 1" });
    let openai = json!({ "tool_calls": [{
        "id": "c", "type": "function", "function": { "name": "run", "arguments": arguments.to_string() },
    }]});
    reads(&openai.to_string(), "SELECT 1");
    let anthropic = json!({ "content": [
        { "type": "text", "text": "I query the table." },
        { "type": "tool_use", "id": "t", "name": "run", "input": arguments },
    ]});
    reads(&anthropic.to_string(), "SELECT 1");
}

#[test]
fn reads_statement_in_prose() {
    reads("To count them, use this:\n\nSELECT count(*)\nFROM t\n\nIt counts all rows.", "SELECT count(*)\nFROM t");
    reads("The query:\nSELECT 1 FROM t; It returns one.\nBye.", "SELECT 1 FROM t;");
    reads("The answer is: SELECT 1 FROM t;", "SELECT 1 FROM t;");
    reads("Use `SELECT 1 FROM t` for `t`.", "SELECT 1 FROM t");
    reads("With this query you get the rows:\nSELECT 1 FROM t", "SELECT 1 FROM t");
    reads("<think>SELECT 2? No.</think>\nSELECT 1", "SELECT 1");
}

#[test]
fn refuses_answers_without_a_clear_statement() {
    for (answer, expected) in [
        ("", UnreadableAnswer::Empty),
        (" \n", UnreadableAnswer::Empty),
        ("I cannot answer that.", UnreadableAnswer::NoStatement),
        ("Select the rows you want.", UnreadableAnswer::NoStatement),
        ("{\"answer\": 4}", UnreadableAnswer::NoStatement),
        ("{\"sql\": \"\"}", UnreadableAnswer::NoStatement),
        ("```sql\n\n```", UnreadableAnswer::NoStatement),
        ("```sh\nls\n```", UnreadableAnswer::NoStatement),
        ("```sql\nSELECT 1", UnreadableAnswer::OpenFence),
        ("```\nSELECT 1\n```\n```\nSELECT 2\n```", UnreadableAnswer::Ambiguous),
        ("SELECT 1; DELETE FROM river", UnreadableAnswer::Ambiguous),
        ("SELECT 1;\nATTACH 'x' AS y", UnreadableAnswer::Ambiguous),
        ("SELECT 1; delete from river; that is it", UnreadableAnswer::Ambiguous),
        ("SELECT 1 FROM a;\n\nor\n\nSELECT 2 FROM b;", UnreadableAnswer::Ambiguous),
        ("[{\"sql\": \"SELECT 1\"}, {\"sql\": \"SELECT 2\"}]", UnreadableAnswer::Ambiguous),
    ] {
        assert_eq!(read(answer), Err(expected), "{answer}");
    }
    assert_eq!(read(&"SELECT 1 ".repeat(MAX_ANSWER_BYTES)), Err(UnreadableAnswer::TooLong));
}

#[test]
fn hostile_nesting_is_bounded() {
    let deep = "[".repeat(100_000);
    assert!(read(&deep).is_err());
    let deep = format!("{}{{\"sql\":\"SELECT 1\"}}{}", "{\"input\":".repeat(100), "}".repeat(100));
    assert!(read(&deep).is_err());
    let bomb = "sql: SELECT 1\na: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b]\n\
                d: &d [*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e]\ng: [*f,*f,*f,*f]\n";
    let _ = read(bomb);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn never_panics_and_never_adds_text(answer in ".{0,200}") {
        if let Ok(statement) = read(&answer) {
            prop_assert!(statement.len() <= answer.len() && !statement.trim().is_empty());
        }
    }

    #[test]
    fn never_panics_on_pieces(pieces in prop::collection::vec(
        prop::sample::select(vec![
            "```", "```sql\n", "\n", "\n\n", "SELECT 1", "select * from t", ";", "'", "\"", "`", "{", "}", "\"sql\":",
            "sql: ", "---\n", "é", "\u{2028}", "-- ", "/*", "*/", ": ", "<think>", "</think>", "[", "]", ",", "&a", "*a",
            "WITH", "|", "  ", "~~~", "(", ")", "\\", "\0",
        ]), 0..24)) {
        let answer = pieces.concat();
        if let Ok(statement) = read(&answer) {
            prop_assert!(!statement.is_empty());
        }
    }

    #[test]
    fn finds_fenced_statement(before in "[a-z ]{0,40}", after in "[a-z ]{0,40}", column in "[a-z]{1,10}") {
        let statement = format!("SELECT {column} FROM t WHERE x = 'a;b'");
        let answer = format!("{before}\n```sql\n{statement}\n```\n{after}");
        prop_assert_eq!(read(&answer), Ok(statement));
    }
}
