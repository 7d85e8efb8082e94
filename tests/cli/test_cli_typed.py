"""What people type who know other programs is answered with the line to type here."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("plan gpt2 --vram 24", "for a card of that size: `--gpu 24GiB`"),
        ("plan gpt2 --gpu L4 --batch-size 4", "type `--micro-batch N`;"),
        ("plan gpt2 --gpu L4 --html", "type `--output FILE.html`;"),
        ("explain x.txt --markdown", "type `--output FILE.md`;"),
        ("probe gpt2 --per_device_train_batch_size 4", "type `--micro-batch N`;"),
        ("plan gpt2 --gpu L4 --max-seq-length 4", "type `--seq-len N`;"),
        ("plan gpt2 --gradient-checkpointing true", "`--rung activation_checkpointing=VALUE`"),
        ("probe gpt2 --load-in-4bit", "`--rung quantization=VALUE`"),
        ("plan gpt2 --nonsense", "hint:  run `oomdoctor plan --help`"),
        ("explain x.txt --batch-size 4", "type `--micro-batch N`;"),
        ("explain x.txt --optim adafactor", "hint:  run `oomdoctor explain --help`"),
        ("show --batch-size 4", "hint:  run `oomdoctor show --help`"),
        ("plan gpt2 --gpu L4 --seq-len 2k", "write 2048 or 2000"),
    ],
)
def test_the_line_to_type_instead(cli, typed, hint):
    ended = cli(*typed.split())
    assert (ended.code, ended.out) == (2, "")
    assert hint in ended.err


@pytest.mark.parametrize(
    ("typed", "meant"), [("help", "--help"), ("help plan", "plan --help"), ("version", "--version")]
)
def test_help_and_version_as_words(cli, typed, meant):
    assert cli(*typed.split()) == cli(*meant.split())
