"""Generates clients from the daemon's OpenAPI document with two generators, and sends requests to a daemon with them.

argv[1] is {"socket": PATH, "repo": PATH, "programs": DIR}. The clients are generated in the current directory.
"""

import json
import subprocess
import sys
from pathlib import Path

import httpx

SCRIPT = json.loads(sys.argv[1])
BASE = "http://localhost"


def transport():
    return httpx.HTTPTransport(uds=SCRIPT["socket"])


def program(name, *arguments):
    command = [str(Path(SCRIPT["programs"]) / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def generate():
    with httpx.Client(transport=transport(), base_url=BASE) as plain:
        Path("openapi.json").write_bytes(plain.get("/openapi.json").content)
    program("openapi-spec-validator", "openapi.json")
    said = program("openapi-python-client", "generate", "--path", "openapi.json", "--output-path", "made", "--meta", "none")
    lost = [line for line in said.splitlines() if "parsing" in line and "/metrics" not in line]
    assert not lost, f"the generator skipped parts of the document: {lost}"
    models = ["--input", "openapi.json", "--input-file-type", "openapi", "--output", "models.py"]
    program("datamodel-codegen", *models, "--output-model-type", "pydantic_v2.BaseModel", "--formatters", "builtin")


def by_client():
    """Tests the client of openapi-python-client, and returns the run that it submitted."""
    from made import models
    from made.api.default import ask_gate, get_run, list_runs, read_evidence, resolve_plan, submit_run
    from made.client import Client

    client = Client(base_url=BASE, httpx_args={"transport": transport()}, timeout=httpx.Timeout(100))
    request = models.RunSubmission(repo=SCRIPT["repo"], profile="pr")
    submitted = submit_run.sync(client=client, body=request)
    assert submitted.how in (models.SubmissionOutcome.QUEUED, models.SubmissionOutcome.JOINED), submitted
    run = submitted.run.id
    while (seen := get_run.sync(run, client=client, wait="30s", after=0)).state != models.RunState.FINISHED or seen.more_events:
        pass
    assert seen.verdict == models.Verdict.PASSED and seen.finished_at > seen.queued_at, seen
    assert isinstance(seen.events[0], models.LoggedEventRunQueued), seen.events[0]
    assert isinstance(seen.events[-1], models.LoggedEventRunFinished), seen.events[-1]
    for key in seen.evidence.additional_properties:
        for name in (key, key.removeprefix("verify/")):
            document = read_evidence.sync(run, name, client=client)
            assert not isinstance(document, models.Problem), (name, document)
    page = list_runs.sync(client=client, state=models.RunState.FINISHED)
    assert [listed.id for listed in page.runs] == [run], page
    plan = resolve_plan.sync(client=client, body=models.PlanRequest(repo=SCRIPT["repo"], profile="pr"))
    assert plan.plan.profile == "pr", plan
    gate = ask_gate.sync(client=client, body=models.GateQuery(repo=SCRIPT["repo"], profile="pr"))
    assert gate.pass_ is True, gate
    missing = get_run.sync("no-such-run", client=client)
    assert isinstance(missing, models.Problem) and missing.status == 404, missing
    return run


def by_models(run):
    """Tests the models of datamodel-codegen with responses of the daemon."""
    import models

    with httpx.Client(transport=transport(), base_url=BASE) as plain:
        answer = plain.get(f"/v1/runs/{run}", params={"after": 0}).json()
        seen = models.RunWithEvents.model_validate(answer)
        raw = plain.get(f"/v1/runs/{run}/evidence/{next(iter(answer['evidence']))}")
    assert raw.status_code == 200, raw.text
    assert seen.state is models.RunState.finished, seen.state
    kinds = [type(event.root).__name__ if hasattr(event, "root") else type(event).__name__ for event in seen.events]
    assert kinds[0] == "LoggedEventRunQueued" and kinds[-1] == "LoggedEventRunFinished", kinds
    models.LoggedEvent.model_validate(answer["events"][0])


generate()
sys.path.insert(0, "")
run = by_client()
by_models(run)
print(json.dumps({"run": run}))
