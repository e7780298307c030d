//! Enters and creates the namespaces of the sandbox.

use std::os::fd::OwnedFd;

use nix::sched::CloneFlags;
use proctor_core::model::enforcement::Control;

use super::{HelperOpResult, NamespaceSetup};
use crate::helper::mounts;
use crate::helper::run_space_setup::map_own_ids;
use crate::helper::setup_failure::refuse;

impl NamespaceSetup<'_> {
    /// Joins the user namespace first: it owns the mount namespace, and the other order fails with EPERM.
    pub(super) fn join_space(&mut self, user: bool) -> HelperOpResult {
        let join = |fd: &OwnedFd, kind| nix::sched::setns(fd, kind);
        if user {
            join(&self.users, CloneFlags::CLONE_NEWUSER)
                .map_err(refuse(Control::UserNamespace, "join the run's user namespace"))?;
        }
        join(&self.mount_ns, CloneFlags::CLONE_NEWNS)
            .map_err(refuse(Control::MountNamespace, "join the run's mount namespace"))
    }

    pub(super) fn unshare(&mut self, user: bool) -> HelperOpResult {
        let mut flags = CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWPID;
        flags.set(CloneFlags::CLONE_NEWUSER, user);
        let control = if user { Control::UserNamespace } else { Control::MountNamespace };
        nix::sched::unshare(flags).map_err(refuse(control, "leave the host's namespaces"))
    }

    pub(super) fn map_user(&mut self, uid: u32, gid: u32) -> HelperOpResult {
        map_own_ids(uid, gid).map_err(refuse(Control::UserNamespace, "map the process's own user and group"))?;
        self.enforcement.record_enforced(Control::UserNamespace, format!("only user {uid} and group {gid} are mapped"));
        Ok(())
    }

    pub(super) fn make_private(&mut self) -> HelperOpResult {
        mounts::make_all_private().map_err(refuse(Control::MountNamespace, "make all mounts private"))?;
        self.enforcement.record_enforced(Control::MountNamespace, "unshare, all mounts private");
        Ok(())
    }
}
