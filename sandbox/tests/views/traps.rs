//! Tests that a trace contains accesses by unusual ways, and that nothing of the host reaches a step outside of its view.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use libtest_mimic::Failed;
use proctor_core::model::trace::{AccessTrace, NoTrace, PathState};
use proctor_sandbox::{AccessRights, ToolKind, ToolMount};
use rustix::fs::{Mode, XattrFlags};

use super::{entries_in_repo, find, reason_of, run_traced};
use crate::environment::{self, SandboxTestEnv, TestCommand, UserRole};

/// Reads a separate file in each way that a program has, and prints the number of files.
const WAYS_SCRIPT: &str = r#"
import ctypes, errno, mmap, os, socket, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
here, count = os.getcwd(), 0

def way(read):
    global count
    path = 'ways/%d' % count
    expected = b'content of %d\n' % count
    found = read(path)
    assert found is None or found == expected, (path, found)
    if found is None:
        # The call is refused, so that the test reads the file in the usual way.
        open(path).read()
    count += 1

def use(fd, call):
    try:
        return call(fd)
    finally:
        os.close(fd)

def opened(path, flags=os.O_RDONLY, **more):
    return os.open(path, flags, **more)

def through_file(call):
    fd = os.memfd_create('copy')
    try:
        call(fd)
    except OSError as error:
        assert error.errno == errno.EXDEV
        return None
    return use(fd, lambda fd: os.pread(fd, 100, 0))

def to_child(path):
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        _, fds, _, _ = socket.recv_fds(theirs, 1, 1)
        theirs.sendall(os.read(fds[0], 100))
        os._exit(0)
    fd = opened(path)
    socket.send_fds(ours, [b'x'], [fd])
    found = ours.recv(100)
    os.wait()
    return found

def earlier_child():
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        theirs.sendall(open(theirs.recv(100), 'rb').read())
        os._exit(0)
    def read(path):
        ours.sendall(path.encode())
        found = ours.recv(100)
        os.wait()
        return found
    return read

def raw_open(number, *arguments):
    fd = libc.syscall(number, *arguments)
    return use(fd, lambda fd: os.read(fd, 100)) if fd >= 0 else None

def by_handle(path):
    handle, mount = ctypes.create_string_buffer(136), ctypes.c_int()
    handle[0:4] = (128).to_bytes(4, sys.byteorder)
    if libc.name_to_handle_at(-100, path.encode(), handle, ctypes.byref(mount), 0) != 0:
        return None
    return raw_open(304, opened('.'), handle, 0)

early = earlier_child()
early_dir = opened('ways', os.O_PATH | os.O_DIRECTORY)
mapped = lambda fd: mmap.mmap(fd, 0, prot=mmap.PROT_READ)[:]
way(lambda path: open(path, 'rb').read())
way(lambda path: use(opened(path), mapped))
way(lambda path: use(opened(path), lambda fd: os.pread(fd, 100, 0)))
way(lambda path: through_file(lambda out: use(opened(path), lambda fd: os.sendfile(out, fd, 0, 100))))
way(lambda path: through_file(lambda out: use(opened(path), lambda fd: os.copy_file_range(fd, out, 100))))
way(lambda path: subprocess.run(['cat'], stdin=open(path), capture_output=True).stdout)
way(lambda path: use(opened(path, os.O_PATH), lambda fd: open('/proc/self/fd/%d' % fd, 'rb').read()))
way(lambda path: open('/proc/self/root' + here + '/' + path, 'rb').read())
way(lambda path: open('/proc/self/cwd/../' + os.path.basename(here) + '/' + path, 'rb').read())
way(lambda path: use(opened(os.path.basename(path), dir_fd=early_dir), lambda fd: os.read(fd, 100)))
way(to_child)
way(early)
way(lambda path: raw_open(437, -100, path.encode(), (ctypes.c_uint64 * 3)(), 24))
way(by_handle)
assert libc.syscall(425, 8, ctypes.create_string_buffer(120)) == -1, 'io_uring'
# The end of a directory is read after a seek to its start.
libc.syscall.restype = ctypes.c_long
names, listing = opened('listed', os.O_DIRECTORY), ctypes.create_string_buffer(4096)
while libc.syscall(217, names, listing, 64) > 0:
    pass
os.lseek(names, 0, os.SEEK_SET)
assert libc.syscall(217, names, listing, 4096) > 0 and b'entry' in listing.raw
print(count)
"#;

/// The numbers of the system calls in the script are those of x86-64.
pub(crate) fn each_way_to_read_is_recorded(bench: &SandboxTestEnv) -> Result<(), Failed> {
    if !cfg!(target_arch = "x86_64") {
        return Ok(());
    }
    fs::create_dir(bench.repo.join("ways"))?;
    fs::create_dir(bench.repo.join("listed"))?;
    fs::write(bench.repo.join("listed/entry"), "")?;
    for number in 0..30 {
        fs::write(bench.repo.join(format!("ways/{number}")), format!("content of {number}\n"))?;
    }
    if bench.role.is_foreign() {
        environment::chown_to_user(&bench.repo)?;
    }
    let (output, trace) = run_traced(bench, &TestCommand::new(&["/usr/bin/python3", "-c", WAYS_SCRIPT]))?;
    let count: usize = output.parse()?;
    assert!(count > 10, "{output}");
    for number in 0..count {
        let entry = find(&trace, &bench.repo.join(format!("ways/{number}")));
        assert!(entry.is_some_and(|entry| entry.read), "{number}: {entry:?}");
    }
    assert!(find(&trace, &bench.repo.join(format!("ways/{count}"))).is_none(), "only what was read");
    assert!(find(&trace, &bench.repo.join("listed")).is_some_and(|entry| entry.listing.is_some()));
    Ok(())
}

/// Creates a directory that steps see although its parent is hidden.
fn tool_directory(bench: &SandboxTestEnv) -> Result<(PathBuf, ToolMount), Failed> {
    let tool = bench.root.join("tool");
    fs::create_dir(&tool)?;
    let mount =
        ToolMount { source: tool.clone(), at: tool.clone(), kind: ToolKind::ReadOnly, rights: AccessRights::Steps };
    Ok((tool, mount))
}

fn with_tool(script: &str, mount: ToolMount) -> TestCommand {
    TestCommand { tools: vec![mount], ..TestCommand::shell(script) }
}

pub(crate) fn links_out_of_the_tree_record_their_targets(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let (tool, mount) = tool_directory(bench)?;
    fs::create_dir(tool.join("dir"))?;
    for name in ["target", "dir/below", "one"] {
        fs::write(tool.join(name), format!("{name}\n"))?;
    }
    fs::hard_link(tool.join("one"), tool.join("other"))?;
    std::os::unix::fs::symlink(tool.join("target"), bench.repo.join("to_file"))?;
    std::os::unix::fs::symlink(tool.join("dir"), bench.repo.join("to_dir"))?;
    let script = format!("cat to_file to_dir/below {}; test ! -e to_dir/absent", tool.join("other").display());
    let (output, trace) = run_traced(bench, &with_tool(&script, mount))?;
    assert_eq!(output, "target\ndir/below\none");
    let is_link = |at: PathBuf| matches!(find(&trace, &at).map(|entry| &entry.state), Some(PathState::Link { .. }));
    assert!(is_link(bench.repo.join("to_file")) && is_link(bench.repo.join("to_dir")));
    for name in ["target", "dir/below", "other"] {
        assert!(find(&trace, &tool.join(name)).is_some_and(|entry| entry.read), "{name}");
    }
    assert!(find(&trace, &tool.join("dir/absent")).is_some_and(|entry| entry.state == PathState::Absent));
    assert!(find(&trace, &tool.join("one")).is_none(), "each name of a file has its own entry");
    Ok(())
}

/// The kernel's caches of one command must not hide the accesses of the next one.
pub(crate) fn second_command_of_a_run_records_everything_again(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let step = TestCommand::shell("cat tracked.txt src/*; test ! -e absent; test -L link; cat /etc/hostname; true");
    let (first_output, first) = run_traced(bench, &step)?;
    let (second_output, second) = run_traced(bench, &step)?;
    assert_eq!(first_output, second_output);
    assert_eq!(entries_in_repo(bench, &first), entries_in_repo(bench, &second));
    let paths =
        |trace: &AccessTrace| trace.entries().iter().map(|entry| (entry.path.clone(), entry.read)).collect::<Vec<_>>();
    assert_eq!(paths(&first), paths(&second));
    Ok(())
}

/// The server of a view must not read for a step what the step's user may not read.
pub(crate) fn files_of_root_stay_unread(bench: &SandboxTestEnv) -> Result<(), Failed> {
    if !bench.role.is_set_up_by_root() {
        return Ok(());
    }
    let (tool, mount) = tool_directory(bench)?;
    fs::create_dir(tool.join("dir"))?;
    for name in ["secret", "dir/secret"] {
        fs::write(tool.join(name), "of root\n")?;
        rustix::fs::chmod(tool.join(name), Mode::from_raw_mode(0o600))?;
    }
    rustix::fs::chmod(tool.join("dir"), Mode::from_raw_mode(0o700))?;
    let at = tool.display();
    let script = format!("cat {at}/secret {at}/dir/secret; test ! -e {at}/dir/secret && ls {at}/dir; echo $?");
    let (output, trace) = run_traced(bench, &with_tool(&script, mount))?;
    assert_ne!(output, "0");
    assert!(!output.contains("of root"), "{output}");
    let secret = find(&trace, &tool.join("secret")).ok_or("it was looked up")?;
    assert!(!secret.read, "{secret:?}");
    assert_eq!(find(&trace, &tool.join("dir/secret")), None);
    assert!(find(&trace, &tool.join("dir")).is_some_and(|entry| entry.listing.is_none()));
    Ok(())
}

/// Returns an access control list in the form of `system.posix_acl_access`, acl(5): the mode 0755, and no access for one
/// user.
fn list_that_excludes(user: u32) -> Vec<u8> {
    const UNDEFINED: u32 = u32::MAX;
    let (owner, named_user, group, mask, others) = (0x01, 0x02, 0x04, 0x10, 0x20);
    let entries: [(u16, u16, u32); 5] = [
        (owner, 7, UNDEFINED),
        (named_user, 0, user),
        (group, 5, UNDEFINED),
        (mask, 5, UNDEFINED),
        (others, 5, UNDEFINED),
    ];
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        bytes.extend([tag.to_le_bytes(), rights.to_le_bytes()].concat());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// The mode of a directory is the same with and without such a list, so no trace can describe the refusal.
pub(crate) fn refusal_by_access_control_list_gives_no_trace(bench: &SandboxTestEnv) -> Result<(), Failed> {
    if bench.role != UserRole::RootForeign {
        // Only root can exclude another user from a directory.
        return Ok(());
    }
    let (tool, mount) = tool_directory(bench)?;
    let dir = tool.join("dir");
    fs::create_dir(&dir)?;
    fs::write(dir.join("file"), "")?;
    let step = with_tool(&format!("test ! -e {}/file", dir.display()), mount);
    let user = bench.space.step_user(bench.launcher.host(), &bench.facts)?;
    rustix::fs::setxattr(&dir, "system.posix_acl_access", &list_that_excludes(user.uid()), XattrFlags::empty())?;
    let reason = reason_of(bench, &step)?;
    assert!(
        matches!(&reason, NoTrace::NotDescribable { message } if message.contains("does not explain")),
        "{reason:?}"
    );
    // The mode explains the same refusal.
    rustix::fs::removexattr(&dir, "system.posix_acl_access")?;
    rustix::fs::chmod(&dir, Mode::from_raw_mode(0o700))?;
    run_traced(bench, &step)?;
    Ok(())
}

pub(crate) fn fifos_of_the_host_are_empty(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let (tool, mount) = tool_directory(bench)?;
    let mode = Mode::from_raw_mode(0o644);
    let paths: [PathBuf; 2] = [tool.join("fifo"), bench.repo.join("fifo")];
    let mut writers = Vec::new();
    for path in &paths {
        rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0)?;
        let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let mut writer = OpenOptions::new().read(true).write(true).custom_flags(nonblocking).open(path)?;
        writer.write_all(b"from the host\n")?;
        writers.push(writer);
    }
    if bench.role.is_foreign() {
        environment::chown_to_user(&bench.repo)?;
    }
    let script = "import os, sys\nfor path in sys.argv[1:]:\n    \
        print(os.read(os.open(path, os.O_RDONLY | os.O_NONBLOCK), 100))";
    let text = |path: &Path| path.to_str().expect("text").to_owned();
    let step = TestCommand {
        tools: vec![mount],
        ..TestCommand::new(&["/usr/bin/python3", "-c", script, &text(&paths[0]), &text(&paths[1])])
    };
    let (output, trace) = run_traced(bench, &step)?;
    assert_eq!(output, "b''\nb''");
    assert!(find(&trace, &paths[0]).is_some_and(|entry| matches!(entry.state, PathState::Other { .. })));
    Ok(())
}
