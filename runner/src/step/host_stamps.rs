//! Decides whether the stamp of a file of the host shows every change of its content.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use proctor_core::model::drift::stamp_detects_settled_changes;
use proctor_core::model::trace::{AccessedPath, PathState};
use proctor_core::record::evidence::escape_output;
use proctor_core::reuse::{ChangedInput, ImageMount, ObservedInputs};

use crate::host::image_mount::{has_image_mount, image_mount};

/// A file of the host that changed within this time may have changed since without other stat data: a write through a
/// shared mapping sets no time until the kernel has written the page.
const UNSETTLED_NS: i64 = 40_000_000_000;

/// Refuses a file of the host that changed a moment ago.
pub(crate) fn require_settled(entry: &AccessedPath, now_ns: i64) -> Result<(), String> {
    let Some(stamp) = entry.stamp.filter(|_| entry.read) else { return Ok(()) };
    if stamp.ctime_ns.saturating_add(UNSETTLED_NS) < now_ns {
        return Ok(());
    }
    Err(format!("`{}` changed less than {} s ago", escape_output(&entry.path), UNSETTLED_NS / 1_000_000_000))
}

/// The file systems of the files of the host that a step read, and whether their stamps show every change.
#[derive(Debug, Default)]
pub(crate) struct HostDevices(BTreeMap<u64, StampRule>);

#[derive(Debug, Clone)]
enum StampRule {
    /// A stamp shows every change.
    Reliable,
    /// A stamp shows every change while the image has this mount.
    WhileMounted(String),
    /// A stamp does not show every change.
    Unreliable,
}

impl HostDevices {
    /// Refuses a file of the host if its file system does not show every change in the stamp.
    pub(crate) fn require_reliable_stamp(&mut self, entry: &AccessedPath) -> Result<(), String> {
        match self.rule(entry)? {
            StampRule::Unreliable if entry.read => Err(format!(
                "`{}` is on a file system whose times do not show every change",
                escape_output(&entry.path)
            )),
            StampRule::Reliable | StampRule::WhileMounted(_) | StampRule::Unreliable => Ok(()),
        }
    }

    /// Also refuses a file of the host whose stamp shows every change only while an image is mounted.
    pub(crate) fn require_lasting_stamp(&mut self, entry: &AccessedPath) -> Result<(), String> {
        self.require_reliable_stamp(entry)?;
        match self.rule(entry)? {
            StampRule::WhileMounted(_) => {
                Err(format!("`{}` is in a file system image, which can be replaced", escape_output(&entry.path)))
            }
            StampRule::Reliable | StampRule::Unreliable => Ok(()),
        }
    }

    /// Returns the images that contain the files so far.
    pub(crate) fn images(&self) -> Vec<ImageMount> {
        let image = |(device, rule): (&u64, &StampRule)| match rule {
            StampRule::WhileMounted(mount) => Some(ImageMount { device: *device, mount: mount.clone() }),
            StampRule::Reliable | StampRule::Unreliable => None,
        };
        self.0.iter().filter_map(image).collect()
    }

    fn rule(&mut self, entry: &AccessedPath) -> Result<StampRule, String> {
        let is_file = matches!(entry.state, PathState::File { .. });
        let Some(stamp) = entry.stamp.filter(|_| is_file) else { return Ok(StampRule::Reliable) };
        if let Some(known) = self.0.get(&stamp.dev) {
            return Ok(known.clone());
        }
        let path = Path::new(OsStr::from_bytes(&entry.path));
        let failed =
            |error: &dyn std::fmt::Display| format!("`{}` cannot be examined: {error}", escape_output(&entry.path));
        let found = rustix::fs::statfs(path).map_err(|error| failed(&error))?;
        let is_reliable = u64::try_from(found.f_type).is_ok_and(stamp_detects_settled_changes);
        let rule = match image_mount(path).map_err(|error| failed(&error))? {
            Some(mount) => StampRule::WhileMounted(mount),
            None if is_reliable => StampRule::Reliable,
            None => StampRule::Unreliable,
        };
        self.0.insert(stamp.dev, rule.clone());
        Ok(rule)
    }
}

/// Returns a file whose image is no longer mounted as it was when the inputs were recorded.
pub(crate) fn replaced_image(images: &[ImageMount], inputs: &ObservedInputs) -> Option<ChangedInput> {
    images.iter().find_map(|image| {
        let is_in_image = |entry: &&AccessedPath| entry.stamp.is_some_and(|stamp| stamp.dev == image.device);
        let is_file = |entry: &&AccessedPath| matches!(entry.state, PathState::File { .. });
        let file = inputs.host().iter().find(|entry| is_file(entry) && is_in_image(entry))?;
        let path = Path::new(OsStr::from_bytes(&file.path));
        let difference = "is in a file system image that was mounted again";
        let changed = || ChangedInput { path: escape_output(&file.path), difference };
        (!has_image_mount(path, image.device, &image.mount)).then(changed)
    })
}
