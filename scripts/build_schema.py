"""Write oomdoctor/data/report.schema.json from the records: the type hints are the schema.

    python scripts/build_schema.py

Descriptions are the records' docstrings. A field's own description is the docstring below it, or
what its record's docstring says about it, or the meaning of its suffix. A test fails when the
committed file is stale.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import textwrap
import types
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from oomdoctor.records.codec import to_json
from oomdoctor.records.report.report import SCHEMA, Report

TARGET = Path(__file__).parents[1] / "oomdoctor" / "data" / "report.schema.json"
PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
SUFFIXES = (
    ("_bytes", "Bytes."),
    ("_per_s", "Per second."),
    (
        "_spread",
        "Half the distance between the quartiles, divided by the median. For a prediction, its "
        "relative uncertainty.",
    ),
    ("_flops", "Dense peak in FLOP/s."),
    ("_s", "Seconds."),
)
FIELDS = {
    "Report.schema": "Name and version of this format.",
    "Report.command": "The command that made the report.",
    "Report.status": "ok: something fits. no: nothing fits. partial: not everything could be "
    "tried. error: there are no results. interrupted: the results so far.",
    "Report.exit_code": "The exit code of the command.",
    "Report.started_at": "UTC, ISO 8601.",
    "Report.run_dir": "The folder with the job, the reply and the log of each "
    "configuration; of run: the case, if memory ran out.",
    "Report.request": "What was asked, defaults included.",
    "Report.results": "One for each configuration, in the order of the ladder.",
    "Report.ranking": "The keys of the results that fit, best first. By throughput, results "
    "whose speed_state is not_settled or not_believable are left out.",
    "Report.ranking_reasons": "By key: the reason for the place in the ranking, or for none.",
    "Report.picks": "The key of the best result of each method. null if none is in the ranking.",
    "Report.next_commands": "Commands to type next.",
    "Report.cards": "plan: one for each device, smallest memory first.",
    "Report.sweep": "plan --sweep: how the peaks grow.",
    "Report.why": "plan --why: where the memory of one configuration goes.",
    "Report.lengths": "--lengths: the rows of the data file and what they mean for the answer.",
    "Report.simulations": "plan: how many configurations were simulated, and how many of "
    "them earlier.",
    "ProbeResult.cached_at": "When the simulation behind the row ran, if an earlier run did it.",
    "Report.diagnoses": "explain: one for each failure in a source. The failure that ended the run "
    "comes first.",
    "Report.device": "run: the GPUs that the command saw.",
    "Report.command_line": "run: the command and its arguments.",
    "Report.exit_code_of_command": "run: the exit code of the command; 128 + N if signal N ended "
    "it.",
    "Report.ranks": "run: one for each GPU of each process that used CUDA.",
    "Report.smallest_gpu": "run: the smallest card on which the command would have fitted. null if "
    "it ran out of memory, ended before the end of its second step, or no such card is known.",
    "Report.tool": "The program that wrote the report.",
    "Report.elapsed_s": "How long the command took, in seconds.",
    "Report.machine": "Where it ran, or the card that was planned for.",
    "Report.model": "What is known about the model.",
    "Report.budget": "How much memory a configuration may use.",
    "Report.warnings": "Each with a code; see Codes of warnings.",
    "Report.errors": "Why the command failed, or a part of it.",
    "Report.next_on_gpu": "Commands to type next on a machine with the GPU.",
    "Report.solve": "plan --solve: the largest value that fits.",
    "Report.fewest": "plan --min: the fewest GPUs with which each configuration fits.",
    "Report.source": "snapshot: its file. run: the snapshot in the case, if memory ran out.",
    "Report.torch_version": "The torch that wrote the snapshot of `source`.",
    "Report.settings": "The settings of the allocator in the snapshot of `source`.",
    "Report.devices": "snapshot, and run if memory ran out: one for each GPU in the snapshot.",
    "Report.differences": "snapshot with two files: what grew or shrank.",
    "Report.causes": "snapshot, if an allocation failed: the likely causes.",
    "Report.remedies": "snapshot, if an allocation failed: what helps.",
    "Report.watch": "watch: the GPUs and the jobs.",
    "Report.host": "run: the memory of the host.",
    "Report.larger_batch": "run: the largest micro-batch size that should fit.",
    "Report.files": "The files of --snapshot and --trace.",
    "Report.triage": "triage: the jobs and why they died.",
    "Report.gathered": "show: the jobs of a folder of probes on several GPU types.",
    "Report.yours": "--from: the answer about the configuration of your own files.",
    "Report.diff": "diff: what changed.",
    "Report.applied": "explain --apply and run --cure: the remedy as a change.",
    "Report.unknown_sizes": "run: memory that depends on values that nothing computed.",
    "Report.max_peak": "run --max-peak: the limit and the peak.",
    "Report.versions": "run: the libraries of the command.",
    "Report.check": "check: each check, and how it ended.",
    "Report.step": "run --emulate --why: what the last step launched, and where its time would go.",
    "Report.calibration": "probe --calibrate: what was measured on the device.",
    "Diagnosis.source": "The file, or - for stdin.",
    "Diagnosis.is_oom": "Whether memory ran out.",
    "Diagnosis.dialect": "Which program printed the message. not_oom for other failures.",
    "Diagnosis.where": "The innermost line of the user's own code.",
    "Diagnosis.causes": "The most likely cause first.",
    "Diagnosis.remedies": "In the order to try them.",
    "Remedy.frees_bytes": "Bytes that the change frees. null if they cannot be computed.",
    "Remedy.arithmetic": "Where the bytes come from.",
    "ProbeResult.key": "Identifies the result within the report.",
    "ProbeResult.label": "The name of the configuration in tables.",
    "ProbeResult.mfu": "Model FLOPs utilization: share of the dense peak of the device.",
    "ProbeResult.tokens_time_s": "Seconds for the number of tokens in `request.tokens`.",
    "ProbeResult.speed_state": "settled: the timed steps varied little. not_settled: they varied "
    "too much to rank by them. not_believable: the times imply more than the card can do, or the "
    "GPU is emulated, so there is no speed. estimated: predicted. null: no times.",
    "ProbeResult.calibrated_by": "The probe whose measured times corrected the estimated speed.",
    "ProbeResult.training_time": "--rows or --lengths: the time for the user's own data.",
    "ProbeResult.tries": "Every micro-batch size that was tried.",
    "ProbeResult.reason": "The reason for the outcome.",
    "ProbeResult.attention_kernel": "The attention kernel that ran, or that a prediction expects.",
    "SurveyRequest.headroom": "Share of the budget that must stay free.",
    "Machine.compute_capability": "Such as 9.0.",
    "Machine.other_processes": "Other processes that hold memory of the GPU.",
}


def build() -> dict[str, Any]:
    """The schema as a JSON value."""
    records: dict[str, Any] = {}
    report = _record(Report, records)
    report["properties"]["schema"]["const"] = SCHEMA
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:oomdoctor:report:1",
        "title": "oomdoctor report",
    }
    return {**head, **report, "$defs": dict(sorted(records.items()))}


def text() -> str:
    """The schema as it is committed."""
    return json.dumps(build(), indent=2, ensure_ascii=False) + "\n"


def _record(kind: Any, records: dict[str, Any]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    _, said = _said(kind)
    below = field_docs(kind)
    properties = {}
    for field in dataclasses.fields(kind):
        shape = _shape(hints[field.name], records)
        description = below.get(field.name) or _describe(kind.__name__, field.name, said)
        if description:
            shape = {"description": description, **shape}
        properties[field.name] = {**shape, **_default(field)}
    return {
        **({"description": doc} if (doc := _doc(kind)) else {}),
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _default(field: dataclasses.Field[Any]) -> dict[str, Any]:
    """What a reader may take for the key in a report that is older than the key."""
    if field.default is not dataclasses.MISSING:
        return {"default": to_json(field.default)}
    if field.default_factory is not dataclasses.MISSING:
        return {"default": to_json(field.default_factory())}
    return {}


def field_docs(kind: type) -> dict[str, str]:
    """The docstrings below the fields of a class, or below the members of an enum, by name."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for above, below in pairwise(body.body):
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            target = above.targets[0] if isinstance(above, ast.Assign) else None
            target = above.target if isinstance(above, ast.AnnAssign) else target
            if isinstance(target, ast.Name):
                found[target.id] = " ".join(str(below.value.value).split())
    return found


def _shape(hint: Any, records: dict[str, Any]) -> dict[str, Any]:
    origin, args = get_origin(hint), get_args(hint)
    if hint in PLAIN:
        return {"type": PLAIN[hint]}
    if dataclasses.is_dataclass(hint):
        name = getattr(hint, "__name__", "")
        if name not in records:
            records[name] = {}  # holds the place while its fields are read
            records[name] = _record(hint, records)
        return {"$ref": f"#/$defs/{name}"}
    if origin is Literal:
        return {"enum": list(args)}
    if origin in (Union, types.UnionType):
        return _union([_shape(arg, records) for arg in args])
    if origin is tuple:
        return {"type": "array", "items": _shape(args[0], records)}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _shape(args[1], records)}
    raise TypeError(f"{hint} has no place in a schema")


def _union(shapes: list[dict[str, Any]]) -> dict[str, Any]:
    if all(set(shape) == {"type"} for shape in shapes):
        return {"type": [shape["type"] for shape in shapes]}
    if all(set(shape) == {"enum"} or shape == {"type": "null"} for shape in shapes):
        return {"enum": [value for shape in shapes for value in shape.get("enum", [None])]}
    return {"anyOf": shapes}


def intros(kind: Any = Report) -> dict[str, str]:
    """What the docstring of each record in the document says about it, without its single keys."""
    found: dict[str, str] = {}
    waiting = [kind]
    while waiting:
        record = waiting.pop()
        found[record.__name__] = _said(record)[0]
        for hint in get_type_hints(record).values():
            waiting += [part for part in _records_in(hint) if part.__name__ not in found]
    return found


def _records_in(hint: Any) -> Iterator[Any]:
    if dataclasses.is_dataclass(hint):
        yield hint
    for part in get_args(hint):
        yield from _records_in(part)


def _doc(kind: Any) -> str:
    """The docstring of a record, in the words of JSON."""
    doc = inspect.cleandoc(kind.__doc__ or "")
    if doc.startswith(f"{kind.__name__}("):  # what dataclass writes where there is no docstring
        return ""
    words = {"None": "null", "True": "true", "False": "false"}
    return re.sub(r"\b(?:None|True|False)\b", lambda word: words[word[0]], " ".join(doc.split()))


def _said(kind: Any) -> tuple[str, dict[str, str]]:
    """What a docstring says about a record, and about each of its keys.

    A clause belongs to the keys that it names. Clauses behind it that name none continue it, and
    so do sentences that begin with a word such as "It". The first sentence is about the record.
    """
    keys = {field.name for field in dataclasses.fields(kind)}
    first, *sentences = re.split(r"(?<=[.]) (?=[A-Z`\"]|null\b)", _doc(kind))
    intro, said = [first], []
    for sentence in sentences:
        continues = bool(said) and bool(_CONTINUES.match(sentence))
        begun: list[tuple[list[str], str]] = []
        for clause in sentence.removesuffix(".").split("; "):
            names = [name for name in re.findall(r"`(\w+)`", clause) if name in keys]
            if names or not begun:
                begun.append((names, clause))
            else:
                begun[-1] = (begun[-1][0], f"{begun[-1][1]}; {clause}")
        if continues and not begun[0][0]:
            begun[0] = (said[-1][0], begun[0][1])
        if any(names for names, _ in begun):
            said += begun
        else:
            intro.append(sentence)
    by_key: dict[str, list[str]] = {}
    for names, clause in said:
        for name in dict.fromkeys(names):
            by_key.setdefault(name, []).append(_sentence(clause, names))
    for name in re.findall(r"`(\w+)`", first):
        if name in keys:
            by_key.setdefault(name, [first])
    return " ".join(intro), {name: " ".join(texts) for name, texts in by_key.items()}


_CONTINUES = re.compile(r"(?:It|They|So|Then|That|This|null|Both|Each|Without any)\b")


def _sentence(clause: str, names: list[str]) -> str:
    """A clause as a sentence, without "`key` is" before what the key is."""
    if len(set(names)) == 1:
        clause = re.sub(rf"^`{names[0]}` (?:is|are) (?!false|true|null|of\b)", "", clause)
    return f"{clause[:1].upper()}{clause[1:]}."


def _describe(record: str, name: str, said: Mapping[str, str]) -> str | None:
    if f"{record}.{name}" in FIELDS:
        return FIELDS[f"{record}.{name}"]
    if name in said:
        return said[name]
    return next((meaning for suffix, meaning in SUFFIXES if name.endswith(suffix)), None)


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
    print(TARGET)
