//! Lists the unit tests that need what a machine, or a sandbox around the tests, may lack. The integration tests check
//! such needs themselves.

use rustix::fs::{CWD, FileType, Mode, fchmod, mknodat};
use rustix::net::{AddressFamily, SocketType, netlink, socket};

/// Something that the kernel may refuse.
#[derive(Clone, Copy)]
enum MachineNeed {
    /// Whiteouts of overlayfs: character devices with the number 0:0.
    Whiteouts,
    /// Programs that run as their owner.
    SetIdBits,
    /// A list of the sockets of a network namespace.
    SocketList,
}

/// The tests with their needs.
const NEEDS: [(&str, MachineNeed); 5] = [
    ("store::caches::tests::merged_layers_match_model", MachineNeed::Whiteouts),
    ("store::caches::tests::merges_full_stack_into_equivalent_layer", MachineNeed::Whiteouts),
    ("store::caches::tests::omits_sockets_and_fifos_without_uncovering_lower_entries", MachineNeed::Whiteouts),
    ("store::caches::tests::removes_set_id_bits_and_refuses_overlayfs_attributes", MachineNeed::SetIdBits),
    ("helper::memory_sources::tests::counts_unread_unix_socket_data", MachineNeed::SocketList),
];

/// Returns the tests that cannot run here, with the reasons.
pub(super) fn unavailable_tests() -> impl Iterator<Item = (&'static str, &'static str)> {
    NEEDS.into_iter().filter_map(|(name, need)| Some((name, need.missing_reason()?)))
}

impl MachineNeed {
    /// Returns the reason why this is not available.
    fn missing_reason(self) -> Option<&'static str> {
        let is_available = match self {
            Self::Whiteouts => can_create_whiteout(),
            Self::SetIdBits => can_set_id_bits(),
            Self::SocketList => socket(AddressFamily::NETLINK, SocketType::RAW, Some(netlink::SOCK_DIAG)).is_ok(),
        };
        match (is_available, self) {
            (true, _) => None,
            (false, Self::Whiteouts) => Some("the kernel does not allow whiteouts here"),
            (false, Self::SetIdBits) => Some("the kernel does not allow programs that run as their owner here"),
            (false, Self::SocketList) => Some("the kernel does not list sockets here"),
        }
    }
}

fn can_create_whiteout() -> bool {
    let Ok(directory) = tempfile::tempdir() else { return false };
    mknodat(CWD, directory.path().join("whiteout"), FileType::CharacterDevice, Mode::empty(), 0).is_ok()
}

fn can_set_id_bits() -> bool {
    let Ok(file) = tempfile::NamedTempFile::new() else { return false };
    fchmod(&file, Mode::from_raw_mode(0o6755)).is_ok()
}
