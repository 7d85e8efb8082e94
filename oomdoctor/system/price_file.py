"""Reads what an hour of each card costs, from a CSV or JSON file that a person keeps.

    card,price            {"RTX 4090": 0.44}            [{"gpu": "L4", "price_per_hour": "$0.80"}]
    RTX 4090,$0.44

Names of cards stay as they are written. Only data is read. Some examples of prices are built in
(`data/prices.toml`).
"""

from __future__ import annotations

import csv
import errno
import json
import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oomdoctor.package_data import data_of
from oomdoctor.system.regular_files import bytes_of, plain_text

_LIMIT = 1024**2  # bytes; far above any price list
_CARD_WORDS = frozenset({"card", "gpu", "name", "model", "accelerator", "device"})
_PRICE_WORDS = re.compile(r"price|cost|hour|hourly|rate|/h\b", re.IGNORECASE)
_CODES = "USD|EUR|GBP|CNY|RMB|JPY|INR|KRW|CHF|CAD|AUD|SEK|NOK|DKK|PLN|BRL"
_CODE = re.compile(rf"(?:^|[^A-Za-z])({_CODES})(?![A-Za-z])", re.IGNORECASE)
_NUMBER = re.compile(r"\d+(?:[.,'\u00a0]\d+)*|\.\d+")
_HOURLY = re.compile(r"(?:/|\bper\b|\ban?\b)?\s{0,8}\b(?:h|hr|hrs|hour|hourly)\b\.?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class NamedPrice:
    """A row: the name of a card as it is written, and the price of an hour."""

    name: str
    per_hour: float


@dataclass(frozen=True, slots=True)
class PriceFile:
    """The rows of a file. `currency` is a symbol or a label, empty if there is none.

    `examples` says from when and where prices are that are built in; None for the prices of a file.
    """

    currency: str
    rows: tuple[NamedPrice, ...]
    examples: str | None = None


_EXAMPLES: Mapping[str, Mapping[str, Any]] = data_of("prices.toml")
EXAMPLES = tuple(_EXAMPLES)
"""The names of the price lists that are built in."""


def example_prices(name: str) -> PriceFile:
    """The price list of a cloud that is built in, by its name."""
    said = _EXAMPLES[name]
    rows = tuple(NamedPrice(card, price) for card, price in said["per_hour"].items())
    return PriceFile("$", rows, f"{said['title']} on {said['date']}, {said['source']}")


def read_prices(path: Path) -> PriceFile:
    """The prices of a file.

    Raises:
        ValueError: the file cannot be read, or it is not a list of prices; the message says where.
    """
    if str(path) in EXAMPLES and not path.exists():
        return example_prices(str(path))
    try:
        text = plain_text(bytes_of(path, _LIMIT))
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise ValueError(f"{path} is {error.strerror}, so it is not a price list") from None
        other = "" if path.suffix else f"; built in are {', '.join(EXAMPLES)}"
        raise ValueError(f"{path}: {error.strerror or 'cannot be read'}{other}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text") from None
    is_json = path.suffix.lower() == ".json" or text.lstrip()[:1] in ("{", "[")
    entries = list(_json_rows(path, text) if is_json else _csv_rows(path, text))
    labels = list(dict.fromkeys(label for _, _, label in entries if label))
    if len(labels) > 1:
        raise ValueError(f"{path} mixes currencies ({', '.join(labels)}); use one")
    if not entries:
        raise ValueError(f"{path} has no prices; write one card a line, such as RTX 4090,0.44")
    rows = tuple(NamedPrice(name, price) for name, price, _ in entries)
    return PriceFile(labels[0] if labels else "", rows)


def _csv_rows(path: Path, text: str) -> Iterator[tuple[str, float, str]]:
    kept = {
        number: line
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip(" \t,;\ufeff") and not line.lstrip().startswith("#")
    }
    if not kept:
        return
    first = next(iter(kept.values()))
    delimiter = next((mark for mark in "\t;" if mark in first), ",")
    try:
        table = list(csv.reader(kept.values(), delimiter=delimiter))
    except csv.Error as error:
        raise ValueError(f"{path} is not CSV: {error}") from None
    place, label = (0, 1), ""
    heading = _heading(table[0])
    if heading is not None:
        place, label = heading, _currency_in(table[0][heading[1]])
    for number, cells in list(zip(kept, table, strict=False))[heading is not None :]:
        where = f"{path}, line {number}"
        if len(cells) <= max(place) or (heading is None and len(cells) > 2):
            raise ValueError(
                f"{where} has {len(cells)} columns; write card,price or name the columns in the "
                "first line"
            )
        yield _row(where, cells[place[0]], cells[place[1]], label)


def _heading(cells: Sequence[str]) -> tuple[int, int] | None:
    """The columns of the card and of the price, if the line names them."""
    words = [cell.strip().lower() for cell in cells]
    cards = [i for i, word in enumerate(words) if _CARD_WORDS & set(re.split(r"[\W_]+", word))]
    prices = [i for i, word in enumerate(words) if _PRICE_WORDS.search(word) or _currency_in(word)]
    if cards and not prices and len(words) == 2:
        prices = [1 - cards[0]]  # whatever the language of the heading
    prices = [i for i in prices if _NUMBER.search(words[i]) is None and i not in cards[:1]]
    if not prices or not (cards or len(cells) == 2):
        return None
    return (cards[0] if cards else 1 - prices[0]), prices[0]


def _json_rows(path: Path, text: str) -> Iterator[tuple[str, float, str]]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON, line {error.lineno}: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    label = ""
    if isinstance(value, Mapping) and isinstance(value.get("prices"), Mapping | list):
        label, value = str(value.get("currency") or ""), value["prices"]
    for number, (name, price) in enumerate(_json_pairs(value), 1):
        yield _row(f"{path}, entry {number}", name, price, label)


def _json_pairs(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return [(name, _price_key(entry)) for name, entry in value.items()]
    entries = value if isinstance(value, list) else []
    return [
        (next((e[key] for key in e if str(key).lower() in _CARD_WORDS), None), _price_key(e))
        if isinstance(e, Mapping)
        else (None, None)
        for e in entries
    ]


def _price_key(entry: Any) -> Any:
    """The price in an entry with several keys."""
    if not isinstance(entry, Mapping):
        return entry
    return next((entry[key] for key in entry if _PRICE_WORDS.search(str(key))), None)


def _row(where: str, name: Any, price: Any, label: str) -> tuple[str, float, str]:
    if not isinstance(name, str) or not name.strip():
        raise ValueError(f"{where} has a price without a card")
    if isinstance(price, int | float) and not isinstance(price, bool):
        per_hour, own = float(price), ""
    elif isinstance(price, str):
        per_hour, own = _price(where, price)
    else:
        raise ValueError(f"{where} has no price for {name.strip()}")
    if not math.isfinite(per_hour) or per_hour < 0:
        raise ValueError(f"{where}: {price!r} is not a price an hour; write 2.49 or $2.49")
    return name.strip(), per_hour, own or label


def _price(where: str, text: str) -> tuple[float, str]:
    """`$2.49/h` as 2.49 and `$`; `1.249,50 EUR` as 1249.5 and `EUR`."""
    numbers = _NUMBER.findall(text)
    rest = _HOURLY.sub(" ", _NUMBER.sub(" ", text)).split()
    if len(numbers) != 1 or len(rest) > 1 or any(set(word) & set("-+%") for word in rest):
        raise ValueError(f"{where}: {text.strip()!r} is not a price an hour; write 2.49 or $2.49")
    return _number(numbers[0]), rest[0].strip("/") if rest else ""


def _number(text: str) -> float:
    """A number whose decimal sign is a point or a comma, with or without thousands separators."""
    plain = re.sub(r"['\u00a0]", "", text)
    if "," in plain and "." in plain:
        thousands = "," if plain.rindex(",") < plain.rindex(".") else "."
        plain = plain.replace(thousands, "")
    elif re.fullmatch(r"\d{1,3}(,\d{3})+", plain):
        plain = plain.replace(",", "")
    try:
        return float(plain.replace(",", "."))
    except ValueError:
        return math.nan


def _currency_in(heading: str) -> str:
    """The currency that a heading such as `price (USD)` or `$/h` names."""
    for sign in heading:
        if unicodedata.category(sign) == "Sc":
            return sign
    code = _CODE.search(heading.replace("_", " "))
    return code[1].upper() if code is not None else ""
