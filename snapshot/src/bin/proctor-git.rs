//! `proctor-git`: reads one repository for `proctor`, and exits.
//!
//! Standard input contains one request as a line of JSON, optionally followed by output of the `git` program. The
//! answer is written to standard output in frames. The parent starts this program with an empty environment as the
//! repository's owner, or as root with arguments that name the owner, and kills it at a deadline.

use std::io::{Read as _, Write as _};
use std::process::ExitCode;

use proctor_git::owner_rights::OwnerRights;
use proctor_git::protocol::GitRequest;
use proctor_git::repository::{request_handler, watchdog};
use proctor_snapshot::identify_commit_tree;

/// The largest request that is read, in bytes.
const REQUEST_BYTES: u64 = 1 << 30;

fn main() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!(
                "error: {error}\nhint: only `proctor` starts `proctor-git`, which reads a request from standard input"
            );
            ExitCode::FAILURE
        }
    }
}

fn serve() -> Result<(), std::io::Error> {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    if let Some(rights) = OwnerRights::from_arguments(&arguments)? {
        rights.assume()?;
    }
    // A change of the user clears the signal.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    let mut bytes = Vec::new();
    std::io::stdin().lock().take(REQUEST_BYTES).read_to_end(&mut bytes)?;
    let end = bytes.iter().position(|byte| *byte == b'\n');
    let (request, program_output) = end.map_or((&bytes[..], None), |end| (&bytes[..end], Some(&bytes[end + 1..])));
    let request: GitRequest = serde_json::from_slice(request)?;
    watchdog::start_watchdog()?;
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    request_handler::serve(&request, program_output, identify_commit_tree, &mut out)?;
    out.flush()
}
