//! Drops the privileges of PID 1: it becomes the step's user, loses all capabilities and sets `no_new_privs`.

use nix::sched::CloneFlags;
use proctor_core::model::enforcement::Control;
use rustix::process::{DumpableBehavior, Signal};
use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::helper::init_state::{InitOpResult, InitState};
use crate::helper::run_space_setup::map_ids;
use crate::helper::setup_failure::{internal, refuse, refused};

/// Becomes the step's user in a new user namespace. The mounts and the network remain owned by the previous user
/// namespace: even a step that gained a capability in its own namespace would have none over them.
pub(super) fn become_step_user(prepared: &mut InitState<'_>, uid: u32, gid: u32) -> InitOpResult {
    let control = Control::UserNamespace;
    let (user, group) = (rustix::thread::Uid::from_raw(uid), rustix::thread::Gid::from_raw(gid));
    let become_step = || {
        rustix::thread::set_thread_groups(&[])?;
        rustix::thread::set_thread_res_gid(group, group, group)?;
        rustix::thread::set_thread_res_uid(user, user, user)
    };
    become_step().map_err(refuse(control, format_args!("become user {uid} and group {gid}")))?;
    // Without this call, the process's files in /proc would belong to root, and the id maps could not be written.
    rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable)
        .map_err(internal("open Proctor's own files in /proc"))?;
    nix::sched::unshare(CloneFlags::CLONE_NEWUSER).map_err(refuse(control, "create the step's user namespace"))?;
    let seen = prepared.request.user.ids_in_sandbox();
    map_ids((uid, gid), seen).map_err(refuse(control, "map the step's user and group"))?;
    // The change of user has cleared the parent death signal.
    bind_to_helper()?;
    if (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw()) != seen {
        let hint = "report this with the kernel's version";
        return Err(refused(control, format!("PID 1 is not user {} after the change of user", seen.0), hint));
    }
    // The record must not differ between runs, while the ids of a run do.
    let how = if seen == (uid, gid) {
        format!("only user {uid} and group {gid} of the host are mapped")
    } else {
        format!("a dedicated user of the host, mapped alone, as user {} and group {}", seen.0, seen.1)
    };
    prepared.enforcement.record_enforced(control, how);
    Ok(())
}

pub(super) fn drop_capabilities(prepared: &mut InitState<'_>) -> InitOpResult {
    let control = Control::NoCapabilities;
    // Tries every bit: the kernel answers EINVAL for the first one that it does not know.
    for bit in 0..u64::BITS {
        match rustix::thread::remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << bit)) {
            Ok(()) => {}
            Err(rustix::io::Errno::INVAL) => break,
            Err(errno) => return Err(refuse(control, "empty the bounding set")(errno)),
        }
    }
    empty_capability_sets()?;
    prepared
        .enforcement
        .record_enforced(control, "bounding, ambient, permitted, effective and inheritable sets are empty");
    Ok(())
}

/// Empties the ambient, permitted, effective and inheritable sets.
pub(in crate::helper) fn empty_capability_sets() -> InitOpResult {
    let control = Control::NoCapabilities;
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    rustix::thread::clear_ambient_capability_set().map_err(refuse(control, "empty the ambient set"))?;
    rustix::thread::set_capabilities(None, none).map_err(refuse(control, "drop all capabilities"))?;
    let left = rustix::thread::capabilities(None).map_err(refuse(control, "read the capabilities"))?;
    if left != none {
        return Err(refused(control, "capabilities are left", "report this with the kernel's version"));
    }
    Ok(())
}

pub(super) fn no_new_privs(prepared: &mut InitState<'_>) -> InitOpResult {
    let control = Control::NoNewPrivs;
    rustix::thread::set_no_new_privs(true).map_err(refuse(control, "set no_new_privs"))?;
    if !rustix::thread::no_new_privs().map_err(refuse(control, "read no_new_privs"))? {
        return Err(refused(control, "no_new_privs could not be set", "report this with the kernel's version"));
    }
    prepared.enforcement.record_enforced(control, "prctl");
    Ok(())
}

pub(super) fn bind_to_helper() -> InitOpResult {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(internal("bind PID 1 to its helper"))
}
