"""Branches that an unknown value decides: which may change memory, and the way that needs more.

A branch that only prints, counts, keeps a number or saves changes nothing. Where one side works and
the other does not, the side that works needs more, and going on needs more than leaving. What
remains is tried the way that zeros do not go.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from oomdoctor.analysis.own_code import place_of
from oomdoctor.commands.run import places
from oomdoctor.commands.run.flow import BRANCHES, Branch, Flow, Reached, given_at, read_at
from oomdoctor.commands.run.places import BULK, Record, name_of_call, only_moves, shown_file
from oomdoctor.records.report.run import UnknownBranch

Asked = dict[str, list[dict[str, Any]]]
"""What `unknown_reads.note_reads` takes: tests by the place of the read that decides them."""
_Around = ast.For | ast.While | ast.FunctionDef | ast.AsyncFunctionDef
_LEAVES = (ast.Break, ast.Continue, ast.Return, ast.Raise)
# Calls that allocate nothing on the device, by name; those that log or save are so by a part of it.
_HARMLESS = frozenset(
    {"print", "format", "str", "repr", "len", "isinstance", "type", "bool", "int", "abs", "range"}
    | {"min", "max", "sum", "time", "perf_counter", "strftime", "join", "exit", "write", "flush"}
    | {"info", "warning", "warn", "debug", "error", "exception", "isoformat", "items", "keys"}
    | {"add_scalar", "add_scalars", "set_description", "set_postfix", "state_dict", "mkdir", "dump"}
    | {"makedirs", "get_last_lr", "values", "lower", "upper", "get", "sqrt", "exp", "zip"}
)
_LOGS = ("log", "save", "print")
_SCHEDULES = ("sched", "warmup")
_CAST = frozenset({"float", "abs"})


@dataclass(frozen=True, slots=True)
class Decision:
    """A branch that may change memory, by the read that decides it.

    `word` is if or while. `expression` is its condition, in terms of `_number`, the value that is
    read, and `_0`, `_1`, ..., the values of `others`; it is empty where the value is a truth.
    `wanted` is how the condition or the truth comes out where more memory is needed; None: not as
    with zeros. `file` is where the condition is. `counts` says that a loop goes on until what it
    adds up is enough, so that no single value says how long.
    """

    word: str
    expression: str
    others: tuple[str, ...]
    wanted: bool | None
    file: str
    counts: bool = False


def decisions(read: Record, own_files: tuple[str, ...]) -> tuple[Decision, ...] | None:
    """The branches that may change memory and that a read decides; None if no branch was seen."""
    word = read["read"]
    if word not in ("number", "truth", "integer") or only_moves(read["inner_file"]):
        return None
    reached = _reached(read, own_files)
    if not reached:
        return None
    kept = (_decision(branch, word, read["count"]) for branch in reached)
    return tuple(decision for decision in kept if decision is not None)


def asked_of(reads: Sequence[Record], own_files: tuple[str, ...]) -> Asked:
    """The tests of the reads that decide about memory, for a second run."""
    asked: Asked = {}
    for read in reads:
        if read["open"]:
            tests = asked.setdefault(place_of(read["inner_file"], read["inner_line"]), [])
            for each in decisions(read, own_files) or ():
                test = {
                    "word": each.word,
                    "expression": each.expression,
                    "others": list(each.others),
                    "wanted": each.wanted,
                    "file": place_of(each.file, 0),
                }
                tests += [test] if test not in tests else []
    return {place: tests for place, tests in asked.items() if tests}


def unknown_branches(
    reads: Sequence[Record], own_files: tuple[str, ...]
) -> tuple[UnknownBranch, ...]:
    """The user's lines that may have decided something by an unknown value, most frequent first.

    Lines whose branches change no memory are left out.
    """
    counts: dict[tuple[str, int], int] = {}
    for read in reads:
        is_data = read["read"] in ("size", *BULK) or only_moves(read["inner_file"])
        if is_data or not places.may_decide(read["inner_file"], read["inner_line"]):
            continue
        if decisions(read, own_files) != ():
            place = (shown_file(read["file"]), read["line"])
            counts[place] = counts.get(place, 0) + read["count"]
    most_first = sorted(counts.items(), key=lambda item: -item[1])
    return tuple(UnknownBranch(file, line, count) for (file, line), count in most_first)


def _reached(read: Record, own_files: tuple[str, ...]) -> tuple[Reached, ...]:
    file, line, word = read["inner_file"], read["inner_line"], read["read"]
    own = file == read["file"]
    sources = read_at(file, line)
    reached: tuple[Reached, ...] = ()
    if sources:
        flow = Flow((file, *own_files) if own else (file,), set(sources), word)
        reached = flow.branches(within=None if own else sources[0])
    if reached or own:
        return reached
    code = places.code_at(read["file"], read["line"])
    heads = [] if code is None else list(places.parts_of(code))
    tests = [node.test for node in heads if isinstance(node, BRANCHES)]
    parts: set[ast.AST] = {part for test in tests for part in ast.walk(test)}
    given = parts or given_at(read["file"], read["line"])
    return Flow((read["file"], *own_files), given, word).branches()


def _decision(reached: Reached, word: str, count: int) -> Decision | None:
    node, test = reached.node, reached.node.test
    if any(name_of_call(part) in places.FINITE for part in ast.walk(test)):
        return None
    changes, wanted = _wanted(node, reached.file, count)
    if not changes:
        return None
    name = "while" if _is_loop(node, reached.file) else "if"
    if word == "truth":
        turned = wanted if wanted is None or not _is_negated(test) else not wanted
        return Decision(name, "", (), turned, reached.file)
    others: list[str] = []
    written = _Condition(reached, others).written(test)
    counts = _counts_up(reached)
    return Decision(name, ast.unparse(written), tuple(others), wanted, reached.file, counts)


def _counts_up(reached: Reached) -> bool:
    """Whether a loop adds the number up in a variable, by which it ends."""
    if not isinstance(reached.node, ast.While):
        return False
    names = {part.id for part in reached.numbers if isinstance(part, ast.Name)}
    targets: Sequence[ast.expr]
    for part in (part for each in reached.node.body for part in ast.walk(each)):
        if isinstance(part, ast.AugAssign):
            targets, used = [part.target], names
        elif isinstance(part, ast.Assign):
            targets = part.targets
            used = {each.id for each in ast.walk(part.value) if isinstance(each, ast.Name)}
        else:
            continue
        if any(isinstance(t, ast.Name) and t.id in names & used for t in targets):
            return True
    return False


def _wanted(node: Branch, file: str, count: int) -> tuple[bool, bool | None]:
    """Whether a branch may change memory, and the outcome of its test that needs more."""
    if isinstance(node, ast.IfExp):
        yes, no = _works([node.body]), _works([node.orelse])
        return yes or no, None if yes and no else yes
    yes, no = _works(node.body), _works(node.orelse)
    if isinstance(node, ast.While):
        return yes or no, True
    leaves, stays = _leaves(node.body), _leaves(node.orelse)
    if leaves and not stays:
        alone = count > 1 and _is_left_once(node, file)
        return (yes or no or not alone), None if yes else False
    if stays and not leaves:
        return True, None if no else True
    return yes or no, None if yes and no else yes


def _leaves(body: Sequence[ast.stmt]) -> bool:
    return any(isinstance(statement, _LEAVES) for statement in body)


def _is_left_once(node: ast.If, file: str) -> bool:
    """Whether the code after a branch that leaves ran, if the branch was come to several times.

    So it is with an error, and with a loop over something in no other loop and in no function.
    """
    if any(isinstance(statement, ast.Raise) for statement in node.body):
        return True
    if not any(isinstance(statement, ast.Break) for statement in node.body):
        return False
    around = _around(node, file)
    return len(around) == 1 and isinstance(around[0], ast.For)


def _is_loop(node: Branch, file: str) -> bool:
    """Whether a branch decides if a loop goes on that nothing else ends."""
    if isinstance(node, ast.While):
        return True
    if not isinstance(node, ast.If) or not _leaves((*node.body, *node.orelse)):
        return False
    around = _around(node, file)
    return bool(around) and isinstance(around[-1], ast.While)


def _around(inner: ast.AST, file: str) -> list[_Around]:
    """The loops and functions around a piece of code, from the outermost."""
    nodes = [n for n in ast.walk(places.tree_of(file) or inner) if isinstance(n, _Around)]
    holding = [n for n in nodes if n is not inner and any(p is inner for p in ast.walk(n))]
    return sorted(holding, key=lambda node: node.lineno)


def _works(body: Sequence[ast.AST]) -> bool:
    """Whether code may allocate on the device, or keep what would be freed."""
    return any(_may_allocate(part) for statement in body for part in _run(statement))


def _run(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of code that may matter; not what is printed, and not what counts."""
    if isinstance(node, ast.FunctionDef | ast.Lambda | ast.JoinedStr | ast.Raise | ast.Assert):
        return
    if isinstance(node, ast.AugAssign) and isinstance(node.value, ast.Constant):
        return
    yield node
    if not isinstance(node, ast.Call) or not _is_harmless(node):
        for child in ast.iter_child_nodes(node):
            yield from _run(child)


def _may_allocate(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return not _is_harmless(node)
    return isinstance(node, ast.BinOp | ast.Await | ast.Yield)


def _is_harmless(call: ast.Call) -> bool:
    name = name_of_call(call)
    if name in ("append", "add"):
        given = (name_of_call(value) for value in call.args)
        return all(word in places.NUMBERS or word in _HARMLESS for word in given)
    if name in _HARMLESS or name in places.NUMBERS or any(word in name for word in _LOGS):
        return True
    owner = ast.unparse(call.func).lower()
    return name == "step" and any(word in owner for word in _SCHEDULES)


def _is_negated(test: ast.expr) -> bool:
    """Whether a condition is true where the truth in it is not."""
    if isinstance(test, ast.BoolOp):
        return any(map(_is_negated, test.values))
    return isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)


class _Condition:
    """Writes a condition in terms of the number, and of `others`, which it fills."""

    def __init__(self, reached: Reached, others: list[str]) -> None:
        self._numbers, self._assigned = reached.numbers, reached.assigned
        self._others = others
        self._expanded: set[str] = set()  # in what was assigned to them they are the value before

    def written(self, node: ast.expr) -> ast.expr:
        if isinstance(node, ast.Name) and self._is_mask(node):
            self._expanded.add(node.id)
            result = self.written(self._assigned[node.id])
            self._expanded.remove(node.id)
            return result
        if self._is_number(node):
            return ast.Name("_number")
        if not self._is_about(node):
            return self._other(node)
        if isinstance(node, ast.BoolOp):
            about = [each for each in node.values if self._is_about(each)]
            written = [self.written(each) for each in about]
            return written[0] if len(written) == 1 else ast.BoolOp(node.op, written)
        if isinstance(node, ast.UnaryOp):
            return ast.UnaryOp(node.op, self.written(node.operand))
        if isinstance(node, ast.BinOp):
            return ast.BinOp(self.written(node.left), node.op, self.written(node.right))
        if isinstance(node, ast.Compare):
            right = [self.written(each) for each in node.comparators]
            return ast.Compare(self.written(node.left), node.ops, right)
        if name_of_call(node) in _CAST and isinstance(node, ast.Call) and node.args:
            return ast.Call(ast.Name(name_of_call(node)), [self.written(node.args[0])], [])
        return ast.Name("_number")  # such as math.exp(loss.item()): it grows with the number

    def _is_about(self, node: ast.expr) -> bool:
        return any(self._is_number(part) or self._is_mask(part) for part in ast.walk(node))

    def _is_number(self, node: ast.AST) -> bool:
        return node in self._numbers and not self._is_value_before(node)

    def _is_mask(self, node: ast.AST) -> bool:
        is_assigned = isinstance(node, ast.Name) and node.id in self._assigned
        return is_assigned and not self._is_value_before(node)

    def _is_value_before(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Name) and node.id in self._expanded

    def _other(self, node: ast.expr) -> ast.expr:
        text = ast.unparse(node)
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            return node
        if isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant):
            return node
        if name_of_call(node) == "float" and isinstance(node, ast.Call):
            return ast.Call(ast.Name("float"), node.args, [])
        plain = all(isinstance(p, ast.Name | ast.Attribute | ast.Load) for p in ast.walk(node))
        self._others.append(text if plain else "")
        return ast.Name(f"_{len(self._others) - 1}")
