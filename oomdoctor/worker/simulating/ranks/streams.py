"""Streams and events of a device that does nothing: only which stream allocates is known."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from oomdoctor.worker.tracing.trace import AllocationTrace


class Stream:
    """A stream by its number; 0 is the default one."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.number == self.number

    def __hash__(self) -> int:
        return self.number

    def wait_event(self, event: Any) -> None:
        """Nothing runs, so there is nothing to wait for."""

    def wait_stream(self, stream: Any) -> None:
        """The same."""

    def synchronize(self) -> None:
        """The same."""

    def record_event(self, event: Any = None) -> Event:
        return event or Event()


class Event:
    """A moment that is always past."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        """Nothing runs."""

    def wait(self, stream: Any = None) -> None:
        """Nothing runs."""

    def synchronize(self) -> None:
        """Nothing runs."""

    def query(self) -> bool:
        return True


_Stream = Stream


class Streams:
    """What FSDP2 takes for `torch.cuda`; allocations of a trace are on the stream that it enters.

    Invariant: streams are numbered from 1 in the order of their making.
    """

    Event = Event

    def __init__(self, trace: AllocationTrace) -> None:
        self._trace = trace
        self._made = 0

    def Stream(self, *_: Any, **__: Any) -> _Stream:  # noqa: N802 - the name in torch.cuda
        self._made += 1
        return _Stream(self._made)

    def current_stream(self, *_: Any) -> _Stream:
        return _Stream(self._trace.stream)

    @contextmanager
    def stream(self, stream: _Stream) -> Iterator[None]:
        before, self._trace.stream = self._trace.stream, stream.number
        try:
            yield
        finally:
            self._trace.stream = before

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def set_device(self, _: Any) -> None:
        """There is one device."""

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def synchronize(self, *_: Any) -> None:
        """Nothing runs."""
