//! Describes why a set-up failed: the attempted action, the kernel's answer, and how to fix it.

use std::fmt::Display;
use std::io;

use nix::errno::Errno;
use proctor_core::model::enforcement::Control;
use proctor_core::model::outcome::StartFault;

use super::mounts::MountError;
use crate::wire::HelperMessage;

/// The reason that ended a set-up.
#[derive(Debug)]
pub(super) enum SetupFailure {
    /// A control is not available.
    Refused { control: Control, message: String, hint: String },
    /// The command cannot be started.
    NotStarted { fault: StartFault, message: String },
}

impl SetupFailure {
    pub(super) fn into_message(self) -> HelperMessage {
        match self {
            Self::Refused { control, message, hint } => {
                HelperMessage::Refused { control, message: truncate_text(message), hint: truncate_text(hint) }
            }
            Self::NotStarted { fault, message } => HelperMessage::NotStarted { fault, message: truncate_text(message) },
        }
    }

    /// Encodes the failure for a pipe to the parent process.
    pub(super) fn into_pipe_bytes(self) -> Vec<u8> {
        serde_json::to_vec(&self.into_message()).unwrap_or_default()
    }

    /// Decodes a failure that a child process wrote to a pipe.
    pub(super) fn from_pipe_bytes(bytes: &[u8]) -> Self {
        match serde_json::from_slice(bytes) {
            Ok(HelperMessage::Refused { control, message, hint }) => Self::Refused { control, message, hint },
            Ok(HelperMessage::NotStarted { fault, message }) => Self::NotStarted { fault, message },
            _ => Self::internal("a child process failed without a readable reason"),
        }
    }

    /// Returns an internal error of proctor, or a system error that is unrelated to any control.
    pub(super) fn internal(what: impl Display) -> Self {
        Self::NotStarted { fault: StartFault::Internal, message: what.to_string() }
    }
}

/// Truncates a text so that it fits into one packet, and on one screen.
fn truncate_text(mut text: String) -> String {
    const MAX: usize = 4 << 10;
    if text.len() > MAX {
        text.truncate(text.floor_char_boundary(MAX));
        text.push('…');
    }
    text
}

/// Converts the error of a system call to the refusal of a control; `what` is the attempted action.
pub(super) fn refuse<E: Into<io::Error>>(control: Control, what: impl Display) -> impl FnOnce(E) -> SetupFailure {
    move |error| {
        let error = error.into();
        let mount_error = error.get_ref().and_then(|inner| inner.downcast_ref::<MountError>());
        let errno =
            mount_error.map(|mount_error| mount_error.errno).or_else(|| error.raw_os_error()).map(Errno::from_raw);
        let answer = match (errno, mount_error) {
            (Some(errno), Some(mount_error)) => format!("{errno:?} ({}); {mount_error}", errno.desc()),
            (Some(errno), None) => format!("{errno:?} ({})", errno.desc()),
            (None, _) => error.to_string(),
        };
        SetupFailure::Refused {
            control,
            message: format!("cannot {what}: {answer}"),
            hint: hint(control, errno).to_owned(),
        }
    }
}

/// Returns the refusal of a control for a reason that proctor detected.
pub(super) fn refused(control: Control, message: impl Into<String>, hint: impl Into<String>) -> SetupFailure {
    SetupFailure::Refused { control, message: message.into(), hint: hint.into() }
}

/// Converts the error of a system call to an internal error.
pub(super) fn internal<E: Into<io::Error>>(what: impl Display) -> impl FnOnce(E) -> SetupFailure {
    move |error| SetupFailure::internal(format_args!("cannot {what}: {}", error.into()))
}

const USER_NAMESPACES: &str = "allow user namespaces: on Ubuntu by a profile for the helper alone (`proctor doctor \
    --apparmor-profile | sudo tee /etc/apparmor.d/proctor-sandbox | sudo apparmor_parser -r`), on Debian and Arch by \
    `sysctl kernel.unprivileged_userns_clone=1`, where there are too few by `sysctl user.max_user_namespaces=15000`; in a \
    container, allow nesting (`--security-opt seccomp=unconfined --security-opt apparmor=unconfined`), or run proctor \
    outside of it";
/// Hint on the kernel's requirements for Landlock.
pub(super) const LANDLOCK: &str =
    "boot with `lsm=…,landlock`, or use a kernel that has it (`CONFIG_SECURITY_LANDLOCK`)";
/// Hint on the kernel's requirements for the system call filter.
pub(super) const FILTER: &str = "use a kernel with seccomp (`CONFIG_SECCOMP_FILTER`); in a container, use a filter that \
    permits `seccomp`";

fn hint(control: Control, errno: Option<Errno>) -> &'static str {
    use Control as C;
    match (control, errno) {
        (C::SyscallFilter, _) => FILTER,
        (C::Landlock, _) => LANDLOCK,
        (_, Some(Errno::ENOSYS)) => "this needs Linux 5.12 or newer, and a container that does not refuse its calls",
        (C::UserNamespace | C::MountNamespace, _) => USER_NAMESPACES,
        (C::PrivateProc, Some(Errno::EPERM)) => {
            "the container masks parts of /proc: start it with `--security-opt systempaths=unconfined` or as a nested \
             container of its own user namespace, or run proctor outside of it"
        }
        (C::Layer, Some(Errno::ENODEV | Errno::EINVAL | Errno::EOPNOTSUPP)) => {
            "layers need overlayfs with `userxattr` (Linux 5.12, `modprobe overlay`; more than 14 layers need 6.8), and \
             a repository on a file system that supports being a lower layer"
        }
        (_, Some(Errno::EPERM | Errno::EACCES)) => USER_NAMESPACES,
        (_, Some(Errno::ENOSPC | Errno::ENOMEM)) => {
            "free memory, or raise `limits.disk`, `user.max_mnt_namespaces` and `fs.mount-max`"
        }
        _ => "run `proctor doctor`, and report its output if no control is missing",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal_texts(control: Control, error: io::Error) -> (String, String) {
        match refuse(control, "do it")(error) {
            SetupFailure::Refused { message, hint, .. } => (message, hint),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn refusal_names_error_and_hint() {
        let (message, hint) = refusal_texts(Control::UserNamespace, io::Error::from_raw_os_error(libc::ENOSPC));
        assert!(
            message.starts_with("cannot do it: ENOSPC (") && hint.contains("max_user_namespaces"),
            "{message} {hint}"
        );
        let (_, hint) = refusal_texts(Control::PrivateProc, io::Error::from_raw_os_error(libc::EPERM));
        assert!(hint.contains("systempaths"), "{hint}");
    }

    #[test]
    fn refusal_includes_kernel_log() {
        let mount_error = MountError { errno: libc::EINVAL, message: "overlay: too many lower directories".to_owned() };
        let (message, hint) = refusal_texts(Control::Layer, io::Error::other(mount_error));
        assert!(message.contains("EINVAL") && message.contains("too many lower directories"), "{message}");
        assert!(hint.contains("overlayfs"), "{hint}");
    }

    #[test]
    fn truncates_long_text_at_char_boundary() {
        let text = truncate_text("ä".repeat(4000));
        assert!(text.len() < 5000 && text.ends_with('…'));
    }
}
