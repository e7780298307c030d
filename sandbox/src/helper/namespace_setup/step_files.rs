//! Writes the files that programs of a step expect: the user database and git's configuration.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{Gid, Uid};

use super::{HelperOpResult, NamespaceSetup};
use crate::helper::mounts::{self, NODEV, NOSUID, RDONLY};
use crate::helper::setup_failure::internal;

impl NamespaceSetup<'_> {
    /// Mounts a passwd and a group file. Tools that look up their own user fail without an entry.
    pub(super) fn mount_accounts(&mut self, home: &Path) -> HelperOpResult {
        let (uid, gid) = self.request.user.ids_in_sandbox();
        let user = format!("step:x:{uid}:{gid}:step:");
        let nobody = "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n";
        let passwd = [user.as_bytes(), home.as_os_str().as_bytes(), b":/bin/sh\n", nobody.as_bytes()].concat();
        let group = format!("step:x:{gid}:\nnogroup:x:65534:\n");
        self.mount_account_file("passwd", &passwd)?;
        self.mount_account_file("group", group.as_bytes())
    }

    fn mount_account_file(&self, name: &str, content: &[u8]) -> HelperOpResult {
        let at = Path::new("/etc").join(name);
        // No mount point can be created there, and without the file no program expects an entry.
        if !at.exists() {
            return Ok(());
        }
        let put = || {
            let dir = self.scratch_dir("etc", 0o755, None)?;
            mounts::make_file(dir.as_fd(), name.as_ref())?.write_all(content)?;
            let file = mounts::clone_beneath(dir.as_fd(), name)?;
            mounts::set_attributes(file.as_fd(), RDONLY | NOSUID | NODEV)?;
            mounts::attach(file.as_fd(), mounts::open_mount_point(&at)?.as_fd())
        };
        put().map_err(internal(format_args!("mount the step's {}", at.display())))
    }

    pub(super) fn write_git_config(&self, home: &Path) -> HelperOpResult {
        let write = || {
            let mut file = mounts::make_file(mounts::open_readable_dir(home)?.as_fd(), ".gitconfig".as_ref())?;
            file.write_all(b"[core]\n\tcheckStat = minimal\n")?;
            file.write_all(self.git_trust_config())?;
            let owner = self.step_owner();
            rustix::fs::fchown(&file, Some(Uid::from_raw(owner.uid)), Some(Gid::from_raw(owner.gid)))?;
            Ok::<_, io::Error>(())
        };
        write().map_err(internal("write the step's .gitconfig"))
    }
}
