//! Keeps files of the host's `/proc` open, and uses them: refuses mounts inside the repository, and masks sockets and
//! kernel files.

use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use proctor_core::model::enforcement::Control;
use rustix::fs::Mode;

use super::{HelperOpResult, HostProcFiles, NamespaceSetup};
use crate::helper::masks::{self, HostSockets, SysView};
use crate::helper::mount_table::unescape;
use crate::helper::mounts::{self, NODEV, NOSUID, RDONLY};
use crate::helper::setup_failure::{SetupFailure, internal, refuse, refused};

impl NamespaceSetup<'_> {
    pub(super) fn open_host_proc(&mut self) -> HelperOpResult {
        let hold = || {
            Ok::<_, io::Error>(HostProcFiles {
                mounts: fs::File::open("/proc/self/mountinfo")?,
                sockets: fs::File::open("/proc/net/unix")?,
                descriptors: mounts::open_dir(Path::new("/proc/self/fd"))?,
            })
        };
        self.host_proc = Some(hold().map_err(internal("open the needed files of /proc"))?);
        Ok(())
    }

    pub(super) fn host_proc(&self) -> Result<&HostProcFiles, SetupFailure> {
        self.host_proc.as_ref().ok_or_else(|| SetupFailure::internal("the needed files of /proc were not opened"))
    }

    /// Refuses a repository with mounts below it. An overlay clones its lower mount without the mounts below, so
    /// a step would see other files than the user does.
    pub(super) fn refuse_submounts(&self, repo: &Path) -> HelperOpResult {
        let control = Control::Layer;
        let mut table = Vec::with_capacity(USUAL_TABLE_SIZE);
        let mut file = &self.host_proc()?.mounts;
        file.read_to_end(&mut table).map_err(refuse(control, "read the table of mounts"))?;
        refuse_mounts_below(repo, &table)
    }

    /// Masks the host's Unix sockets. From another network namespace, the host's services are reachable through
    /// sockets with a path, and a read-only mount does not prevent a connection.
    pub(super) fn mask_sockets(&mut self, hidden: &[PathBuf]) -> HelperOpResult {
        if self.has_view() {
            // The sockets of a view are not the host's: the kernel finds no listener behind them.
            return Ok(());
        }
        let control = Control::HiddenPaths;
        let table = &self.host_proc()?.sockets;
        let bound = masks::bound_sockets(table).map_err(refuse(control, "list the host's Unix sockets"))?;
        let skip: Vec<&Path> = hidden.iter().map(PathBuf::as_path).collect();
        let tools = &self.request.frame.tools;
        let shown: Vec<_> = tools.iter().map(|tool| (tool.source.as_path(), tool.at.as_path())).collect();
        let sockets = HostSockets { bound: &bound, skip: &skip, shown: &shown };
        masks::mask_sockets(&sockets, || self.closed_file())
            .map_err(refuse(control, "mask the host's Unix sockets"))
            .map(drop)
    }

    pub(super) fn mask_kernel_files(&mut self, fresh_sys: bool) -> HelperOpResult {
        let control = Control::KernelFiles;
        masks::mask_proc().map_err(refuse(control, "mask details of the host in /proc"))?;
        let view = if fresh_sys { SysView::Fresh } else { SysView::Host };
        masks::mask_sys(view).map_err(refuse(control, "mask details of the host in /sys"))?;
        self.enforcement.record_enforced(control, "read-only /proc/sys; empty mounts over details of the host");
        Ok(())
    }

    /// Returns a mount of a file that no unprivileged user can open.
    fn closed_file(&self) -> io::Result<OwnedFd> {
        const NAME: &str = "closed";
        let scratch = self.scratch()?.as_fd();
        match mounts::make_file(scratch, NAME.as_ref()) {
            Ok(file) => rustix::fs::fchmod(&file, Mode::empty())?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        let file = mounts::clone_beneath(scratch, NAME)?;
        // Otherwise its owner, who may be the step, could change its mode.
        mounts::set_attributes(file.as_fd(), RDONLY | NOSUID | NODEV)?;
        Ok(file)
    }
}

/// The typical size of a host's table of mounts, in bytes.
const USUAL_TABLE_SIZE: usize = 16 << 10;

fn refuse_mounts_below(repo: &Path, table: &[u8]) -> HelperOpResult {
    let control = Control::Layer;
    let points = table.split(|byte| *byte == b'\n').filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    let below = points.map(unescape).find(|point| point != repo && point.starts_with(repo));
    match below {
        None => Ok(()),
        Some(point) => Err(refused(
            control,
            format!("another file system is mounted in the repository, at `{}`", point.display()),
            format!("unmount it (`umount {}`), or verify a clone of the repository", point.display()),
        )),
    }
}
