"""Reads a training's settings from a log: arguments, the model, the GPU and library versions.

They are read where a program prints them, near the start or at a restart. Different names of one
setting share a key (`LOG_KEYS`), and the first value stays.

`data/logged_settings.toml` has the names that are looked for. What a value means is read by
`training/told.py`, with the tables of `stacks`, as that of a configuration file is.
"""

from __future__ import annotations

import re

from oomdoctor.explain.reading.lines.prefixes import split_line
from oomdoctor.explain.reading.patterns import patterns
from oomdoctor.explain.reading.printed_sizes import size_bytes
from oomdoctor.package_data import data_of
from oomdoctor.records.report.diagnosis import SettingValue

_NAMES = data_of("logged_settings.toml")
_BANNERS: dict[str, str] = _NAMES["banners"]
_BANNER = re.compile(rf"({'|'.join(_BANNERS)})(?: \([^)\n]{{0,80}}\))? = ([\d,]+)")
_RE = patterns("logged_settings")
_LETTERS = {"c": "n_ctx", "ngl": "n_gpu_layers"}
MEMORY_LIMIT = "memory_limit_bytes"
WHOLE_NODE = "whole_node"  # the key of the line by which a job asks for all host memory of its node
_NEAR_START = 20_000  # lines in which a program is expected to print its settings
_AFTER_NOTICE = 200  # and lines after one that prints settings
_LONGEST_QUOTE = 400


ALSO_LOGGED = tuple(_NAMES["also_logged"])
SHARE = "gpu_memory_utilization"  # the key of an engine's share, however the engine calls it
OF_ENGINES: dict[str, list[str]] = _NAMES["of_engines"]
# A name as a log prints it -> the name under which its value is kept.
LOG_KEYS: dict[str, str] = {
    **{name: name for name in ALSO_LOGGED},
    **{
        name: kept
        for table in (_NAMES["printed"], OF_ENGINES)
        for kept, others in table.items()
        for name in (kept, *others)
    },
}


class SettingsReader:
    """Gathers settings from the lines of one log; `feed` every line, in order."""

    def __init__(self) -> None:
        self.settings: dict[str, SettingValue] = {}
        self.evidence: dict[str, tuple[str, ...]] = {}
        self.versions: dict[str, str] = {}
        self.model: str | None = None
        self.gpu: str | None = None
        self._left = _NEAR_START
        self._before = ""  # the previous line, for a wrapped sentence
        self._in_limits = False  # of a pod

    def feed(self, text: str) -> None:
        """Read one line."""
        if self._left <= 0:
            if not _RE["announced"].search(text):
                return
            self._left = _AFTER_NOTICE
        self._left -= 1
        if "=" in text or ":" in text or " -" in text or "--" in text or "til" in text:
            self._named(text)
        if self.gpu is None and (match := _RE["gpu_name"].search(text)):
            self.gpu = match[0]
            self._quote("gpu_name", text)
        if "emory" in text or "imit" in text or "--mem" in text or "docker run" in text:
            self._stated(text)
        self._before = text

    def _stated(self, text: str) -> None:
        """Read a limit on host memory, in bytes."""
        if _RE["limits"].match(text):
            self._in_limits = True
        elif _RE["other_key"].match(text):
            self._in_limits = False
        match = _RE["pod_memory"].match(text) if self._in_limits else None
        match = match or _RE["host_limit"].search(text)
        if match is not None:
            # Kubernetes: Gi is 1024**3 and G is 1000**3; Docker and Slurm: G is 1024**3.
            unit = match[2] if match.re is _RE["pod_memory"] else f"{match[2].upper()}i"
            limit = size_bytes(f"{match[1]} {unit}B")
            if limit is not None and MEMORY_LIMIT not in self.settings:
                self.settings[MEMORY_LIMIT] = limit
                self._quote(MEMORY_LIMIT, text)
        if _RE["whole_node"].search(text):
            self._quote(WHOLE_NODE, text)

    def _named(self, text: str) -> None:
        for match in _RE["setting"].finditer(text):
            if match[1] in LOG_KEYS and not (match[1] == "dtype" and _of_a_call(text)):
                self._set(LOG_KEYS[match[1]], match[2] or match[3] or match[4] or "", text)
        if "--" in text:
            for match in _RE["argument"].finditer(text):
                name = match[1].replace("-", "_")
                if name in LOG_KEYS:
                    self._set(LOG_KEYS[name], match[2] or match[3] or match[4] or "", text)
        if "til" in text or "frac" in text or "entry" in text or "UTIL" in text:
            for match in _RE["share"].finditer(text):
                self._set(SHARE, match[1] if match[1][0] != "." else f"0{match[1]}", text)
        if " -" in text:
            for match in _RE["letter"].finditer(text):
                self._set(_LETTERS[match[1]], match[2], text)
        if "ALLOC_CONF" in text and not _advised(self._before, text):
            for match in _RE["allocator"].finditer(text):
                self._set("allocator", match[1], text)
        if " = " in text and (banner := _BANNER.search(text)):
            self._set(_BANNERS[banner[1]], banner[2], text)
        may_name = "odel" in text or "_name_or_path" in text or "from_pretrained" in text
        if may_name and self.model is None and (named := _RE["model"].search(text)) is not None:
            self.model = named[1] or named[3] or named[2].replace("--", "/", 1)
            self._quote("model_id", text)
        if (peft := _RE["peft"].search(text)) is not None:
            self.settings["trainable_parameters"] = int(peft[1].replace(",", ""))
            self.settings["all_parameters"] = int(peft[2].replace(",", ""))
            self._quote("trainable_parameters", text)
        if "orch" in text or "ransformers" in text or "ersion" in text or "trl" in text.lower():
            for version in _RE["version"].finditer(text):
                self.versions.setdefault(version[1].lower(), version[2])

    def _set(self, name: str, raw: str, text: str) -> None:
        value = None if _RE["expression"].search(raw) else _value(raw.strip())
        if value is not None and name not in self.settings:
            self.settings[name] = value
            self._quote(name, text)

    def _quote(self, key: str, text: str) -> None:
        self.evidence[key] = (text.strip()[:_LONGEST_QUOTE],)


def _of_a_call(text: str) -> bool:
    """Whether `dtype=` is an argument of some function in quoted code, not of a model."""
    return "dtype=torch." in text and not _RE["model_dtype"].search(text)


def _advised(before: str, text: str) -> bool:
    """Whether a line only repeats PyTorch's hint: try setting NAME=VALUE to avoid fragmentation.

    The sentence may be wrapped before the name; `before` is the previous line.
    """
    ahead, _, behind = split_line(text).text.partition("PYTORCH_")
    sentence = re.sub(r"[^a-z]+", "", split_line(before[-80:]).text + ahead)
    return sentence.endswith("trysetting") or " to avoid" in behind


def _value(raw: str) -> SettingValue | None:
    lowered = raw.lower()
    if not raw or lowered in ("none", "null", "...", "auto"):
        return None
    if lowered in ("true", "false"):
        return lowered == "true"
    number = raw.replace(",", "")
    if re.fullmatch(r"-?\d{1,18}", number):
        return int(number)
    if re.fullmatch(r"-?\d{1,18}\.\d{1,18}(?:e[+-]?\d{1,3})?", number):
        return float(number)
    return raw.strip("'\"")
