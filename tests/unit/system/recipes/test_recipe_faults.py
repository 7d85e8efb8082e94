"""What is wrong with a recipe: every fault at once, with its line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oomdoctor.system.recipes.recipes import check_recipe
from oomdoctor.system.recipes.toml_lines import find_lines


@pytest.fixture
def faults(tmp_path: Path) -> Any:
    def check(text: str | bytes) -> list[str]:
        path = tmp_path / "mine.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        lines = check_recipe(path)
        assert all(line.startswith(f"{path}:") for line in lines)
        return [line.removeprefix(f"{path}:") for line in lines]

    return check


def test_all_faults_at_once_with_line_and_key(faults: Any) -> None:
    told = faults(
        'nmae = "x"\n'
        "[defaults]\n"
        "lora_rnk = 3 # [[rung]]\n"
        'optimizer = "adamw_8bits"\n'
        "[[rung]]\n"
        'method = "loraa"\n'
        'micro_batch_size = "outo"\n'
        "\n"
        "[[rung]]\n"
        'lora_targets = "q_proj"\n'
        'label = "b"\n'
        "compile = 1\n"
        "[rung.sharding]\n"
        "kind = 1\n"
    )
    assert [line.split(" is ")[0].split(" must ")[0] for line in told] == [
        "1: nmae:",
        "3: defaults: lora_rnk:",
        '4: defaults: optimizer: "adamw_8bits"',
        "6: configuration 1: method:",
        "7: configuration 1: micro_batch_size:",
        "10: configuration 2 (b): lora_targets:",
        "12: configuration 2 (b): compile:",
        "13: configuration 2 (b): sharding:",
    ]
    assert "did you mean lora_rank?" in told[1]
    assert "did you mean adamw_8bit, adamw_bnb_8bit or " in told[2]
    assert told[3].endswith('must be "full", "lora" or "qlora", not "loraa" (did you mean lora?)')
    assert told[4].endswith('must be an integer or "auto", not "outo" (did you mean auto?)')
    assert told[6].endswith("must be true or false, not 1")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "1: there is no [[rung]]"),
        ("rung = []", "1: there is no [[rung]]"),
        ("\n[rung]\n", "2: rung: must be an array of tables"),
        ("defaults = 1\n[[rung]]", "1: defaults: must be a table"),
        ("description = 1\n[[rung]]", "1: description: must be a string"),
        ('[defaults]\nlabel = "x"\n[[rung]]', "2: defaults: label: must be set in a [[rung]]"),
        ('[[rung]]\nlabel = ""', "2: configuration 1: label: must be one line of text"),
        (
            "[[rung]]\nlora_rank = 0",
            "2: configuration 1 (full-bf16): lora_rank: must be at least 1",
        ),
        (
            "[[rung]]\nlora_rank = true",
            "2: configuration 1: lora_rank: must be an integer, not true",
        ),
        (
            "[[rung]]\nlora_dropout = nan",
            "2: configuration 1 (full-bf16): lora_dropout: must be at least 0",
        ),
        ("[[rung]]\nlora_targets = []", "2: configuration 1 (full-bf16): lora_targets: is empty"),
        (
            '[[rung]]\nmethod = "qlora"\nquantization = "none"',
            "3: configuration 1 (qlora-none-r16-no-amp): ",
        ),
        (
            '[defaults]\nquantization = "nf4"\n[[rung]]',
            "2: configuration 1 (full-bf16): quantization: needs",
        ),
        (
            '[[rung]]\n[[rung]]\nlabel = "b"',
            "2: configuration 2 (b): micro_batch_size: repeats configuration 1",
        ),
        (
            '[[rung]]\n[[rung]]\nmicro_batch_size = 4\nlabel = "b"',
            "3: configuration 2 (b): micro_batch_size",
        ),
        (
            "[[rung]]\n[[rung]]\nlora_rank = 4",
            '3: configuration 2 (full-bf16): lora_rank: means nothing with method "full"',
        ),
        (
            '[[rung]]\nlabel = "full-bf16+ckpt"\n[[rung]]\nactivation_checkpointing = "full"',
            "3: configuration 2 (full-bf16+ckpt): label: is taken by configuration 1",
        ),
        ("[[rung]]\nmethod = lora\n", "2: not TOML: invalid value in column 10"),
        ("[[rung]]\n\nmethod =", "3: not TOML: invalid value"),
        ('[[rung]]\nlabel = """x\ny\n', "4: not TOML: "),
        ("[[rung]]\na = 1\na = 2\n", "3: not TOML: cannot overwrite a value"),
        (b"\xff", " not UTF-8 text"),
        ("a = " + "1" * 5000, "1: not TOML: "),
    ],
)
def test_a_fault_is_told_at_its_line(faults: Any, text: str | bytes, expected: str) -> None:
    told = faults(text)
    assert len(told) == 1
    assert told[0].startswith(expected)


def test_a_contradiction_is_not_told_where_it_is_the_echo_of_a_fault(faults: Any) -> None:
    assert len(faults('[[rung]]\nmethod = "qlor"\nquantization = "nf4"')) == 1
    assert len(faults('[defaults]\nmethod = "qlor"\n[[rung]]\nquantization = "nf4"')) == 1


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    assert check_recipe(tmp_path) == (f"cannot read {tmp_path}: Is a directory",)
    assert "No such file" in check_recipe(tmp_path / "none.toml")[0]


def test_lines_are_found_behind_strings_comments_and_arrays() -> None:
    lines = find_lines(
        "# [[rung]]\n"
        'description = """\n'
        "[[rung]]\n"
        "method = 1\n"
        '"""\n'
        "defaults.lora_rank = 4\n"
        "[[ rung ]] # one\n"
        "lora_targets = [\n"
        '  "a]", # [\n'
        "  'method',\n"
        "]\n"
        '"method" = "lora"\n'
        "[[rung]]\n"
        "x = {a = 1, b = [1]}\n"
        "  lora_rank = 2\n"
    )
    assert lines.of("", 0, "description") == 2
    assert lines.of("defaults", 0, "lora_rank") == 6
    assert lines.of("rung", 0) == 7
    assert lines.of("rung", 0, "lora_targets") == 8
    assert lines.of("rung", 0, "method") == 12
    assert lines.of("rung", 1) == 13
    assert lines.of("rung", 1, "lora_rank") == 15
    assert lines.of("rung", 1, "method") == 13
    assert lines.of("nowhere") == 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text() | st.text("[]=\"'#\n ax1.{}").map(lambda text: "[[rung]]\n" + text))
def test_no_file_is_answered_by_a_crash(tmp_path: Path, text: str) -> None:
    path = tmp_path / "any.toml"
    path.write_bytes(text.encode(errors="surrogatepass"))
    for fault in check_recipe(path):
        assert fault.startswith(str(path))
