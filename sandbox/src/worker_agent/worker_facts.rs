//! Describes the worker: its kernel, its operating system, and the programs that the commands of the request use.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use proctor_core::text::digest::Sha256Hex;
use rustix::fs::{Mode, OFlags};
use sha2::{Digest as _, Sha256};

use crate::agent::{AgentCommand, AgentRequest, ProgramFingerprint, WorkerFacts};

/// The search path of a command whose environment has no `PATH`.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// The files that describe the operating system, in the order in which they are tried.
const OS_RELEASE_FILES: [&str; 2] = ["/etc/os-release", "/usr/lib/os-release"];
/// Maximum size of such a file that is read, in bytes.
const MAX_OS_RELEASE: u64 = 64 << 10;
/// Maximum size of a program that is hashed, in bytes.
const MAX_PROGRAM: u64 = 2 << 30;
/// The block size for hashing, in bytes.
const CHUNK: usize = 128 << 10;

/// Reads the facts. `tree` is the copy of the tree.
pub(super) fn read(request: &AgentRequest, tree: &Path) -> WorkerFacts {
    let machine = rustix::system::uname();
    let mut programs: Vec<ProgramFingerprint> = Vec::new();
    for command in request.checks.iter().chain([&request.step]) {
        let found = fingerprint(command, &request.repo, tree);
        if !programs.contains(&found) {
            programs.push(found);
        }
    }
    WorkerFacts {
        architecture: machine.machine().to_string_lossy().into_owned(),
        kernel: machine.release().to_string_lossy().into_owned(),
        os: OS_RELEASE_FILES
            .iter()
            .find_map(|file| read_bounded(file).ok())
            .map(|text| os_name(&text))
            .unwrap_or_default(),
        processors: std::thread::available_parallelism()
            .map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX)),
        programs,
    }
}

fn read_bounded(path: &str) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(MAX_OS_RELEASE).read_to_string(&mut text)?;
    Ok(text)
}

/// Returns `ID` and `VERSION_ID` of an os-release(5) file, separated by a space.
fn os_name(text: &str) -> String {
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))?;
        Some(line.trim().trim_matches(['"', '\'']).to_owned()).filter(|value| !value.is_empty())
    };
    [value("ID"), value("VERSION_ID")].into_iter().flatten().collect::<Vec<_>>().join(" ")
}

fn fingerprint(command: &AgentCommand, repo: &Path, tree: &Path) -> ProgramFingerprint {
    let name = command.argv.program();
    let start = tree.join(command.workdir.as_str());
    let in_tree = |path: &Path| match path.strip_prefix(repo) {
        Ok(below) => tree.join(below),
        Err(_) => start.join(path),
    };
    let path = if name.contains('/') {
        Some(in_tree(Path::new(name)))
    } else {
        let search = command.env.get("PATH").map_or(DEFAULT_PATH, String::as_str);
        search.split(':').map(|dir| in_tree(Path::new(dir)).join(name)).find(|path| is_program(path))
    };
    let path = path.and_then(|path| fs::canonicalize(path).ok()).filter(|path| path.is_file());
    let sha256 = path.as_deref().and_then(|path| hash(path).ok());
    ProgramFingerprint { name: name.to_owned(), path, sha256 }
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// Returns the digest of a program. The tree can name any file of the worker, such as one of the kernel that never ends.
fn hash(path: &Path) -> io::Result<Sha256Hex> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let (mut file, mut hasher, mut buffer) = (file.take(MAX_PROGRAM + 1), Sha256::new(), vec![0; CHUNK]);
    loop {
        match file.read(&mut buffer) {
            Ok(0) if file.limit() == 0 => return Err(io::ErrorKind::FileTooLarge.into()),
            Ok(0) => return Ok(Sha256Hex::from_raw(hasher.finalize().into())),
            Ok(count) => hasher.update(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests use plain files")]
mod tests {
    use std::collections::BTreeMap;

    use proctor_core::model::plan::{Argv, Leaks, Limits, Network, RelPath};

    use super::*;
    use crate::file_batches::FileBatches;

    fn command(program: &str, path: &str) -> AgentCommand {
        AgentCommand {
            name: "s".to_owned(),
            workdir: RelPath::new("sub").expect("a path"),
            argv: Argv::new(vec![program.to_owned()]).expect("a command"),
            files: FileBatches::default(),
            env: BTreeMap::from([("PATH".to_owned(), path.to_owned())]),
            network: Network::Deny,
            limits: Limits::UNLIMITED,
            leaks: Leaks::Warn,
            timeout_ms: 1,
            grace_ms: 1,
            max_output_bytes: 1,
        }
    }

    #[test]
    fn finds_programs_like_the_command() {
        let dir = tempfile::tempdir().expect("a directory");
        let tree = fs::canonicalize(dir.path()).expect("a path");
        fs::create_dir_all(tree.join("sub/bin")).expect("made");
        for (name, mode) in [("sub/bin/tool", 0o755), ("sub/script", 0o644), ("sub/bin/data", 0o644)] {
            fs::write(tree.join(name), name).expect("written");
            fs::set_permissions(tree.join(name), fs::Permissions::from_mode(mode)).expect("set");
        }
        std::os::unix::fs::symlink("tool", tree.join("sub/bin/alias")).expect("made");
        let repo = Path::new("/repo");
        let found = |program: &str, path: &str| fingerprint(&command(program, path), repo, &tree);
        let tool = found("tool", "/nowhere:/repo/sub/bin");
        assert_eq!(tool.path, Some(tree.join("sub/bin/tool")));
        assert_eq!(tool.sha256, Some(Sha256Hex::digest(b"sub/bin/tool")));
        assert_eq!(found("alias", "bin").path, tool.path, "links are resolved");
        assert_eq!(found("./script", "").path, Some(tree.join("sub/script")));
        assert_eq!((found("data", "bin").path, found("tool", "/nowhere").sha256), (None, None));
    }

    #[test]
    fn names_the_operating_system() {
        assert_eq!(os_name("NAME=x\nVERSION_ID=\"13\"\nID=debian\nID_LIKE=y\n"), "debian 13");
        assert_eq!(os_name("ID=arch\n"), "arch");
        assert_eq!(os_name(""), "");
    }
}
