#!/usr/bin/env python3
"""Restate the settings of axolotl, LLaMA-Factory, ms-swift and torchtune from their wheels.

Most people who read a file do not have its program installed, so its names are restated. The wheels
are read as text, nothing of them is imported:

    pip download --no-deps axolotl==0.19.0 llamafactory==0.9.5 ms-swift==4.6.0 torchtune==0.6.1 \\
      -d WHEELS
    python scripts/build_stack_names.py WHEELS

It writes names, types and defaults to `tests/data/stacks/published/`, and the names alone to
`oomdoctor/data/stacks/published.json`.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests" / "data" / "stacks" / "published"
DATA = ROOT / "oomdoctor" / "data" / "stacks" / "published.json"
# Classes whose fields are settings at the top of a file.
ROOTS = {"axolotl": "AxolotlInputConfig", "llama-factory": None}
ARGUMENTS = ("model_args", "finetuning_args", "data_args", "training_args", "generating_args")


def main(folder: Path) -> None:
    """Read the wheels in a folder and write what they say."""
    wheels = {path.name.split("-")[0]: path for path in folder.glob("*.whl")}
    found = {
        "axolotl": axolotl(wheels["axolotl"]),
        "llama-factory": llama_factory(wheels["llamafactory"]),
        "ms-swift": ms_swift(wheels["ms_swift"]),
        "torchtune": torchtune(wheels["torchtune"]),
    }
    TESTS.mkdir(parents=True, exist_ok=True)
    for name, answer in found.items():
        text = json.dumps(answer, indent=1, sort_keys=True) + "\n"
        (TESTS / f"{name}.json").write_text(text)
    DATA.write_text(json.dumps(package_data(found), indent=1) + "\n")


def version_of(wheel: Path) -> str:
    """The version in the name of a wheel."""
    return wheel.name.split("-")[1]


def sources(wheel: Path, prefix: str) -> dict[str, str]:
    """The text of the Python files below a folder of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            name: archive.read(name).decode()
            for name in sorted(archive.namelist())
            if name.startswith(prefix) and name.endswith(".py")
        }


def classes(texts: dict[str, str]) -> dict[str, ast.ClassDef]:
    """The classes of some modules by name."""
    return {
        node.name: node
        for text in texts.values()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef)
    }


def fields(node: ast.ClassDef) -> Iterator[tuple[str, dict[str, Any]]]:
    """The annotated fields of a class with type and default, as text."""
    for line in node.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            yield (
                line.target.id,
                {"type": ast.unparse(line.annotation), "default": default(line.value)},
            )


def default(value: ast.expr | None) -> Any:
    """A default that is a literal; None for others."""
    if isinstance(value, ast.Call):
        named = {word.arg: word.value for word in value.keywords}
        value = named.get("default") or (value.args[0] if value.args else None)
    if value is None:
        return None
    try:
        return ast.literal_eval(value)
    except ValueError:
        word = ast.unparse(value)
        return word.rpartition(".")[2].lower() if re.fullmatch(r"\w+\.[A-Z0-9]+", word) else None


def with_bases(name: str, known: dict[str, ast.ClassDef]) -> dict[str, dict[str, Any]]:
    """The fields of a class and of its bases."""
    found: dict[str, dict[str, Any]] = {}
    for base in known[name].bases:
        word = ast.unparse(base)
        if word in known:
            found |= with_bases(word, known)
    return found | dict(fields(known[name]))


def axolotl(wheel: Path) -> dict[str, Any]:
    """axolotl's pydantic schema, with the plugins for Liger and cut cross-entropy."""
    known = classes(sources(wheel, "axolotl/utils/schemas/"))
    names = with_bases("AxolotlInputConfig", known)
    names |= {f"fsdp_config.{key}": one for key, one in fields(known["FSDPConfig"])}
    for plugin in ("liger", "cut_cross_entropy"):
        inside = classes(sources(wheel, f"axolotl/integrations/{plugin}/args.py"))
        for node in inside.values():
            names |= dict(fields(node))
    return {"version": version_of(wheel), "settings": names}


def llama_factory(wheel: Path) -> dict[str, Any]:
    """The dataclasses of LLaMA-Factory; those of transformers come on top."""
    texts = sources(wheel, "llamafactory/hparams/")
    names: dict[str, Any] = {}
    for part in ARGUMENTS:
        for node in classes({part: texts[f"llamafactory/hparams/{part}.py"]}).values():
            names |= dict(fields(node))
    return {"version": version_of(wheel), "settings": names}


def ms_swift(wheel: Path) -> dict[str, Any]:
    """The dataclasses behind `swift sft` and `swift rlhf`; those of TRL come on top."""
    files = ("swift/arguments/", "swift/trainers/arguments.py", "swift/rlhf_trainers/args_mixin.py")
    known = classes(
        {path: text for prefix in files for path, text in sources(wheel, prefix).items()}
    )
    return {"version": version_of(wheel), "settings": with_bases("RLHFArguments", known)}


def torchtune(wheel: Path) -> dict[str, Any]:
    """The keys of all configurations that torchtune ships, and the models that they are for."""
    import yaml

    names: dict[str, Any] = {}
    models: dict[str, str] = {}
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            if not re.fullmatch(r"recipes/configs/.*/.*(full|lora|qlora).*\.yaml", name):
                continue
            text = archive.read(name).decode()
            values = yaml.safe_load(text)
            for key, value in flat(values):
                kinds = names.setdefault(key, {"types": []})["types"]
                kinds.append(type(value).__name__) if type(value).__name__ not in kinds else None
            builder = values.get("model", {}).get("_component_", "")
            downloaded = re.search(r"tune download ([\w.-]+/[\w.-]+)", text)
            word = re.sub(r"\.q?lora_", ".", builder.removeprefix("torchtune.models."))
            if downloaded and builder and "vision" not in builder:
                models.setdefault(word, downloaded[1])
    for builder, model in built(sources(wheel, "torchtune/models/")).items():
        models.setdefault(builder, model)
    return {"version": version_of(wheel), "settings": names, "models": models}


def built(texts: dict[str, str]) -> dict[str, str]:
    """The model that torchtune names in the docstring of each builder without LoRA."""
    found: dict[str, str] = {}
    for path, text in texts.items():
        if not path.endswith("_model_builders.py"):
            continue
        for node in ast.parse(text).body:
            if not isinstance(node, ast.FunctionDef):
                continue
            said = ast.get_docstring(node) or ""
            named = re.search(r"huggingface\.co/([\w-]+/[\w.-]*\w)", said)
            whole = not re.search(r"^q?lora_|_tokenizer$|_reward_", node.name)
            if named and whole and "vision" not in path:
                found[f"{Path(path).parent.name}.{node.name}"] = named[1]
    return found


def flat(values: dict[str, Any], head: str = "") -> Iterator[tuple[str, Any]]:
    """Nested settings as dotted paths."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from flat(value, f"{head}{key}.")
        else:
            yield f"{head}{key}", value


def package_data(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The names of settings, and the model of each builder below torchtune.models.

    Builders are without lora_ and qlora_, with the model that torchtune downloads for its own
    configurations, else the one of the docstring.
    """
    names = {name: sorted(answer["settings"]) for name, answer in found.items()}
    return names | {"torchtune models": dict(sorted(found["torchtune"]["models"].items()))}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
