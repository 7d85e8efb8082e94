"""How long what is left takes, from what finished work took."""

from __future__ import annotations

# Fewer finished pieces say too little about the others.
_EVIDENCE = 2
# Quicker pieces were not worked on: they were known, skipped or refused.
_AT_ONCE_S = 0.2
# A piece that takes longer than the others did goes on for about this share of its time so far.
_OVERDUE = 0.3


class Pace:
    """The times of pieces of work, some of which run side by side.

    Invariant: `_running` holds the pieces that have started and not ended, by name.
    """

    def __init__(self) -> None:
        self._running: dict[str, float] = {}
        self._took: list[float] = []
        self._side_by_side = 1

    @property
    def running(self) -> tuple[str, ...]:
        """The names of what is running, in the order in which it started."""
        return tuple(self._running)

    def start(self, name: str, now: float) -> None:
        """A piece begins."""
        self._running[name] = now
        self._side_by_side = max(self._side_by_side, len(self._running))

    def end(self, name: str, now: float) -> None:
        """A piece ends; one that never began was known before."""
        began = self._running.pop(name, now)
        if now - began >= _AT_ONCE_S:
            self._took.append(now - began)

    def remaining_s(self, left: int, now: float) -> float | None:
        """Seconds until all is done, if `left` pieces have not ended; None if unknown."""
        if len(self._took) < _EVIDENCE or not left:
            return None
        mean, waiting = sum(self._took) / len(self._took), max(left - len(self._running), 0)
        spent = [now - began for began in list(self._running.values())]
        rest = [max(mean - one, one * _OVERDUE) for one in spent]
        return max([(waiting * mean + sum(rest)) / self._side_by_side, *rest])
