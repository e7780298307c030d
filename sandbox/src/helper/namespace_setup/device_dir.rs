//! Mounts a minimal `/dev`.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use proctor_core::model::enforcement::Control;
use rustix::fs::Mode;
use rustix::mount::MountAttrFlags;

use super::{HelperOpResult, NamespaceSetup, PTS_DIR};
use crate::helper::mounts::{self, MountOption};
use crate::helper::setup_failure::refuse;
use crate::setup::DEVICES;

impl NamespaceSetup<'_> {
    pub(super) fn clone_devices(&mut self) -> HelperOpResult {
        for name in DEVICES {
            let path = Path::new("/dev").join(name);
            let device = mounts::clone_device(&path)
                .map_err(refuse(Control::PrivateDev, format_args!("clone the mount of {}", path.display())))?;
            self.devices.push((name, device));
        }
        Ok(())
    }

    pub(super) fn mount_dev(&mut self) -> HelperOpResult {
        let devices = std::mem::take(&mut self.devices);
        let make = || {
            drop(self.scratch_dir("dev", 0o755, None)?);
            drop(self.scratch_dir("shm", 0o1777, None)?);
            let scratch = self.scratch()?.as_fd();
            make_dev(&mounts::clone_beneath(scratch, "dev")?, &mounts::clone_beneath(scratch, "shm")?, &devices)
                .and_then(|()| mounts::open_dir(Path::new("/dev")))
        };
        let mount = make().map_err(refuse(Control::PrivateDev, "mount a minimal /dev"))?;
        self.hidden.push(("/dev".into(), mount));
        self.scratch_dirs.push("/dev/shm".to_owned());
        self.enforcement.record_enforced(Control::PrivateDev, "six devices, a private devpts and shm");
        Ok(())
    }
}

/// Populates `/dev`. Attaches both mounts first, so that the files of the first can be mount points.
fn make_dev(mount: &OwnedFd, shm: &OwnedFd, devices: &[(&'static str, OwnedFd)]) -> io::Result<()> {
    mounts::attach_at(mount.as_fd(), Path::new("/dev"))?;
    let dev = mounts::open_readable_dir(Path::new("/dev"))?;
    for (name, device) in devices {
        drop(mounts::make_file(dev.as_fd(), name.as_ref())?);
        mounts::attach(device.as_fd(), mounts::open_beneath(dev.as_fd(), Path::new(name))?.as_fd())?;
    }
    let links = [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
        ("ptmx", "pts/ptmx"),
    ];
    for (name, target) in links {
        rustix::fs::symlinkat(target, &dev, name)?;
    }
    for name in ["shm", "pts"] {
        rustix::fs::mkdirat(&dev, name, Mode::from_raw_mode(0o755))?;
    }
    mounts::attach_at(shm.as_fd(), Path::new("/dev/shm"))?;
    // Without `gid=5`: the kernel refuses a group that is not mapped.
    let options = [MountOption("ptmxmode", "0666".to_owned()), MountOption("mode", "0620".to_owned())];
    let attributes =
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC | MountAttrFlags::MOUNT_ATTR_NOATIME;
    let pts = mounts::new_filesystem("devpts", &options, attributes)?;
    mounts::attach_at(pts.as_fd(), Path::new(PTS_DIR))
}
