"""Turns that no text for a person has, and how to look for them.

`BANNED` and `HABIT` hold the turns, `WORKING_NAME` our own names of things. A text that quotes a
log or a library is not ours: it is named in `QUOTED`.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
BANNED = {
    # inverted or archaic turns
    r"by a hair": "borderline",
    r"\blets? (a|the) request pass\b|\bgot past the request\b": "avoid the error; succeed",
    r"\bis told\b|\bare told\b|\btold apart\b": "the report says; distinguished",
    r"\blacks?\b(?! of)": "short by; has no",
    r"\bwears?\b": "produces",
    r"\bhad of\b": "",
    r"\bby code of its own\b|\bcode of its own\b": "custom code",
    r"\bof its own\b|\bof their own\b": "its own; a separate",
    r"\bmend(s|ed)?\b": "fix",
    r"\bhopeless\b": "rungs far above the budget",
    r"\bsweeps nothing\b": "cannot sweep",
    r"\bafresh\b|\banew\b": "again",
    r"\bat hand\b": "available",
    r"which there is nothing": "",
    r"\bthere is nothing to go on with\b": "cannot be resumed",
    r"\bgo(es)? on with\b|\bgone on with\b": "continue; resume",
    r"\bwhoever\b|\bwhatever it (was|is)\b": "",
    r"\bnot the same training\b": "Best of each method",
    r"\bno card\b": "not a card",
    r"\bmay be used\b": "usable",
    r"\bsuch as stand\b|\bas it stands\b": "",
    r"\blearnt\b": "learned",
    r"\bis to be had\b|\bto be had\b|\bcannot be had\b": "available",
    r"\bbroken[- ]off\b": "interrupted",
    r"\bcomes? along\b": "built in",
    r"\bleanest\b|\bthrift(y|iest)?\b": "with the least memory",
    r"\bbytes a parameter\b|\bbyte a parameter\b": "bytes per parameter",
    r"\btokens an optimizer step\b": "tokens per optimizer step",
    r"\bin one go\b": "at once",
    r"\bfor want of\b|\bno doubt\b|\bthereof\b|\bwherein\b|\bhereby\b|\bwhereby\b": "",
    r"\bknows? of (?!CUDA)": "knows",
    r"\bforesee|\bforesight|\bforecast": "predict",
    r"\bbut for\b": "except for",
    r"\b(?:is|are) not said\b": "does not say",
    r"\blikewise\b": "in the same way",
    r"\bin spite of\b": "anyway",
    r"\b(?:comes?|came) of\b": "the result of",
    r"\b(?:cards?|GPUs?) that (?:is|are) not here\b|\bneed not be (?:here|in)\b": "you don't have",
    r"\bsome (?:micro|milli)?(?:seconds|minutes)\b": "a few",
    # American spelling
    r"[Qq]uanti[s]ation|[Qq]uanti[s]ed?\b|[Dd]equanti[s]": "quantization",
    r"\b[Uu]tilisation|[Ii]nitialis|[Ss]ummaris(e|ed|ing)\b(?!\()": "-iz-",
    r"\bcolour|\bbehaviour|\bfavour|\bmodelled|\bmodelling\b|\blabelled|\bcancelled": "-or-, -l-",
    r"\bcentre\b|\bgrey\b|\bjudgement\b": "center, gray, judgment",
}
PATTERN = re.compile("|".join(f"(?:{pattern})" for pattern in BANNED))
# Habits of a translation, which docstrings may still have.
HABIT = re.compile(
    r"\b(?:is|are|be|of|by|than|from|with|for) (?:that|those) of\b|\b(?:is|are) taken to\b"
    r"|\bfor ever\b|\bis no (?:setting|number|event|table|plain)\b"
)
# Code calls a configuration a rung, and so do `--rung` and JSON keys; a text for people does not.
NAMES = re.compile(
    r"`[^`]*`|<!--.*?-->|\(images/\S*\)|(?:\\?-){2}rung[\w-]*|\[\[rung\]\]|^rung: must be"
    r"|\[Rung\]\(#rung\)|^### Rung$|\*rung\*|\{rungs\b",
    re.MULTILINE,
)
WORKING_NAME = re.compile(
    r"\b[Rr]ungs?\b|\b[Tt]rainings\b"
    r"|\b[Bb]eside\b|\bthat (?:is|are) not there\b|\bneed not be here\b"
    r"|\b[Aa] training\b(?! (?:run|step|configuration|script|job|file|set|setting|program)\b)"
)
# By file: words that are not ours, because a log, a library or a name has them.
QUOTED = {
    "oomdoctor/records/job/costs.py": '"quantised"',
    "oomdoctor/data/look_alikes.toml": 'name = "cancelled"',
    "oomdoctor/data/rung_keys.toml": '"quantisation"',
}


def found(text: str, file: Path) -> list[str]:
    """The banned turns in a text, each with some words around it."""
    quoted = QUOTED.get(str(file.relative_to(ROOT)))
    text = " ".join((re.sub(quoted, "", text) if quoted else text).split())
    return [text[max(0, m.start() - 30) : m.end() + 30] for m in PATTERN.finditer(text)]


def working_names(text: str) -> list[str]:
    """Our own names of things in a text for a person, and habits, with some words around each."""
    text = " ".join(NAMES.sub("", text).split())
    return [
        text[max(0, m.start() - 30) : m.end() + 30]
        for pattern in (WORKING_NAME, HABIT)
        for m in pattern.finditer(text)
    ]
