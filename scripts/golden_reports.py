"""Reports as golden files: two documents whole, of the others what no other golden says already.

A short document leaves out a key whose value is that of the report it is based on, and elsewhere a
key whose value is the default of its record (`report.schema.json` holds the defaults) or, if it has
none, empty. What stood before in the file or in its base is a place: "= plan.request.model". So a
change of any value changes a line of a golden, and a new key of a record changes none but the whole
ones. In all of them a rung's configuration is what differs from `TrainConfig()`, also in tables.

A short page has the place of lines that the page at another width has too: "= plan-100.txt 12-20".
"""

from __future__ import annotations

import csv
import dataclasses
import difflib
import io
import json
from collections.abc import Iterator, Mapping
from typing import Any

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.render.formats.csv_rows import csv_cell

WIDTH = 100


def whole(report: Any) -> str:
    """Every key of a report, as its JSON is written, but of configurations what is no default."""
    return json.dumps(_everything(report), indent=2, ensure_ascii=False) + "\n"


def short(reports: Mapping[str, Any], name: str, base: str) -> str:
    """What a report says that its base does not, in lines of at most `WIDTH` columns if it can."""
    places: dict[str, str] = {}
    _placed(_differing(reports[base], None), base, places)
    return "\n".join(_lines(_placed(_differing(reports[name], reports[base]), name, places))) + "\n"


def short_table(text: str) -> str:
    """A CSV file without columns of the configuration in which every row has the default."""
    head, *rows = csv.reader(io.StringIO(text))
    plain = {
        f"config.{field.name}": str(csv_cell(field.default))
        for field in dataclasses.fields(TrainConfig)
    }
    kept = [
        place
        for place, name in enumerate(head)
        if name not in plain or any(row[place] != plain[name] for row in rows)
    ]
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerows([row[place] for place in kept] for row in (head, *rows))
    return written.getvalue()


def short_page(page: str, base: str, base_name: str) -> str:
    """A page; three lines and more that its base has too are one that says which."""
    lines, old = page.splitlines(), base.splitlines()
    kept = []
    matcher = difflib.SequenceMatcher(None, old, lines, autojunk=False)
    for kind, first, last, start, end in matcher.get_opcodes():
        if kind == "equal" and end - start > 2:
            kept.append(f"= {base_name} {first + 1}-{last}")
        else:
            kept += lines[start:end]
    return "\n".join(kept) + "\n"


def _everything(value: Any) -> Any:
    if isinstance(value, TrainConfig):
        return _differing(value, None)
    if dataclasses.is_dataclass(value):
        return {key: _everything(item) for key, item in _fields(value)}
    if isinstance(value, Mapping):
        return {key: _everything(item) for key, item in value.items()}
    return [_everything(item) for item in value] if isinstance(value, tuple) else value


def _differing(value: Any, base: Any) -> Any:
    """The JSON of a value without the keys that are as in the base, or else at their defaults."""
    if dataclasses.is_dataclass(value):
        if type(base) is type(value):
            old = dict(_fields(base))
            return {
                key: _differing(item, old[key])
                for key, item in _fields(value)
                if not _same(item, old[key])
            }
        defaults = {field.name: _default(field) for field in dataclasses.fields(value)}
        return {
            key: _differing(item, None)
            for key, item in _fields(value)
            if not any(_same(item, default) for default in defaults[key])
        }
    if isinstance(value, Mapping):
        return {key: _differing(item, None) for key, item in value.items()}
    return [_differing(item, None) for item in value] if isinstance(value, tuple) else value


def _fields(record: Any) -> Iterator[tuple[str, Any]]:
    return ((field.name, getattr(record, field.name)) for field in dataclasses.fields(record))


def _default(field: dataclasses.Field[Any]) -> tuple[Any, ...]:
    """The values that a short golden leaves out."""
    if field.default is not dataclasses.MISSING:
        return (field.default,)
    if field.default_factory is not dataclasses.MISSING:
        return (field.default_factory(),)
    return (None, (), {})


def _same(value: Any, other: Any) -> bool:
    """Equal, and of one type: 0, 0.0 and False are three values in JSON."""
    return type(value) is type(other) and repr(value) == repr(other)


def _placed(value: Any, place: str, places: dict[str, str]) -> Any:
    """The value; what takes more than two lines and stood before is the place where it stood."""
    if isinstance(value, dict | list) and len(_lines(value)) > 2:
        text = json.dumps(value)
        if text in places:
            return f"= {places[text]}"
        places[text] = place
    if isinstance(value, dict):
        return {key: _placed(item, f"{place}.{key}", places) for key, item in value.items()}
    if isinstance(value, list):
        return [_placed(item, f"{place}[{i}]", places) for i, item in enumerate(value)]
    return value


def _lines(value: Any, indent: str = "", head: str = "", tail: str = "") -> list[str]:
    """JSON, several short values on a line."""
    line = indent + head + json.dumps(value, ensure_ascii=False) + tail
    if len(line) <= WIDTH or not isinstance(value, dict | list):
        return [line]
    inner, lines, row = f"{indent}  ", [], ""
    last = len(value) - 1
    for index, (key, item) in enumerate(_items(value)):
        comma = "," if index < last else ""
        text = key + json.dumps(item, ensure_ascii=False) + comma
        if isinstance(item, dict | list) and item:
            lines += [inner + row] * bool(row) + _lines(item, inner, key, comma)
            row = ""
        elif row and len(inner) + len(row) + 1 + len(text) <= WIDTH:
            row = f"{row} {text}"
        else:
            lines += [inner + row] * bool(row)
            row = text
    opened, closed = "{}" if isinstance(value, dict) else "[]"
    return [indent + head + opened, *lines, *[inner + row] * bool(row), indent + closed + tail]


def _items(value: dict[str, Any] | list[Any]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        return ((f"{json.dumps(key)}: ", item) for key, item in value.items())
    return (("", item) for item in value)
