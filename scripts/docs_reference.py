"""The reference parts of the documentation, made from the code as markdown tables.

`PARTS` names them; scripts/build_docs.py puts them into the pages.
"""

from __future__ import annotations

import dataclasses
import json
import re
import statistics
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import typer
from build_schema import SUFFIXES, build, field_docs, intros
from docs_published import (
    judged_rates,
    published_errors,
    published_many,
    published_many_left_out,
    speed_errors,
)
from docs_recorded import live_log
from docs_tables import folded, table

from oomdoctor.analysis.speed.links import interconnects as known_interconnects
from oomdoctor.cli.main import app
from oomdoctor.errors import ExitCode
from oomdoctor.package_data import data_of
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.configuration.faults import unsupported_rows
from oomdoctor.records.configuration.keys import KEYS, Group
from oomdoctor.records.facts.optimizers import OPTIMIZERS, Optimizer
from oomdoctor.records.report.warnings import codes
from oomdoctor.stacks.programs import PROGRAMS
from oomdoctor.stacks.programs.program import Program
from oomdoctor.system import catalogue, environment
from oomdoctor.system.models.pipelines import pipelines
from oomdoctor.units import format_bytes
from oomdoctor.worker.parsing import PARSERS

sys.path.append(str(Path(__file__).parent / "evaluation"))
from claims import page as claims_page
from claims.every import CLAIMS, KEPT

_UNITS = {said for suffix, said in SUFFIXES if suffix in ("_bytes", "_s", "_per_s")}


def options(*verb: str) -> str:
    """The arguments and options of a verb, one table a panel of its help."""
    command: Any = typer.main.get_command(app)
    for word in verb:
        command = command.commands[word]
    panels: dict[str, list[tuple[str, str]]] = {}
    for parameter in command.params:
        if parameter.name == "help" or getattr(parameter, "hidden", False):
            continue
        is_option = parameter.param_type_name == "option"
        usual = "Options" if is_option else "Arguments"
        panel = getattr(parameter, "rich_help_panel", None) or usual
        panels.setdefault(panel, []).append((_spelling(parameter), _meaning(parameter)))
    tables = []
    for panel, rows in panels.items():
        title = f"**{panel}**\n\n" if len(panels) > 1 and panel != "Arguments" else ""
        tables.append(
            title + table(("argument" if panel == "Arguments" else "option", "meaning"), rows)
        )
    return "\n\n".join(tables)


def _spelling(parameter: Any) -> str:
    if parameter.param_type_name != "option":
        return f"`{parameter.metavar or parameter.name.upper()}`"
    spellings = [*parameter.opts, *parameter.secondary_opts]
    value = "" if parameter.is_flag else f" {parameter.metavar}"
    return ", ".join(f"`{spelling}{value}`" for spelling in spellings)


def _meaning(parameter: Any) -> str:
    text = " ".join((parameter.help or "").split())
    default = parameter.default
    if parameter.show_default is False or default in (None, False, ()) or callable(default):
        return re.sub(r"\s*\[default: (.*)\]$", r" Default: \1.", text)
    if getattr(parameter, "is_flag", False):
        on, off = parameter.opts[0], parameter.secondary_opts
        return f"{text} Default: `{on}`." if off else text
    return f"{text} Default: `{default}`."


def rung_keys() -> str:
    """The keys of a rung by group: values with the default first, and what each means."""
    hints, meanings = get_type_hints(TrainConfig), field_docs(TrainConfig)
    groups: dict[str, list[tuple[str, str, str]]] = {group: [] for group in get_args(Group)}
    for field in dataclasses.fields(TrainConfig):
        default = _toml(field.default)
        others = [word for word in map(_toml, _values(hints[field.name])) if word != default]
        row = (f"`{field.name}`", _codes([default, *others]), meanings[field.name])
        groups[KEYS[field.name].group].append(row)
    head = ("key", "values, default first", "meaning")
    return "\n\n".join(f"**{group}**\n\n{table(head, rows)}" for group, rows in groups.items())


def _values(hint: Any) -> Iterator[Any]:
    if get_origin(hint) is Literal:
        yield from get_args(hint)
    elif hint is bool:
        yield from (False, True)
    else:
        for part in get_args(hint):
            yield from _values(part)


def _toml(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(value) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _codes(words: Sequence[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def optimizers() -> str:
    """The optimizers that a rung may name, with the state they keep."""
    rows = [
        (
            f"`{row.name}`",
            row.library,
            _state(row),
            "yes" if row.paged else "",
            row.kernel or "-",
            row.versions or "",
        )
        for row in OPTIMIZERS.values()
        if row.recipe
    ]
    return table(("optimizer", "library", "state per parameter", "paged", "kernel", "needs"), rows)


def _state(row: Optimizer) -> str:
    if row.moments is None:
        return "-"
    if row.moments == 0:
        return "none, or only small ones"
    each = "the weight's dtype" if row.moment_bytes is None else f"{row.moment_bytes} bytes"
    return f"{row.moments} x {each}".replace(" 1 bytes", " 1 byte").replace(
        "0.5 bytes", "half a byte"
    )


def unsupported() -> str:
    """What is never supported somewhere, and why."""
    where = {
        "anywhere": "`probe`, `plan`",
        "simulated": "`plan`",
        "cpu": "`probe` on the CPU",
        "unified": "GPUs that share the host's memory (GB10)",
        "worker": "`probe`, `plan`",
    }
    rows = []
    for row in unsupported_rows():
        if row.modules:
            continue  # a package that is missing: its error says so
        values = _codes(row.values) if row.values else "any but the default"
        reason = row.text("it" if row.values else "")
        rows.append((f"`{row.key}`", values, where[row.where], reason))
    return table(("key", "values", "not supported in", "reason"), rows)


def warning_codes() -> str:
    """Every code of a warning, and when it is given."""
    rows = [
        (code if code.startswith("(") else f"`{code}`", texts["when"])
        for code, texts in codes().items()
    ]
    return table(("code", "when"), rows)


def exit_codes() -> str:
    """Every exit code and what it says."""
    meanings = field_docs(ExitCode)
    return table(("code", "meaning"), [(str(int(c)), meanings[c.name]) for c in ExitCode])


def environment_variables() -> str:
    """Every environment variable that oomdoctor reads."""
    known = environment.meanings()
    return table(("variable", "meaning"), [(f"`{name}`", said) for name, said in known.items()])


def json_keys(record: str) -> str:
    """The keys of a record of the JSON document, from its schema."""
    schema = build()
    return _keys(schema if record == "Report" else schema["$defs"][record])


def json_records() -> str:
    """The keys of every record inside the document, under a heading each."""
    parts, said = [], intros()
    for name, shape in build()["$defs"].items():
        parts += [f"### {name}", *([said[name]] if said[name] else []), _keys(shape, said[name])]
    return "\n\n".join(parts)


def _keys(shape: dict[str, Any], above: str = "") -> str:
    """The keys; what is said `above` the table, or by the name of a key, is not repeated."""
    rows = [
        (f"`{name}`", _type(field), "" if said in _UNITS or said in above else said)
        for name, field in shape["properties"].items()
        for said in [field.get("description", "")]
    ]
    return table(("key", "type", "meaning"), rows)


def _type(field: dict[str, Any]) -> str:
    if "anyOf" in field:
        return " or ".join(_type(part) for part in field["anyOf"])
    if "enum" in field:
        return _codes([word for word in field["enum"] if word is not None]) + (
            " or null" if None in field["enum"] else ""
        )
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    kind = field.get("type", "any")
    if kind == "array":
        return f"list of {_type(field['items'])}"
    if kind == "object" and isinstance(field.get("additionalProperties"), dict):
        return f"object of {_type(field['additionalProperties'])}"
    return kind if isinstance(kind, str) else " or ".join(kind)


def growth_kinds() -> str:
    """What growth in a snapshot may look like, and what helps."""
    words = data_of("growth.toml")
    rows = [(f"`{kind}`", said["looks_like"], said["remedy"]) for kind, said in words.items()]
    return table(("kind", "looks like", "what helps"), rows)


def memory_errors() -> str:
    """How far predicted peaks were from those on the emulated GPU: by torch, then by method."""
    rows = [
        row
        for row in catalogue.peak_errors()
        if row.reference == "emulated" and row.torch and not row.compute_capability
    ]
    head = (
        *("configurations", "allocated: median error", "95% within"),
        *("reserved: median error", "95% within"),
    )

    def peaks(method: str | None, torch: str | None) -> tuple[str, ...]:
        """The number of configurations, then both errors of both peaks."""
        cells: tuple[str, ...] = ()
        for metric in ("allocated", "reserved"):
            (row,) = (
                each
                for each in rows
                if (each.method, each.torch, each.metric) == (method, torch, metric)
            )
            cells = (*(cells or (str(row.count),)), f"{row.absolute_median:.3%}", f"{row.p95:.3%}")
        return cells

    ordered = sorted(rows, key=lambda row: [int(part) for part in str(row.torch).split(".")])
    groups = sorted(
        dict.fromkeys((row.method, row.torch) for row in ordered), key=lambda group: group[0] or ""
    )
    all_methods = [(str(torch), *peaks(None, torch)) for method, torch in groups if method is None]
    by_method = [(method, str(torch), *peaks(method, torch)) for method, torch in groups if method]
    return "\n\n".join(
        (
            table(("torch", *head), all_methods),
            folded("By method", table(("method", "torch", *head), by_method)),
        )
    )


def proof() -> str:
    """How far predictions were off, in two sentences."""
    rows = [
        row
        for row in catalogue.peak_errors()
        if row.reference == "emulated" and row.torch and not row.compute_capability
    ]
    every = [row for row in rows if row.method is None and row.metric == "allocated"]
    count, median = sum(row.count for row in every), max(row.absolute_median for row in every)
    errors = published_errors()
    return (
        f"How far to trust it: {count} predicted peaks were compared with torch's own CUDA code on "
        f"[an emulated\nGPU](docs/emulation.md), median difference {median:.3%}; {len(errors)} "
        f"published jobs on several real GPUs, median\ndifference "
        f"{statistics.median(errors):.1%}, worst {errors[-1]:.1%}. [How the numbers are "
        "made](docs/how-the-numbers-are-made.md)."
    )


def interconnects() -> str:
    """What links GPUs, and what collectives reach of it."""
    adapters = {"gpu": "one a GPU", "node": "one a node", None: ""}
    rows = []
    for row in known_interconnects().values():
        rate = "the card's" if row.bytes_per_s is None else f"{row.bytes_per_s / 1e9:g} GB/s"
        shares = [f"{row.share:.0%}"]
        shares += [f"{share:.1%} on {major}.x" for major, share in row.share_of.items()]
        rows.append(
            (_codes((row.name,)), rate, adapters[row.adapters], ", ".join(shares), row.source)
        )
    return table(("link", "one direction", "adapters", "reached", "source of the share"), rows)


def programs_read() -> str:
    """The files that `--from` reads, which library checks them, and where the names are from."""
    rows = [
        (f"`{one.name}`", one.reads, _checks(one), f"{one.package} {one.version}")
        for one in PROGRAMS
        if one.names is not None
    ]
    scripts = ", ".join(f"`{one.name}`" for one in PROGRAMS if one.script is not None)
    rows.append((scripts, "a training script in Python", "only its text", ""))
    return table(("program", "file", "checked by", "names of"), rows)


def _checks(program: Program) -> str:
    """What checks the settings of a program's file."""
    return (program.brand or program.name) if program.name in PARSERS else "only their names"


def programs_written() -> str:
    """What `export` writes for each program."""
    return table(
        ("target", "what is written"),
        [(f"`{one.name}`", one.writes) for one in PROGRAMS if one.writes],
    )


def claims() -> str:
    """What articles say, beside what was run."""
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    rows = claims_page.rows(CLAIMS, kept)
    return f"{table(claims_page.HEAD, rows)}\n\nRun with {claims_page.versions(kept)}."


def cures() -> str:
    """Ten broken trainings, and what `run --cure` proves of them."""
    folder = Path(__file__).parent / "evaluation" / "broken"
    every = tomllib.loads((folder / "rows.toml").read_text(encoding="utf-8"))["row"]
    kept = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    rows = []
    for row in every:
        result, source = kept[row["name"]], row.get("source")
        what = row["what"] if source is None else f"[{row['what']}]({source})"
        peaks = f"{format_bytes(result['before_bytes'])} -> {format_bytes(result['peak_bytes'])}"
        cure = result["change"] if result["proven"] else result["reason"] or "no setting is a cure"
        rows.append((what, row["gpu"], "yes" if result["proven"] else "no", cure, peaks))
    proven = sum(kept[row["name"]]["proven"] for row in every)
    head = ("training", "card", "proven", "change, or why not", "peak")
    versions = kept["sft_lora"]["versions"].items()
    ran = ", ".join(f"{name} {version}" for name, version in versions)
    return f"{proven} of {len(every)} are cured.\n\n{table(head, rows)}\n\nRun with {ran}."


def built_in_pipelines() -> str:
    """The pipelines of diffusers whose configs are built in, with the models in them."""
    rows = []
    for pipeline in pipelines():
        names = ", ".join(f"`{name}`" for name in (pipeline.id, *pipeline.aliases))
        classes = dict.fromkeys(
            part.class_name
            for name, part in pipeline.parts.items()
            if name != "scheduler" and not name.startswith("tokenizer")
        )
        rows.append((names, ", ".join(classes)))
    return table(("pipeline", "models in it"), rows)


PARTS: dict[str, Callable[..., str]] = {
    "options": options,
    "rung-keys": rung_keys,
    "optimizers": optimizers,
    "unsupported": unsupported,
    "warning-codes": warning_codes,
    "live-log": live_log,
    "exit-codes": exit_codes,
    "environment": environment_variables,
    "json": json_keys,
    "json-records": json_records,
    "growth": growth_kinds,
    "memory-errors": memory_errors,
    "proof": proof,
    "speed-errors": speed_errors,
    "judged-rates": judged_rates,
    "interconnects": interconnects,
    "programs-read": programs_read,
    "programs-written": programs_written,
    "claims": claims,
    "cures": cures,
    "pipelines": built_in_pipelines,
    "published-many": published_many,
    "published-many-left-out": published_many_left_out,
}
