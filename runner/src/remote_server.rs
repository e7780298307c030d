//! Creates clients of the servers that the operator's config names.

use proctor_core::spec::RemoteServer;
use proctor_remote::{BadEndpoint, Client, ClientConfig, Credentials, RemoteError, RetryPolicy, Timeouts, TlsFiles};

/// The reason why a server of the config cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServerError {
    /// The address is not valid.
    #[error(transparent)]
    Endpoint(#[from] BadEndpoint),
    /// A file of the settings cannot be used.
    #[error(transparent)]
    Remote(#[from] RemoteError),
}

/// Returns a client of the server. It connects when it is first used.
///
/// # Errors
/// The address is not valid, or a file of the settings cannot be used.
pub(crate) fn connect_to(server: &RemoteServer, retry: RetryPolicy, timeouts: Timeouts) -> Result<Client, ServerError> {
    let credentials = match (&server.token_file, &server.credential_helper) {
        (Some(file), _) => Credentials::TokenFile(file.clone()),
        (None, Some(program)) => Credentials::Helper(program.clone()),
        (None, None) => Credentials::None,
    };
    let config = ClientConfig {
        instance: server.instance.clone(),
        tls: TlsFiles { roots: server.tls_roots.clone(), client: server.tls_client.clone() },
        credentials,
        retry,
        timeouts,
        ..ClientConfig::new(server.endpoint.parse()?)
    };
    Ok(Client::new(config)?)
}
