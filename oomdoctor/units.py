"""Converts bytes, counts, rates and times to text and back.

Numbers are rounded here and nowhere else. GiB is 1024**3 bytes and GB is 1000**3. Printed sizes
always use binary units; typed sizes may use either.
"""

from __future__ import annotations

import datetime
import re

KIB = 1024
MIB = 1024**2
GIB = 1024**3

_FACTORS = {"b": 1} | {
    letter + ending: base**power
    for power, letter in enumerate("kmgt", 1)
    for ending, base in (("", 1024), ("ib", 1024), ("b", 1000))
}
# A bare number up to this is GiB, because no device has so few bytes, and one from the other limit
# on is bytes. Between them it may be either, or MiB as nvidia-smi prints them.
_MOST_BARE_GIB = 1024
_LEAST_BARE_BYTES = 256 * MIB
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*([a-zA-Z]*)\s*")
_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+")  # as reports print it: 2,048
_COUNT_SUFFIX = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}
_AGE = re.compile(r"(\d{1,6}) ?(h(?:ours?)?|d(?:ays?)?|w(?:eeks?)?)(?: ago)?")
# Without minutes and months: nobody can tell what 5m would be.
_AGE_S = {"h": 3600.0, "d": 86400.0, "w": 604800.0}
DASH = "-"


def parse_size(text: str) -> int:
    """The bytes in a size such as `24GiB`, `24GB` (decimal), `24g` (binary) or `25769803776`.

    A small bare number is GiB: `24` is `24GiB`.

    Raises:
        ValueError: the text is not a number with a known unit, it is zero, or it is a bare number
            that may be MiB or bytes.
    """
    match = _SIZE.fullmatch(text)
    unit = match[2].lower() if match else ""
    factor = _bare_factor(float(match[1]), match[1]) if match and not unit else _FACTORS.get(unit)
    if match is None or factor is None:
        raise ValueError(f"{text!r} is not a size; write 24GiB, 24GB or a number of bytes")
    size = round(float(match[1]) * factor)
    if size <= 0:
        raise ValueError(f"{text!r} must be above zero")
    return size


def parse_share(text: str, example: str = "2% or 0.02") -> float:
    """A fraction from 0 to below 1, written `2%` or `0.02`; an error has the `example`.

    Raises:
        ValueError: the text is something else.
    """
    stripped = text.strip()
    try:
        share = float(stripped.removesuffix("%")) / (100 if stripped.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0.0 <= share < 1.0:
        raise ValueError(f"{text!r} is not a percentage below 100%; write {example}")
    return share


def parse_whole(text: str, minimum: int = 1, maximum: int | None = None) -> int:
    """A whole number, also as reports print it: `2,048`.

    Raises:
        ValueError: it is something else, or outside of `minimum` and `maximum`.
    """
    plain = text.strip()
    if _GROUPED.fullmatch(plain):
        plain = plain.replace(",", "")
    try:
        number = int(plain)
    except ValueError:
        number = minimum - 1
    if number < minimum:
        raise ValueError(
            f"{text!r} is not a whole number of at least {minimum}{_written_out(plain)}"
        )
    if maximum is not None and number > maximum:
        raise ValueError(f"{text!r} is above the maximum of {maximum}")
    return number


def _written_out(text: str) -> str:
    """What `2k` may mean; empty for other text."""
    match = re.fullmatch(r"(\d{1,6})k", text, re.IGNORECASE)
    return f"; write {int(match[1]) * 1024} or {int(match[1]) * 1000}" if match else ""


def parse_limit(text: str, total_bytes: int) -> int:
    """The bytes of `20GiB`, or of `80%` of a device with `total_bytes`.

    Raises:
        ValueError: the text is neither a size nor a percentage below 100%.
    """
    if text.strip().endswith("%"):
        return round(parse_share(text, "80%") * total_bytes)
    return parse_size(text)


def size_note(text: str) -> str | None:
    """How a size was read, if its writer may have meant another; None if it is clear."""
    match = _SIZE.fullmatch(text)
    if match is None:
        return None
    number, unit = match[1], match[2].lower()
    if not unit and 0 < float(number) <= _MOST_BARE_GIB:
        return f"{number} is read as {number}GiB"
    if unit in ("gb", "tb"):
        card = f"{number}{unit[0].upper()}iB"
        read = format_bytes(parse_size(text))
        return f"{text.strip()} is {read}; for a card sold as {text.strip()}, write {card}"
    return None


def _bare_factor(number: float, text: str) -> int:
    """The factor of a number without a unit."""
    if number <= _MOST_BARE_GIB:
        return GIB
    if number >= _LEAST_BARE_BYTES:
        return 1
    raise ValueError(f"{text} what? Write {text}MiB or {text}GiB")


def parse_count(text: str) -> int:
    """A count such as `1000000`, `1M`, `2.5B` or `3T` (decimal: 1M is 10**6).

    Raises:
        ValueError: the text is not a positive number with a known suffix.
    """
    match = _SIZE.fullmatch(text)
    factor = _COUNT_SUFFIX.get(match[2].lower()) if match else None
    if match is None or factor is None or float(match[1]) <= 0:
        raise ValueError(f"{text!r} is not a count; write 1000000, 1M or 2.5B")
    return round(float(match[1]) * factor)


def parse_duration(text: str) -> float:
    """The seconds in a duration such as `90`, `90s`, `15m`, `2h` or `1h30m`.

    Raises:
        ValueError: the text is not a positive duration.
    """
    parts = re.findall(r"(\d+(?:\.\d+)?)([smh]?)", text.strip().lower())
    whole = "".join(number + unit for number, unit in parts)
    bare = [unit for _, unit in parts if not unit]
    if not parts or whole != text.strip().lower() or (bare and len(parts) > 1):
        raise ValueError(f"{text!r} is not a duration; write 90s, 15m or 1h30m")
    seconds = sum(float(n) * {"": 1, "s": 1, "m": 60, "h": 3600}[unit] for n, unit in parts)
    if seconds <= 0:
        raise ValueError(f"{text!r} must be above zero")
    return seconds


def parse_age(text: str) -> float:
    """The seconds in an age such as `30d`, `2w`, `12h` or `3 days`.

    Raises:
        ValueError: the text is not a positive whole number with a unit of time.
    """
    match = _AGE.fullmatch(text.strip().lower())
    if match is None or int(match[1]) == 0:
        raise ValueError(f"{text!r} is not an age; write 12h, 30d or 2w")
    return int(match[1]) * _AGE_S[match[2][0]]


def day_or_age(text: str, now: datetime.datetime) -> datetime.datetime | None:
    """The moment meant by `today`, `yesterday` (at midnight) or an age; None by other text."""
    plain = " ".join(text.lower().split())
    if plain in ("today", "yesterday"):
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
        return midnight - datetime.timedelta(days=plain == "yesterday")
    try:
        return now - datetime.timedelta(seconds=parse_age(plain))
    except (ValueError, OverflowError):
        return None


def format_bytes(size: int | None) -> str:
    """`31.2 GiB`, `640 MiB`, `512 B`; a dash when unknown. Three significant digits."""
    if size is None:
        return DASH
    sign, value = ("-" if size < 0 else ""), float(abs(size))
    unit = "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1000 or unit == "TiB":
            break
        value /= 1024
    if unit == "B":
        return f"{sign}{int(value)} B"
    return f"{sign}{_three_digits(value)} {unit}"


def format_share(part: int, whole: int | None) -> str:
    """`20.6 of 23.0 GiB`, or the part alone if the whole is not known."""
    if whole is None:
        return format_bytes(part)
    (size, unit), total = format_bytes(part).split(), format_bytes(whole)
    return f"{size if total.endswith(unit) else format_bytes(part)} of {total}"


def format_count(count: int | None) -> str:
    """`8.03B`, `135M`, `12.3k`, `950`; a dash when unknown."""
    if count is None:
        return DASH
    for factor, suffix in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "k")):
        if abs(count) >= factor * 0.9995:
            return f"{_three_digits(count / factor)}{suffix}"
    return str(count)


def _three_digits(value: float) -> str:
    """A value with three significant digits if it is below 1000."""
    return f"{value:.{2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0}f}"


def format_rate(per_second: float | None) -> str:
    """A rate with three significant digits and thousands separators: `12,400`, `98.7`, `0.42`."""
    if per_second is None:
        return DASH
    if per_second >= 999.5:
        step = 10 ** (len(str(int(per_second))) - 3)
        return f"{round(per_second / step) * step:,}"
    return _three_digits(per_second)


def format_percent(share: float | None, digits: int = 0) -> str:
    """`0.973` as `97%`; a dash when unknown."""
    return DASH if share is None else f"{share * 100:.{digits}f}%"


def format_seconds(seconds: float | None) -> str:
    """`0.43 ms`, `12.1 s`, `4 min 05 s`, `3 h 20 min`, `2 d 4 h`; a dash when unknown."""
    if seconds is None:
        return DASH
    if seconds < 0.9995:
        return f"{_three_digits(seconds * 1000)} ms"
    if seconds < 99.95:
        return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    hours = round(seconds / 3600)
    return f"{hours // 24} d {hours % 24} h"


def timestamp() -> str:
    """The current time in UTC, ISO 8601 to the second."""
    return datetime.datetime.now(datetime.UTC).replace(microsecond=0).isoformat()
