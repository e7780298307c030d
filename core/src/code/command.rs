//! Codes of the command line itself: problems with a request, with this machine, or with the daemon as seen by the
//! client.

use super::error_code::codes;

/// The reason why a command has no result, apart from errors of the engine and the spec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CommandCode {
    /// The arguments are invalid, or name something that does not exist.
    Usage,
    /// This machine or installation lacks something.
    Environment,
    /// A bug in Proctor.
    Internal,
    /// The result could not be written.
    Unwritten,
    /// No daemon answers, but one is required.
    Unreachable,
    /// The daemon does not accept this user.
    NotAdmitted,
    /// The daemon sent no usable answer.
    NoAnswer,
    /// The connection to the daemon was lost during a run.
    Lost,
    /// The run was interrupted before the daemon reported its id.
    Unheard,
    /// The client stopped waiting, but the run continues for other clients.
    LeftRunning,
    /// The run ended before it began.
    NeverBegan,
    /// A daemon could not be started.
    NotStarted,
    /// The daemon did not stop.
    NotEnded,
    /// A hook stopped a push.
    PushStopped,
    /// A hook stopped a commit.
    CommitStopped,
    /// An import produced no checks.
    NothingCarriedOver,
}

codes! { CommandCode;
    Usage, 1, "command::usage",
        "The command line names something that does not exist, or its arguments contradict each other.",
        "A guess could verify the wrong tree, or nothing at all.",
        "Read the `hint:` line; `proctor help COMMAND` lists the arguments of a command.",
        "$ proctor run --profile pr --repo ~/src/project";
    Environment, 2, "command::environment",
        "This machine or this installation lacks something that the command needs.",
        "The command cannot run, or cannot give the guarantees that it promises.",
        "Read the `hint:` line; `proctor doctor` checks everything that a run needs.",
        "$ proctor doctor";
    Internal, 3, "command::internal",
        "Proctor detected a bug in itself.",
        "Its answer would not be reliable, so it reports no pass.",
        "Report the bug with the command that you ran; `PROCTOR_LOG=debug` logs more details.",
        "$ PROCTOR_LOG=debug proctor run";
    Unwritten, 4, "command::unwritten",
        "The result could not be written to standard output.",
        "A pass that could not be reported does not count: the exit code is 5 instead of 0.",
        "Check where standard output goes: the disk may be full, for instance.",
        "$ df -h .";
    Unreachable, 5, "daemon::unreachable",
        "`--daemon` requires a daemon, and no daemon answers.",
        "Only a daemon keeps the state of runs, and `--daemon` rules out running without one.",
        "Start a daemon, or omit `--daemon` so that this process runs the command itself.",
        "$ proctor daemon start";
    NotAdmitted, 6, "daemon::not_admitted",
        "A daemon may be listening on the socket, but this user may not use it.",
        "A daemon serves its own user and the users whom its operator has allowed.",
        "Ask the operator to add you to `daemon.allow_users`, start your own daemon, or run without one.",
        "[daemon]\nallow_users = [\"alice\"]";
    NoAnswer, 7, "daemon::no_answer",
        "The daemon sent no answer, or an invalid one.",
        "The client does not know what the daemon did with the request.",
        "Check the daemon with `proctor daemon status`; its log has more details.",
        "$ proctor daemon status";
    Lost, 8, "daemon::lost",
        "The connection to the daemon was lost during a run, so the result is unknown.",
        "A run without a known result is not a pass.",
        "Query the run's status when a daemon is available again, or repeat the run.",
        "$ proctor status 20260102T030405Z-1";
    Unheard, 9, "daemon::unheard",
        "The command was interrupted before the daemon reported the ID of the run.",
        "The daemon may have accepted the run and may still be executing it.",
        "Find the run, and cancel it if it is still active.",
        "$ proctor status\n$ proctor cancel 20260102T030405Z-1";
    LeftRunning, 10, "daemon::left_running",
        "The command was interrupted, but the run continues: another request had asked for it before.",
        "The first client is still waiting for the result.",
        "Let the run continue, or cancel it for every client.",
        "$ proctor cancel 20260102T030405Z-1";
    NeverBegan, 11, "daemon::never_began",
        "The run ended before it started, for instance because the daemon stopped while the run was queued.",
        "Nothing was verified, so the run is not a pass.",
        "Run it again.",
        "$ proctor run";
    NotStarted, 12, "daemon::not_started",
        "A daemon could not be started, or did not answer in time.",
        "Requests cannot be sent to a daemon that does not run.",
        "The message has the daemon's last output and the path of its log: fix the problem that they name.",
        "$ proctor daemon start";
    NotEnded, 13, "daemon::not_ended",
        "The daemon is still shutting down.",
        "Active runs get time to finish and to record their results.",
        "Wait, or send the request again: a second request cancels the runs.",
        "$ proctor daemon stop";
    PushStopped, 14, "hook::push_stopped",
        "The pre-push hook stopped a push because one of its commits did not pass.",
        "A commit that does not pass here would not pass on the server either.",
        "Fix the problems that the report above names, commit the fix, and push again.",
        "$ proctor run --rev HEAD";
    CommitStopped, 15, "hook::commit_stopped",
        "The pre-commit hook stopped a commit because the staged tree did not pass.",
        "The commit would consist of the staged tree.",
        "Fix the problems that the report above names, stage the fix, and commit again.",
        "$ proctor run";
    NothingCarriedOver, 16, "import::nothing_carried_over",
        "None of the hooks in the configuration could be converted.",
        "A spec without a step checks nothing.",
        "The list above gives the reason for each hook; write a spec yourself, or generate one.",
        "$ proctor init";
}
