"""What the frames of an incident say, and how they are quoted."""

from __future__ import annotations

import re
from collections.abc import Sequence

from oomdoctor.explain.reading.patterns import patterns
from oomdoctor.records.report.diagnosis import Frame

_RE = patterns("frames")


def quote(frame: Frame) -> str:
    """A frame, written as a line of a traceback."""
    number = "" if frame.line is None else f", line {frame.line}"
    code = f": {frame.code}" if frame.code else ""
    path = frame.file.replace("\\", "/")
    return f'File "{path}"{number}, in {frame.function}{code}'


# Attention scores have a row and a column for each token: they grow with the square of
# the length. Only eager attention stores them; fused kernels never do.
_QUERY = r"(?:self\.)?(?:mixed_)?(?:q|query|queries|q_\w+|query_\w+|\w+_query|\w+_q)"
_KEY = r"(?:self\.)?(?:mixed_)?(?:k|key|keys|k_\w+|key_\w+|\w+_key|\w+_k)"
_SCORES = (
    r"(?:self\.)?(?:(?:self_)?(?:attn|attention|att|qk)_(?:weights?|scores?|probs?|logits?|matrix|map)\w*"
    r"|attn|att|qk|attention)"
)
_PRODUCT = r"(?:matmul|bmm|baddbmm|einsum|mm)"
# The query and the key meet: matmul(query, key.transpose(..)), q @ k.T, einsum("..", q, k).
_MEETING = (
    re.compile(rf"\b{_PRODUCT}\(.{{0,150}}\b{_QUERY}\b.{{0,150}},\s*{_KEY}\b"),
    re.compile(rf"\b{_QUERY}(?:\[[^\]]*\])?(?:\.\w+\([^()]*\))*\s*@\s*\(?{_KEY}\b"),
    re.compile(r"\bbaddbmm\(.*\balibi\b"),
    re.compile(rf"\balibi\b.*\b{_PRODUCT}\("),
)
# Something is done to scores that are already there.
_DONE_TO_SCORES = (
    re.compile(rf"\b\w*(?:softmax|dropout|masked_fill_?|where)\(\s*{_SCORES}\b"),
    re.compile(rf"\b{_SCORES}\s*=.*\b(?:softmax|masked_fill_?|where|{_PRODUCT})\b"),
    re.compile(rf"\b{_SCORES}(?:\.\w+\([^()]*\))*\.(?:softmax|masked_fill_?|float|to|type_as)\("),
    re.compile(rf"\b{_SCORES}\s*(?:=\s*{_SCORES}\s*)?[-+*/]=?\s*\S*(?:mask|bias|alibi|scale|sqrt)"),
)
# The scores meet the values: what comes out is as small as the hidden states.
_OUTPUT = re.compile(
    rf"\b{_PRODUCT}\(\s*{_SCORES}\s*,\s*(?:self\.)?v\w*\b|\b{_SCORES}\s*@\s*v\w*\b"
)


def scores_line(frames: Sequence[Frame]) -> Frame | None:
    """The innermost line outside PyTorch, if it makes attention scores or works on them."""
    own = [
        frame for frame in frames if not _RE["of_libraries"].search(frame.file.replace("\\", "/"))
    ]
    if not own or not own[-1].code:
        return None
    frame, code = own[-1], own[-1].code
    if _RE["not_scores"].search(code) or _OUTPUT.search(code):
        return None
    if any(pattern.search(code) for pattern in (*_MEETING, *_DONE_TO_SCORES)):
        return frame
    around = " ".join(f"{f.file} {f.function} {f.code or ''}" for f in own[-2:])
    return frame if _RE["plain"].search(code) and _RE["inside_attention"].search(around) else None
