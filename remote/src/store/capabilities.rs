//! Asks a server what it offers.

use crate::capabilities::{Capabilities, capabilities_of};
use crate::client::{Client, Method};
use crate::error::RemoteError;
use crate::messages::{GetCapabilitiesRequest, ServerCapabilities};

const GET_CAPABILITIES: Method =
    Method { name: "GetCapabilities", path: "/build.bazel.remote.execution.v2.Capabilities/GetCapabilities" };
impl Client {
    /// Returns what the server offers. The server is asked once for each connection.
    ///
    /// # Errors
    /// The server does not answer, or cannot use sha256.
    pub async fn capabilities(&self) -> Result<Capabilities, RemoteError> {
        if let Some(known) = self.known_capabilities() {
            return Ok(known);
        }
        let capabilities = self.ask_capabilities().await?;
        self.set_capabilities(Some(capabilities));
        Ok(capabilities)
    }

    async fn ask_capabilities(&self) -> Result<Capabilities, RemoteError> {
        let request = GetCapabilitiesRequest { instance_name: self.instance().to_owned() };
        let answer: ServerCapabilities = self.unary(GET_CAPABILITIES, &request).await?;
        capabilities_of(&answer)
            .map_err(|problem| RemoteError::Unsupported { endpoint: self.endpoint().to_owned(), problem })
    }
}
