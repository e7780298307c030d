//! The keys that `[remote_cache]` and `[remote_executor]` have in common: a server, and how to reach it.

use std::path::PathBuf;

use crate::text::escape::quoted;

/// The beginnings of addresses.
const SCHEMES: [&str; 3] = ["grpcs://", "grpc://", "unix:/"];

/// A server of the Remote Execution API.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RemoteServer {
    /// The address: `grpcs://HOST:PORT`, `grpc://HOST:PORT` or `unix:/PATH`.
    pub endpoint: String,
    /// The name of the instance; empty for the default one.
    pub instance: String,
    /// The file of a bearer token.
    pub token_file: Option<PathBuf>,
    /// The program that provides credentials.
    pub credential_helper: Option<PathBuf>,
    /// The file with the trusted root certificates; `None` stands for those of the system.
    pub tls_roots: Option<PathBuf>,
    /// The files of the client certificate and its key.
    pub tls_client: Option<(PathBuf, PathBuf)>,
}

impl RemoteServer {
    /// Returns the files with secrets of this machine.
    pub(super) fn secret_files(&self) -> impl Iterator<Item = &PathBuf> {
        self.token_file.iter().chain(self.tls_client.iter().map(|(_, key)| key))
    }

    /// Returns the contradictions of the table `table`, and the files that are not absolute paths, `others` among them.
    pub(super) fn problems<'a>(
        &'a self,
        table: &str,
        has_half_certificate: bool,
        others: impl Iterator<Item = &'a PathBuf>,
    ) -> Vec<String> {
        let has_scheme = SCHEMES.iter().any(|scheme| self.endpoint.starts_with(scheme));
        let rules = [
            (
                !has_scheme,
                format!(
                    "`{table}.endpoint` {} does not begin with `grpcs://`, `grpc://` or `unix:/`",
                    quoted(&self.endpoint)
                ),
            ),
            (
                self.token_file.is_some() && self.credential_helper.is_some(),
                format!("`{table}` has both `token_file` and `credential_helper`"),
            ),
            (has_half_certificate, format!("`{table}.tls_client_certificate` and `tls_client_key` need each other")),
        ];
        let rules = rules.into_iter().filter_map(|(applies, message)| applies.then_some(message));
        let single = [&self.token_file, &self.credential_helper, &self.tls_roots];
        let client = self.tls_client.iter().flat_map(|(certificate, key)| [certificate, key]);
        let relative = single.into_iter().flatten().chain(client).chain(others).filter(|path| !path.is_absolute());
        let relative = relative
            .map(|path| format!("{} of `{table}` is not an absolute path", quoted(&path.display().to_string())));
        rules.chain(relative).collect()
    }
}
