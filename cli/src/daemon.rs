//! Finds the daemon for a command, decides whether the daemon or this process does the work, and maps the daemon's
//! errors to [`CliError`].

mod selection;

use std::path::{Path, PathBuf};

use proctor_client::error::ClientError;
use proctor_client::socket_candidates::all_candidates;
use proctor_core::api::{Health, Problem};
use proctor_core::code::{Coded as _, CommandCode};
use proctor_core::decision::verdict::{EXIT_INCONCLUSIVE, EXIT_UNREACHABLE};
use proctor_core::model::names::RunId;
use proctor_daemon::client::Client;

use crate::args::{OperatorArgs, SocketArgs, StateArgs};
use crate::caller::Caller;
use crate::error::CliError;
use crate::installation;

pub(crate) use selection::{
    BackendCriteria, Purpose, find_running_daemon, lock_holder, require_daemon, select_backend, select_backend_with_env,
};

/// Hint for a missing daemon.
const START_HINT: &str = "start one with `proctor daemon start`";
/// Hint for a daemon that may be listening but does not admit this user.
const ADMISSION_HINT: &str = "the operator of that daemon admits users with `daemon.allow_users` in its config; \
    otherwise start your own daemon (`proctor daemon start`) or use `--no-daemon`";

/// A daemon that responds.
#[derive(Debug, Clone)]
pub(crate) struct ReachableDaemon {
    /// Connection settings of the daemon.
    pub client: Client,
    /// The daemon's health response when it was found.
    pub health: Health,
}

impl ReachableDaemon {
    /// Returns the path of the daemon's socket.
    pub(crate) fn socket(&self) -> &Path {
        &self.client.address().socket
    }
}

/// Finds the daemon that the arguments select, for commands that only a daemon can do.
///
/// # Errors
/// No daemon responds: exit code 6.
pub(crate) async fn find_daemon(
    args: &SocketArgs,
    purpose: Purpose,
    caller: &Caller,
) -> Result<ReachableDaemon, CliError> {
    let operator = installation::operator(&args.operator, caller)?;
    require_daemon(&all_candidates(args.socket.as_deref(), &operator, caller), purpose).await
}

/// Returns the socket path of a daemon that this caller starts with these arguments.
///
/// # Errors
/// The operator's config is wrong, or the caller has no home directory.
pub(crate) fn own_socket(
    named: Option<&Path>,
    operator: &OperatorArgs,
    state: &StateArgs,
    caller: &Caller,
) -> Result<PathBuf, CliError> {
    let operator = installation::operator(operator, caller)?;
    if let Some(named) = named {
        return Ok(caller.cwd.join(named));
    }
    if let Some(socket) = &operator.daemon.socket {
        return Ok(PathBuf::from(socket));
    }
    Ok(proctor_client::installation::default_socket(caller, &installation::state_dir(state, caller)?))
}

/// Returns the repository path as the text that a request to the daemon contains.
///
/// # Errors
/// The path is not UTF-8.
pub(crate) fn repo_utf8(repo: &Path) -> Result<String, CliError> {
    repo.to_str().map(str::to_owned).ok_or_else(|| CliError::Usage {
        message: format!("the path `{}` cannot be sent to a daemon: it is not UTF-8", installation::show(repo)),
        hint: "use `--no-daemon`".to_owned(),
    })
}

/// Converts a failed daemon request to an error, for requests that the user can simply repeat.
pub(crate) fn client_error(error: ClientError) -> CliError {
    match error {
        ClientError::Problem(problem) => problem_error(*problem),
        ClientError::UnserializableRequest(message) => CliError::Internal(message),
        error @ ClientError::PermissionDenied { .. } => not_admitted_error(error.to_string()),
        error => CliError::Engine {
            message: error.to_string(),
            hint: Some("check it with `proctor daemon status`".to_owned()),
            exit_code: EXIT_INCONCLUSIVE,
            code: CommandCode::NoAnswer.code(),
        },
    }
}

/// Returns the error for a connection that was lost in the middle of a run.
pub(crate) fn lost_run_error(error: ClientError, run: &RunId) -> CliError {
    match error {
        ClientError::Problem(problem) => problem_error(*problem),
        error => CliError::Engine {
            message: format!("the result of run {run} is unknown, so it is not a pass: {error}"),
            hint: Some(format!("`proctor status {run}` shows its result when a daemon is available again")),
            exit_code: EXIT_INCONCLUSIVE,
            code: CommandCode::Lost.code(),
        },
    }
}

/// Returns the error for a command that requires a daemon when none responds.
pub(crate) fn unreachable_error(message: String) -> CliError {
    let code = CommandCode::Unreachable.code();
    CliError::Engine { message, hint: Some(START_HINT.to_owned()), exit_code: EXIT_UNREACHABLE, code }
}

/// Returns the error for a daemon that holds the lock of its socket while nothing listens at the path.
pub(crate) fn locked_socket_error(socket: &Path, pid: u32) -> CliError {
    let socket = installation::show(socket);
    CliError::Engine {
        message: format!(
            "no daemon listens at `{socket}`, but process {pid} holds its lock: the daemon is starting or shutting \
             down, or its socket file was removed"
        ),
        hint: Some(
            "try again in a moment; if the problem persists, `proctor daemon stop` stops that process".to_owned(),
        ),
        exit_code: EXIT_UNREACHABLE,
        code: CommandCode::Unreachable.code(),
    }
}

/// Returns the error for a daemon that does not admit this user.
pub(crate) fn not_admitted_error(message: String) -> CliError {
    let code = CommandCode::NotAdmitted.code();
    CliError::Engine { message, hint: Some(ADMISSION_HINT.to_owned()), exit_code: EXIT_UNREACHABLE, code }
}

/// Converts a daemon's problem document to the error that the engine in this process would have returned.
pub(crate) fn problem_error(problem: Problem) -> CliError {
    match problem.spec {
        Some(spec) => CliError::Invalid { file: spec.file.into(), text: spec.source, diagnostics: spec.diagnostics },
        None => CliError::Engine {
            code: problem.code(),
            message: problem.detail,
            hint: problem.hint,
            // A problem is never a pass, whatever exit code it claims.
            exit_code: if problem.exit_code == 0 { EXIT_INCONCLUSIVE } else { problem.exit_code },
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proctor_core::api::{ProblemType, SpecProblem};
    use proctor_core::spec::{Code, Diagnostic};

    #[test]
    fn maps_problem_to_the_error_of_a_local_engine() {
        let gone = Problem::new(ProblemType::Unprocessable, "no such thing").with_hint("make one");
        let error = problem_error(gone.clone());
        assert_eq!((error.exit_code(), error.to_string(), error.hints()), (2, gone.detail, vec!["make one".into()]));
        let passed = Problem::new(ProblemType::Internal, "x").with_exit_code(0);
        assert_eq!(problem_error(passed).exit_code(), 5);
        let mut invalid = Problem::new(ProblemType::InvalidSpec, "2 problems");
        let diagnostics = vec![Diagnostic::without_span(Code::Empty, "there is nothing in it")];
        invalid.spec =
            Some(SpecProblem { file: "/r/spec/verification.yaml".into(), source: String::new(), diagnostics });
        let error = problem_error(invalid).with_path_relative_to(Path::new("/r"));
        assert!(error.render().contains("1 problem in spec/verification.yaml"), "{}", error.render());
    }
}
