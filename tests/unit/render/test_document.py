"""JSON, CSV and markdown, and the JSON Schema that is published with them."""

from __future__ import annotations

import csv
import dataclasses
import importlib.util
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_type_hints

import jsonschema
import pytest
from example_gpu import gpu_report
from example_many_gpus import MANY_GPUS
from example_plans import PLANS
from example_reports import REPORTS

from oomdoctor.records import codec
from oomdoctor.records.job.measurement import Breakdown
from oomdoctor.records.report.report import Report
from oomdoctor.render import render_report
from oomdoctor.render.formats import Style

ROOT = Path(__file__).parents[3]
SCHEMA_FILE = ROOT / "oomdoctor" / "data" / "report.schema.json"


def document(report: Report, format: str, *, verbose: bool = False) -> str:
    """The report as a document."""
    return render_report(report, format, Style(width=80, verbose=verbose))


@pytest.fixture(scope="module")
def schema() -> Any:
    """The committed schema."""
    return json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def builder() -> ModuleType:
    """scripts/build_schema.py."""
    path = ROOT / "scripts" / "build_schema.py"
    spec = importlib.util.spec_from_file_location("build_schema", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", [*REPORTS, *PLANS, *MANY_GPUS])
def test_json_is_valid_and_comes_back_as_the_same_report(name: str, schema: Any) -> None:
    report = {**REPORTS, **PLANS, **MANY_GPUS}[name]()
    text = document(report, "json")
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(json.loads(text))
    assert codec.loads(Report, text) == report


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("status",), "good"),
        (("schema",), "oomdoctor/2"),
        (("results", 0, "outcome"), "maybe"),
        (("results", 0, "elapsed_s"), None),
        (("results", 0, "extra"), 1),
        (("results", 0, "missed_by_bytes"), 1.5),
        (("results", 0, "config", "micro_batch_size"), "many"),
        (("budget", "usable_bytes"), "24 GiB"),
        (("machine", "other_processes", 0, "pid"), "1"),
    ],
)
def test_the_schema_refuses(schema: Any, path: tuple[Any, ...], value: Any) -> None:
    broken = json.loads(document(gpu_report(), "json"))
    inner = broken
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(schema).validate(broken)


def test_the_schema_misses_no_key(schema: Any) -> None:
    value = json.loads(document(gpu_report(), "json"))
    for owner in (value, value["results"][2], value["results"][2]["measurement"], value["budget"]):
        for key in list(owner):
            kept = owner.pop(key)
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.Draft202012Validator(schema).validate(value)
            owner[key] = kept
    jsonschema.Draft202012Validator(schema).validate(value)


def test_the_committed_schema_is_what_the_records_say(builder: ModuleType) -> None:
    hint = "run scripts/build_schema.py"
    assert SCHEMA_FILE.read_text(encoding="utf-8") == builder.text(), hint


def test_records_and_schema_have_the_same_fields(schema: Any) -> None:
    """Independent of the builder: walks the records by their hints."""
    seen: dict[str, type] = {}

    def walk(hint: Any) -> None:
        if dataclasses.is_dataclass(hint) and hint.__name__ not in seen:  # type: ignore[union-attr]
            seen[hint.__name__] = hint  # type: ignore[union-attr,assignment]
            for inner in get_type_hints(hint).values():
                walk(inner)
        for arg in get_args(hint):
            walk(arg)

    walk(Report)
    shapes = {**schema["$defs"], "Report": schema}
    assert seen.keys() == shapes.keys()
    for name, record in seen.items():
        fields = [field.name for field in dataclasses.fields(record)]
        assert list(shapes[name]["properties"]) == fields, name
        assert shapes[name]["required"] == fields, name
        assert shapes[name]["additionalProperties"] is False, name
        assert shapes[name]["description"], name


def test_every_description_belongs_to_a_field(builder: ModuleType, schema: Any) -> None:
    shapes = {**schema["$defs"], "Report": schema}
    for place, text in builder.FIELDS.items():
        record, _, field = place.partition(".")
        assert shapes[record]["properties"][field]["description"] == text


def test_json_holds_no_raw_control_or_invisible_character() -> None:
    report = gpu_report()
    assert report.model is not None
    name = "a\x9b31m\x7f\u202e\ud800\x1b模"
    hostile = replace(report, model=replace(report.model, id=name))
    text = document(hostile, "json")
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\ud800]", text)
    assert json.loads(text)["model"]["id"] == name
    text.encode()


def test_csv_has_one_row_a_result_with_integers() -> None:
    report = gpu_report()
    rows = list(csv.DictReader(io.StringIO(document(report, "csv"))))
    assert [row["label"] for row in rows] == [result.label for result in report.results]
    assert [row["place"] for row in rows][:5] == ["", "", "1", "2", ""]
    best = rows[2]
    assert best["outcome"] == "fits"
    assert best["peak_device_bytes"] == str(report.results[2].peak_device_bytes)
    assert best["tokens_per_s"] == "5312.0"
    assert best["config.method"] == "lora"
    assert best["config.compile"] == "false"
    assert best["phases.backward.peak_allocated_bytes"].isdigit()
    assert best["phases.eval.peak_allocated_bytes"] == ""
    assert rows[1]["oom.requested_bytes"] == "1050673152"
    assert rows[8]["failure.signal"] == "SIGSEGV"
    assert rows[0]["missed_by_bytes"].isdigit()


def test_csv_headers_are_paths_in_the_json() -> None:
    report = gpu_report()
    value = json.loads(document(report, "json"))["results"]
    headers = document(report, "csv").splitlines()[0].split(",")
    for header in headers[1:]:
        steps = header.split(".")
        owners = [result for result in value if result[steps[0]] is not None] or value
        if len(steps) == 3:
            assert steps[0] == "phases" and steps[2] in owners[2]["phases"]["load"]
        elif len(steps) == 2:
            assert steps[1] in owners[0][steps[0]]
        else:
            assert steps[0] in value[0]
    names = {field.name for field in dataclasses.fields(Breakdown)}
    assert names <= {header.removeprefix("breakdown.") for header in headers}


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_csv_text_is_never_a_formula(text: str) -> None:
    report = gpu_report()
    row = replace(report.results[0], label=text, reason=text, missed_by_bytes=-1)
    rows = list(csv.DictReader(io.StringIO(document(replace(report, results=(row,)), "csv"))))
    assert rows[0]["label"] == "'" + text.strip()
    assert rows[0]["reason"] == "'" + text.strip()
    assert rows[0]["missed_by_bytes"] == "-1"


def test_csv_keeps_a_row_on_a_line_and_commas_in_a_cell() -> None:
    report = gpu_report()
    row = replace(report.results[0], reason='a,"b"\nc')
    text = document(replace(report, results=(row,)), "csv")
    assert len(text.splitlines()) == 2
    assert next(csv.DictReader(io.StringIO(text)))["reason"] == 'a,"b" c'


def test_markdown_tables_have_as_many_cells_as_columns() -> None:
    report = gpu_report()
    rows = tuple(replace(result, label=r"a|b\|c") for result in report.results)
    text = document(replace(report, results=rows), "markdown", verbose=True)
    counts = set()
    for block in text.split("\n\n"):
        lines = block.splitlines()
        if lines[0].startswith("| "):
            widths = {len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) for line in lines}
            assert len(widths) == 1, block
            counts |= widths
    assert len(counts) > 1


def test_markdown_text_is_not_markup() -> None:
    report = gpu_report()
    label = "<img src=x> **b** _i_ `c` [l](u) ~~s~~ paged_adamw_8bit &amp;"
    rows = tuple(replace(result, label=label) for result in report.results)
    text = document(replace(report, results=rows), "markdown")
    for markup in ("<img", "**b**", " _i_ ", " `c`", "[l]", "~~s", " &amp; "):
        assert markup not in text, markup
    assert "paged_adamw_8bit" in text
    assert "&amp;amp;" in text


def test_a_fence_is_longer_than_what_it_holds() -> None:
    text = document(replace(gpu_report(), next_commands=("a ```` b",)), "markdown")
    assert "\n`````text\na ```` b\n`````\n" in text
