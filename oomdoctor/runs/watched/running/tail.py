"""The output of a command in bounded form: its start, and as much of its end."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

_HEAD_BYTES = 1 << 20  # settings are printed at the start
_TAIL_BYTES = 4 << 20  # and errors at the end


class Tail:
    """The bytes so far; what is in the middle is dropped."""

    def __init__(self) -> None:
        self._head: list[bytes] = []
        self._head_bytes = 0
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._cut = False

    def add(self, chunk: bytes) -> None:
        """Add what was written."""
        if self._head_bytes < _HEAD_BYTES:
            self._head.append(chunk)
            self._head_bytes += len(chunk)
            return
        self._tail.append(chunk)
        self._tail_bytes += len(chunk)
        while self._tail_bytes - len(self._tail[0]) > _TAIL_BYTES:
            self._tail_bytes -= len(self._tail.popleft())
            self._cut = True

    def chunks(self) -> Iterator[bytes]:
        """What was kept, in order; a line break where something is left out."""
        yield from self._head
        if self._cut:
            yield b"\n"
        yield from self._tail

    def text(self) -> str:
        """What was kept, as text."""
        return b"".join(self.chunks()).decode("utf-8", "replace")
