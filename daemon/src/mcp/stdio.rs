//! Implements the protocol over standard input and output, with one message per line. Every line that needs an answer
//! gets one, including invalid messages.

use std::io;
use std::sync::Arc;

use rmcp::RoleServer;
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::Transport;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use super::rpc_message::{self, InvalidRpcMessage};

/// Connection to a client over two streams.
pub(super) struct LineTransport<R, W> {
    input: BufReader<R>,
    /// Bytes of the current line. They survive cancellation of [`Transport::receive`].
    line: Vec<u8>,
    /// `true` if the line exceeds `max_line`, so its rest is skipped.
    is_overlong: bool,
    max_line: usize,
    output: Arc<Mutex<Option<W>>>,
    /// Task that writes the answer to an invalid line. The next line is read after it ends.
    pending_answer: Option<JoinHandle<io::Result<()>>>,
}

impl<R: AsyncRead + Unpin + Send, W: AsyncWrite + Unpin + Send + 'static> LineTransport<R, W> {
    /// Creates a transport that reads lines of at most `max_line` bytes from `input` and writes to `output`.
    pub(super) fn new(input: R, output: W, max_line: usize) -> Self {
        Self {
            input: BufReader::new(input),
            line: Vec::new(),
            is_overlong: false,
            max_line,
            output: Arc::new(Mutex::new(Some(output))),
            pending_answer: None,
        }
    }

    /// Reads a line, or returns `None` at the end of the input. Cancellation is safe: consumed bytes are kept in
    /// `self.line`.
    async fn next_line(&mut self) -> Option<Result<Vec<u8>, InvalidRpcMessage>> {
        loop {
            let available = self.input.fill_buf().await.ok()?;
            if available.is_empty() && self.line.is_empty() {
                return None;
            }
            let end = available.iter().position(|byte| *byte == b'\n');
            let part = &available[..end.unwrap_or(available.len())];
            let space = self.max_line.saturating_sub(self.line.len());
            self.is_overlong |= part.len() > space;
            self.line.extend_from_slice(&part[..part.len().min(space)]);
            let (is_whole, consumed) = (end.is_some() || available.is_empty(), part.len() + usize::from(end.is_some()));
            self.input.consume(consumed);
            if is_whole {
                let line = std::mem::take(&mut self.line);
                let overlong = std::mem::take(&mut self.is_overlong);
                return Some(if overlong { Err(InvalidRpcMessage::too_long(self.max_line, &line)) } else { Ok(line) });
            }
        }
    }

    fn send_error(&mut self, fault: &InvalidRpcMessage) {
        self.pending_answer =
            Some(tokio::spawn(write_line(Arc::clone(&self.output), fault.to_response().into_bytes())));
    }
}

async fn write_line<W: AsyncWrite + Unpin>(output: Arc<Mutex<Option<W>>>, mut line: Vec<u8>) -> io::Result<()> {
    line.push(b'\n');
    let mut output = output.lock().await;
    let output = output.as_mut().ok_or(io::ErrorKind::NotConnected)?;
    output.write_all(&line).await?;
    output.flush().await
}

impl<R: AsyncRead + Unpin + Send, W: AsyncWrite + Unpin + Send + 'static> Transport<RoleServer>
    for LineTransport<R, W>
{
    type Error = io::Error;

    fn send(&mut self, message: ServerJsonRpcMessage) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let output = Arc::clone(&self.output);
        async move { write_line(output, serde_json::to_vec(&message)?).await }
    }

    async fn receive(&mut self) -> Option<ClientJsonRpcMessage> {
        loop {
            if let Some(answering) = &mut self.pending_answer {
                // If the client does not read answers, the connection ends.
                answering.await.ok()?.ok()?;
                self.pending_answer = None;
            }
            let line = match self.next_line().await? {
                Ok(line) => line,
                Err(fault) => {
                    self.send_error(&fault);
                    continue;
                }
            };
            let line = line.trim_ascii();
            if line.is_empty() {
                continue;
            }
            match rpc_message::parse_message(line) {
                Ok(Some(message)) => return Some(message),
                Ok(None) => {}
                Err(fault) => self.send_error(&fault),
            }
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        drop(self.output.lock().await.take());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tokio::io::AsyncReadExt as _;

    use super::*;

    /// Returns the messages that the transport passes on, and its own answers to invalid ones.
    async fn exchange(input: &[u8], max_line: usize) -> (Vec<Value>, Vec<Value>) {
        let (ours, mut theirs) = tokio::io::duplex(64 << 10);
        let mut lines = LineTransport::new(input, ours, max_line);
        let mut passed = Vec::new();
        while let Some(message) = lines.receive().await {
            passed.push(serde_json::to_value(message).expect("JSON"));
        }
        lines.close().await.expect("closes");
        drop(lines);
        let mut answered = String::new();
        theirs.read_to_string(&mut answered).await.expect("text");
        (passed, answered.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect())
    }

    #[tokio::test]
    async fn answers_every_invalid_line() {
        let long = format!(r#"{{"jsonrpc":"2.0","id":5,"method":"ping","params":{{"x":"{}"}}}}"#, "y".repeat(4_000));
        let mut input = b"no JSON\n\n\r\n{\"id\":2}\n\xff\n".to_vec();
        input.extend_from_slice(long.as_bytes());
        input.extend_from_slice(b"\n{\"jsonrpc\":\"2.0\",\"id\":6,\"method\":\"ping\"}\r\n");
        input.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"ping\"}");
        let (passed, answered) = exchange(&input, 1_000).await;
        let ids = |messages: &[Value]| messages.iter().map(|message| message["id"].clone()).collect::<Vec<_>>();
        assert_eq!(ids(&passed), [json!(6), json!(7)], "also the line that the input ends in");
        assert_eq!(ids(&answered), [Value::Null, json!(2), Value::Null, json!(5)]);
        let codes: Vec<i64> = answered.iter().filter_map(|answer| answer["error"]["code"].as_i64()).collect();
        assert_eq!(codes, [-32700, -32600, -32700, -32600]);
    }

    #[tokio::test]
    async fn reads_line_of_maximum_length() {
        let line = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
        assert_eq!(exchange(format!("{line}\n").as_bytes(), line.len()).await.0.len(), 1);
        assert_eq!(exchange(format!("{line}\n").as_bytes(), line.len() - 1).await.1[0]["id"], 1);
    }
}
