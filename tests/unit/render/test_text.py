"""Nothing from elsewhere may steer the terminal, and lines break where they may."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomdoctor.render.text import escape, log_lines, one_line, wrap

UNSAFE = {"Cc", "Cf", "Cs", "Zl", "Zp"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]52;c;ZWNobyBoaQ==\x07model", "model"),
        ("\x1b]0;title\x1b\\model", "model"),
        ("\x1b]8;;https://example.org\x07link\x1b]8;;\x07", "link"),
        ("\x9b2Jcleared", "cleared"),
        ("\x1bPdcs\x1b\\x", "x"),
        ("\x1b]52;c;unterminated", "\\x1b]52;c;unterminated"),
        ("a\nb\t c\r\nd", "a b c d"),
        ("bell\x07 del\x7f nul\x00", "bell\\x07 del\\x7f nul\\x00"),
        ("\u202egnp.exe\u200b", "\\u202egnp.exe\\u200b"),
        ("lone \ud800", "lone \\ud800"),
        ("\U000e0041tag", "\\U000e0041tag"),
        ("[red]not markup[/red]", "[red]not markup[/red]"),
        ("naïve 模型", "naïve 模型"),
    ],
)
def test_one_line(text: str, shown: str) -> None:
    assert one_line(text) == shown


@given(st.text())
def test_no_unsafe_character_is_left(text: str) -> None:
    for shown in (escape(text), one_line(text), *log_lines(text)):
        assert not UNSAFE & {unicodedata.category(character) for character in shown}


def test_log_lines_keep_indentation_and_the_last_state_of_a_progress_bar() -> None:
    text = '\n  File "x.py"\r\n\tcode\n 10%\r\x1b[A100% |#|\r\nend\n\n'
    assert log_lines(text) == ('  File "x.py"', "    code", "100% |#|", "end")


def test_log_lines_keep_the_end() -> None:
    assert log_lines("\n".join(map(str, range(100))), limit=3) == ("97", "98", "99")


def test_wrap_keeps_a_number_and_its_unit_together() -> None:
    text = "1.50 GiB in 6 min 53 s, 3 h 20 min, 2 d 4 h, 4 x 8, torch 2.7.1, 12.1 tokens/s of it"
    lines = [line for width in range(17, 40) for line in wrap(text, width)]
    for whole in ("1.50 GiB", "6 min 53 s", "3 h 20 min", "2 d 4 h", "4 x 8", "torch 2.7.1"):
        assert sum(whole in line for line in lines) == len(range(17, 40)), whole


def test_wrap_keeps_a_long_word_whole() -> None:
    path = "/home/ada/" + "x" * 80
    assert path in wrap(f"run {path} now", 40, "a  ", "   ")[1]
