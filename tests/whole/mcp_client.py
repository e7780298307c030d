"""Drives an MCP server with the official Python SDK by a script in JSON, and prints the results.

argv[1] is {"server": {"command": [...], "env": {...}, "cwd": DIR} or {"socket": PATH}, "mode": MODE, "steps": [...]}.
A step is a list: ["tools"], ["call", NAME, ARGUMENTS], ["call_off", NAME, ARGUMENTS] (cancelled once a step
runs), ["call_off_shared", NAME, ARGUMENTS] (the same, after another call has joined the same run),
["call_in_trace", NAME, ARGUMENTS, TRACEPARENT],
["newest"] (the newest run), ["resources"], ["templates"], ["read", URI]. Each result is an object; an
exception is {"raised": TEXT}. In a string of a step, "$N.PATH" refers to a value of the N-th result.
"""

import json
import sys

import anyio
import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client


def plain(model):
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


def resolve(value, answers):
    """Replaces references to earlier results."""
    if isinstance(value, dict):
        return {key: resolve(inner, answers) for key, inner in value.items()}
    if not (isinstance(value, str) and value.startswith("$")):
        return value
    number, *path = value[1:].split(".")
    found = answers[int(number)]
    for key in path:
        found = found[int(key)] if isinstance(found, list) else found[key]
    return found


async def call(client, name, arguments):
    progress = []

    async def on_progress(done, total, message):
        progress.append([done, total, message])

    result = await client.call_tool(name, arguments, progress_callback=on_progress)
    return plain(result) | {"progress": progress}


async def call_off(client, name, arguments, shared):
    runs, scope, seen = anyio.Event(), anyio.CancelScope(), {"called_off": True}

    async def on_progress(done, total, message):
        if message.endswith(" runs"):
            runs.set()

    async def wait_then_cancel():
        await runs.wait()
        if shared:
            seen.update(plain(await client.call_tool(name, arguments | {"wait_s": 0})))
        scope.cancel()

    async with anyio.create_task_group() as others:
        others.start_soon(wait_then_cancel)
        with scope:
            await client.call_tool(name, arguments, progress_callback=on_progress)
            raise RuntimeError("the call was not cancelled")
    return seen


async def take(client, step):
    kind, *rest = step
    match kind:
        case "tools":
            return plain(await client.list_tools())
        case "call":
            return await call(client, *rest)
        case "call_in_trace":
            name, arguments, traceparent = rest
            return plain(await client.call_tool(name, arguments, meta={"traceparent": traceparent}))
        case "call_off":
            return await call_off(client, *rest, shared=False)
        case "call_off_shared":
            return await call_off(client, *rest, shared=True)
        case "newest":
            listed = plain(await client.list_resources())
            return {"run_id": listed["resources"][0]["uri"].rsplit("/", 1)[1]}
        case "resources":
            return plain(await client.list_resources())
        case "templates":
            return plain(await client.list_resource_templates())
        case "read":
            return plain(await client.read_resource(rest[0]))


async def drive(server, mode, steps):
    answers = []
    async with Client(server, mode=mode, read_timeout_seconds=100) as client:
        info = {"protocol": client.protocol_version, "instructions": client.instructions}
        for step in steps:
            try:
                answers.append(await take(client, [step[0]] + [resolve(word, answers) for word in step[1:]]))
            except Exception as error:  # the test inspects every exception of the SDK
                answers.append({"raised": f"{type(error).__name__}: {error}"})
    print(json.dumps(info | {"answers": answers}))


async def main():
    script = json.loads(sys.argv[1])
    server, mode, steps = script["server"], script["mode"], script["steps"]
    if "command" in server:
        program, *arguments = server["command"]
        await drive(StdioServerParameters(command=program, args=arguments, env=server["env"], cwd=server["cwd"]), mode, steps)
        return
    transport = httpx2.AsyncHTTPTransport(uds=server["socket"])
    async with httpx2.AsyncClient(transport=transport, timeout=100) as http:
        await drive(streamable_http_client("http://localhost/mcp", http_client=http), mode, steps)


anyio.run(main)
