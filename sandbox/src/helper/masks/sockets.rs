//! Finds Unix sockets of the host that have a path. Neither a read-only mount nor a network namespace prevents a
//! connection to such a socket: a process that can name and write the socket reaches the service behind it.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

/// The largest number of sockets to mask. Each costs a mount, and a host has a few dozen outside of `/run` and the
/// home directories.
const MAX: usize = 1024;

/// Returns the absolute paths of sockets bound in this process's network namespace, without duplicates. Call it
/// before leaving the host's network namespace.
///
/// The result lacks sockets of other network namespaces, sockets bound to a relative path, and sockets bound later.
///
/// # Errors
/// The kernel's table cannot be read.
pub(crate) fn bound_sockets(mut table: &File) -> io::Result<Vec<PathBuf>> {
    let mut text = Vec::new();
    table.read_to_end(&mut text)?;
    Ok(parse_unix_table(&text))
}

/// Parses the kernel's table (`/proc/net/unix` in proc_pid_net(5)): a header, then one line for each socket with
/// seven fields and an optional path. The path is not escaped, so a path with a line break continues in the next
/// line. The name of an abstract socket begins with `@`.
fn parse_unix_table(table: &[u8]) -> Vec<PathBuf> {
    let mut paths: Vec<Vec<u8>> = Vec::new();
    for line in table.split(|byte| *byte == b'\n').skip(1) {
        match (parse_row(line), paths.last_mut()) {
            (Some(path), _) => paths.push(path.to_vec()),
            (None, Some(unfinished)) => {
                unfinished.push(b'\n');
                unfinished.extend_from_slice(line);
            }
            (None, None) => {}
        }
    }
    // The line break at the end of the table does not belong to the last path.
    if let Some(last) = paths.last_mut().filter(|last| last.ends_with(b"\n")) {
        last.pop();
    }
    let absolute = paths.iter().filter(|path| path.starts_with(b"/"));
    absolute.map(|path| PathBuf::from(OsStr::from_bytes(path))).collect::<BTreeSet<_>>().into_iter().collect()
}

/// Returns the path of a line that begins with `address: references protocol flags type state inode`; empty if the
/// socket has no path.
fn parse_row(line: &[u8]) -> Option<&[u8]> {
    const FIELDS: usize = 7;
    let mut rest = line;
    for field in 0..FIELDS {
        // Inode numbers are padded.
        let word = rest.trim_ascii_start();
        let end = word.iter().position(|byte| *byte == b' ').unwrap_or(word.len());
        let digits = if field == 0 { word[..end].strip_suffix(b":")? } else { &word[..end] };
        if digits.is_empty() || !digits.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        rest = &word[end..];
    }
    Some(rest.strip_prefix(b" ").unwrap_or(rest))
}

/// The sockets of the host, and the paths at which a step could find them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostSockets<'a> {
    /// The result of [`bound_sockets`].
    pub(crate) bound: &'a [PathBuf],
    /// The hidden directories, and the repository: a socket of a lower layer does not accept connections through an
    /// overlay.
    pub(crate) skip: &'a [&'a Path],
    /// The parts of the host that are shown at another path, although their directory may be hidden: the host's path,
    /// and the step's path.
    pub(crate) shown: &'a [(&'a Path, &'a Path)],
}

impl HostSockets<'_> {
    /// Opens the sockets that are reachable now, one descriptor at a time.
    pub(super) fn open_reachable(&self) -> io::Result<impl Iterator<Item = io::Result<OwnedFd>>> {
        let places = self.reachable_paths();
        if places.len() > MAX {
            return Err(io::Error::other(format!(
                "the step could connect to {} sockets of the host, more than {MAX}",
                places.len()
            )));
        }
        Ok(places.into_iter().filter_map(|place| open_socket(&place).transpose()))
    }

    /// Returns the paths at which a step could find the sockets.
    pub(crate) fn reachable_paths(&self) -> BTreeSet<PathBuf> {
        let own = self.bound.iter().filter(|path| !self.skip.iter().any(|skip| path.starts_with(skip))).cloned();
        let moved = self.bound.iter().flat_map(|path| {
            self.shown.iter().filter_map(|(from, to)| Some(join_paths(to, path.strip_prefix(from).ok()?)))
        });
        own.chain(moved).collect()
    }
}

/// Joins two paths, without the trailing slash that joining an empty path adds.
fn join_paths(to: &Path, rest: &Path) -> PathBuf {
    if rest.as_os_str().is_empty() { to.to_owned() } else { to.join(rest) }
}

/// Opens the socket at a path; `None` if it no longer exists or is unreachable, or if the path names anything but a
/// socket. So only sockets are ever masked.
fn open_socket(path: &Path) -> io::Result<Option<OwnedFd>> {
    let found = match rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
        Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS | Errno::LOOP | Errno::NAMETOOLONG | Errno::INVAL) => {
            return Ok(None);
        }
        other => other?,
    };
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode);
    Ok((kind == FileType::Socket).then_some(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(lines: &[&str]) -> Vec<String> {
        let head = "Num       RefCount Protocol Flags    Type St Inode Path";
        let table = [&[head], lines].concat().join("\n") + "\n";
        parse_unix_table(table.as_bytes()).iter().map(|path| path.to_str().expect("text").to_owned()).collect()
    }

    #[test]
    fn finds_absolute_sockets_once() {
        let lines = [
            "0000000000000000: 00000003 00000000 00000000 0001 03  1443",
            "0000000000000000: 00000002 00000000 00010000 0001 01 14430 /srv/a.sock",
            "0000000000000000: 00000003 00000000 00000000 0001 03 14431 /srv/a.sock",
            "0000000000000000: 00000002 00000000 00000000 0002 01 14432 /dev/log",
            "0000000000000000: 00000002 00000000 00010000 0005 01 14433 @abstract",
            "0000000000000000: 00000002 00000000 00010000 0001 01 14434 relative.sock",
        ];
        assert_eq!(paths(&lines), ["/dev/log", "/srv/a.sock"]);
    }

    #[test]
    fn reads_unusual_paths() {
        let row = "ffff8880: 00000002 00000000 00010000 0001 01 9";
        let lines =
            [format!("{row} / two  blanks "), format!("{row} /line"), "break".to_owned(), format!("{row} /end")];
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        assert_eq!(paths(&lines), ["/ two  blanks ", "/end", "/line\nbreak"]);
        assert_eq!(parse_unix_table(b"head\nff: 2 0 10000 1 1 9 /\xff\n"), [Path::new(OsStr::from_bytes(b"/\xff"))]);
    }

    #[test]
    fn accepts_short_tables() {
        assert!(
            parse_unix_table(b"").is_empty() && parse_unix_table(b"Num\n").is_empty() && paths(&["torn: 1"]).is_empty()
        );
    }

    #[test]
    fn finds_socket_at_shown_path() {
        let bound = ["/home/u/.t/s".into(), "/srv/s".into(), "/home/u/x".into(), "/home/u/.t".into()];
        let skip = [Path::new("/home")];
        let shown = [(Path::new("/home/u/.t"), Path::new("/home/step/.t"))];
        let places = HostSockets { bound: &bound, skip: &skip, shown: &shown }.reachable_paths();
        assert_eq!(
            places.into_iter().collect::<Vec<_>>(),
            ["/home/step/.t", "/home/step/.t/s", "/srv/s"].map(PathBuf::from)
        );
    }
}
