//! Writes the steps of one loop to the audit trail.

use std::sync::{Arc, Mutex, PoisonError};

use proctor_core::sql::{AskEnd, AskRequest, Judgement, SqlRunAnswer, TokenCounts};
use proctor_core::text::canonical;
use proctor_core::text::digest::Sha256Hex;
use proctor_runner::Clock;
use serde_json::{Value, json};

use crate::answer_reader::MAX_ANSWER_BYTES;
use crate::audit::{AuditError, AuditKind, AuditTrail};
use crate::provider::{Completion, NamedProvider, Prompt};

/// Number of random bytes in an id.
const RANDOM_BYTES: usize = 4;

/// The audit of one loop.
pub(super) struct StepAudit {
    trail: Arc<Mutex<AuditTrail>>,
    id: String,
}

impl StepAudit {
    /// Chooses the id of a loop.
    pub(super) fn new(trail: Arc<Mutex<AuditTrail>>, clock: Clock) -> Self {
        let mut random = [0; RANDOM_BYTES];
        // Without a random source, ids of the same second are equal; the trail remains correct.
        let _ = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
        let id = clock.run_id(u32::from_ne_bytes(random));
        let id = id.map_or_else(|_| format!("{:08x}", u32::from_ne_bytes(random)), |id| id.as_str().to_owned());
        Self { trail, id }
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    async fn append(&self, kind: AuditKind, content: Value) -> Result<(), AuditError> {
        let (trail, id) = (Arc::clone(&self.trail), self.id.clone());
        let append = move || trail.lock().unwrap_or_else(PoisonError::into_inner).append(&id, kind, content);
        tokio::task::spawn_blocking(append).await?
    }

    pub(super) async fn question(
        &self,
        request: &AskRequest,
        provider: &NamedProvider,
        caller: &str,
    ) -> Result<(), AuditError> {
        // The texts of the schema are in the prompts, as far as the model sees them.
        let schema: Vec<Sha256Hex> = request.schema.iter().map(|text| Sha256Hex::digest(text.as_bytes())).collect();
        let content = json!({
            "question": request.question,
            "dialect": request.dialect,
            "policy": request.policy,
            "allow": request.allow,
            "limits": request.limits,
            "bounds": request.bounds,
            "reject_at": request.reject_at,
            "samples": request.samples,
            "database": request.database,
            "schema_sha256": schema,
            "provider": provider.name,
            "model": provider.model,
            "caller": caller,
            "proctor": env!("CARGO_PKG_VERSION"),
        });
        self.append(AuditKind::Question, content).await
    }

    pub(super) async fn prompt(&self, number: u32, prompt: &Prompt) -> Result<(), AuditError> {
        let content = json!({
            "attempt": number,
            "system": prompt.system,
            "user": prompt.user,
            "prompt_sha256": prompt.digest(),
        });
        self.append(AuditKind::Prompt, content).await
    }

    pub(super) async fn answer(&self, number: u32, answer: &Completion, tokens: TokenCounts) -> Result<(), AuditError> {
        // The provider does not read a longer answer either.
        let end = answer.text.floor_char_boundary(MAX_ANSWER_BYTES);
        let content = json!({
            "attempt": number,
            "text": &answer.text[..end],
            "text_sha256": Sha256Hex::digest(answer.text.as_bytes()),
            "truncated": answer.is_truncated,
            "tokens": tokens,
        });
        self.append(AuditKind::Answer, content).await
    }

    pub(super) async fn failed_answer(&self, number: u32, error: &str) -> Result<(), AuditError> {
        self.append(AuditKind::Answer, json!({ "attempt": number, "error": error })).await
    }

    pub(super) async fn judgement(
        &self,
        number: u32,
        statement: &str,
        judgement: &Judgement,
    ) -> Result<(), AuditError> {
        let content = json!({ "attempt": number, "statement": statement, "judgement": judgement });
        self.append(AuditKind::Judgement, content).await
    }

    /// Stores the size and the hash of the rows, not the rows, which may contain personal data.
    pub(super) async fn execution(
        &self,
        number: u32,
        statement: &str,
        answer: &SqlRunAnswer,
    ) -> Result<(), AuditError> {
        let result = answer.result.as_ref().map(|result| {
            json!({
                "columns": result.columns,
                "rows": result.rows.len(),
                "rows_sha256": Sha256Hex::digest(&canonical::to_vec(&result.rows)),
                "truncated": result.truncated,
                "changed": result.changed,
                "committed": result.committed,
            })
        });
        let content = json!({
            "attempt": number,
            "statement": statement,
            "verdict": answer.judgement.verdict,
            "digest": answer.judgement.digest,
            "result": result,
            "error": answer.error,
        });
        self.append(AuditKind::Execution, content).await
    }

    pub(super) async fn end(&self, end: AskEnd, reason: &str, attempts: usize) -> Result<(), AuditError> {
        let content = json!({ "verdict": end.verdict(), "end": end, "reason": reason, "attempts": attempts });
        self.append(AuditKind::End, content).await
    }
}
