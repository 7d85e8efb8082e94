"""Run a script with other values of its own settings, as its authors did by editing the file.

    settings.py SCRIPT NAME=VALUE ... -- arguments

A setting is a name that the script sets at its top level, once. What the script derives from it
follows. Exit code 2 if the script has no such setting.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path


def with_settings(text: str, settings: dict[str, str]) -> ast.Module:
    """The code of a script with other settings; KeyError names those that it does not set once."""
    tree = ast.parse(text)
    left = dict(settings)
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(name)]) if name in left:
                node.value = ast.parse(left.pop(name), mode="eval").body
    if left:
        raise KeyError(", ".join(sorted(left)))
    return ast.fix_missing_locations(tree)


def main() -> None:
    script, *words = sys.argv[1:]
    cut = words.index("--")
    settings = dict(word.split("=", 1) for word in words[:cut])
    try:
        tree = with_settings(Path(script).read_text(), settings)
    except KeyError as error:
        print(f"error: {script} sets no {error.args[0]}", file=sys.stderr)
        sys.exit(2)
    sys.argv = [script, *words[cut + 1 :]]
    sys.path[0] = str(Path(script).parent)
    exec(compile(tree, script, "exec"), {"__name__": "__main__", "__file__": script})


if __name__ == "__main__":
    main()
