"""Tells words about memory that a log only quotes from a failure that it reports.

Quoted are: source code, comments in it, shell commands, changes and commit messages, configuration,
documentation, and rows of data. People also paste real messages as comments, in backticks and in
lists, so only clear signs count, and a message with the figures of a card needs more of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from oomdoctor.explain.reading.lines.traceback import frame_in, starts_traceback

NEAR = 30  # lines around that may show what a line belongs to
_LISTING = 6  # lines around that may be source code

# --- source code: an open quotation mark before the words
_OPEN = r"[frbuFRBU]{0,2}[\"'`]{1,3}"
_REPORT_NAMES = r"\w*(?:err|exc|mess|msg|reason|detail|log|out|result|status|cause)"
_CODE = re.compile(
    r"^[>|+❱ -]*(?:\d{1,6}[ :│|]+)?\s*(?:"
    rf"raise\b[^\"'`]*{_OPEN}"
    rf"|(?:assert|return|yield|if|elif|while)\b(?:[^\"'`]*(?:[=!]=|\bin\b|\(|\[))? ?{_OPEN}"
    rf"|(?:and|or|not)\b[^\"'`]*(?:[=!]=|\bin\b|\(|\[) ?{_OPEN}"
    rf"|(?:[\w.]+\()+[^\"'`)]*{_OPEN}"
    rf"|(?!{_REPORT_NAMES})[\w.\[\]]+ \+?= [^\"'`]*{_OPEN}"
    r")(?:[^\"'`]*: ?|[^\"'`]{0,40})$"
)
# A literal alone on its line: an argument, or an entry of a list.
_LITERAL = re.compile(rf"^\s*{_OPEN}(?:[\w.]*(?:Error|Exception): ?)?$")
_CALL = re.compile(r"[\w.]\($|= [(\[{]$")
_ENTRY = re.compile(r"[\"']\s*[,)]+\s*$")
# The repr of an exception is a report.
_REPR = re.compile(
    r"(?:^|[\s:=(\[,])[\w.]*(?:Error|Exception|OutOfMemory)\((?:[\"'`](?:[^\"'`]{1,200}: )?)?$"
)
_STATEMENT = re.compile(
    r"^\W*\d*\W*(?:raise|assert|return|yield|if|elif|while|print|log)\b|\braise "
)
_NUMBERED_COMMENT = re.compile(r"^(?:-+> |❱ )?\d{1,6}(?: │)? .*#\s?[^#]*$")
_TRAILING_COMMENT = re.compile(r"[^\s#@$~][^#@$~]*\s(?:#|//)\s(?!\d+[:)])[^#]*$")
_COMMENT = re.compile(r"^\s*(?:#|//|--|;)")
_DOCSTRING = re.compile(r"\"\"\"|'''|^\s*(?:Raises|Returns|Args|Note|Warning):\s*$")
_PYTHON = re.compile(
    r"^\s*(?:(?:async )?def |class \w|import \w|from \S+ import |(?:if|for|while|with|try|except"
    r"|else"
    r"|elif|finally)\b.*:\s*(?:#.*)?$|return\b|raise\b|@\w|\"\"\"|'''|[a-z_][\w.]* = |print\()"
)
_SETTINGS = re.compile(r"^\s*[\w.-]+:(?: [\w\"'\[{.-].*)?$|^\s*[\w.-]+ ?= ?\S+$|^\s*- \S+$")
_TEST_ID = re.compile(r"\.py::\w+.*\[[^\]]*$")
# --- searches, commands, changes
_FOUND = re.compile(
    r"^\s*[\w./~-]+\.(?:md|rst|ipynb|ya?ml|toml|jsonl?|csv|tsv|html?|tex|cfg|ini|patch|diff)[:-]\d+[:-]"
)
_FOUND_IN_CODE = re.compile(
    r"^\s*[\w./~-]+\.(?:pyx?|sh|cpp|cuh?|hpp|h|cc|c|js|ts|go|rs)[:-]\d+[:-]\s*"
)
_REPORTED = re.compile(r"^(?:[\w.]+(?:Error|Exception|Warning)|ERROR|WARNING|CRITICAL|E )")
_COMMAND = re.compile(
    r"^\s*(?:(?:\+{1,4}|[$%>#!\u276f\u279c]|\S{1,80}[$#%>])\s+(?:sudo )?(?:echo|printf|e?grep|rg|ag"
    r"|awk"
    r"|sed|dmesg|journalctl|git|cat|tail|head|less|curl|export|find|test|\[|python3? -c|logger"
    r"|sacct)\b"
    r"|(?:echo|e?grep|rg) (?:-|[\"'])|git (?:commit|log|grep)\b)"
)
_ONE_LINE_COMMIT = re.compile(
    r"^[*|\\/ ]*(?=\d*[a-f])[0-9a-f]{7,40} (?:\([^)]{1,80}\) )?(?!Killed|Exited|Error"
    r"|OOM)[A-Z][a-z]+ "
)
_COMMIT = re.compile(r"^commit [0-9a-f]{7,40}\b")
_HUNK = re.compile(r"^@@ -\d|^diff --git |^\+\+\+ [ab]/")
# --- data
_CHAT = re.compile(
    r"\[INST\]|<\|(?:im_start|user|system|begin_of_text|start_header_id|prompter)\|?>?|<start_of_turn>"
    r"|### (?:Instruction|Input|Human|Question)|<(?:s|bos)>|<\uff5c(?:User|begin)"
)
_CHAT_END = re.compile(
    r"\[/INST\]|<\|(?:im_end|eot_id|end|endoftext|end_of_text)\|>|<end_of_turn>|</s>|<eos>"
    r"|### (?:Response|Assistant|Answer|Output)"
)
_ROW = re.compile(
    r"^\W{0,3}(?:sample|example|prompt|question|instruction|decoded(?: \w+)?|document|passage"
    r"|inputs|user|assistant"
    r"|human)s?\s*(?:#?\d+|\[\d+\])?\s*(?::|=|->) ",
    re.IGNORECASE,
)
_STRONG_KEYS = (
    "instruction|prompt|question|query|chosen|rejected|completion|title|body|passage|document|answer"
    "|messages|conversations|role|pattern|regex|keywords|note|comment|help|hint"
)
_KEYS = rf"{_STRONG_KEYS}|text|input|output|content|context|caption|summary|response|comment|label"
_VALUE = r"[\"']\s*:\s*\[?\s*[\"'](?:[^\"'\\]|\\.|(?<=\w)'(?=\w))*$"
_STRONG_VALUE = re.compile(rf"[\"'](?:{_STRONG_KEYS})s?{_VALUE}")
_VALUE_OF_ROW = re.compile(rf"[\"'](?:{_KEYS})s?{_VALUE}")
_KEY = re.compile(rf"[\"'](?:{_KEYS})s?[\"']\s*:")
_ERROR_KEY = re.compile(
    r"[\"'](?:error|exception|traceback|ename|evalue|level|severity|stack|exc_info|status)\w*[\"']\s*:",
    re.IGNORECASE,
)
_DUMP = re.compile(r"\b(?:Namespace|\w*Arguments|\w*Config)\(.*\w=[\"'][^\"']*$")
_CSV = re.compile(r"^\s*(?:[^\"']{0,80},)?\"[^\"]*$")
_CSV_NEXT = re.compile(r"^[^\"]*\"\s*,\s*[\"\w]")
# --- configuration and documentation
_SETTING = re.compile(
    r"^\s*(?:- )?(?:retry\w*|on_\w+|patterns?|match\w*|regex|description|notes?|comment|help|hint"
    r"|tips?"
    r"|title|ignore\w*|except(?!ion\s*:)\w*|known_\w+|oom_\w+|keywords?)\s*[:=]",
    re.IGNORECASE,
)
_ITEM = re.compile(r"^\s*-\s+[\"'\w]")
_OPTION = re.compile(r"^\s{0,8}--[a-z][\w-]*(?:[ =]\S+)?\s{2,}\S")
_HEADING = re.compile(r"^\s*#{2,6}\s")
_DEFINED = re.compile(
    r"^\s*(?:[-*+] |\d+\. )?(?:\*\*|`)([^*`]{1,120}):?(?:\*\*|`)\s*(?::|-|\u2013|\u2014|=)\s*\w"
)
_CONDITION = re.compile(
    r"\b[Ii]f (?:you|your|the|it|this|a|an|there|training|one|any|someone)\b[^.!?]{0,90}$"
    r"|\b[Ii]n case (?:of|you)\b[^.!?]{0,60}$|\b[Ww]hen(?:ever)? (?:you|users?)\b[^.!?]{0,60}$"
)
_ADVICE = re.compile(
    r"\b(?:may|might|could|can|would) (?:\w+ ){0,4}(?:cause|lead to|result in|run into|trigger"
    r"|raise|throw"
    r"|see|fail with|give|produce|hit|encounter|get)s? (?:an? |the )?[^.!?]{0,30}$"
    r"|\b(?:[Tt]o|[Hh]ow to) (?:avoid|prevent|fix|solve|resolve|handle|catch"
    r"|work around)\b[^.!?]{0,60}$"
    r"|^\W*(?:\w{1,8}: )?(?:[Ff]ix(?:e[sd])?|[Hh]andle|[Cc]atch|[Aa]void|[Pp]revent|[Rr]etry on"
    r"|[Ww]ork around|[Ww]orkaround for|[Rr]esolve)\b[^.!?]{0,50}$"
)
_FENCE = 4
_ANNOUNCED = re.compile(
    r"\b(?:[Ii]f|[Ww]hen) you (?:get|see|encounter|run into|hit|have|face|receive)\b.*"
    r"(?::|\b(?:below|following|this)\b.{0,60})$"
)
_FIRST_PERSON = re.compile(r"\b(?:I|I'm|[Mm]y|[Ww]e|me)\b")
_EXPLAINED = re.compile(
    r"^\S{0,3} (?:means|indicates|usually|typically|pods?\b|containers?\b|errors? (?:are|can|may"
    r"|is)\b"
    r"|status(?:es)?\b|is (?:raised|caused|usually))"
)
_FIGURE = re.compile(r"\d [KMGT]?i?B\b|\d bytes")
_EXCEPTION = re.compile(r"[\"'`]?(?:[\w.]*(?:Error|Exception):? ?)?$")


class Place(NamedTuple):
    """A line as it is, its text before, in and after the words, and the lines around it."""

    raw: str
    lead: str
    words: str
    tail: str
    before: Sequence[str]
    after: Sequence[str]


def quoted(place: Place, detailed: bool) -> bool:
    """Whether a line only quotes words about memory.

    `detailed`: the words come with the figures of a card.
    """
    return (
        _in_code(place)
        or _in_command_or_change(place)
        or _in_data(place)
        or _for_the_reader(place, detailed)
        or (not detailed and (_in_documentation(place) or _in_listing(place)))
    )


def _in_code(place: Place) -> bool:
    raw, lead = place.raw, place.lead
    above = next((line for line in reversed(place.before) if line.strip()), "")
    if _LITERAL.search(lead) and (_CALL.search(above) or _ENTRY.search(raw)):
        return True
    if _CODE.search(lead) and (not _REPR.search(lead) or _STATEMENT.search(lead)):
        return True
    if _NUMBERED_COMMENT.search(lead) or _TEST_ID.search(lead) or _FOUND.search(raw):
        return True
    found = _FOUND_IN_CODE.match(raw)
    return found is not None and not _REPORTED.search(raw[found.end() :])


def _in_command_or_change(place: Place) -> bool:
    raw, text = place.raw, place.raw.strip()
    if _COMMAND.search(raw) or _ONE_LINE_COMMIT.search(raw):
        return True
    if len(text) > 15 and any(_COMMAND.search(line) and text in line for line in place.before[-3:]):
        return True
    if raw[:1] in "+-" and _last(_HUNK, place.before) >= 0:
        return True
    in_commit = _last(_COMMIT, place.before) > _last_traceback(place.before)
    return raw.startswith("    ") and in_commit


def _in_data(place: Place) -> bool:
    row = _ROW.search(place.lead)
    if row is not None and len(_EXCEPTION.sub("", place.lead[row.end() :]).split()) > 1:
        return True
    if _CHAT.search(place.lead) or _DUMP.search(place.lead):
        return True
    if _CSV.search(place.lead) and _CSV_NEXT.search(place.tail):
        return True
    if not _ERROR_KEY.search(place.raw):
        several = len(_KEY.findall(place.raw)) > 1
        if _STRONG_VALUE.search(place.lead) or (several and _VALUE_OF_ROW.search(place.lead)):
            return True
    began, ended = _last(_CHAT, place.before), _first(_CHAT_END, place.after)
    return began > max(
        _last(_CHAT_END, place.before), _last_traceback(place.before)
    ) and 0 <= ended < _first_traceback(place.after)


def _for_the_reader(place: Place, detailed: bool) -> bool:
    """Whether the sentence says what to do if or before memory runs out."""
    above = [line.strip() for line in place.before[-_FENCE:]]
    above = [line for line in above if line and not line.startswith("```")]
    if above and _ANNOUNCED.search(above[-1]) and not _FIRST_PERSON.search(above[-1]):
        return True
    lead = _EXCEPTION.sub("", place.lead[-300:])
    sentence = re.split(r"(?<=[.!?]) ", lead)[-1]
    if _FIRST_PERSON.search(sentence):
        return False
    told = _CONDITION.search(sentence)
    if detailed:
        return told is not None and " you" in told[0]
    return told is not None or _ADVICE.search(sentence) is not None


def _in_documentation(place: Place) -> bool:
    raw = place.raw
    figures = _FIGURE.search(place.words) is not None
    if _SETTING.search(raw) or _TRAILING_COMMENT.search(place.lead):
        return True
    if _OPTION.search(raw):
        return True
    if not figures and (_HEADING.search(raw) or _EXPLAINED.search(place.tail)):
        return True
    defined = _DEFINED.search(raw)
    if defined is not None and place.words[:20] in defined[1]:
        return True
    return _ITEM.search(raw) is not None and _is_setting(place.before)


def _is_setting(before: Sequence[str]) -> bool:
    """Whether the items of a list before a line belong to a setting."""
    head = next((line for line in reversed(before) if not _ITEM.search(line)), "")
    return _SETTING.search(head) is not None


def _in_listing(place: Place) -> bool:
    """Whether source code or configuration is around a comment or a docstring."""
    near = [line for line in place.before[-_LISTING:] if line.strip()]
    after = [line for line in place.after[:3] if line.strip()]
    around = (*near, *after)
    if any(starts_traceback(line) or frame_in(line) for line in around):
        return False
    code = sum(_PYTHON.search(line) is not None for line in around)
    if _COMMENT.search(place.raw):
        return code + sum(_SETTINGS.search(line) is not None for line in around) >= 2
    documented = any(_DOCSTRING.search(line) for line in near)
    goes_on = any(_PYTHON.search(line) for line in after)
    return place.raw.startswith((" ", "\t")) and code >= 2 and (documented or goes_on)


def _last(pattern: re.Pattern[str], texts: Sequence[str]) -> int:
    return next((i for i in range(len(texts) - 1, -1, -1) if pattern.search(texts[i])), -1)


def _first(pattern: re.Pattern[str], texts: Sequence[str]) -> int:
    return next((i for i, text in enumerate(texts) if pattern.search(text)), -1)


def _last_traceback(texts: Sequence[str]) -> int:
    return next((i for i in range(len(texts) - 1, -1, -1) if starts_traceback(texts[i])), -1)


def _first_traceback(texts: Sequence[str]) -> int:
    return next((i for i, text in enumerate(texts) if starts_traceback(text)), len(texts))
