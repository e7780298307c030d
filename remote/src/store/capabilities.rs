//! Asks a server what it offers.

use crate::capabilities::{Capabilities, capabilities_of};
use crate::client::{Client, Method};
use crate::error::RemoteError;
use crate::messages::{GetCapabilitiesRequest, ServerCapabilities};

const GET_CAPABILITIES: Method =
    Method { name: "GetCapabilities", path: "/build.bazel.remote.execution.v2.Capabilities/GetCapabilities" };
impl Client {
    /// Returns what the server offers. The server is asked once.
    ///
    /// # Errors
    /// The server does not answer, or cannot use sha256.
    pub async fn capabilities(&self) -> Result<Capabilities, RemoteError> {
        self.known_capabilities().get_or_try_init(|| self.ask_capabilities()).await.copied()
    }

    async fn ask_capabilities(&self) -> Result<Capabilities, RemoteError> {
        let request = GetCapabilitiesRequest { instance_name: self.instance().to_owned() };
        let answer: ServerCapabilities = self.unary(GET_CAPABILITIES, &request).await?;
        capabilities_of(&answer)
            .map_err(|problem| RemoteError::Unsupported { endpoint: self.endpoint().to_owned(), problem })
    }
}
