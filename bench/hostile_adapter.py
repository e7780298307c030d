"""Runs the hostile probes of a harness as steps with `proctor exec`, and judges the demands that concern the runner.

The harness (`run_probes.py --adapter FILE`) calls `run(ctx)` for each probe and inspects the result from the host. It
calls `judge(kind, probe, result)` for demands that it cannot check itself. The adapter returns the
record of the run, and the output of Proctor in its formats for human readers and for programs.

PROCTOR is the path of the program. By default, it is `proctor` next to this file, or the release or debug build.

If REMOTE_CONFIG names a `proctord.toml` with `[remote_executor]`, the probes run on workers of that cluster: as steps of
`proctor run`, over a copy of the repository with a spec of its own.
"""
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
# Exit code of a step that could not be started, as in shells.
NOT_RUN = 126
# Time between SIGTERM and SIGKILL for a step that timed out, in milliseconds.
GRACE_MS = 500
# Maximum time that `proctor` may take after the deadline of the step, in seconds.
PATIENCE = 30
# Maximum time until the processes of a step are gone after its runner was killed, in seconds.
GONE_WITHIN = 1.0

# The config of the cluster whose workers run the probes.
REMOTE_CONFIG = os.environ.get("REMOTE_CONFIG")

# The demands that concern the printed output.
READ = {"runner:utf8", "runner:esc", "runner:wf", "runner:spoof", "runner:redact"}


def proctor():
    places = [os.path.join(HERE, "proctor")]
    places += [os.path.join(HERE, "..", "target", kind, "proctor") for kind in ("release", "debug")]
    named = os.environ.get("PROCTOR")
    found = next((place for place in ([named] if named else places) if os.access(place, os.X_OK)), None)
    if found is None:
        raise FileNotFoundError("no `proctor` program found: build it, or set PROCTOR to its path")
    return os.path.abspath(found)


def remote_command(ctx, form):
    """Returns the command that runs the probe on a worker."""
    limits = ctx["limits"]
    step = {
        "name": "probe", "cmd": ctx["argv"], "timeout_ms": int(ctx["timeout_s"] * 1000), "grace_ms": GRACE_MS,
        "limits": {
            "memory": "%dMiB" % limits["mem_limit_mb"], "pids": limits["pids_limit"],
            "disk": "%dMiB" % limits["disk_limit_mb"], "output": limits["output_limit"] // 2,
        },
    }
    skill = {"description": "a probe", "determinism": "D2", "tier": 1, "steps": [step]}
    spec = {"version": 1, "profiles": {"pr": {"include": ["verify.probe"]}}, "skills": {"verify.probe": skill}}
    # The harness compares its own repository with an earlier state.
    repo = ctx["repo"] + "-remote"
    if not os.path.exists(repo):
        shutil.copytree(ctx["repo"], repo, symlinks=True)
        with open(os.path.join(repo, "spec/verification.yaml"), "w") as file:
            json.dump(spec, file)
    return [proctor(), "run", "--format", form, "--profile", "pr", "--no-daemon", "--max-tier", "3", "--repo", repo,
            "--config", REMOTE_CONFIG, "--state-dir", os.path.join(ctx["state"], "proctor")]


def command(ctx, form):
    if REMOTE_CONFIG:
        return remote_command(ctx, form)
    limits = ctx["limits"]
    # The limit of the harness applies to both streams together, `--output` to each stream.
    each = limits["output_limit"] // 2
    return [proctor(), "exec", "--format", form, "--no-spec",
            "--repo", ctx["repo"],
            "--state-dir", os.path.join(ctx["state"], "proctor"),
            "--timeout-ms", str(int(ctx["timeout_s"] * 1000)),
            "--grace-ms", str(GRACE_MS),
            "--memory", "%dMiB" % limits["mem_limit_mb"],
            "--pids", str(limits["pids_limit"]),
            "--disk", "%dMiB" % limits["disk_limit_mb"],
            "--output", str(each),
            "--", *ctx["argv"]]


def start(ctx, form, out, err):
    leaked = () if ctx["leak_fd"] is None else (ctx["leak_fd"],)
    return subprocess.Popen(command(ctx, form), cwd=ctx["repo"], env={**ctx["env"], "HOME": ctx["home"]},
                            stdin=subprocess.DEVNULL, stdout=out, stderr=err, pass_fds=leaked, start_new_session=True)


def finish(ctx, form):
    """Runs `proctor`, and returns its stdout, its stderr and its exit code."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = start(ctx, form, out, err)
        try:
            code = process.wait(ctx["timeout_s"] + PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        out.seek(0)
        err.seek(0)
        return out.read(), err.read(), code


def run(ctx):
    if ctx["kill_runner"]:
        return run_and_kill(ctx)
    out, err, code = finish(ctx, "json")
    presented = out + b"\n" + err
    if READ & set(ctx["probe"]["checks"]):
        # Add the human-readable format, which contains the output of the step itself.
        human_out, human_err, _ = finish(ctx, "human")
        presented += b"\n" + human_out + b"\n" + human_err
    try:
        record = json.loads(out)
        return answer(record, presented)
    except (ValueError, KeyError):
        text = b"PROBE-ERROR proctor exited with %d and without a record: " % code + out[:200] + err[:500]
        return dict(rc=NOT_RUN, out=text, timed_out=False, drift=[], presented=presented, record={})


def answer(record, presented):
    if REMOTE_CONFIG:
        # As `proctor exec` has it.
        finished = record["finished"]
        record |= {"step": record["skills"][0]["steps"][0], "verdict": finished["verdict"], "exit_code": finished["exit_code"]}
    step = record["step"]
    ended = step["termination"]
    drift = [change["path"] for change in step["drift"]["changes"]]
    text = "\n".join(step[stream + end] for stream in ("stdout", "stderr") for end in ("_preview", "_tail")).encode()
    if ended["kind"] == "not_started":
        text += b"\nPROBE-ERROR the step did not start: " + ended["reason"].encode()
    # The harness measures the length of the accepted output, and the record contains only the count: pad to that
    # length.
    kept = step["stdout_kept_bytes"] + step["stderr_kept_bytes"]
    return dict(rc=NOT_RUN if step["exit_code"] in (None, -1) else step["exit_code"],
                out=text + b" " * max(0, kept - len(text)), timed_out=ended["kind"] == "timed_out",
                drift=drift, presented=presented, record=record)


def run_and_kill(ctx):
    """Kills only `proctor` while the step runs. Afterwards, no process of the step may be alive."""
    name = os.path.basename(ctx["argv"][0])
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = start(ctx, "json", out, err)
        began = wait_until(lambda: of_step(ctx, name), PATIENCE)
        # The probe has started; give it time to act.
        time.sleep(1)
        ran = bool(of_step(ctx, name))
        process.send_signal(signal.SIGKILL)
        code = process.wait()
        gone = wait_until(lambda: not of_step(ctx, name), GONE_WITHIN)
        err.seek(0)
        said = err.read()
    if not (began and ran):
        text = b"PROBE-ERROR the step did not run before the runner was killed: " + said[:500]
    elif gone:
        text = b"CONTAINED no process of the step outlived its runner"
    else:
        text = b"ESCAPED the step outlived its runner: %r" % of_step(ctx, name)
    return dict(rc=code, out=text, timed_out=False, drift=[], presented=said, record={})


def wait_until(condition, seconds):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def of_step(ctx, name):
    """Returns the processes of this probe, as seen from the host. Its descendants carry the token of the repository."""
    with open(os.path.join(ctx["repo"], ".hostile", "conf.json")) as conf:
        token = json.load(conf)["token"]
    marks = ("/.hostile/probes/" + name).encode(), ("SURVIVOR_" + token).encode()
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/cmdline" % pid, "rb") as file:
                words = file.read()
            with open("/proc/%s/stat" % pid) as file:
                state = file.read().rsplit(")", 1)[1].split()[0]
        except (OSError, IndexError):
            continue
        # The command line of `proctor` itself contains the probe's name too.
        if state != "Z" and any(mark in words for mark in marks) and b"--no-spec" not in words:
            found.append(int(pid))
    return found


CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
COMMANDS = re.compile(r"(?m)^\s*::|##\[|##vso\[|##teamcity\[")


def judge(kind, probe, result):
    """Returns the reason why a demand on the runner is not met, or None if it is met."""
    if not result["record"]:
        return "the run has no record"
    judgement = JUDGEMENTS.get(kind)
    return judgement(probe, result) if judgement else "the adapter does not support the demand `%s`" % kind


def judge_utf8(probe, result):
    try:
        result["presented"].decode("utf-8")
        json.dumps(result["record"]).encode("utf-8")
    except ValueError:
        return "the output is not valid UTF-8"
    return "the output contains a NUL byte" if b"\0" in result["presented"] else None


def judge_escapes(probe, result):
    wrong = judge_utf8(probe, result)
    if wrong:
        return wrong
    found = CONTROL.search(result["presented"].decode("utf-8")) or CONTROL.search(texts(result["record"]))
    return "the output contains a control character: %r" % found.group() if found else None


def judge_commands(probe, result):
    found = COMMANDS.search(result["presented"].decode("utf-8", "replace"))
    return "the output contains a workflow command: %r" % found.group() if found else None


def judge_spoof(probe, result):
    record = result["record"]
    values = record["step"]["exit_code"], record["step"]["outcome"], record["verdict"], record["exit_code"]
    return None if values == (3, "failed", "failed", 1) else "the output of the step changed the verdict: %r" % (values,)


def judge_secrets(probe, result):
    shown = result["presented"] + json.dumps(result["record"]).encode()
    return "the output contains a secret" if b"CANARY-" in shown else None


def judge_scan(probe, result):
    record = result["record"]
    if not record["step"]["drift"]["method"]:
        return "the record does not contain the method of drift detection"
    return "drift detection was inconclusive: %r" % record["doubts"] if record["verdict"] == "inconclusive" else None


def judge_cpu(probe, result):
    used = result["record"]["step"]["resources"]
    spent = used["user_ms"] + used["system_ms"]
    return None if spent >= 500 else "the step used seconds of CPU time, but the record contains %d ms" % spent


JUDGEMENTS = dict(utf8=judge_utf8, esc=judge_escapes, wf=judge_commands, spoof=judge_spoof, redact=judge_secrets,
                  scan=judge_scan, cpu=judge_cpu)


def texts(value):
    """Returns all strings in a document, one per line."""
    if isinstance(value, dict):
        return "\n".join(texts(part) for pair in value.items() for part in pair)
    if isinstance(value, list):
        return "\n".join(texts(part) for part in value)
    return value if isinstance(value, str) else ""
