"""Counting the rows of real files with real tokenizers, alone and within a plan and a survey."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from analysis_make import request as survey_request
from tiny_configs import CONFIGS
from tiny_models import tiny_job, tiny_spec

from oomdoctor.commands.events import SurveyEvent
from oomdoctor.commands.ladder.dataset import count_rows
from oomdoctor.commands.plan.run_plan import run_plan
from oomdoctor.commands.probe.run_survey import run_survey
from oomdoctor.errors import ExitCode, OomDoctorError
from oomdoctor.records.configuration.config import Recipe, Rung, TrainConfig
from oomdoctor.records.job.dataset import LengthDistribution, LengthsRequest
from oomdoctor.records.job.machine import ByteRange
from oomdoctor.records.job.model import ModelRef
from oomdoctor.records.report.plan import PlanRequest
from oomdoctor.records.report.report import Report, SurveyRequest
from oomdoctor.system.store import run_folders
from oomdoctor.units import MIB
from oomdoctor.worker.answer import answer_here
from oomdoctor.worker.dataset.counting import counter_of
from oomdoctor.worker.protocol import PhaseFile

CHAT = "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }} {% endfor %}"


@pytest.fixture
def tokenizer(tmp_path: Path) -> Callable[..., Path]:
    """A tokenizer of words, in a folder: one token a word, and one more at the start of a row."""

    def make(name: str = "tokenizer", chat: str | None = None, **settings: Any) -> Path:
        from tokenizers import Tokenizer, models, pre_tokenizers, processors
        from transformers import PreTrainedTokenizerFast

        words = Tokenizer(models.WordLevel({"<s>": 0, "<unk>": 1}, unk_token="<unk>"))
        words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        words.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 0)]
        )
        if settings.get("truncated"):
            words.enable_truncation(4)
            words.enable_padding(length=4)
        fast = PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", pad_token="<unk>")
        fast.chat_template = chat
        fast.save_pretrained(tmp_path / name)
        return tmp_path / name

    return make


@pytest.fixture
def count(
    tmp_path: Path, tokenizer: Callable[..., Path]
) -> Callable[..., tuple[LengthDistribution | None, str]]:
    """Count a file of that content; the distribution, or the code and message of the failure."""

    def ask(
        name: str, content: bytes | str, field: str | None = None, **settings: Any
    ) -> tuple[LengthDistribution | None, str]:
        file = tmp_path / name
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        named = settings.pop("named", None) or str(tokenizer(**settings))
        request = LengthsRequest(str(file), named, field)
        reply = answer_here(replace(tiny_job(), mode="lengths", lengths=request), PhaseFile(None))
        told = f"{reply.failure.code}: {reply.failure.message}" if reply.failure else ""
        return (reply.lengths.distribution if reply.lengths else None), told

    return ask


def lines(*rows: object) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def zipped(text: str) -> bytes:
    """Without the time of day, which would differ between the processes that collect tests."""
    return gzip.compress(text.encode(), mtime=0)


ROWS = ({"text": "a"}, {"text": "a b c"}, {"text": "a b"})


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rows.jsonl", lines(*ROWS)),
        ("rows.ndjson", lines(*ROWS)),
        ("rows.json", lines(*ROWS)),
        ("rows.json", "\ufeff [" + ", \n".join(json.dumps(row) for row in ROWS) + "]\n"),
        ("rows.csv", 'text,other\na,1\n"a b\nc",2\na b,3\n'),
        ("rows.txt", "a\na b c\r\na b"),
        ("ROWS.JSONL.GZ", zipped(lines(*ROWS))),
        ("rows.json.gz", zipped(json.dumps(ROWS))),
    ],
)
def test_every_format_has_the_same_rows(count, name, content):
    lengths, told = count(name, content)
    assert told == ""
    assert (lengths.rows, lengths.tokens, lengths.unread_rows) == (3, 9, 0)
    assert [(row.row, row.tokens) for row in lengths.longest_rows] == [(2, 4), (3, 3), (1, 2)]


def test_a_large_array_is_read_in_pieces(count, monkeypatch):
    monkeypatch.setattr("oomdoctor.worker.dataset.files._CHUNK_BYTES", 7)
    rows = [{"text": "é " * n, "n": [n, {}]} for n in range(1, 40)]
    lengths, _ = count("rows.json", json.dumps(rows, ensure_ascii=False))
    assert (lengths.rows, lengths.longest.tokens, lengths.unread_rows) == (39, 40, 0)


@pytest.mark.parametrize(
    ("row", "tokens", "source"),
    [
        ({"text": "a b", "prompt": "x"}, 3, "text"),
        ({"messages": [{"role": "user", "content": "a"}]}, 2, "messages, contents joined"),
        ({"conversations": [{"from": "gpt", "value": "a b"}]}, 3, "conversations, contents joined"),
        ({"messages": [{"role": "user", "content": [{"text": "a b"}, {}]}]}, 3, None),
        ({"prompt": "a ", "completion": "b"}, 3, "prompt + completion"),
        ({"prompt": [{"role": "user", "content": "a"}], "completion": []}, 2, None),
        ({"instruction": "a", "input": "", "output": "b c"}, 4, "instruction + input + output"),
        ({"instruction": "a", "output": "b c"}, 4, "instruction + input + output"),
        ({"instruction": "a", "context": "b", "response": "c"}, 4, None),
    ],
)
def test_where_the_text_comes_from(count, row, tokens, source):
    lengths, told = count("rows.jsonl", lines(row))
    assert told == ""
    assert lengths.tokens == tokens
    assert source is None or lengths.sources == {source: 1}


def test_a_chat_template_writes_conversations_with_its_own_special_tokens(count):
    rows = (
        {"messages": [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c"}]},
        {"conversations": [{"from": "human", "value": "a"}]},
    )
    lengths, _ = count("rows.jsonl", lines(*rows), chat=CHAT)
    assert [row.tokens for row in lengths.longest_rows] == [5, 2]
    assert set(lengths.sources) == {
        "messages by the chat template",
        "conversations by the chat template",
    }


def test_a_field_that_was_named(count):
    row = {"text": "a", "body": "a b c", "chat": [{"role": "user", "content": "a b"}]}
    assert count("rows.jsonl", lines(row), "body")[0].tokens == 4
    assert count("rows.jsonl", lines(row), "chat")[0].tokens == 3


def test_rows_that_cannot_be_counted_are_told_with_their_numbers(count):
    refusing = "{{ raise_exception('no such role') }}"
    content = (
        lines({"text": "a"}).encode()
        + b'{"text": "a\n\n'
        + b'{"text": "\xff"}\n'
        + lines({"foo": 1, "bar": 2}, [1], None, {"text": 5}, {"text": "\ud800"}).encode()
        + lines({"messages": [{"role": "x", "content": "a"}]}, {"messages": ["a"]}).encode()
    )
    lengths, _ = count("rows.jsonl", content, chat=refusing)
    assert (lengths.rows, lengths.unread_rows) == (1, 9)
    told = {row.row: row.reason for row in lengths.unread}
    assert "is not JSON" in told[2]
    assert told[4] == "is not UTF-8 text"
    assert "has foo, bar, but no known text field" in told[5]
    assert told[6] == "is a list, not an object with fields"
    assert told[7] == "is null, not an object with fields"
    assert told[8] == "has an int in 'text', not text or messages"
    assert told[9] == "has text that is not UTF-8"
    assert told[10] == "was rejected by the chat template: no such role"
    assert told[11] == "has a message that is a str, not an object"


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("rows.json", '[{"text": "a"}, {"text": ', "is not JSON, so the rest cannot be read"),
        ("rows.json", b'[{"text": "\xff"}, {"text": "a"}]', "has text that is not UTF-8"),
        ("rows.jsonl.gz", zipped(lines(*[ROWS[0]] * 9))[:-12], "nor can the rest of the file"),
        ("rows.csv", b"text\na\n\xff\n", "has text that is not UTF-8"),
    ],
)
def test_a_file_that_breaks_off(count, name, content, reason):
    lengths, told = count(name, content)
    assert told == ""
    assert lengths.rows >= 1
    assert lengths.unread_rows == 1
    assert reason in lengths.unread[0].reason


def test_a_line_without_end_does_not_fill_the_memory(count, monkeypatch):
    monkeypatch.setattr("oomdoctor.worker.dataset.files.LONGEST_LINE_BYTES", 64)
    lengths, _ = count("rows.jsonl", lines({"text": "a"}, {"text": "b " * 500}, {"text": "c"}))
    assert (lengths.rows, lengths.longest.row) == (2, 1)
    assert [(row.row, row.reason[:14]) for row in lengths.unread] == [(2, "is longer than")]


def test_truncation_that_a_tokenizer_brings_along_is_off(count):
    lengths, _ = count("rows.txt", "a b c d e f g\na\n", truncated=True)
    assert [row.tokens for row in lengths.longest_rows] == [8, 2]


def test_batches_change_nothing(count, monkeypatch):
    content = lines(*({"text": "a " * (n % 17)} for n in range(100)))
    whole, _ = count("rows.jsonl", content)
    monkeypatch.setattr("oomdoctor.worker.dataset.counting._BATCH_ROWS", 7)
    monkeypatch.setattr("oomdoctor.worker.dataset.counting._BATCH_CHARACTERS", 60)
    pieces, _ = count("rows.jsonl", content)
    assert replace(whole, elapsed_s=0.0) == replace(pieces, elapsed_s=0.0)


def test_bytes_by_a_divisor_are_an_approximation(count):
    lengths, _ = count("rows.txt", "12345\nééé\n", named="bytes/4")
    assert lengths.approximate
    assert [row.tokens for row in lengths.longest_rows] == [2, 2]


@pytest.mark.parametrize(
    ("name", "content", "named", "told"),
    [
        ("rows.jsonl", "", None, "NoRowsError: "),
        ("rows.jsonl", lines({"foo": 1}), None, "row 1 has foo, but no known text field"),
        ("rows.xlsx", "", None, "DataFileError: "),
        ("rows.jsonl", lines(*ROWS), "nobody/nothing", "TokenizerError: nobody/nothing: "),
        ("rows.parquet", "PAR1", None, "DataFileError: "),
    ],
)
def test_faults(count, monkeypatch, name, content, named, told):
    # Otherwise the hub's library tries to reach the tokenizer for most of a minute.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    lengths, failure = count(name, content, named=named)
    assert lengths is None
    assert told in failure


def test_parquet_without_its_reader_says_what_to_install(count, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert "needs pyarrow" in count("rows.parquet", "")[1]


def test_parquet(count, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    import pyarrow

    parquet.write_table(pyarrow.Table.from_pylist(list(ROWS)), tmp_path / "made.parquet")
    lengths, _ = count("rows.parquet", (tmp_path / "made.parquet").read_bytes())
    assert (lengths.rows, lengths.longest.row, lengths.tokens) == (3, 2, 9)


def test_the_models_own_tokenizer_is_taken(tokenizer, tmp_path):
    folder = tokenizer("model")
    spec = replace(tiny_spec(), path=str(folder))
    assert counter_of(LengthsRequest("f"), spec).name == str(folder)
    cached = replace(spec, source="cache", id="nobody/nothing")
    assert counter_of(LengthsRequest("f"), cached).name == str(folder)


def test_progress_tells_the_row_and_the_share(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr("oomdoctor.worker.dataset.counting._BATCH_ROWS", 2)
    seen: list[str] = []
    monkeypatch.setattr(PhaseFile, "enter", lambda self, phase: seen.append(phase))
    file = tmp_path / "rows.txt"
    file.write_text("a\n" * 5)
    request = LengthsRequest(str(file), str(tokenizer()))
    answer_here(replace(tiny_job(), mode="lengths", lengths=request), PhaseFile(None))
    assert [told.split(",")[0] for told in seen] == ["row 2", "row 4", "row 5"]
    assert seen[-1] == "row 5, 100%"


@pytest.fixture
def ask(
    tmp_path: Path, tokenizer: Callable[..., Path], one_simulator: None
) -> Callable[..., SurveyRequest]:
    """A request about a tiny model that has a tokenizer, and a file with one long row."""
    model = tokenizer("model")
    _, architecture, config = CONFIGS["dense"]
    changed = {"architectures": [architecture], "max_position_embeddings": 4096}
    (model / "config.json").write_text(json.dumps(config | changed))
    file = tmp_path / "rows.txt"
    file.write_text("".join("a " * (1999 if n == 7 else 99) + "\n" for n in range(1, 41)))

    def request(plan: PlanRequest | None, **changes: Any) -> SurveyRequest:
        full = TrainConfig(weights_dtype="float32", sequence_length=64, effective_batch_size=2)
        return survey_request(
            model=ModelRef(str(model)),
            recipe=Recipe("tiny", "", (Rung("full", full),), "command line"),
            device="cpu" if plan is None else "cuda",
            sequence_length=64,
            effective_batch_size=2,
            rung_limit_s=60.0,
            python=sys.executable,
            plan=plan,
            lengths=LengthsRequest(str(file), **changes),
        )

    return request


def planned(request: SurveyRequest) -> tuple[Report, list[SurveyEvent]]:
    events: list[SurveyEvent] = []
    folder = run_folders.create("tiny")
    report = run_plan(request, folder, on_event=events.append, stop=lambda: None)
    assert folder.read_report() == report
    return report, events


@pytest.mark.slow
def test_a_plan_by_the_longest_row(ask):
    report, events = planned(ask(PlanRequest(("L4",))))
    assert report.lengths is not None
    assert report.request is not None and report.request.sequence_length == 2000
    assert [row.sequence_length for row in report.results] == [2000]
    assert [(s.name, s.tokens) for s in report.lengths.shapes] == [
        ("longest", 2000),
        ("p95", 100),
        ("packed", 2048),
    ]
    (line,) = report.lengths.lines
    assert all(peak.fits for peak in line.peaks)
    peaks = {peak.name: peak.peak_device_bytes for peak in line.peaks}
    assert peaks["p95"] < peaks["longest"] == report.results[0].peak_device_bytes
    assert report.lengths.verdict[0].startswith(
        "row 7 (2,000 tokens) fits with full at micro-batch"
    )
    assert "counting" in [event.kind for event in events]


@pytest.mark.slow
def test_the_longest_row_that_fits_is_searched_for(ask, monkeypatch):
    # The context of a bare size is known only roughly, so no length of a tiny model surely fits.
    context = ByteRange(300 * MIB, 300 * MIB, 300 * MIB, "as if it was known")
    monkeypatch.setattr("oomdoctor.commands.devices.cards.context_bytes", lambda gpu: context)
    roomy, _ = planned(ask(PlanRequest(("1GiB",))))
    assert roomy.lengths is not None
    (line,) = roomy.lengths.lines
    peaks = {peak.name: peak.peak_device_bytes or 0 for peak in line.peaks}
    between = (peaks["p95"] + peaks["longest"]) // 2
    report, _ = planned(ask(PlanRequest((f"{round(between / 0.98)}B",))))
    assert report.lengths is not None
    assert report.exit_code == ExitCode.NO
    limits = report.lengths.limits
    assert {limit.micro_batch_size for limit in limits} >= {1}
    for limit in limits:
        assert limit.tokens % 128 == 0
        assert 0 < limit.tokens < 2000
        assert limit.above.first_rows == (7,)
    assert (
        "row 7 (2,000 tokens) does not fit: full handles rows up to" in (report.lengths.verdict[0])
    )
    tokens = limits[-1].tokens
    (rung,) = ask(None).recipe.rungs
    rungs = tuple(
        Rung(label, replace(rung.config, sequence_length=length, micro_batch_size=1))
        for label, length in (("at the limit", tokens), ("above it", tokens + 128))
    )
    again = replace(
        ask(PlanRequest((f"{round(between / 0.98)}B",))),
        lengths=None,
        recipe=Recipe("tiny", "", rungs, "command line"),
    )
    below, above = planned(again)[0].results
    assert below.surely_fits
    assert not above.surely_fits


@pytest.mark.slow
def test_a_survey_measures_at_the_longest_row(ask):
    request = replace(ask(None), micro_batch_size=1)
    events: list[SurveyEvent] = []
    report = run_survey(
        request, run_folders.create("tiny"), wait=False, on_event=events.append, stop=lambda: None
    )
    assert report.lengths is not None
    (row,) = report.results
    assert (row.outcome, row.evidence, row.sequence_length) == ("fits", "measured", 2000)
    assert report.lengths.verdict[0].startswith(
        "row 7 (2,000 tokens) fits with full at micro-batch 1"
    )
    assert report.lengths.distribution.p95 == 100


@pytest.mark.slow
def test_without_a_tokenizer_a_plan_says_what_to_type(ask):
    with pytest.raises(OomDoctorError) as caught:
        planned(ask(PlanRequest(("L4",)), tokenizer="nobody/nothing"))
    assert caught.value.code == "no_tokenizer"
    assert caught.value.exit_code == ExitCode.MODEL_UNAVAILABLE
    assert "--tokenizer bytes/4" in (caught.value.hint or "")


@pytest.mark.slow
@pytest.mark.parametrize(("content", "code"), [("", "no_rows"), (None, "bad_data_file")])
def test_a_file_without_rows_stops_a_plan(ask, content, code):
    request = ask(PlanRequest(("L4",)))
    file = Path(request.lengths.file)
    file.unlink() if content is None else file.write_text(content)
    with pytest.raises(OomDoctorError) as caught:
        planned(request)
    assert (caught.value.code, caught.value.exit_code) == (code, ExitCode.USAGE)


def test_images_have_no_tokens(ask):
    with pytest.raises(OomDoctorError) as caught:
        count_rows(ask(None), tiny_spec("image"), lambda job, tell: pytest.fail(), print)
    assert caught.value.code == "no_tokens"
