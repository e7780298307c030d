"""Executes actions of a BuildGrid server, which has no worker of its own: takes leases with the Remote Workers API.

Arguments: the address of the server, the name of the instance, a directory for the files of the actions, the number of
slots, the name of the worker, and optionally a fault. With `replay`, the worker executes only the first action, and
reports its result for all. With `unavailable`, it executes no action.

The worker writes each input into a new directory, and runs the command there. If the worker runs as root, the platform
property `unixUID` names the user of the command, as with the workers of BuildBox. All commands end with the worker.
"""

import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import grpc
from buildgrid._protos.build.bazel.remote.execution.v2.remote_execution_pb2 import (
    Action,
    ActionResult,
    Command,
    Directory,
)
from buildgrid._protos.google.devtools.remoteworkers.v1test2 import bots_pb2, bots_pb2_grpc
from buildgrid._protos.google.devtools.remoteworkers.v1test2.worker_pb2 import Device
from buildgrid._protos.google.devtools.remoteworkers.v1test2.worker_pb2 import Worker as WorkerProto
from buildgrid._protos.google.rpc import code_pb2
from buildgrid.server.client.cas import download, upload

# Time for which the server may wait for work before it answers, in seconds.
POLL_SECONDS = 5
# Time between two reports while all slots are in use, in seconds.
REPORT_SECONDS = 0.5
# Time between two connections to a server that is unavailable, in seconds.
RECONNECT_SECONDS = 0.1
# Minimum size of a blob that the worker keeps for later actions, in bytes. Smaller ones come from the server each time.
MIN_KEPT_BYTES = 1 << 20
# Repetitions of a transfer from or to a server that is unavailable.
RETRIES = {"retries": 10, "max_backoff": 1}
# Errors after which the same session continues.
TEMPORARY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED)


class Failure(Exception):
    """The reason why an action has no result, as a status of the lease."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


class Lease:
    """A lease with the command that it runs."""

    def __init__(self, worker, lease):
        self.worker, self.id, self.payload = worker, lease.id, lease.payload
        self.result, self.failure, self.ended = None, None, False
        self.process, self.cancelled, self.lock = None, False, threading.Lock()
        threading.Thread(target=self.execute, daemon=True).start()

    def execute(self):
        try:
            action = Action()
            self.payload.Unpack(action)
            self.result = self.worker.result_of(action, self)
        except Failure as failure:
            self.failure = failure
        except Exception as error:  # the server must hear of every lease
            self.failure = Failure(code_pb2.INTERNAL, f"{type(error).__name__}: {error}")
        with self.worker.changed:
            self.ended = True
            self.worker.changed.notify()

    def start(self, *arguments, **options):
        """Starts the command, unless the server has cancelled the lease."""
        with self.lock:
            if self.cancelled:
                raise Failure(code_pb2.CANCELLED, "the lease was cancelled")
            self.process = subprocess.Popen(*arguments, **options)
        return self.process

    def cancel(self):
        with self.lock:
            self.cancelled = True
            if self.process:
                kill_group(self.process)

    def to_message(self, reports_end):
        if not reports_end:
            return bots_pb2.Lease(id=self.id, state=bots_pb2.ACTIVE, payload=self.payload)
        message = bots_pb2.Lease(id=self.id, state=bots_pb2.COMPLETED, payload=self.payload)
        if self.failure:
            message.status.code, message.status.message = self.failure.code, str(self.failure)
        else:
            message.result.Pack(self.result)
        return message


def kill_group(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


class Worker:
    """A session with the server, and its leases."""

    def __init__(self, address, instance, directory, slots, name, fault):
        options = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 200)]
        self.channel = grpc.insecure_channel(address, options=options)
        self.instance = instance
        self.bots = bots_pb2_grpc.BotsStub(self.channel)
        self.directory, self.slots, self.name = Path(directory), slots, name
        self.fault, self.first_result = fault, None
        self.leases, self.session, self.changed = {}, None, threading.Condition()
        for subdirectory in (self.kept, self.directory / "actions"):
            subdirectory.mkdir(parents=True, exist_ok=True)

    @property
    def kept(self):
        return self.directory / "kept"

    def serve(self):
        while True:
            if self.session is None:
                self.create_session()
            self.update_session()
            if len(self.leases) == self.slots:
                # The server answers at once then.
                with self.changed:
                    self.changed.wait_for(lambda: self.ended_leases(), REPORT_SECONDS)

    def ended_leases(self):
        return {lease.id for lease in self.leases.values() if lease.ended}

    def create_session(self):
        session = bots_pb2.BotSession(bot_id=self.name, status=bots_pb2.OK)
        worker = WorkerProto(devices=[Device(handle=self.name)])
        worker.configs.add(key="capacity", value=str(self.slots))
        session.worker.CopyFrom(worker)
        try:
            request = bots_pb2.CreateBotSessionRequest(parent=self.instance, bot_session=session)
            answer = self.bots.CreateBotSession(request, timeout=POLL_SECONDS, wait_for_ready=True)
        except grpc.RpcError as error:
            return self.handle_error(error)
        self.accept(answer, set())

    def update_session(self):
        reported = self.ended_leases()
        request = bots_pb2.UpdateBotSessionRequest(name=self.session.name)
        request.bot_session.CopyFrom(self.session)
        del request.bot_session.leases[:]
        request.bot_session.leases.extend(lease.to_message(lease.id in reported) for lease in self.leases.values())
        call = self.bots.UpdateBotSession.future(request, timeout=POLL_SECONDS, wait_for_ready=True)
        call.add_done_callback(self.wake)
        with self.changed:
            self.changed.wait_for(lambda: call.done() or self.ended_leases() > reported)
        if not call.done():
            # A lease has ended, and the next request reports it. The server repeats an answer that it gave meanwhile.
            call.cancel()
            return
        try:
            self.accept(call.result(), reported)
        except (grpc.RpcError, grpc.FutureCancelledError) as error:
            self.handle_error(error)

    def wake(self, _call):
        with self.changed:
            self.changed.notify()

    def accept(self, session, reported):
        """Starts the new leases of an answer, and ends those that the answer does not have any more."""
        self.session = session
        present = {lease.id for lease in session.leases}
        for lease_id in [known for known in self.leases if known not in present or known in reported]:
            self.leases.pop(lease_id).cancel()
        for lease in session.leases:
            if lease.id not in self.leases and lease.id not in reported:
                self.leases[lease.id] = Lease(self, lease)

    def handle_error(self, error):
        if error.code() not in TEMPORARY:
            # The server has given the leases to another worker.
            print(f"the session ended: {error.details()}", file=sys.stderr, flush=True)
            for lease in self.leases.values():
                lease.cancel()
            self.leases, self.session = {}, None
        time.sleep(RECONNECT_SECONDS)

    def result_of(self, action, lease):
        if self.fault == "unavailable":
            raise Failure(code_pb2.UNAVAILABLE, "the worker executes no action")
        if self.fault == "replay" and self.first_result:
            return self.first_result
        root = Path(tempfile.mkdtemp(dir=self.directory / "actions"))
        try:
            result = self.execute(action, root, lease)
        finally:
            shutil.rmtree(root, ignore_errors=True)
        self.first_result = self.first_result or result
        return result

    def execute(self, action, root, lease):
        command = Command()
        command.ParseFromString(self.blob(action.command_digest))
        self.stage(action.input_root_digest, root)
        process = lease.start(
            self.command_line(action, command, root),
            cwd=root / command.working_directory,
            env={variable.name: variable.value for variable in command.environment_variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        limit = action.timeout.ToTimedelta().total_seconds() if action.HasField("timeout") else None
        try:
            stdout, stderr = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            kill_group(process)
            process.communicate()
            raise Failure(code_pb2.DEADLINE_EXCEEDED, "the action has reached its timeout") from None
        finally:
            # Ends processes that the command has left.
            kill_group(process)
        result = ActionResult(exit_code=process.returncode, stdout_raw=stdout, stderr_raw=stderr)
        self.upload_outputs(command, root / command.working_directory, result)
        return result

    def command_line(self, action, command, root):
        """Returns the words of the command, which ends with this worker, as the user whom the platform names."""
        words = [shutil.which("setpriv"), "--pdeathsig=KILL"]
        users = [entry.value for entry in action.platform.properties if entry.name == "unixUID"]
        if os.geteuid() == 0 and users:
            user = int(users[0])
            for path in [root, *root.rglob("*")]:
                os.chown(path, user, user, follow_symlinks=False)
            words += [f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        return [*words, "--", *command.arguments]

    def stage(self, digest, path):
        """Writes a directory of the store."""
        directory = Directory()
        directory.ParseFromString(self.blob(digest))
        for file in directory.files:
            self.write(file, path / file.name)
        for link in directory.symlinks:
            (path / link.name).symlink_to(link.target)
        for below in directory.directories:
            (path / below.name).mkdir()
            self.stage(below.digest, path / below.name)

    def write(self, file, path):
        kept = self.kept / file.digest.hash
        if file.digest.size_bytes < MIN_KEPT_BYTES:
            path.write_bytes(self.blob(file.digest))
        else:
            if not kept.exists():
                unfinished = self.kept / f"{file.digest.hash}.{threading.get_ident()}"
                unfinished.write_bytes(self.blob(file.digest))
                unfinished.rename(kept)
            shutil.copyfile(kept, path)
        path.chmod(0o755 if file.is_executable else 0o644)

    def blob(self, digest):
        if digest.size_bytes == 0:
            return b""
        with download(self.channel, self.instance, **RETRIES) as downloader:
            content = downloader.get_blob(digest)
        if content is None:
            raise Failure(code_pb2.FAILED_PRECONDITION, f"blob {digest.hash} is missing")
        return content

    def upload_outputs(self, command, directory, result):
        with upload(self.channel, self.instance, **RETRIES) as uploader:
            for name in command.output_paths or command.output_files:
                path = directory / name
                if path.is_file() and not path.is_symlink():
                    content = path.read_bytes()
                    file = result.output_files.add(path=name, is_executable=os.access(path, os.X_OK))
                    file.digest.CopyFrom(uploader.put_blob(io.BytesIO(content)))


if __name__ == "__main__":
    server, instance_name, files, count, own_name, *faults = sys.argv[1:]
    Worker(server, instance_name, files, int(count), own_name, faults[0] if faults else None).serve()
