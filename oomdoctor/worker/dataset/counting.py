"""Count the tokens of every row of a data file with the tokenizer of the training."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from oomdoctor.analysis.dataset_distribution import Tally
from oomdoctor.records.job.dataset import CountedRows, LengthsRequest
from oomdoctor.records.job.model import ModelSpec
from oomdoctor.records.job.result import ProbeJob
from oomdoctor.system.environment import set_variables
from oomdoctor.worker.dataset.files import Row, open_rows
from oomdoctor.worker.dataset.text import Messages, NoTextError, RowText, Template, text_of
from oomdoctor.worker.protocol import PhaseFile

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_BATCH_ROWS = 512
_BATCH_CHARACTERS = 4_000_000  # a batch of long rows ends before its tokens fill the memory
_THREADS = "2"  # login nodes kill processes with more
_OFF = ("truncation", "padding", "return_attention_mask", "return_token_type_ids")
_BYTES = re.compile(r"bytes/(\d+(?:\.\d+)?)")


class TokenizerError(Exception):
    """No tokenizer could be loaded; the message says which ones were tried and why they failed."""


class NoRowsError(Exception):
    """The file has no row with a length; the message says what is wrong with the first row."""


@dataclass(frozen=True, slots=True)
class Counter:
    """How texts are counted. `count` takes texts, and whether to add special tokens.

    `template` turns a conversation into text; None if there is no chat template.
    """

    name: str
    approximate: bool
    template: Template | None
    count: Callable[[list[str], bool], list[int]]


def count_lengths(job: ProbeJob, progress: PhaseFile) -> CountedRows:
    """Count all rows of the job's file; the progress file shows the current row.

    Raises:
        TokenizerError: there is no tokenizer.
        DataFileError: the file cannot be read.
        NoRowsError: no row has a length.
    """
    request = job.lengths
    assert request is not None
    counter = counter_of(request, job.model)
    begin = time.monotonic()
    tally = Tally()
    with open_rows(Path(request.file)) as (rows, share):
        for batch in _batches(rows):
            _count_batch(batch, request, counter, tally)
            progress.enter(f"row {batch[-1].number:,}, {share():.0%}")
    if not tally.rows:
        first = tally.first_unread
        reason = f"row {first.row} {first.reason}" if first is not None else "it is empty"
        raise NoRowsError(f"{request.file} has no row with text: {reason}")
    return tally.counted(
        request.file,
        counter.name,
        approximate=counter.approximate,
        elapsed_s=time.monotonic() - begin,
    )


def counter_of(request: LengthsRequest, model: ModelSpec) -> Counter:
    """How to count the request's rows: with a tokenizer, or as bytes divided by a number.

    Raises:
        TokenizerError: there is no tokenizer.
    """
    by_bytes = _BYTES.fullmatch(request.tokenizer or "")
    if by_bytes is not None:
        each = float(by_bytes[1])
        return Counter(
            request.tokenizer or "",
            approximate=True,
            template=None,
            count=lambda texts, special: [-int(-len(t.encode()) // each) for t in texts],
        )
    name, tokenizer = _tokenizer(_places(request, model), model.trust_remote_code)

    def template(messages: Messages, tools: object) -> str:
        text: str = tokenizer.apply_chat_template(messages, tools=tools or None, tokenize=False)
        return text

    def count(texts: list[str], special: bool) -> list[int]:
        encoded = tokenizer(texts, add_special_tokens=special, **dict.fromkeys(_OFF, False))
        return [len(ids) for ids in encoded["input_ids"]]

    return Counter(name, False, template if tokenizer.chat_template else None, count)


def _places(request: LengthsRequest, model: ModelSpec) -> list[tuple[str, str | None]]:
    """Where to look for the tokenizer, with revisions: the one named, or the model's own."""
    if request.tokenizer is not None:
        return [(request.tokenizer, None)]
    places: list[tuple[str, str | None]] = []
    if model.path is not None:
        places.append((model.path, None))
    if model.source != "local":
        places.append((model.id, model.revision))
    return places


def _tokenizer(
    places: Sequence[tuple[str, str | None]], trust: bool
) -> tuple[str, PreTrainedTokenizerBase]:
    """The first tokenizer that loads. The hub is asked only if none is on this machine."""
    # The worker's environment turns threads off. Set this before the first tokenizer loads.
    set_variables({"TOKENIZERS_PARALLELISM": "true", "RAYON_NUM_THREADS": _THREADS})
    from transformers import AutoTokenizer

    reason = ""
    for local in (True, False):
        for place, revision in places:
            try:
                return place, AutoTokenizer.from_pretrained(
                    place, revision=revision, local_files_only=local, trust_remote_code=trust
                )
            except Exception as error:  # noqa: BLE001  (each library below fails in its own way)
                reason = str(error) or type(error).__name__
    names = " or ".join(dict.fromkeys(place for place, _ in places))
    raise TokenizerError(f"{names}: {' '.join(reason.split())}")


def _batches(rows: Iterator[Row]) -> Iterator[list[Row]]:
    """Rows in batches of limited size, so that many are encoded together."""
    batch: list[Row] = []
    characters = 0
    for row in rows:
        batch.append(row)
        characters += _characters(row.value)
        if len(batch) >= _BATCH_ROWS or characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _characters(value: object) -> int:
    """Characters of all texts in a row, at any depth."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_characters, value.values()))
    return sum(map(_characters, value)) if isinstance(value, list) else 0


def _count_batch(batch: list[Row], request: LengthsRequest, counter: Counter, tally: Tally) -> None:
    texts: list[tuple[int, RowText]] = []
    for row in batch:
        try:
            if row.fault is not None:
                raise NoTextError(row.fault)
            texts.append((row.number, text_of(row.value, request.text_field, counter.template)))
        except NoTextError as error:
            tally.add_unread(row.number, str(error))
    counted: list[tuple[int, int, str]] = []
    for special in (True, False):
        alike = [(number, text) for number, text in texts if text.special is special]
        if alike:
            lengths = counter.count([text.text for _, text in alike], special)
            counted += [
                (number, tokens, text.source)
                for (number, text), tokens in zip(alike, lengths, strict=True)
            ]
    for number, tokens, source in sorted(counted):
        tally.add(number, tokens, source)
