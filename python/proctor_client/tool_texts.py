"""Formats answers of the daemon for a model: the verdict first, in the client's own words, then marked data."""

from __future__ import annotations

from typing import Optional

from .errors import ProblemError, ProctorError
from .untrusted import NOTE, marked, one_line, safe_name
from .wire_types import (
    Judgement,
    SqlSeverity,
    StepView,
    Watched,
)

# Largest text of untrusted data in an answer, in characters.
MAX_DATA = 6000
# Number of steps that did not pass whose outputs are shown.
MAX_SHOWN_STEPS = 3


def judgement_text(judgement: Judgement) -> str:
    """Formats a judgement."""
    lines = [judgement_headline(judgement)]
    feedback = judgement["feedback"].strip()
    if feedback:
        lines += [NOTE, marked(feedback[:MAX_DATA], "the findings")]
    return "\n".join(lines)


def judgement_headline(judgement: Judgement) -> str:
    policy = judgement["policy"]
    if judgement["verdict"] == "ok":
        warnings = finding_codes(judgement, "warning")
        if warnings:
            return f"OK with warnings ({warnings}), under the policy `{policy}`."
        return f"OK: no problem was found under the policy `{policy}`."
    codes = finding_codes(judgement, "error")
    if judgement["verdict"] == "reject":
        return f"REJECTED ({codes}) under the policy `{policy}`: do not run or show this statement; correct it."
    return f"NOT JUDGED ({codes}): this is not a judgement of the statement; do not run or show it."


def finding_codes(judgement: Judgement, severity: SqlSeverity) -> str:
    found = [finding["id"] for finding in judgement["diagnostics"] if finding["severity"] == severity]
    return ", ".join(dict.fromkeys(safe_name(code) for code in found))


def run_text(run: Watched, outputs: list[tuple[StepView, str, bytes]]) -> str:
    """Formats a run, with the ends of the outputs of steps that did not pass."""
    lines = [run_headline(run), f"run {safe_name(run['id'])}, profile {safe_name(run['profile'])}"]
    details = [one_line(detail["message"]) for detail in run["doubts"]]
    problem = run.get("problem")
    if problem is not None:
        details.append(problem["detail"])
    details += [f"{step_name(step)} changed: {', '.join(step['changed'])}" for step in run["steps"] if step["changed"]]
    if run["state"] == "finished" and run["verdict"] != "passed":
        details.insert(0, run["reason"])
    if details or outputs:
        lines.append(NOTE)
    if details:
        lines.append(marked("\n".join(details)[:MAX_DATA], "details of this run"))
    share = MAX_DATA // max(len(outputs), 1)
    for step, stream, data in outputs:
        text = data.decode("utf-8", "backslashreplace")[-share:]
        lines.append(marked(text, f"the end of {stream} of {step_name(step)}"))
    return "\n".join(lines)


def run_headline(run: Watched) -> str:
    if run["state"] != "finished":
        return "NOT VERIFIED YET: the run continues. Call this tool again to wait for it."
    unpassed = [step for step in run["steps"] if is_unsuccessful(step)]
    names = ", ".join(step_name(step) for step in unpassed[:MAX_SHOWN_STEPS])
    if run["verdict"] == "passed":
        rerun = run.get("rerun")
        if rerun is not None and rerun["left_out"]:
            return "PASSED IN PART (the whole profile is not verified)."
        return f"PASSED: all {len(run['steps'])} steps passed."
    if run["verdict"] == "failed":
        return f"FAILED: {len(unpassed)} of {len(run['steps'])} steps did not pass: {names}."
    return "INCONCLUSIVE (not verified): this is not a result. Report it; do not report it as a pass."


def step_name(step: StepView) -> str:
    return f"{safe_name(step['skill'])}/{safe_name(step['name'])}"


def is_unsuccessful(step: StepView) -> bool:
    return step["outcome"] not in (None, "passed", "skipped")


def error_text(verdict: str, error: ProctorError) -> str:
    """Formats a request without an answer. `verdict` is the headline that prevents a model from taking it as a pass."""
    lines = [f"{verdict}: {one_line(error.message)}"]
    if error.hint is not None:
        lines.append(f"Hint: {one_line(error.hint)}")
    retry_after: Optional[float] = error.retry_after if isinstance(error, ProblemError) else None
    if retry_after is not None:
        lines.append(f"The same request may succeed after {retry_after:g} seconds.")
    return "\n".join(lines)
