"""A process that attacks a run. It belongs to the user whose repository is verified.

    python3 -c "$(cat hostile.py)" NAME REPOSITORY

NAME is one of the attacks below. Each attack is a generator: the part before the first `yield` runs before the
run starts, the next part while a step waits, the last part after the run. A line of JSON on standard input starts the
next part and becomes the value of `yield`. The script prints each yielded value as a line of JSON.
"""

import ctypes
import json
import mmap
import os
import random
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time

LIFETIME = 3_600  # seconds; ends this process if the test that started it was killed
EXCHANGE = 2  # renameat2(2): RENAME_EXCHANGE
AT_FDCWD = -100
PIDFD_GETFD = 438
PTRACE_SEIZE = 0x4206
LARGEST = 64 << 20  # maximum size of a growing file, in bytes
GOOD, BAD = "good\n", "bad\n"
libc = ctypes.CDLL(None, use_errno=True)


def write(path, text, mode="w"):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, mode) as file:
        file.write(text)


def exchange(one, other):
    if libc.renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), EXCHANGE) != 0:
        raise OSError(ctypes.get_errno(), "renameat2", one)


def keep_times(path, change):
    """Changes a file and restores its times."""
    times = os.stat(path)
    change()
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def git(*words):
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True, capture_output=True)


class Repeat:
    """Repeats an action on a thread until `stop`."""

    def __init__(self, act):
        self.over = threading.Event()
        self.count = 0
        self.thread = threading.Thread(target=self.run, args=(act,), daemon=True)
        self.thread.start()

    def run(self, act):
        while not self.over.is_set():
            try:
                act()
                self.count += 1
            except OSError:
                pass

    def stop(self):
        self.over.set()
        self.thread.join()
        return self.count


# Attacks on the files that the step reads. Each makes the worktree show `good`, or content with which the check
# succeeds.


def above_exchanged():
    """Exchanges the directory above the repository for one with a good copy."""
    repository = os.getcwd()
    above = os.path.dirname(repository)
    shutil.copytree(above, above + "-other", symlinks=True)
    write(f"{above}-other/{os.path.basename(repository)}/src/lib.rs", GOOD)
    yield
    exchange(above, above + "-other")
    yield
    exchange(above, above + "-other")
    yield


def above_linked():
    """Replaces the directory above the repository with a link to another directory."""
    repository = os.getcwd()
    above = os.path.dirname(repository)
    shutil.copytree(above, above + "-other", symlinks=True)
    write(f"{above}-other/{os.path.basename(repository)}/src/lib.rs", GOOD)
    yield
    os.rename(above, above + "-aside")
    os.symlink(above + "-other", above)
    yield
    os.unlink(above)
    os.rename(above + "-aside", above)
    yield


def inside_exchanged():
    """Exchanges a directory for an ignored one whose files have the same times."""
    shutil.copytree("src", "target/src")
    keep_times("target/src/lib.rs", lambda: write("target/src/lib.rs", GOOD))
    yield
    exchange("src", "target/src")
    yield
    exchange("src", "target/src")
    yield


def inside_linked():
    """Replaces a directory with a link to an ignored directory."""
    write("target/src/lib.rs", GOOD)
    yield
    os.rename("src", "target/aside")
    os.symlink("target/src", "src")
    yield
    os.unlink("src")
    os.rename("target/aside", "src")
    yield


def momentary_file():
    """Creates an untracked file while the step runs."""
    yield
    write("conftest.py", "skip\n")
    yield
    os.unlink("conftest.py")
    yield


def momentary_directory():
    """Creates an untracked directory while the step runs."""
    yield
    write("plugins/skip/conftest.py", "skip\n")
    yield
    shutil.rmtree("plugins")
    yield


def renamed_to_ignored():
    """Renames a new file to an ignored name while the step runs."""
    write("broken.py", BAD)
    yield
    os.rename("broken.py", "broken.log")
    yield
    os.rename("broken.log", "broken.py")
    yield


def switched_head():
    """Switches to a branch with a good tree, and back."""
    git("branch", "other")
    yield
    git("checkout", "-q", "other")
    write("src/lib.rs", GOOD)
    git("commit", "-q", "-a", "-m", "good")
    yield
    git("checkout", "-q", "main")
    yield


def mapped_page():
    """Writes to a mapped page that was dirty before the snapshot, which changes no time of the file."""
    size = mmap.PAGESIZE
    write("src/lib.rs", BAD.ljust(size))
    with open("src/lib.rs", "r+b") as file:
        page = mmap.mmap(file.fileno(), size)
    page[:5] = b"bad  "
    yield
    page[:5] = b"good "
    yield
    page[:5] = b"bad  "
    yield


def overlay_attributes():
    """Sets the extended attributes of overlayfs on real files and directories."""
    write("broken.txt", BAD)
    write("good.rs", GOOD)
    write("dir/broken.txt", BAD)

    def mark():
        for path, name, value in [
            ("broken.txt", "whiteout", b"y"),
            ("dir", "opaque", b"x"),
            ("dir/broken.txt", "whiteout", b""),
            ("src", "opaque", b"y"),
            ("src", "redirect", b"/target"),
            ("src/lib.rs", "metacopy", b""),
            ("src/lib.rs", "redirect", b"/good.rs"),
            ("src/lib.rs", "origin", b"\0"),
        ]:
            os.setxattr(path, "user.overlay." + name, value)

    mark()
    yield
    mark()
    yield
    yield


def evidence_with_code():
    """Writes code into a directory of earlier evidence, which no snapshot covers."""
    place = "changes/009_x/verify/helper.sh"
    write(place, "exit 0\n")
    yield
    write(place, "exit 0\n")
    yield
    os.unlink(place)
    yield


def hard_link():
    """Writes to a covered file through a hard link at an ignored path."""
    os.makedirs("target", exist_ok=True)
    os.link("src/lib.rs", "target/lib.rs")
    before = open("src/lib.rs").read()
    yield
    keep_times("src/lib.rs", lambda: write("target/lib.rs", GOOD))
    yield
    keep_times("src/lib.rs", lambda: write("target/lib.rs", before))
    yield


def ignored_edit():
    """Creates an ignored file while the step runs."""
    yield
    write("flag.log", GOOD)
    yield
    os.unlink("flag.log")
    yield


def over_the_bound():
    """Makes the worktree too large to copy with an ignored sparse file, and then does the same as `momentary_file`."""
    write("huge.log", "")
    os.truncate("huge.log", 1 << 40)
    yield from momentary_file()


# Attacks on the private copy. They act continuously, from before the run until after it.


def swapping(make):
    """Repeatedly exchanges the covered file `src/lib.rs` with the file that `make` creates at a path."""
    if os.path.lexists("target/thing"):
        os.unlink("target/thing")
    make("target/thing")
    repeat = Repeat(lambda: exchange("src/lib.rs", "target/thing"))
    yield
    yield
    count = repeat.stop()
    if count % 2:
        exchange("src/lib.rs", "target/thing")
    yield count


def fifo():
    """Exchanges a covered file for a FIFO."""
    os.makedirs("target", exist_ok=True)
    yield from swapping(os.mkfifo)


def unix_socket():
    """Exchanges a covered file for a socket."""
    os.makedirs("target", exist_ok=True)
    yield from swapping(lambda path: socket.socket(socket.AF_UNIX).bind(path))


def device_link():
    """Exchanges a covered file for a link to a device without an end of file."""
    os.makedirs("target", exist_ok=True)
    yield from swapping(lambda path: os.symlink("/dev/zero", path))


def good_file():
    """Exchanges a covered file for another file with the same size and times."""
    os.makedirs("target", exist_ok=True)
    write("src/lib.rs", "bad \n")

    def make(path):
        shutil.copy2("src/lib.rs", path)
        keep_times(path, lambda: write(path, GOOD))

    yield from swapping(make)


def directory_link():
    """Exchanges a covered directory for a link to another tree."""
    outside = os.path.abspath("../outside")
    write(f"{outside}/lib.rs", GOOD)
    os.makedirs("target", exist_ok=True)
    if not os.path.lexists("target/link"):
        os.symlink(outside, "target/link")
    repeat = Repeat(lambda: exchange("src", "target/link"))
    yield
    yield
    count = repeat.stop()
    if count % 2:
        exchange("src", "target/link")
    yield count


def growing(path):
    """Appends to a file during the whole run."""
    write(path, BAD)

    def append():
        with open(path, "ab") as file:
            if file.tell() < LARGEST:
                file.write(b"g")

    repeat = Repeat(append)
    yield
    yield
    count = repeat.stop()
    write(path, BAD)
    yield count


# Attacks on the state directory and on the processes of the run.


def opened(path, flags):
    try:
        os.close(os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC))
        return True
    except OSError:
        return False


def made(directory):
    try:
        write(f"{directory}/made", GOOD)
        os.unlink(f"{directory}/made")
        return True
    except OSError:
        return False


def traced(pid):
    """Returns whether a child process can trace a process. The exit of the child detaches the tracer."""
    child = os.fork()
    if child == 0:
        os._exit(0 if libc.ptrace(PTRACE_SEIZE, pid, None, None) == 0 else 1)
    return os.waitpid(child, 0)[1] == 0


def signalled(pid):
    try:
        os.kill(pid, 0)
        return True
    except OSError:
        return False


def entered(pid):
    """Returns whether a child process can enter the user and mount namespaces of a process."""
    child = os.fork()
    if child == 0:
        try:
            target = os.pidfd_open(pid)
            os._exit(0 if libc.setns(target, 0x10000000 | 0x00020000) == 0 else 1)
        except OSError:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def took_descriptor(pid):
    try:
        target = os.pidfd_open(pid)
    except OSError:
        return False
    return any(libc.syscall(PIDFD_GETFD, target, number, 0) >= 0 for number in range(16))


def descriptors(pid):
    """Returns the descriptors of a process that this process can list and reopen."""
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return []
    return [name for name in names if opened(f"/proc/{pid}/fd/{name}", os.O_RDONLY)]


def state_routes(state, files):
    """Returns the names of the attempts to access the state directory that succeed."""
    directories = sorted({os.path.dirname(path) for path in files} | {state})
    attempts = {
        "state: list": lambda: any(opened(path, os.O_RDONLY | os.O_DIRECTORY) for path in directories),
        "state: read a file": lambda: any(opened(path, os.O_RDONLY) for path in files),
        "state: write a file": lambda: any(opened(path, os.O_WRONLY) for path in files),
        "state: make a file": lambda: any(made(path) for path in directories),
    }
    return {name for name, attempt in attempts.items() if attempt()}


def process_routes(pid, state, files):
    """Returns the names of the attempts to access a process, or files through it, that succeed."""
    here = os.getcwd()
    roots = [f"/proc/{pid}/root"]
    through = [root + path for root in roots for path in [state, here + "/src/lib.rs", *files]]
    attempts = {
        "/proc/PID/root": lambda: any(opened(path, os.O_RDONLY) for path in through),
        "/proc/PID/root, to write": lambda: any(opened(path, os.O_WRONLY) for path in through),
        "/proc/PID/cwd": lambda: opened(f"/proc/{pid}/cwd/.", os.O_RDONLY | os.O_DIRECTORY),
        "/proc/PID/cwd, to write": lambda: made(f"/proc/{pid}/cwd"),
        "/proc/PID/fd": lambda: bool(descriptors(pid)),
        "/proc/PID/mem": lambda: opened(f"/proc/{pid}/mem", os.O_RDWR),
        "/proc/PID/environ": lambda: opened(f"/proc/{pid}/environ", os.O_RDONLY),
        "ptrace": lambda: traced(pid),
        "pidfd_getfd": lambda: took_descriptor(pid),
        "setns": lambda: entered(pid),
        "signal": lambda: signalled(pid),
    }
    return {name for name, attempt in attempts.items() if attempt()}


def routes():
    """Tries all attempts on the state directory and on the processes, and yields those that succeed."""
    asked = yield
    found = {"state": sorted(state_routes(asked["state"], asked["files"]))}
    for role, pid in asked["processes"].items():
        found[role] = sorted(process_routes(pid, asked["state"], asked["files"]))
    yield found
    yield


def edited_copy():
    """Edits the private copy without changing the times of its files, and yields the number of edited files."""
    asked = yield
    edited = 0
    for path in asked["files"]:
        if path.endswith("/tree/src/lib.rs"):
            try:
                keep_times(path, lambda: write(path, GOOD))
                edited += 1
            except OSError:
                pass
    yield edited
    yield


# A continuous writer, and an editor.


class Writer:
    """Writes to `src` and `churn` in bursts, with short pauses in which the tree does not change."""

    NAMES = [f"churn/{directory}/{name}" for directory in "abc" for name in ("x", "y", "z.py", "w.log", "d/x", "d/y")]
    TEXTS = [bytes([65 + number]) * (37 * number**2 + 1) for number in range(20)]

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.count = 0
        self.maps = []
        self.bursts = 0
        self.started = time.monotonic()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()

    def path(self):
        return self.random.choice(self.NAMES)

    def put(self, path, flags, text):
        # Do not follow links: they may point outside the directory.
        file = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | flags, 0o644)
        try:
            os.write(file, text)
        finally:
            os.close(file)

    def directory(self):
        return "churn/" + self.random.choice(["a", "b", "c", "a/d", "b/d", "c/d"])

    def save(self):
        self.put(self.path(), os.O_CREAT | os.O_TRUNC, self.random.choice(self.TEXTS))

    def save_in_place(self):
        path = self.path()
        times = os.lstat(path)
        self.put(path, 0, b"%d" % self.random.randrange(10))
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns), follow_symlinks=False)

    def save_by_rename(self):
        path = self.path()
        self.put(path + "~", os.O_CREAT | os.O_TRUNC, self.random.choice(self.TEXTS))
        os.rename(path + "~", path)

    def rename(self):
        os.rename(self.path(), self.path())

    def exchange(self):
        exchange(self.path(), self.path())

    def exchange_directories(self):
        exchange(self.directory(), self.directory())

    def link(self):
        one, other = self.path(), self.path()
        if one != other:
            os.unlink(other)
            os.link(one, other)

    def symlink(self):
        path = self.path()
        os.unlink(path)
        os.symlink(self.random.choice(["x", "../b", "../../README.md", "/dev/null", "nothing"]), path)

    def swap_directory(self):
        path = self.directory()
        os.rename(path, "churn/aside")
        os.symlink("../src", path)
        os.unlink(path)
        os.rename("churn/aside", path)

    def remove(self):
        os.unlink(self.path())

    def change_mode(self):
        path = self.path()
        # The path may now be a directory or a link to one; these modes would lock its owner out.
        if stat.S_ISREG(os.lstat(path).st_mode):
            os.chmod(path, self.random.choice([0o644, 0o755, 0o600, 0o700]))

    def special(self):
        path = self.path()
        os.unlink(path)
        os.mkfifo(path)
        os.unlink(path)

    def map(self):
        path = self.path()
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            if os.fstat(descriptor).st_size:
                self.maps = self.maps[-15:] + [mmap.mmap(descriptor, 0)]
        except ValueError:
            pass
        finally:
            os.close(descriptor)

    def write_map(self):
        if self.maps:
            page = self.random.choice(self.maps)
            # If the file was truncated, only its first page still has content.
            if page.size():
                page[0] = self.random.randrange(48, 58)

    def make_directories(self):
        for name in self.NAMES:
            write(name, name)

    def work(self):
        self.make_directories()
        acts = [self.save, self.save_in_place, self.save_by_rename, self.rename, self.exchange]
        acts += [self.exchange_directories, self.link, self.symlink, self.swap_directory, self.remove]
        acts += [self.change_mode, self.special, self.map, self.write_map, self.write_map]
        while not self.over.is_set():
            until = time.monotonic() + self.random.uniform(0, 0.5)
            while time.monotonic() < until:
                try:
                    self.random.choice(acts)()
                except OSError:
                    pass
                self.count += 1
            self.bursts += 1
            if self.bursts % 50 == 0:
                # Start again, because exchanges nest directories deeper and deeper.
                shutil.rmtree("churn", ignore_errors=True)
                self.make_directories()
            self.over.wait(self.random.uniform(0, 0.6))


def writer():
    """Writes to the tree until the run ends. The first line of input contains the seed."""
    os.makedirs("churn", exist_ok=True)
    seed = yield
    writer = Writer(seed)
    yield
    writer.over.set()
    writer.thread.join()
    yield {"operations": writer.count, "bursts": writer.bursts, "seconds": time.monotonic() - writer.started}


def editor():
    """Saves a file every 100 ms like an editor: writes a new file and renames it over the old one."""
    saved = threading.Event()
    over = threading.Event()
    count = 0

    def work():
        nonlocal count
        while not over.wait(0.1):
            write("src/lib.rs~", f"edited {count}\n")
            os.rename("src/lib.rs~", "src/lib.rs")
            count += 1
            if count == 10:
                saved.set()

    yield
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    saved.wait()
    yield count
    over.set()
    thread.join()
    yield count


ATTACKS = {
    attack.__name__: attack
    for attack in [
        above_exchanged, above_linked, inside_exchanged, inside_linked, momentary_file, momentary_directory,
        renamed_to_ignored, switched_head, mapped_page, overlay_attributes, evidence_with_code, hard_link,
        ignored_edit, over_the_bound, fifo, unix_socket, device_link, good_file, directory_link, routes, edited_copy, writer, editor,
    ]
}
ATTACKS["growing_file"] = lambda: growing("src/lib.rs")
ATTACKS["growing_ignored_file"] = lambda: growing("grows.log")


def main():
    if os.geteuid() == 0:
        sys.exit("hostile.py must run as an unprivileged user, not as root")
    signal.alarm(LIFETIME)
    os.chdir(sys.argv[2])
    attack = ATTACKS[sys.argv[1]]()
    started = False
    for line in sys.stdin:
        answer = attack.send(json.loads(line) if started else None)
        started = True
        print(json.dumps(answer), flush=True)


main()
