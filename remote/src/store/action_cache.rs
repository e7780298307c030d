//! Reads and writes results of actions.

use tonic::Code;

use crate::blob::BlobDigest;
use crate::client::{Client, Method};
use crate::error::RemoteError;
use crate::messages::{ActionResult, GetActionResultRequest, SHA256, UpdateActionResultRequest};

const GET: Method =
    Method { name: "GetActionResult", path: "/build.bazel.remote.execution.v2.ActionCache/GetActionResult" };
const UPDATE: Method =
    Method { name: "UpdateActionResult", path: "/build.bazel.remote.execution.v2.ActionCache/UpdateActionResult" };

impl Client {
    /// Returns the stored result of an action; `None` if there is none. The server may include the content of the files
    /// `inlined`. Nothing in the result is verified.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn action_result(
        &self,
        action: &BlobDigest,
        inlined: &[&str],
    ) -> Result<Option<ActionResult>, RemoteError> {
        let request = GetActionResultRequest {
            instance_name: self.instance().to_owned(),
            action_digest: Some(action.to_message()),
            inline_output_files: inlined.iter().map(|&path| path.to_owned()).collect(),
            digest_function: SHA256,
            ..GetActionResultRequest::default()
        };
        match self.unary(GET, &request).await {
            Ok(result) => Ok(Some(result)),
            Err(error) if error.has_code(Code::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Stores the result of an action. The blobs that it names must be stored already.
    ///
    /// # Errors
    /// The server does not answer, or refuses the result.
    pub async fn store_action_result(&self, action: &BlobDigest, result: ActionResult) -> Result<(), RemoteError> {
        let request = UpdateActionResultRequest {
            instance_name: self.instance().to_owned(),
            action_digest: Some(action.to_message()),
            action_result: Some(result),
            digest_function: SHA256,
        };
        let _stored: ActionResult = self.unary(UPDATE, &request).await?;
        Ok(())
    }
}
