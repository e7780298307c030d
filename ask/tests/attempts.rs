//! Tests the loop with the real SQLite engine and scripted answers: each loop ends as it should, and runs nothing that
//! was not judged `ok`.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use proctor_ask::audit::AuditKind;
use proctor_ask::backend::SqlBackend;
use proctor_ask::provider::{BoxFuture, Completion, Prompt, Provider, ProviderError};
use proctor_core::spec::AskSettings;
use proctor_core::sql::{
    AskBounds, AskEnd, AskRequest, AskVerdict, AttemptOutcome, Judgement, Percent, ResultRows, SchemaAnswer,
    SchemaRequest, SqlAllow, SqlRequest, SqlRunAnswer, SqlRunRequest, SqlSeverity, SqlVerdict,
};
use serde_json::json;
use support::{EngineBackend, Outcome, ScriptedModel, ask, shop_request};
use tokio::time::Instant;

const QUESTION: &str = "What is the name of each customer in Paris?";
const RIGHT: &str = "SELECT name FROM customers WHERE city = 'Paris'";
const WRONG_COLUMN: &str = "SELECT nmae FROM customers WHERE city = 'Paris'";

async fn ask_shop(model: &Arc<ScriptedModel>, request: &AskRequest) -> Outcome {
    let model: Arc<dyn Provider> = model.clone();
    ask(&EngineBackend, model, &AskSettings::default(), request).await
}

fn outcomes(outcome: &Outcome) -> Vec<AttemptOutcome> {
    outcome.answer.attempts.iter().map(|attempt| attempt.outcome).collect()
}

fn kinds(outcome: &Outcome) -> Vec<AuditKind> {
    outcome.records.iter().map(|(kind, _)| *kind).collect()
}

#[tokio::test]
async fn right_statement_is_judged_and_run_at_once() {
    let model = ScriptedModel::new(&[&format!("```sql\n{RIGHT}\n```")]);
    let outcome = ask_shop(&model, &shop_request(QUESTION)).await;
    let answer = &outcome.answer;
    assert_eq!(
        (answer.verdict, answer.end, answer.best),
        (AskVerdict::Answered, AskEnd::Answered, Some(1)),
        "{answer:?}"
    );
    assert_eq!(answer.statement.as_deref(), Some(RIGHT));
    assert_eq!(answer.result.as_ref().expect("rows").rows, [[json!("Bob")], [json!("Cyd")]]);
    assert_eq!(answer.judgement.as_ref().expect("a judgement").verdict, SqlVerdict::Ok);
    assert_eq!((answer.tokens.input, answer.tokens.output, answer.tokens.estimated), (100, 10, false));
    use AuditKind::{Answer, End, Execution, Judgement, Prompt, Question};
    assert_eq!(kinds(&outcome), [Question, Prompt, Answer, Judgement, Execution, End]);
    let execution = &outcome.records[4].1;
    assert_eq!((&execution["result"]["rows"], &execution["statement"]), (&json!(2), &json!(RIGHT)));
    let text = format!("{:?}", outcome.records);
    assert!(!text.contains("Cyd"), "rows are not part of the audit trail: {text}");
    assert_eq!(outcome.steps.last().map(String::as_str), Some("attempt 1: running the statement"));
}

#[tokio::test]
async fn wrong_column_is_corrected() {
    let model = ScriptedModel::new(&[WRONG_COLUMN, RIGHT]);
    let outcome = ask_shop(&model, &shop_request(QUESTION)).await;
    assert_eq!(outcomes(&outcome), [AttemptOutcome::Rejected, AttemptOutcome::Answered]);
    let correction = model.prompt(1);
    for part in ["P0612", "line 1, column 8", "`nmae`", "Candidates: name", WRONG_COLUMN, QUESTION, "TABLE orders"] {
        assert!(correction.user.contains(part), "{part} in {}", correction.user);
    }
    assert_eq!(model.prompt(0).system, correction.system);
    assert_eq!(outcome.answer.tokens.input, 200);
}

#[tokio::test]
async fn correction_contains_all_errors_at_once() {
    let model = ScriptedModel::new(&["SELECT nmae, ctiy, cstomer_id FROM customers", RIGHT]);
    ask_shop(&model, &shop_request(QUESTION)).await;
    let correction = model.prompt(1);
    for part in ["`nmae`", "`ctiy`", "`cstomer_id`"] {
        assert!(correction.user.contains(part), "{part} in {}", correction.user);
    }
}

#[tokio::test]
async fn gives_up_after_maximum_attempts_and_runs_nothing() {
    let answers: Vec<String> = (0..9).map(|n| format!("SELECT wrong{n}, x FROM customers")).collect();
    let mut answers: Vec<&str> = answers.iter().map(String::as_str).collect();
    answers[2] = WRONG_COLUMN;
    let model = ScriptedModel::new(&answers);
    let outcome = ask_shop(&model, &shop_request(QUESTION)).await;
    let answer = &outcome.answer;
    assert_eq!((answer.verdict, answer.end), (AskVerdict::GaveUp, AskEnd::Attempts));
    assert_eq!(answer.reason, "no statement was accepted in 4 attempts");
    assert!(answer.statement.is_none() && answer.result.is_none());
    assert_eq!((answer.attempts.len(), answer.best), (4, Some(3)), "the attempt with the fewest errors");
    assert_eq!(answer.judgement.as_ref().expect("of the best").verdict, SqlVerdict::Reject);
    assert!(!kinds(&outcome).contains(&AuditKind::Execution));
    assert_eq!(answer.verdict.exit_code(), 1);
}

#[tokio::test]
async fn prose_is_answered_with_feedback() {
    let model = ScriptedModel::new(&["I am not sure what you mean.", RIGHT]);
    let outcome = ask_shop(&model, &shop_request(QUESTION)).await;
    assert_eq!(outcomes(&outcome), [AttemptOutcome::Unreadable, AttemptOutcome::Answered]);
    let correction = model.prompt(1);
    for part in ["contains no SQL statement", "I am not sure what you mean.", "TABLE customers"] {
        assert!(correction.user.contains(part), "{part} in {}", correction.user);
    }
    assert_eq!(outcome.answer.attempts[0].error.as_deref(), Some("the answer contains no SQL statement"));
}

#[tokio::test]
async fn cut_answer_is_not_used() {
    let cut = Completion { text: RIGHT.into(), input_tokens: None, output_tokens: None, is_truncated: true };
    let model = ScriptedModel::with_completions(vec![cut.clone(), Completion { is_truncated: false, ..cut }]);
    let outcome = ask_shop(&model, &shop_request(QUESTION)).await;
    assert_eq!(outcomes(&outcome), [AttemptOutcome::Unreadable, AttemptOutcome::Answered]);
    assert!(outcome.answer.tokens.estimated);
}

#[tokio::test]
async fn obeyed_instruction_of_a_comment_is_rejected() {
    let model = ScriptedModel::new(&["DROP TABLE orders", RIGHT]);
    let outcome = ask_shop(&model, &shop_request(QUESTION)).await;
    assert_eq!(outcomes(&outcome), [AttemptOutcome::Rejected, AttemptOutcome::Answered]);
    assert_eq!(outcome.answer.attempts[0].verdict, Some(SqlVerdict::Reject));
    let prompt = model.prompt(0).user;
    let comment = prompt.lines().find(|line| line.contains("IGNORE ALL RULES")).expect("the model sees the comment");
    assert!(comment.starts_with("  name TEXT NOT NULL comment \""), "{comment}");
    assert_eq!(kinds(&outcome).iter().filter(|kind| **kind == AuditKind::Execution).count(), 1);
}

#[tokio::test]
async fn repeated_statement_ends_the_loop() {
    let model =
        ScriptedModel::new(&[WRONG_COLUMN, "```sql\nSELECT  nmae\nFROM customers WHERE city = 'Paris';\n```", RIGHT]);
    let outcome = ask_shop(&model, &shop_request(QUESTION)).await;
    assert_eq!(outcomes(&outcome), [AttemptOutcome::Rejected, AttemptOutcome::Repeated]);
    assert_eq!((outcome.answer.verdict, outcome.answer.end), (AskVerdict::GaveUp, AskEnd::Repeated));
    assert_eq!(outcome.answer.best, Some(1));
}

#[tokio::test]
async fn warning_rejects_only_from_the_requested_confidence() {
    let question = "What is the largest total amount?";
    let (warned, right) = ("SELECT total_amount FROM orders", "SELECT max(total_amount) FROM orders");
    let outcome = ask_shop(&ScriptedModel::new(&[warned, right]), &shop_request(question)).await;
    assert_eq!(outcomes(&outcome), [AttemptOutcome::Answered]);
    let warning = outcome.answer.attempts[0].diagnostics[0].clone();
    assert_eq!(warning.severity, SqlSeverity::Warning, "{warning:?}");
    let strict =
        AskRequest { reject_at: Percent::try_from(u64::from(warning.confidence)).ok(), ..shop_request(question) };
    let outcome = ask_shop(&ScriptedModel::new(&[warned, right]), &strict).await;
    assert_eq!(outcomes(&outcome), [AttemptOutcome::Rejected, AttemptOutcome::Answered]);
}

#[tokio::test]
async fn lists_hide_tables_from_the_model() {
    let allow = SqlAllow { tables: vec!["customers".into()], ..SqlAllow::default() };
    let request = AskRequest { allow, ..shop_request(QUESTION) };
    let model = ScriptedModel::new(&["SELECT count(*) FROM orders", RIGHT]);
    let outcome = ask_shop(&model, &request).await;
    assert!(!model.prompt(0).user.contains("orders"), "{}", model.prompt(0).user);
    assert_eq!(outcomes(&outcome), [AttemptOutcome::Rejected, AttemptOutcome::Answered]);
}

#[tokio::test]
async fn tokens_are_bounded() {
    let bounds = AskBounds { tokens: Some(10), ..AskBounds::default() };
    let model = ScriptedModel::new(&[RIGHT]);
    let outcome = ask_shop(&model, &AskRequest { bounds, ..shop_request(QUESTION) }).await;
    assert_eq!((outcome.answer.end, outcome.answer.attempts.len()), (AskEnd::Tokens, 0));
    assert!(model.prompts.lock().expect("not poisoned").is_empty(), "no prompt is sent");
    let bounds = AskBounds { tokens: Some(1_000), attempts: Some(20), seconds: None };
    let settings = AskSettings { max_attempts: 20, ..AskSettings::default() };
    let answers: Vec<String> = (0..20).map(|n| format!("SELECT wrong{n} FROM customers")).collect();
    let model = ScriptedModel::new(&answers.iter().map(String::as_str).collect::<Vec<_>>());
    let outcome = ask(&EngineBackend, model, &settings, &AskRequest { bounds, ..shop_request(QUESTION) }).await;
    assert_eq!(outcome.answer.end, AskEnd::Tokens, "{}", outcome.answer.reason);
    assert!(outcome.answer.tokens.total() <= 1_000 && !outcome.answer.attempts.is_empty());
}

#[tokio::test]
async fn caller_cannot_exceed_the_operators_bounds() {
    let bounds = AskBounds { attempts: Some(20), tokens: Some(u64::MAX), seconds: Some(u64::MAX) };
    let settings = AskSettings { max_attempts: 2, ..AskSettings::default() };
    let model = ScriptedModel::new(&["SELECT a FROM customers", "SELECT b FROM customers", RIGHT]);
    let outcome = ask(&EngineBackend, model, &settings, &AskRequest { bounds, ..shop_request(QUESTION) }).await;
    assert_eq!((outcome.answer.end, outcome.answer.attempts.len()), (AskEnd::Attempts, 2));
}

/// A model that never answers after its first answers.
struct HangingModel(Arc<ScriptedModel>, AtomicU32);

impl Provider for HangingModel {
    fn complete<'a>(
        &'a self,
        prompt: &'a Prompt,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Completion, ProviderError>> {
        match self.1.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)) {
            Ok(_) => self.0.complete(prompt, deadline),
            Err(_) => Box::pin(std::future::pending()),
        }
    }
}

#[tokio::test]
async fn late_first_answer_is_an_error_and_a_late_correction_ends_the_loop() {
    let settings = AskSettings { max_time: Duration::from_millis(500), ..AskSettings::default() };
    for (answers, end) in [(0, AskEnd::Provider), (1, AskEnd::Time)] {
        let model = HangingModel(ScriptedModel::new(&[WRONG_COLUMN]), AtomicU32::new(answers));
        let outcome = ask(&EngineBackend, Arc::new(model), &settings, &shop_request(QUESTION)).await;
        assert_eq!(outcome.answer.end, end, "{}", outcome.answer.reason);
        assert_eq!(kinds(&outcome).last(), Some(&AuditKind::End));
        let late = format!("attempt {}: no complete answer in time", answers + 1);
        assert_eq!(outcome.steps.last(), Some(&late));
    }
}

#[tokio::test]
async fn failing_provider_is_an_error() {
    let outcome = ask_shop(&ScriptedModel::new(&[]), &shop_request(QUESTION)).await;
    assert_eq!((outcome.answer.verdict, outcome.answer.end), (AskVerdict::Error, AskEnd::Provider));
    assert_eq!(outcome.steps.last().map(String::as_str), Some("attempt 1: the call of the model failed"));
    assert_eq!(outcome.answer.reason, "the answer of the model is empty");
    assert_eq!(outcome.answer.verdict.exit_code(), 5);
}

#[tokio::test]
async fn unusable_schema_is_an_error_before_any_prompt() {
    for schema in ["CREATE TABLE", ""] {
        let model = ScriptedModel::new(&[RIGHT]);
        let request = AskRequest { schema: vec![schema.to_owned()], ..shop_request(QUESTION) };
        let outcome = ask_shop(&model, &request).await;
        assert_eq!((outcome.answer.verdict, outcome.answer.end), (AskVerdict::Error, AskEnd::Schema), "{schema}");
        assert!(model.prompts.lock().expect("not poisoned").is_empty());
    }
}

/// The real engine, with a replaced result of `judge` or `run`.
struct BrokenBackend {
    judge_fails: bool,
    run_error: Option<&'static str>,
}

impl SqlBackend for BrokenBackend {
    fn describe<'a>(&'a self, request: &'a SchemaRequest) -> BoxFuture<'a, SchemaAnswer> {
        EngineBackend.describe_owned(request)
    }

    fn judge<'a>(&'a self, request: &'a SqlRequest) -> BoxFuture<'a, Judgement> {
        Box::pin(async {
            let judgement = EngineBackend.judge(request).await;
            if !self.judge_fails {
                return judgement;
            }
            proctor_sql::chain::error_judgement(
                request,
                "SQLite",
                proctor_core::sql::SqlCode::EngineDied,
                "gone".into(),
            )
        })
    }

    fn run<'a>(&'a self, request: &'a SqlRunRequest) -> BoxFuture<'a, SqlRunAnswer> {
        Box::pin(async {
            let answer = EngineBackend.run(request).await;
            match self.run_error {
                Some(error) => SqlRunAnswer { result: None::<ResultRows>, error: Some(error.to_owned()), ..answer },
                None => answer,
            }
        })
    }
}

impl EngineBackend {
    fn describe_owned<'a>(&self, request: &'a SchemaRequest) -> BoxFuture<'a, SchemaAnswer> {
        Box::pin(async { EngineBackend.describe(request).await })
    }
}

#[tokio::test]
async fn unjudged_statement_is_an_error_and_never_a_judgement() {
    let backend = BrokenBackend { judge_fails: true, run_error: None };
    let model = ScriptedModel::new(&[RIGHT, RIGHT]);
    let outcome = ask(&backend, model, &AskSettings::default(), &shop_request(QUESTION)).await;
    let answer = &outcome.answer;
    assert_eq!((answer.verdict, answer.end), (AskVerdict::Error, AskEnd::Engine));
    assert_eq!(outcomes(&outcome), [AttemptOutcome::NotJudged]);
    assert!(answer.statement.is_none() && answer.judgement.is_none() && answer.best.is_none());
    assert_eq!(answer.reason, "the statement could not be judged: gone");
}

#[tokio::test]
async fn failed_run_goes_back_once() {
    let backend = BrokenBackend { judge_fails: false, run_error: Some("the disk is full") };
    let other = "SELECT name FROM customers WHERE city LIKE 'Paris'";
    let model = ScriptedModel::new(&[RIGHT, other, "SELECT 1"]);
    let provider: Arc<dyn Provider> = model.clone();
    let outcome = ask(&backend, provider, &AskSettings::default(), &shop_request(QUESTION)).await;
    assert_eq!(outcomes(&outcome), [AttemptOutcome::RunFailed, AttemptOutcome::RunFailed]);
    assert_eq!((outcome.answer.verdict, outcome.answer.end), (AskVerdict::GaveUp, AskEnd::RunFailed));
    assert!(outcome.answer.statement.is_none() && outcome.answer.result.is_none());
    assert!(model.prompt(1).user.contains("the disk is full"), "{}", model.prompt(1).user);
}
