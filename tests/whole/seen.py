"""Prints the controls of the sandbox, as observed by a step inside it: a JSON object with the name of each control, and
whether it is enforced. Omits controls that a step cannot observe. The test compares `namespaces` with those outside;
`foreign` lists the files of other processes that the step could read or change.

    python3 -c "$(cat seen.py)" FILTERS SECRET SOCKET

FILTERS is the number of seccomp filters that proctor itself runs under, SECRET a file that no step may see, and SOCKET
the name of an abstract socket on which the test listens outside.
"""

import ctypes
import errno
import json
import os
import socket
import stat
import sys

libc = ctypes.CDLL(None, use_errno=True)
KEYCTL = {"x86_64": 250, "aarch64": 219}[os.uname().machine]
SESSION, USER = -3, -4  # keyctl(2): KEY_SPEC_*
status = dict(line.split(":\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\t" in line)


def answers(call):
    """Returns the error number of a call, or 0 if it succeeds."""
    try:
        call()
    except OSError as error:
        return error.errno
    return 0


def device(name="/tmp/.a-device"):
    """Tries to create a device. EACCES comes from Landlock, and EPERM from the later capability check."""
    return answers(lambda: os.mknod(name, stat.S_IFBLK | 0o600))


def read_only(path):
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def touched(path):
    """Returns whether the step can create a file in a directory, or change the times of a file or directory."""
    made = os.path.join(path, ".made-by-a-step")
    can_make = answers(lambda: os.close(os.open(made, os.O_CREAT | os.O_WRONLY, 0o600))) == 0
    return can_make or answers(lambda: os.utime(path)) == 0


def git_directory():
    """Returns the git directory. In a private copy, `.git` is a file that contains its path."""
    return ".git" if os.path.isdir(".git") else open(".git").read().removeprefix("gitdir:").strip()


def keys():
    ctypes.set_errno(0)
    return libc.syscall(KEYCTL, 0, USER, 0) >= 0 or ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS)


def interfaces():
    return [line.split(":")[0].strip() for line in open("/proc/self/net/dev") if ":" in line]


def kernel_files():
    """Returns whether kernel files reveal nothing, and no setting of the kernel is writable."""
    found = [path for path in ["/proc/kallsyms", "/proc/keys", "/proc/kmsg"] if answers(lambda: open(path).read(1)) == 0]
    return read_only("/proc/sys") and not found and not open("/proc/cmdline").read(1)


vsock = answers(lambda: socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).close())
def reached(name):
    """Returns whether a socket outside the sandbox accepts a connection."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as mine:
        return answers(lambda: mine.connect("\0" + name)) == 0


def processes():
    return [name for name in os.listdir("/proc") if name.isdigit()]


def foreign():
    """Returns the files of other processes with which the step could read secrets or change something."""
    own = {os.readlink("/proc/self"), status["PPid"].strip()}
    others = [f"/proc/{number}" for number in processes() if number not in own]
    secret_files = [f"{other}/{name}" for other in others for name in ["environ", "mem", "maps"]]
    read = [path for path in secret_files if answers(lambda: open(path, "rb").close()) == 0 and readable(path)]
    settings = [f"{other}/oom_score_adj" for other in others]
    return read + [path for path in settings if answers(lambda: open(path, "r+").close()) == 0]


def readable(path):
    try:
        with open(path, "rb") as file:
            return bool(file.read(1))
    except OSError:
        return False


def listed(path):
    """Returns the names in a directory, or nothing if it cannot be read."""
    try:
        return os.listdir(path)
    except OSError:
        return None


outer_filters, secret, outer_socket = int(sys.argv[1]), sys.argv[2], sys.argv[3]
namespaces = {kind: os.readlink(f"/proc/self/ns/{kind}") for kind in ["user", "mnt", "pid", "ipc", "uts", "cgroup", "net"]}
seen = {
    "abstract_sockets": not reached(outer_socket),
    "close_fds": sorted(os.listdir("/proc/self/fd"))[:4] in (["0", "1", "2", "3"], ["0", "1", "2"]),
    "git_read_only": not touched(git_directory()) and not touched(os.path.join(git_directory(), "HEAD")),
    "hidden_paths": not os.path.exists(secret),
    "kernel_files": kernel_files(),
    "keyring": not keys(),
    "landlock": device() == errno.EACCES,
    "network_namespace": interfaces() == ["lo"] and vsock != 0,
    "new_session": os.getsid(0) == os.getpid(),
    "no_capabilities": not any(int(status[f"Cap{kind}"], 16) for kind in ["Inh", "Prm", "Eff", "Amb"]),
    "no_new_privs": status["NoNewPrivs"] == "1",
    "private_dev": len(listed("/dev") or []) <= 13,
    # PID 1, this process, and the process that starts it in a test container.
    "private_proc": os.readlink("/proc/self") == str(os.getpid()) and len(processes()) <= 3,
    # The test repositories are in /tmp.
    "private_tmp": all(name.startswith("proctor-test-") for name in listed("/tmp") or ["unlisted"]),
    "read_only_root": not any(touched(path) for path in ["/", "/etc", "/usr", "/var", os.path.dirname(secret), secret]),
    "syscall_filter": int(status["Seccomp_filters"]) == outer_filters + 1,
    "uts": socket.gethostname() == "localhost",
}
print(json.dumps({"controls": seen, "foreign": foreign()[:9], "namespaces": namespaces}))
