"""Price lists as people keep them, and what is wrong with others."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomdoctor.package_data import data_of
from oomdoctor.system.catalogue import find_gpu
from oomdoctor.system.price_file import EXAMPLES, NamedPrice, PriceFile, read_prices


def prices(tmp_path: Path, text: str | bytes, name: str = "p.csv") -> PriceFile:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_prices(path)


@pytest.mark.parametrize(
    ("text", "currency"),
    [
        ("L4,0.80\nRTX 4090,0.44\n", ""),
        ("card,price\nL4,0.8\nRTX 4090,0.44", ""),
        ("gpu,USD per hour\nL4,0.8\nRTX 4090,0.44", "USD"),
        ("GPU;Preis\nL4;0,8\nRTX 4090;0,44", ""),
        ("price_eur,gpu name\n0.8,L4\n.44,RTX 4090", "EUR"),
        ("provider,gpu,region,price (£)\na,L4,eu,0.8\nb,RTX 4090,us,0.44", "£"),
        ("L4,$0.80/h\nRTX 4090,$0.44 per hour", "$"),
        ("L4;0,80 €\nRTX 4090;0,44 €", "€"),
        ('"L4","0,80 EUR/hr"\n"RTX 4090","0,44 EUR"', "EUR"),
        ("# mine\n\nL4\t0.8\n\nRTX 4090\t0.44\n", ""),
        ("\ufeffL4,0.8\r\nRTX 4090,0.44\r\n", ""),
    ],
)
def test_csv(tmp_path: Path, text: str, currency: str) -> None:
    rows = (NamedPrice("L4", 0.8), NamedPrice("RTX 4090", 0.44))
    assert prices(tmp_path, text) == PriceFile(currency, rows)


@pytest.mark.parametrize(
    ("text", "currency"),
    [
        ('{"L4": 0.8, "RTX 4090": 0.44}', ""),
        ('{"L4": "$0.8", "RTX 4090": "$0.44/hour"}', "$"),
        ('[{"gpu": "L4", "price_per_hour": 0.8}, {"card": "RTX 4090", "price": ".44"}]', ""),
        ('{"currency": "EUR", "prices": {"L4": 0.8, "RTX 4090": {"hourly": 0.44}}}', "EUR"),
    ],
)
@pytest.mark.parametrize("name", ["p.json", "p.txt"])
def test_json(tmp_path: Path, text: str, currency: str, name: str) -> None:
    rows = (NamedPrice("L4", 0.8), NamedPrice("RTX 4090", 0.44))
    assert prices(tmp_path, text, name) == PriceFile(currency, rows)


@pytest.mark.parametrize(
    ("written", "value"),
    [("1,249.50", 1249.5), ("1.249,50", 1249.5), ("1,249", 1249.0), ("2,5", 2.5), ("0", 0.0)],
)
def test_how_people_write_numbers(tmp_path: Path, written: str, value: float) -> None:
    assert prices(tmp_path, f'L4,"{written}"').rows == (NamedPrice("L4", value),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no prices"),
        ("card,price\n", "has no prices"),
        ("{}", "has no prices"),
        ("L4,abc\n", "line 1: 'abc' is not a price an hour"),
        ("L4,0.8\n\nT4,cheap\n", "line 3: 'cheap' is not a price"),
        ("L4,-1", "line 1: '-1' is not a price"),
        ("L4,1 2", "line 1: '1 2' is not a price"),
        ("L4,\n", "line 1: '' is not a price"),
        (",1", "line 1 has a price without a card"),
        ("L4\n", "line 1 has 1 columns"),
        ("L4,24,0.8\n", "line 1 has 3 columns; write card,price or name the columns"),
        ("card,region,price\nL4,eu\n", "line 2 has 2 columns"),
        ("L4,$1\nT4,1 EUR\n", "mixes currencies ($, EUR)"),
        ('{"L4": }', "is not JSON, line 1"),
        ('{"L4": null}', "entry 1 has no price for L4"),
        ('{"L4": NaN}', "entry 1: nan is not a price"),
        ("[1]", "entry 1 has a price without a card"),
        (b"L4,\xff", "is not UTF-8 text"),
        ("L4,1\n" * 300_000, "larger than 1 MiB"),
    ],
)
def test_a_bad_file_says_where(tmp_path: Path, text: str | bytes, words: str) -> None:
    with pytest.raises(ValueError) as found:
        prices(tmp_path, text)
    assert words in str(found.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="No such file"):
        read_prices(tmp_path / "p.csv")
    with pytest.raises(ValueError, match="directory"):
        read_prices(tmp_path)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_of_known_cards_with_date_and_source(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    listed = read_prices(Path(name))
    assert listed.examples and "on 20" in listed.examples and "https://" in listed.examples
    assert all((gpu := find_gpu(row.name)) and gpu.name == row.name for row in listed.rows)
    (tmp_path / name).write_text("L4,0.8\n")
    assert read_prices(Path(name)) == PriceFile("", (NamedPrice("L4", 0.8),))


def test_a_name_that_is_neither_a_file_nor_built_in_says_what_is(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="built in are aws, azure, lambda, modal, replicate, runpod"
    ):
        read_prices(tmp_path / "gcp")


def test_the_help_and_the_page_name_all_examples() -> None:
    said = data_of("options.toml")["plan"]["price"]["help"]
    page = (Path(__file__).parents[3] / "docs" / "plan.md").read_text()
    assert all(name in said and f"`{name}`" in page.replace("--price ", "") for name in EXAMPLES)
