"""What settings say that are no whole training: a file that leaves much open, or settings in a log.

Nothing is filled in and nothing is refused. What a program's table does not name may have the name
of another program, or one that no program of `--from` has: of older releases, of other scripts, or
of our own rungs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import get_args, get_type_hints

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.facts.choices import FormatName
from oomdoctor.stacks.names.row import NotTakenError, Row, Table, flat, in_names, words_of
from oomdoctor.stacks.names.tables import table
from oomdoctor.stacks.names.values import words
from oomdoctor.stacks.partial_config import PartialConfig, only
from oomdoctor.stacks.programs import BY_NAME, PROGRAMS
from oomdoctor.stacks.programs.accelerate import ACCELERATE
from oomdoctor.stacks.programs.arguments import LENGTH, SCRIPT
from oomdoctor.stacks.programs.deepspeed import DEEPSPEED
from oomdoctor.stacks.programs.program import BESIDE
from oomdoctor.stacks.programs.trl import TRL

# A name -> the name in the tables of TRL and of scripts that means the same.
_MEANS = words_of("sizes of scripts") | words_of("other names")
_KNOWN = TRL | LENGTH | SCRIPT
# What files of accelerate nest, such as fsdp_offload_params, may stand outside of its table, and
# so may DeepSpeed's tables of what is moved to the host.
_INNER = tuple(
    Row(inner, row.keys, row.read)
    for row in (*ACCELERATE.rows, *DEEPSPEED.rows)
    if (inner := row.name.partition(".")[2])
    and (row in ACCELERATE.rows or inner.startswith("offload_"))
)
# Keys of a rung whose values are words.
_RUNG = (
    *("method", "quantization", "weights_dtype", "autocast_dtype", "activation_checkpointing"),
    *("loss", "packing", "offload", "sharding"),
)
_CHOICES = {key: get_args(kind) for key, kind in get_type_hints(TrainConfig).items()}


def _meaning(name: str, other: str) -> Row:
    row = _KNOWN.row(other)
    assert row is not None, other
    return Row(name, row.keys, row.read)


OTHERS = Table(
    (
        *(_meaning(name, other) for name, other in _MEANS.items()),
        *_INNER,
        *table("others").rows,
        *(words(key, key, {choice: choice for choice in _CHOICES[key]}) for key in _RUNG),
    )
)
# Where several programs have a name, the first one's meaning counts.
_ORDER = (
    TRL | SCRIPT,
    OTHERS,
    *(program.names for program in sorted(PROGRAMS, key=lambda program: program.is_launcher)
      if program.names is not None and program.name not in ("trainer", "trl")),
)  # fmt: skip
_NAMES_BESIDE = {
    setting.key: {
        *(program.name_of(setting) for program in PROGRAMS),
        setting.name,
        *setting.aliases,
    }
    for setting in BESIDE
}


@dataclass(slots=True)
class Partial:
    """What is said. `values` are by the keys of the tables, `names` the settings behind them.

    `beside` are settings that no rung has. `not_taken` are values that no rung has, by their key.
    """

    values: PartialConfig = field(default_factory=PartialConfig)
    names: dict[str, str] = field(default_factory=dict)
    beside: dict[str, object] = field(default_factory=dict)
    not_taken: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Hit:
    """A setting whose name a row has; of several that decide a key, the lowest rank counts."""

    rank: int
    depth: int
    name: str
    value: object
    row: Row


def partial_of(settings: Mapping[str, object], program: FormatName | None) -> Partial:
    """What settings say. A name may stand inside tables of any name.

    `program` is the one that the settings are of; None where that is not known.
    """
    partial = Partial()
    hits: list[_Hit] = []
    for path, value in flat(settings):
        hits += _hits(path, value, program)
        for setting in BESIDE:
            if {path, path.rpartition(".")[2]} & _NAMES_BESIDE[setting.key]:
                partial.beside.setdefault(setting.key, value)
    read: set[str] = set()
    for hit in sorted(hits, key=lambda other: (other.rank, other.depth)):
        if hit.name not in read and _take(partial, hit):
            read.add(hit.name)
    return partial


def _hits(path: str, value: object, program: FormatName | None) -> Iterator[_Hit]:
    """The rows that may read a setting, the best first; a program's own names are its own."""
    own = None if program is None else BY_NAME[program].names
    if own is not None and _knows(own, path):
        row = own.row(path)
        if row is not None:  # its own table comes before all others
            names = [name for entry in own.rows for name in (entry.name, *entry.aliases)]
            yield _Hit(names.index(path) - 10_000, path.count("."), path, value, row)
        return
    parts = path.split(".")
    for start in range(len(parts)):
        rows = _index().get(".".join(parts[start:]), ())
        yield from (_Hit(rank, len(parts), path, value, row) for rank, row in rows)


def _take(partial: Partial, hit: _Hit) -> bool:
    """Whether the row reads something in the setting."""
    try:
        read = hit.row.read(hit.value)
    except NotTakenError:
        for key in hit.row.keys:
            partial.not_taken.setdefault(key, hit.value)
        return False
    except (ValueError, OverflowError):
        return False
    for key, value in read.items():
        if key not in partial.values:
            partial.values |= only(key, value)
            partial.names[key] = hit.name
    return bool(read)


def _knows(table: Table, path: str) -> bool:
    told = (table.neutral, table.reasons, table.published)
    return table.row(path) is not None or any(in_names(path, names) for names in told)


@cache
def _index() -> dict[str, list[tuple[int, Row]]]:
    index: dict[str, list[tuple[int, Row]]] = {}
    rows = (row for table in _ORDER for row in table.rows)
    named = ((name, row) for row in rows for name in (row.name, *row.aliases))
    for rank, (name, row) in enumerate(named):
        index.setdefault(name, []).append((rank, row))
    return index
