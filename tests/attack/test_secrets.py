"""Secrets leave a text, and nothing else does: 400 lines with secrets, 400 without."""

from __future__ import annotations

import random
import re
import string
import time
from pathlib import Path

import pytest

from oomdoctor.package_data import data_of
from oomdoctor.redaction import HIDDEN, is_secret, text_without_secrets, without_secrets

DATA = Path(__file__).parent / "data"
ALPHABETS = {
    "al": string.ascii_letters + string.digits,
    "low": string.ascii_lowercase + string.digits,
    "up": string.ascii_uppercase + string.digits,
    "hex": "0123456789abcdef",
    "dig": string.digits,
    "b64": string.ascii_letters + string.digits + "+/",
}
MARK = re.compile(r"<<(\w+):(\d+)>>")


def lines(name: str) -> list[str]:
    text = (DATA / name).read_text("utf-8").splitlines()
    return [line for line in text if line and not line.startswith("# ")]


def filled(line: str, seed: int) -> tuple[str, list[str]]:
    """The line with made-up secrets, and those."""
    chance = random.Random(seed)
    secrets: list[str] = []

    def made(mark: re.Match[str]) -> str:
        alphabet, length = ALPHABETS[mark[1]], int(mark[2])
        secrets.append("".join(chance.choices(alphabet, k=length)))
        return secrets[-1]

    text = MARK.sub(made, line)
    return text.replace(r"\\n", "\0").replace(r"\n", "\n").replace("\0", r"\n"), secrets


@pytest.mark.parametrize("line", lines("secret_lines.txt"))
def test_no_secret_stays(line: str) -> None:
    for seed in range(20):
        text, secrets = filled(line, seed)
        shown = text_without_secrets(text)
        parts = [secret[at : at + 6] for secret in secrets for at in range(len(secret) - 5)]
        assert not [part for part in parts if part in shown], shown
        assert HIDDEN in shown


def test_harmless_lines_stay_as_they_are() -> None:
    every = [filled(line, 1)[0] for line in lines("harmless_lines.txt")]
    changed = {line: shown for line in every if (shown := text_without_secrets(line)) != line}
    assert len(every) >= 150
    assert not changed


def test_lines_are_read_alike_in_a_long_text() -> None:
    every = [filled(line, 7) for line in lines("secret_lines.txt")]
    harmless = [filled(line, 1)[0] for line in lines("harmless_lines.txt")]
    shown = text_without_secrets("\n".join([*(text for text, _ in every), *harmless]))
    assert not [secret for _, secrets in every for secret in secrets if secret in shown]
    assert shown.endswith("\n".join(harmless))


def test_words_of_a_command_are_read_as_options() -> None:
    shown = without_secrets(
        ["x.py", "--pass", "hunter2hunter2", "--max-tokens", "5", "--pad-token", "a"]
    )
    assert shown == ("x.py", "--pass", HIDDEN, "--max-tokens", "5", "--pad-token", "a")


@pytest.mark.parametrize("service", data_of("secrets.toml")["formats"])
def test_each_form_has_a_line(service: str) -> None:
    form = re.compile(data_of("secrets.toml")["formats"][service])
    assert any(form.search(filled(line, 1)[0]) for line in lines("secret_lines.txt"))


def test_a_long_line_takes_time_in_proportion() -> None:
    """1-1-1-... of 40 kB took 56 s."""
    for unit in ("1-", "key=", "login x ", "://a:", "-----BEGIN PRIVATE KEY-----", "curl -u "):
        began = time.process_time()
        text_without_secrets(unit * (200_000 // len(unit)))
        assert time.process_time() - began < 20


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MY_PASSWORD", "pa(ss1word"),
        ("DB_PASSWORD", "$ecret-word"),
        ("WANDB_API_KEY", "config.x1"),
        ("GH_PAT", "s3cr3t-of-the-group/with+signs"),
        ("ANYTHING", "hf_" + "aB3" * 10),
        ("ANYTHING", "xK9mQ2vL7pR4tW8zB3nC6dF1"),
    ],
)
def test_a_variable_is_a_secret(name: str, value: str) -> None:
    assert is_secret(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PWD", "/home/me"),
        ("HF_TOKEN_PATH", "/home/me/token"),
        ("CUDA_VISIBLE_DEVICES", "GPU-5fd4b1d2-6c1a-4d4b-9f2a-8f1d2c3b4a59"),
        ("GIT_COMMIT", "0123456789abcdef0123456789abcdef01234567"),
        ("TOKENIZERS_PARALLELISM", "false"),
        ("SORT_KEY", "length"),
    ],
)
def test_a_variable_is_no_secret(name: str, value: str) -> None:
    assert not is_secret(name, value)
