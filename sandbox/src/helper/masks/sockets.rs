//! Sockets of the host that have a path. A read-only mount does not forbid to connect to one, and
//! neither does a network namespace: whoever can name it and may write it reaches the service behind.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

/// How many sockets may be masked: each costs a mount, and a host has a few dozen outside of `/run`
/// and the homes.
const MAX: usize = 1024;

/// The absolute paths to which sockets of this process's network namespace are bound, each once.
/// To be asked before the host's network namespace is left.
///
/// Not among them: sockets of other network namespaces, those bound by a relative path, and those
/// bound later.
///
/// # Errors
/// The kernel's table cannot be read.
pub(crate) fn bound_sockets(mut table: &File) -> io::Result<Vec<PathBuf>> {
    let mut text = Vec::new();
    table.read_to_end(&mut text)?;
    Ok(parse(&text))
}

/// The table as the kernel prints it (`/proc/net/unix` in proc_pid_net(5)): a head line, then a line
/// for each socket, seven fields and a path where there is one. The path is printed as it is, so one
/// with a line break goes on in the next line; one in the abstract namespace begins with `@`.
fn parse(table: &[u8]) -> Vec<PathBuf> {
    let mut paths: Vec<Vec<u8>> = Vec::new();
    for line in table.split(|byte| *byte == b'\n').skip(1) {
        match (row(line), paths.last_mut()) {
            (Some(path), _) => paths.push(path.to_vec()),
            (None, Some(unfinished)) => {
                unfinished.push(b'\n');
                unfinished.extend_from_slice(line);
            }
            (None, None) => {}
        }
    }
    // The line break at the end of the table is no part of the last path.
    if let Some(last) = paths.last_mut().filter(|last| last.ends_with(b"\n")) {
        last.pop();
    }
    let absolute = paths.iter().filter(|path| path.starts_with(b"/"));
    absolute.map(|path| PathBuf::from(OsStr::from_bytes(path))).collect::<BTreeSet<_>>().into_iter().collect()
}

/// The path of a line that begins with `address: references protocol flags type state inode`; empty
/// where the socket has none.
fn row(line: &[u8]) -> Option<&[u8]> {
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

/// The sockets of the host, and where a step could find them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sockets<'a> {
    /// What [`bound_sockets`] found.
    pub(crate) bound: &'a [PathBuf],
    /// Directories that are hidden, and the repository: through an overlay a socket of the layer
    /// below cannot be connected to.
    pub(crate) skip: &'a [&'a Path],
    /// What of the host is shown at a place of its own, although its directory may be hidden: the
    /// host's path, and the step's.
    pub(crate) shown: &'a [(&'a Path, &'a Path)],
}

impl Sockets<'_> {
    /// Those that can be reached now, as descriptors that name them; one is open at a time.
    pub(super) fn reachable(&self) -> io::Result<impl Iterator<Item = io::Result<OwnedFd>>> {
        let places = self.places();
        if places.len() > MAX {
            return Err(io::Error::other(format!(
                "{} sockets of the host lie where the step could connect to them, more than {MAX}",
                places.len()
            )));
        }
        Ok(places.into_iter().filter_map(|place| open_socket(&place).transpose()))
    }

    /// The places at which a step could find them.
    pub(crate) fn places(&self) -> BTreeSet<PathBuf> {
        let own = self.bound.iter().filter(|path| !self.skip.iter().any(|skip| path.starts_with(skip))).cloned();
        let moved = self.bound.iter().flat_map(|path| {
            self.shown.iter().filter_map(|(from, to)| Some(joined(to, path.strip_prefix(from).ok()?)))
        });
        own.chain(moved).collect()
    }
}

/// Without the slash at its end that joining nothing adds.
fn joined(to: &Path, rest: &Path) -> PathBuf {
    if rest.as_os_str().is_empty() { to.to_owned() } else { to.join(rest) }
}

/// The socket at a path; nothing where there is none any more, or none that we can reach. Nothing
/// but a socket is ever masked, whatever lies in the way.
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
        parse(table.as_bytes()).iter().map(|path| path.to_str().expect("text").to_owned()).collect()
    }

    #[test]
    fn sockets_with_an_absolute_path_are_found_once() {
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
    fn odd_names_are_read_as_they_are() {
        let row = "ffff8880: 00000002 00000000 00010000 0001 01 9";
        let lines =
            [format!("{row} / two  blanks "), format!("{row} /line"), "break".to_owned(), format!("{row} /end")];
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        assert_eq!(paths(&lines), ["/ two  blanks ", "/end", "/line\nbreak"]);
        assert_eq!(parse(b"head\nff: 2 0 10000 1 1 9 /\xff\n"), [Path::new(OsStr::from_bytes(b"/\xff"))]);
    }

    #[test]
    fn no_table_is_too_short() {
        assert!(parse(b"").is_empty() && parse(b"Num\n").is_empty() && paths(&["torn: 1"]).is_empty());
    }

    #[test]
    fn a_socket_in_what_is_shown_elsewhere_is_looked_for_there() {
        let bound = ["/home/u/.t/s".into(), "/srv/s".into(), "/home/u/x".into(), "/home/u/.t".into()];
        let skip = [Path::new("/home")];
        let shown = [(Path::new("/home/u/.t"), Path::new("/home/step/.t"))];
        let places = Sockets { bound: &bound, skip: &skip, shown: &shown }.places();
        assert_eq!(
            places.into_iter().collect::<Vec<_>>(),
            ["/home/step/.t", "/home/step/.t/s", "/srv/s"].map(PathBuf::from)
        );
    }
}
