"""What `--with` asks for, and when a version is the one asked for."""

from __future__ import annotations

import re

import pytest

from oomdoctor.system.interpreters.venvs import differing, is_same, parse_versions, untested


def test_versions_are_read_in_any_order_and_spelling() -> None:
    texts = ["torch==2.6.0, Transformers == 4.51.3", "huggingface_hub==0.36.0,"]
    assert parse_versions(texts) == (
        "huggingface-hub==0.36.0",
        "torch==2.6.0",
        "transformers==4.51.3",
    )
    assert parse_versions(["torch==2.6.0", "torch==2.6.0"]) == ("torch==2.6.0",)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("transformers", "needs one exact version"),
        ("transformers==", "needs one exact version"),
        ("transformers==4.*", "needs one exact version"),
        ("transformers>=4.51", "is not name==version"),
        ("--index-url==1", "is no library"),
        ("trl==0.9", "choose from torch, transformers"),
        ("trnsformers==4.51.3", "did you mean transformers?"),
        ("torch==2.6.0,torch==2.7.0", "given twice, with 2.6.0 and 2.7.0"),
        (" , ", "names no library"),
    ],
)
def test_other_texts_are_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        parse_versions([text])


@pytest.mark.parametrize(
    ("asked", "found", "same"),
    [
        ("4.51.3", "4.51.3", True),
        ("4.51", "4.51.0", True),
        ("2.6.0", "2.6.0+cpu", True),
        ("2.6.0+cpu", "2.6.0+cpu", True),
        ("2.6.0+cu124", "2.6.0+cpu", False),
        ("2.10", "2.1", False),
        ("4.51.0rc1", "4.51.0", False),
        ("4.51.3", '4.51.3 {"url": "https://example.org"}', True),
        ("4.51.3", "editable", False),
        ("4.51.3", None, False),
        ("4.51.3", "", False),
    ],
)
def test_when_a_version_is_the_one_asked_for(asked: str, found: str | None, same: bool) -> None:
    assert is_same(asked, found) is same


def test_only_what_differs_has_to_be_installed() -> None:
    found = {"torch": "2.6.0+cpu", "peft": "0.15.2"}
    asked = ("peft==0.16.0", "torch==2.6.0", "transformers==4.51.3")
    assert differing(asked, found) == ("peft==0.16.0", "transformers==4.51.3")


def test_a_version_below_the_oldest_tested_one_is_remarked() -> None:
    oldest = {"transformers": "4.51.3", "torch": "2.6"}
    asked = ("numpy==1.26", "torch==2.10", "transformers==4.9.1")
    assert untested(asked, oldest) == [
        "transformers==4.9.1: oomdoctor is tested with 4.51.3 and newer"
    ]
