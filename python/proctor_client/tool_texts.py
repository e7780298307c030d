"""Formats answers of the daemon for a model: the verdict first, in the client's own words, then marked data."""

from __future__ import annotations

import json
from typing import Any, Optional

from .errors import ProblemError, ProctorError
from .untrusted import NOTE, escaped, marked, one_line, safe_name
from .wire_types import (
    DescribedTable,
    Judgement,
    RunWithEvents,
    SqlAskAnswer,
    SqlResult,
    SqlRunAnswer,
    SqlSchemaAnswer,
    SqlSeverity,
    StepView,
)

# Largest text of findings, rows, tables or outputs in an answer, in characters.
MAX_DATA = 6000
# The part of it for the details of a run; the outputs share the rest.
MAX_DETAILS = 1500
# Number of steps that did not pass whose outputs are shown.
MAX_SHOWN_STEPS = 3


def judgement_text(judgement: Judgement) -> str:
    """Formats a judgement."""
    lines = [judgement_headline(judgement)]
    feedback = judgement["feedback"].strip()
    if feedback:
        lines += [NOTE, marked(cut(feedback), "the findings")]
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


def cut(text: str, limit: int = MAX_DATA) -> str:
    """Escapes a text, which may make it longer, and keeps its beginning."""
    return escaped(text)[:limit]


def finding_codes(judgement: Judgement, severity: SqlSeverity) -> str:
    found = [finding["id"] for finding in judgement["diagnostics"] if finding["severity"] == severity]
    return ", ".join(dict.fromkeys(safe_name(code) for code in found))


def run_text(run: RunWithEvents, outputs: list[tuple[StepView, str, bytes]]) -> str:
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
        lines.append(marked(cut("\n".join(details), MAX_DETAILS), "details of this run"))
    share = (MAX_DATA - MAX_DETAILS) // max(len(outputs), 1)
    for step, stream, data in outputs:
        text = escaped(data.decode("utf-8", "backslashreplace"))[-share:]
        lines.append(marked(text, f"the end of {stream} of {step_name(step)}"))
    return "\n".join(lines)


def run_headline(run: RunWithEvents) -> str:
    if run["state"] != "finished":
        return "NOT VERIFIED YET: the run continues. Call this tool again to wait for it."
    unpassed = [step for step in run["steps"] if is_unsuccessful(step)]
    names = ", ".join(step_name(step) for step in unpassed[:MAX_SHOWN_STEPS])
    if run["verdict"] == "passed":
        rerun = run.get("rerun")
        if rerun is not None and rerun["left_out"]:
            return "PASSED IN PART (the whole profile is not verified)."
        cached = sum(1 for step in run["steps"] if step.get("cached_from") is not None)
        return f"PASSED: all {len(run['steps'])} steps passed{f', {cached} cached' if cached else ''}."
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


def rows_text(answer: SqlRunAnswer) -> str:
    """Formats the judgement of a statement and its rows."""
    result = answer.get("result")
    if answer["judgement"]["verdict"] != "ok":
        return judgement_text(answer["judgement"])
    if result is None:
        lines = ["NOT RUN: the statement was judged ok, but it failed."]
        return "\n".join([*lines, NOTE, marked(cut(answer.get("error") or ""), "the error")])
    return "\n".join([rows_headline(result), *result_lines(result)])


def rows_headline(result: SqlResult) -> str:
    changed = result.get("changed")
    if changed != 0:
        kept = "kept" if result["committed"] else "rolled back"
        number = "an unknown number of" if changed is None else changed
        return f"OK: the statement changed {number} rows; the change was {kept}."
    more = ", and there are more" if result["truncated"] else ""
    return f"OK: {len(result['rows'])} rows{more}."


def result_lines(result: SqlResult) -> list[str]:
    """Formats rows as one JSON array a line, as many as fit."""
    if not result["columns"]:
        return []
    lines = [json_line([column["name"] for column in result["columns"]])]
    size = len(lines[0])
    for row in result["rows"]:
        line = json_line(row)
        size += len(line) + 1
        if size > MAX_DATA:
            break
        lines.append(line)
    left_out = len(result["rows"]) - (len(lines) - 1)
    note = [f"{left_out} rows are not shown."] if left_out else []
    return [NOTE, marked("\n".join(lines), "the columns and the rows"), *note]


def json_line(values: list[Any]) -> str:
    return escaped(json.dumps(values, ensure_ascii=False))


def schema_text(answer: SqlSchemaAnswer) -> str:
    """Formats a schema as one line for each table and column."""
    schema = answer.get("schema")
    if schema is None:
        lines = ["NO SCHEMA: the database could not be described."]
        return "\n".join([*lines, NOTE, marked(cut(answer.get("error") or ""), "the error")])
    lines = [line for table in schema["tables"] for line in table_lines(table)]
    text = escaped("\n".join(lines))
    headline = f"SCHEMA: {len(schema['tables'])} tables and views, dialect {answer['dialect']}."
    shown = text[:MAX_DATA]
    note = [f"{len(text) - len(shown)} characters are not shown."] if len(shown) < len(text) else []
    return "\n".join([headline, NOTE, marked(shown, "the tables"), *note])


def table_lines(table: DescribedTable) -> list[str]:
    kind = "view" if table["is_view"] else "table"
    lines = [f"{kind} {json.dumps(table['name'], ensure_ascii=False)}{comment_of(table.get('comment'))}"]
    for column in table["columns"]:
        words = [json.dumps(column["name"], ensure_ascii=False), column["type"]]
        words += ["PRIMARY KEY"] if column["is_primary_key"] else []
        words += ["NOT NULL"] if column["is_not_null"] else []
        samples = column.get("samples")
        words += [f"for example {json_line(samples)}"] if samples else []
        lines.append("  " + " ".join(word for word in words if word) + comment_of(column.get("comment")))
    for key in table.get("foreign_keys") or []:
        referenced = key.get("referenced_column") or "the primary key"
        lines.append(f"  {key['column']} refers to {key['referenced_table']} ({referenced})")
    return lines


def comment_of(comment: Optional[str]) -> str:
    return f" -- {one_line(comment)}" if comment else ""


def ask_text(answer: SqlAskAnswer) -> str:
    """Formats the answer to a question. It shows a statement only if it was judged ok and ran."""
    statement, result = answer.get("statement"), answer.get("result")
    if answer["verdict"] == "answered" and statement is not None and result is not None:
        lines = [f"ANSWERED: {len(result['rows'])} rows, after {len(answer['attempts'])} attempts."]
        return "\n".join([*lines, NOTE, marked(statement, "the statement"), *result_lines(result)])
    judgement = answer.get("judgement")
    findings = finding_codes(judgement, "error") if judgement is not None else ""
    best = f" The best attempt had the errors {findings}." if findings else ""
    if answer["verdict"] == "gave_up":
        headline = f"NOT ANSWERED: no statement was judged ok and ran ({answer['end']}).{best}"
    else:
        headline = f"ERROR: the question could not be processed ({answer['end']}). This is not an answer."
    return "\n".join([headline, NOTE, marked(cut(answer["reason"]), "the reason")])
