//! Codes of the command line itself: problems with a request, with this machine, or with the daemon as seen by the
//! client.

use super::codes;

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
    /// The daemon gave no usable answer.
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
        "The words of the command line name something that is not there, or contradict each other.",
        "A guess at what was meant could verify the wrong tree, or nothing at all.",
        "Read the `hint:` line; `proctor help COMMAND` lists what a command takes.",
        "$ proctor run --profile pr --repo ~/src/project";
    Environment, 2, "command::environment",
        "This machine or this installation lacks something that the command needs.",
        "It could not be done at all, or not as it is promised.",
        "Read the `hint:` line; `proctor doctor` looks at everything that a run needs.",
        "$ proctor doctor";
    Internal, 3, "command::internal",
        "Proctor has made a mistake of its own.",
        "What it would say now cannot be relied on, so that it is no pass.",
        "Report it with the command that you ran; `PROCTOR_LOG=debug` says more about it.",
        "$ PROCTOR_LOG=debug proctor run";
    Unwritten, 4, "command::unwritten",
        "The result could not be written to standard output.",
        "A pass that nobody could be told is none: the exit code is 5 where it would be 0.",
        "See where standard output goes: a full disk, for instance.",
        "$ df -h .";
    Unreachable, 5, "daemon::unreachable",
        "A daemon was demanded, and none answers.",
        "Only a daemon remembers runs, and `--daemon` wants no other way.",
        "Start one, or leave `--daemon` out so that this process does it.",
        "$ proctor daemon start";
    NotAdmitted, 6, "daemon::not_admitted",
        "A daemon may listen there, and this user may not use its socket.",
        "A daemon answers its own user and those whom its operator has admitted.",
        "Ask who runs it to add you to `daemon.allow_users`, or use a daemon of your own, or none.",
        "[daemon]\nallow_users = [\"alice\"]";
    NoAnswer, 7, "daemon::no_answer",
        "The daemon gave no answer, or none that can be understood.",
        "What it has done with the request is not known.",
        "Look at it with `proctor daemon status`; its log says more.",
        "$ proctor daemon status";
    Lost, 8, "daemon::lost",
        "The daemon went away in the middle of a run, so that its end is not known.",
        "An end that nobody saw is no pass.",
        "Ask what became of it, where a daemon answers again, or run it again.",
        "$ proctor status 20260102T030405Z-1";
    Unheard, 9, "daemon::unheard",
        "The command was interrupted before the daemon had said which run it is.",
        "The daemon may have taken the run on, and goes on with it then.",
        "Look for it, and end it where it goes on.",
        "$ proctor status\n$ proctor cancel 20260102T030405Z-1";
    LeftRunning, 10, "daemon::left_running",
        "The command was interrupted, and the run goes on: another request had asked for it before.",
        "Who asked first still waits for its result.",
        "Leave it, or end it for everybody.",
        "$ proctor cancel 20260102T030405Z-1";
    NeverBegan, 11, "daemon::never_began",
        "The run ended before it began: the daemon was ended while it waited for its turn, say.",
        "Nothing was verified, and nothing is no pass.",
        "Run it again.",
        "$ proctor run";
    NotStarted, 12, "daemon::not_started",
        "A daemon could not be started, or did not answer in time.",
        "What was to be asked of it cannot be asked.",
        "Its last words and the place of its log stand in the message: mend what they say.",
        "$ proctor daemon start";
    NotEnded, 13, "daemon::not_ended",
        "The daemon is still ending what is under way.",
        "Runs are given their time, so that what they found is on record.",
        "Wait, or ask again: a second request cancels its runs.",
        "$ proctor daemon stop";
    PushStopped, 14, "hook::push_stopped",
        "The pre-push hook has stopped a push: a commit of it did not pass.",
        "What did not pass here would not pass there.",
        "Mend what the report above names, commit that, and push again.",
        "$ proctor run --rev HEAD";
    CommitStopped, 15, "hook::commit_stopped",
        "The pre-commit hook has stopped a commit: what is staged did not pass.",
        "The staged tree is what the commit would have.",
        "Mend what the report above names, stage that, and commit again.",
        "$ proctor run";
    NothingCarriedOver, 16, "import::nothing_carried_over",
        "No hook of the configuration could be carried over.",
        "A spec without a step checks nothing.",
        "The list above says why for each of them; write a spec by hand, or have one written.",
        "$ proctor init";
}
