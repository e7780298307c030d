"""Tests the units of systemd/ with a real daemon. Runs as root in a booted systemd.

The only argument is the path of the report. The script writes one line for each check to it, `ok NAME` or
`FAILED NAME: found value`, and `done` at the end. The programs are in PROGRAMS, and the units and related files are
already in the directories of systemd.
"""
import http.client
import json
import os
import pwd
import re
import socket
import stat
import subprocess
import sys
import time

PROGRAMS = "/opt/proctor/bin"
SOCKET = "/run/proctor/proctord.sock"
UNIT = "proctord.service"
CONFIG = "/etc/proctor/proctord.toml"
SECRET = "hunter2-of-the-daemon"
# Timeout for each wait, in seconds.
PATIENCE = 40
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"

report = open(sys.argv[1], "a", buffering=1)


def say(ok, name, found=""):
    report.write(f"{'ok' if ok else 'FAILED'} {name}{'' if ok else ': ' + repr(found)}\n")


def sh(*words, user=None, check=True, env=None):
    """Runs a program, as another user if `user` is given, and returns its output."""
    if user:
        words = ("setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", *words)
    home = pwd.getpwnam(user).pw_dir if user else "/root"
    variables = {"PATH": PATH, "HOME": home, "LANG": "C.UTF-8", **(env or {})}
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, env=variables)
    if check and done.returncode:
        raise RuntimeError(f"{words}: {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def until(holds):
    """Polls until the condition is true or the timeout expires, and returns its last value."""
    deadline = time.monotonic() + PATIENCE
    while True:
        found = holds()
        if found or time.monotonic() > deadline:
            return found
        time.sleep(0.02)


def show(unit, field, *words, **how):
    return sh("systemctl", *words, "show", "--value", "-p", field, unit, **how).strip()


CLIENT = """
import http.client, json, socket, sys
where, method, path, body = sys.argv[1:]
connection = http.client.HTTPConnection("localhost", timeout=70)
connection.sock = socket.socket(socket.AF_UNIX)
connection.sock.connect(where)
connection.request(method, path, body or None, {"Content-Type": "application/json"} if body else {})
answer = connection.getresponse()
print(answer.status)
print(answer.read().decode())
"""


def ask(method, path, body=None, user=None, where=SOCKET, check=True):
    """Sends a request from a separate process, possibly as another user, and returns the status and the JSON."""
    words = [where, method, path, json.dumps(body) if body is not None else ""]
    text = sh("/usr/bin/python3", "-c", CLIENT, *words, user=user, check=check)
    status, _, body = text.partition("\n")
    try:
        return int(status), json.loads(body)
    except ValueError:
        return None, text


def repository(path, owner, *cmd, files=None):
    """Creates a repository with one step."""
    os.makedirs(f"{path}/spec")
    step = {"name": "it", "cmd": list(cmd), "timeout_ms": 300000}
    skill = {"determinism": "D0", "tier": 1, "steps": [step]}
    spec = {"version": 1, "profiles": {"pr": {"include": ["verify.it"]}}, "skills": {"verify.it": skill}}
    for name, text in {"spec/verification.yaml": json.dumps(spec), **(files or {})}.items():
        with open(f"{path}/{name}", "w") as file:
            file.write(text)
    os.makedirs(f"{path}/changes/001_x")
    for words in (["init", "-q"], ["add", "-A"], ["-c", "user.name=A", "-c", "user.email=a@b", "commit", "-qm", "x"]):
        sh("git", "-C", path, "-c", "safe.directory=*", *words)
    sh("chown", "-R", f"{owner}:{owner}", path)
    return path


def submit(repo, user, **more):
    status, answer = ask("POST", "/v1/runs", {"repo": repo, "profile": "pr", "reuse": "never", **more}, user=user)
    assert status == 202, (status, answer)
    return answer["run"]["id"]


def ended(run, user, where=SOCKET):
    return ask("GET", f"/v1/runs/{run}?wait=30s", user=user, where=where)[1]


def running(word):
    return [pid for pid in os.listdir("/proc") if pid.isdigit() and word in cmdline(pid)]


def cmdline(pid):
    try:
        with open(f"/proc/{pid}/cmdline") as file:
            return file.read()
    except OSError:
        return ""


def configure(text):
    with open(CONFIG, "w") as file:
        file.write(text)


# Maximum exposure levels of `systemd-analyze security`, as in docs/daemon.md: the system unit and the user unit.
MOST_EXPOSED = 5.3
MOST_EXPOSED_OF_A_USER = 7.8

LISTED = "[daemon]\nallow_users = ['ann', 'bob']\ndrain_ms = 60000\n"


def prepare():
    until(lambda: os.path.isdir("/etc/proctor"))
    for name in ("ann", "bob", "eve"):
        sh("groupadd", name)
        sh("useradd", "-m", "-g", name, "-G", "proctor", name)
    configure(LISTED)


def tmpfiles():
    modes = [stat.S_IMODE(os.stat(path).st_mode) for path in ("/run/proctor", "/var/lib/proctor")]
    say(modes == [0o755, 0o700], "systemd-tmpfiles creates the directories", modes)


def activation():
    sh("systemctl", "enable", "--now", "proctord.socket")
    found = os.stat(SOCKET)
    group = subprocess.run(["stat", "-c", "%G", SOCKET], capture_output=True, text=True).stdout.strip()
    say((stat.S_IMODE(found.st_mode), group) == (0o660, "proctor"), "the socket belongs to the group", (found, group))
    say(show("proctord.service", "ActiveState") == "inactive", "the daemon has not been started yet")
    status, health = ask("GET", "/healthz")
    say(status == 200 and health["status"] == "ok", "a connection starts the daemon", health)
    say(show("proctord.service", "ActiveState") == "active", "the unit is active once the daemon is ready")
    say(health["pid"] == int(show("proctord.service", "MainPID")), "the daemon is the unit's main process", health)
    state = show("proctord.service", "StatusText")
    say(SOCKET in state, "the status text contains the socket", state)


def run():
    repo = repository("/home/ann/repo", "ann", "sh", "-c", "id -u; id -un; echo told >&2")
    found = ended(submit(repo, "ann", changeset_id="001_x"), "ann")
    say(found.get("verdict") == "passed", "a run passes under the unit's hardening", found)
    evidence = f"{repo}/changes/001_x/verify/verify.it.json"
    owner = pwd.getpwuid(os.stat(evidence).st_uid).pw_name if os.path.exists(evidence) else None
    say(owner == "ann", "the evidence belongs to the owner of the repository", owner)
    output = sh("/usr/bin/python3", "-c", CLIENT, SOCKET, "GET", f"/v1/runs/{found['id']}/steps/0/stdout", "", user="ann")
    say(str(pwd.getpwnam("ann").pw_uid) in output, "the step runs as the owner of the repository", output)
    by_name = enforcement(found)
    lacking = sorted(name for name, state in by_name.items() if state["state"] == "not_enforced")
    # If the unit has no control group with limits in this container, the daemon cannot create any.
    given = writable_groups(show("proctord.service", "MainPID"))
    say("cgroup" in by_name and lacking == ([] if given else ["cgroup"]),
        "every control of the sandbox is enforced, and control groups if the unit has one", (given, by_name))


def enforcement(found):
    with open(f"{found['evidence_dir']}/verify/verify.it.json") as file:
        return json.load(file)["steps"][0]["enforcement"]


def groups(pid):
    """Returns the control groups of a process as (controllers, path); controllers are empty for version 2."""
    with open(f"/proc/{pid}/cgroup") as file:
        return [tuple(line.rstrip().split(":", 2)[1:]) for line in file]


def writable_groups(pid):
    """Returns the control groups of a process in which the unit can create groups with memory or process limits."""
    with open(f"/proc/{pid}/mountinfo") as file:
        mounts = [[half.split() for half in line.split(" - ")] for line in file]
    writable = [back[2].split(",") for front, back in mounts
                if back[0] == "cgroup" and "rw" in front[5].split(",") and "rw" in back[2].split(",")]
    unified = [front[4] for front, back in mounts if back[0] == "cgroup2" and "rw" in front[5].split(",")]
    found = []
    for controllers, path in groups(pid):
        kinds = {"memory", "pids"} & set(controllers.split(","))
        if any(kinds & set(options) for options in writable):
            found.append((controllers, path))
        # The daemon's group is inside the group of the unit, which delegates its controllers.
        of_unit = path.partition(f"/{UNIT}")
        if not controllers and unified and of_unit[1]:
            with open(unified[0] + of_unit[0] + of_unit[1] + "/cgroup.controllers") as file:
                if {"memory", "pids"} <= set(file.read().split()):
                    found.append((controllers, of_unit[0] + of_unit[1]))
    return found


def who_may():
    status, answer = ask("POST", "/v1/runs", {"repo": "/home/ann/repo", "profile": "pr"}, user="bob")
    say(status in (403, 422), "a user cannot verify the repository of another user", (status, answer))
    status, answer = ask("GET", "/healthz", user="eve", check=False)
    say(status != 200, "a group member that is not in allow_users is rejected", (status, answer))
    sh("groupadd", "mal")
    sh("useradd", "-m", "-g", "mal", "mal")
    status, answer = ask("GET", "/healthz", user="mal", check=False)
    say(status is None and "PermissionError" in answer, "a user outside of the group cannot connect to the socket", answer)


PROBE = """
import os, socket, sys
for place in ("/run/proctor/proctord.sock", "/proc/1/root/run/proctor/proctord.sock", "\\0/run/proctor/proctord.sock"):
    try:
        socket.socket(socket.AF_UNIX).connect(place)
    except OSError as error:
        print(ascii(place), error)
    else:
        sys.exit(f"{place!a} accepts connections")
if os.path.exists("/run/proctor") and os.listdir("/run/proctor"):
    sys.exit("/run/proctor is visible to the step")
"""


def unreachable():
    repo = repository("/home/bob/repo", "bob", "/usr/bin/python3", "probe.py", files={"probe.py": PROBE})
    found = ended(submit(repo, "bob"), "bob")
    say(found.get("verdict") == "passed", "a step cannot connect to the socket", found)


def reload():
    configure(f"[daemon]\nallow_users = ['{SECRET}']\n")
    refused = subprocess.run(["systemctl", "reload", "proctord.service"], capture_output=True, timeout=PATIENCE)
    say(refused.returncode != 0, "a reload with an invalid config fails", refused.returncode)
    until(lambda: "not valid" in show("proctord.service", "StatusText"))
    status = show("proctord.service", "StatusText")
    say("the old one remains in effect" in status, "an invalid config is rejected", status)
    say(ask("GET", "/healthz", user="ann")[0] == 200, "the old config still applies")
    say("proctor_config_last_reload_successful 0" in ask("GET", "/metrics")[1], "the metrics report the failed reload")
    configure(LISTED.replace("'bob'", "'eve'"))
    sh("systemctl", "reload", "proctord.service")
    until(lambda: show("proctord.service", "StatusText") == "the new config is in effect")
    answers = [ask("GET", "/healthz", user=user, check=False)[0] for user in ("ann", "eve", "bob")]
    say(answers[:2] == [200, 200] and answers[2] != 200, "the new config applies", answers)
    say(show("proctord.service", "ActiveState") == "active", "the unit is active after a reload")
    configure(LISTED)
    sh("systemctl", "reload", "proctord.service")


def below(daemon, step):
    """Checks that each attempt has its own group below the unit's group, in each hierarchy that has one."""
    given, of_step = writable_groups(daemon), dict(groups(step))
    held = [of_step[controllers].startswith(f"{path.rstrip('/')}/proctor-") for controllers, path in given]
    say(all(held), "each attempt has its own control group below the unit's group", (given, of_step))


def watchdog():
    repo = repository("/home/ann/watched", "ann", "sleep", "600.31415")
    run = submit(repo, "ann")
    say(until(lambda: running("31415")), "a run is active")
    before = int(show("proctord.service", "MainPID"))
    below(before, running("31415")[0])
    os.kill(before, 19)  # SIGSTOP
    until(lambda: show("proctord.service", "MainPID") not in (str(before), "0"))
    after = int(show("proctord.service", "MainPID"))
    say(after not in (0, before), "the watchdog kills a daemon that does not respond, and systemd starts another", (before, after))
    say(show("proctord.service", "NRestarts") == "1", "systemd restarted the daemon once", show("proctord.service", "NRestarts"))
    found = ended(run, "ann")
    doubts = json.dumps(found.get("doubts"))
    say((found.get("verdict"), found.get("exit_code")) == ("inconclusive", 130) and "interrupted" in doubts,
        "the next daemon reports that the run was interrupted", found)
    say(until(lambda: not running("31415")), "no process of the run remains", running("31415"))
    again = ended(submit("/home/ann/repo", "ann"), "ann")
    say(again.get("verdict") == "passed", "the next daemon verifies", again)


def restart():
    repo = repository("/home/ann/short", "ann", "sleep", "2")
    run = submit(repo, "ann")
    until(lambda: ask("GET", f"/v1/runs/{run}", user="ann")[1]["state"] == "running")
    sh("systemctl", "restart", "proctord.service")
    found = ended(run, "ann")
    say(found.get("verdict") == "passed", "a restart waits for a run to end", found)
    say(show("proctord.service", "NRestarts") == "0", "a restart does not count as a failure")
    sh("systemctl", "stop", "proctord.service")
    result = show("proctord.service", "Result")
    say(os.path.exists(SOCKET) and result == "success", "the socket outlives the daemon", result)
    say(ask("GET", "/healthz")[0] == 200, "a connection starts the daemon again")


def broken_config():
    """Checks that an invalid config does not make the socket fail: clients get the reason until it is fixed."""
    sh("systemctl", "stop", "proctord.service")
    configure("[daemon]\nallow_users = ['no-such-account']\n")
    first = ask("GET", "/healthz", check=False)
    say(first[0] == 503 and "no-such-account" in first[1]["detail"], "root gets the reason of a failed start", first)
    other = ask("GET", "/healthz", user="eve", check=False)
    say(other[0] == 503 and "no-such-account" not in other[1]["detail"], "others get no part of the config", other)
    started = subprocess.run(["systemctl", "start", "proctord.service"], capture_output=True, timeout=PATIENCE)
    say(started.returncode != 0, "a start with an invalid config fails", started.returncode)
    # More failed starts than any start limit allows.
    answers = {ask("GET", "/healthz", check=False)[0] for _ in range(12)}
    state = show("proctord.socket", "ActiveState"), show("proctord.socket", "Result")
    say((answers, state) == ({503}, ("active", "success")), "the socket survives failed starts", (answers, state))
    configure(LISTED)
    found = until(lambda: ask("GET", "/healthz", user="ann", check=False)[0] == 200)
    say(found, "the daemon starts once the config is fixed", show("proctord.service", "ActiveState"))


def idle():
    configure(LISTED + "idle_exit_ms = 300\n")
    sh("systemctl", "reload", "proctord.service")
    say(until(lambda: show("proctord.service", "ActiveState") == "inactive"), "an idle daemon exits",
        show("proctord.service", "ActiveState"))
    say(show("proctord.service", "Result") == "success", "an idle exit is not a failure")
    configure(LISTED)
    say(ask("GET", "/healthz")[0] == 200, "the next connection starts the daemon again")


def journal():
    sh("journalctl", "--flush", check=False)
    lines = sh("journalctl", "-o", "json", "-u", "proctord.service", "--no-pager").splitlines()
    records = [json.loads(line) for line in lines if line.startswith("{")]
    ours = [record for record in records if "PROCTOR_TARGET" in record]
    said = [record["MESSAGE"] for record in ours]
    say(any("the daemon listens" in message for message in said), "the journal contains the fields of the daemon", said)
    text = sh("journalctl", "-o", "export", "-u", "proctord.service", "--no-pager")
    say(SECRET not in text and "[redacted]" in text, "the journal contains no secret of the daemon", text[-2000:])
    raw = [message for message in said if re.search(r"[\x00-\x1f\x7f-\x9f]", str(message))]
    say(not raw, "the journal contains no control character", raw)


def of_user():
    uid = pwd.getpwnam("ann").pw_uid
    runtime = f"/run/user/{uid}"
    sh("systemctl", "start", f"user@{uid}.service")
    env = {"XDG_RUNTIME_DIR": runtime}
    manage = dict(user="ann", env=env)
    sh("systemctl", "--user", "enable", "--now", "proctord.socket", **manage)
    where = f"{runtime}/proctor/proctord.sock"
    modes = [stat.S_IMODE(os.stat(path).st_mode) for path in (where, os.path.dirname(where))]
    say(modes == [0o600, 0o700], "only the user can connect to the socket of a user's daemon", [oct(mode) for mode in modes])
    health = ask("GET", "/healthz", user="ann", where=where)[1]
    say(isinstance(health, dict) and health["uid"] == uid, "a connection starts a user's daemon", health)
    asked = {"repo": "/home/ann/repo", "profile": "pr", "reuse": "never"}
    answer = ask("POST", "/v1/runs", asked, user="ann", where=where)[1]
    found = ended(answer["run"]["id"], "ann", where)
    say(found.get("verdict") == "passed", "a user's daemon verifies under its unit's hardening", found)
    sh("systemctl", "--user", "restart", "proctord.service", **manage)
    say(ended(answer["run"]["id"], "ann", where).get("verdict") == "passed", "a user's daemon keeps its runs over a restart")
    refused = ask("GET", "/healthz", where=where, check=False)
    say(refused[0] != 200, "a user's daemon does not serve root", refused)


def exposure():
    env = {"XDG_RUNTIME_DIR": f"/run/user/{pwd.getpwnam('ann').pw_uid}"}
    # No user manager is running, so systemd-analyze reads the unit file.
    of_user = ("--offline=true", "--user", "/etc/systemd/user/proctord.service")
    for name, most, words, how in (("the unit", MOST_EXPOSED, ("proctord.service",), {}),
                                   ("a user's unit", MOST_EXPOSED_OF_A_USER, of_user, dict(user="ann", env=env))):
        text = sh("systemd-analyze", "security", *words, check=False, **how)
        found = re.search(r"level for proctord.service: ([0-9.]+)", text)
        say(found and float(found[1]) <= most, f"the exposure level of {name} is at most {most}", text[-500:])


def main():
    steps = [prepare, tmpfiles, activation, run, who_may, unreachable, reload, watchdog, restart, broken_config, idle, journal, of_user]
    for step in [*steps, exposure]:
        try:
            step()
        except Exception as error:  # the report contains every error
            say(False, f"{step.__name__} completes", f"{type(error).__name__}: {error}")
            report.write(sh("journalctl", "--no-pager", "-n", "40", check=False))
    report.write("done\n")


main()
