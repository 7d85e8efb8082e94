"""Whether a floating-point number that a line reads from the device may become a size.

A size is an integer, so somewhere such a number is rounded: `int(x.item())`. Or elements are chosen
by it: `rows[scores > 0.5]`.
"""

from __future__ import annotations

from functools import cache

from oomdoctor.commands.run.flow import Flow, given_at, read_at


@cache
def may_become_size(
    file: str, line: int, *, own: bool, files: tuple[str, ...] = (), read: str = "number"
) -> bool:
    """Whether a number that is read at a line is rounded there or later, and not only for a log.

    Or whether it chooses elements of a list or an array. `files` are the user's other files. In a
    file that is not the user's own, only the function of the line is looked at: names of attributes
    mean too much in a large library. `read` says what is read; of one of `BULK`, each element may
    decide.
    """
    sources = read_at(file, line)
    if not sources:
        return False
    flow = Flow((file, *files) if own else (file,), set(sources), read)
    return flow.ends_in_size(within=None if own else sources[0])


@cache
def result_may_become_size(
    file: str, line: int, files: tuple[str, ...], read: str = "number"
) -> bool:
    """The same of what a library that reads the number returns to a line of the user's."""
    return Flow((file, *files), given_at(file, line), read).ends_in_size()
