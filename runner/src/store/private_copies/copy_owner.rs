//! The users that own private copies under a root daemon.

use std::fs;

use proctor_core::text::digest::Sha256Hex;
use proctor_snapshot::MirrorOwner;
use rustix::fs::Mode;

use crate::store::StoreError;
use crate::store::directory::Directory;

/// First of the user ids that own the copies of a root daemon, and their number. These ids belong to no user.
const FIRST_OWNER: u32 = 1_879_113_728;
const OWNER_COUNT: u32 = (1 << 31) - FIRST_OWNER;

/// Picks the user id that owns the copies of a repository under a root daemon. The id belongs to no user, so that
/// no process outside of sandboxes can change the copy or trace a step.
pub(super) fn owner_for(key: &str) -> MirrorOwner {
    let digest = Sha256Hex::digest(key.as_bytes()).to_raw();
    let number = u32::from_le_bytes([digest[0], digest[1], digest[2], digest[3]]);
    let id = FIRST_OWNER + number % OWNER_COUNT;
    MirrorOwner { uid: id, gid: id }
}

/// Returns whether our user namespace maps the ids of an owner: a container may map only few.
pub(super) fn is_mapped(owner: MirrorOwner) -> bool {
    let maps = |file: &str, id: u32| fs::read_to_string(file).is_ok_and(|map| map_contains(&map, id));
    maps("/proc/self/uid_map", owner.uid) && maps("/proc/self/gid_map", owner.gid)
}

/// Returns whether an id map in the format of user_namespaces(7) contains `id`.
fn map_contains(map: &str, id: u32) -> bool {
    map.lines().any(|line| {
        let mut numbers = line.split_ascii_whitespace().map(str::parse::<u64>);
        let (Some(Ok(first)), _, Some(Ok(count))) = (numbers.next(), numbers.next(), numbers.next()) else {
            return false;
        };
        (first..first.saturating_add(count)).contains(&u64::from(id))
    })
}

/// Lets the git helper, which runs as a copy's owner, traverse the state directory to that copy. The modes of the
/// other entries keep it out of them.
pub(super) fn allow_traversal(state: &Directory) -> Result<(), StoreError> {
    let stat = rustix::fs::fstat(state).map_err(StoreError::io("stat", state.name()))?;
    rustix::fs::fchmod(state, Mode::from_raw_mode(stat.st_mode & 0o7777 | 0o011))
        .map_err(StoreError::io("give the owner of private copies access", state.name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_id_map() {
        let host = "         0          0 4294967295\n";
        assert!(map_contains(host, FIRST_OWNER));
        assert!(
            !map_contains("0 1000 1\n1 100000 65536\n", FIRST_OWNER)
                && map_contains("0 1000 1\n1 100000 65536\n", 65_536)
        );
        assert!(!map_contains("", 0) && !map_contains("no map", 0));
    }
}
