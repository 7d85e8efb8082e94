"""What each call in a training script says: arguments, adapters, the model, an optimizer.

Also the few attributes of libraries that scripts set.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from oomdoctor.package_data import data_of
from oomdoctor.records.report.user_training import NotTaken
from oomdoctor.stacks.names.row import put, shown
from oomdoctor.stacks.programs.arguments import OUTSIDE_ARGUMENTS, SIZES
from oomdoctor.stacks.programs.trl import CONFIGS, NOT_ITS_STEP, OTHER_CONFIGS, TRAINERS
from oomdoctor.stacks.programs.unsloth import CLASSES as UNSLOTH_CLASSES
from oomdoctor.stacks.reading.python_values import Place, Source, UnreadError, name_of
from oomdoctor.stacks.scripts.model import BUILT

_MESHES = {"ParallelismConfig": "parallelism_config", "DistributedConfig": "distributed_config"}
_SECOND = "the first one counts"
LOADED_BY_TRL = "model loaded by TRL"
"""Among the classes of a script: a trainer gets the name of the model."""
_MODEL_NAMES = ("ForCausalLM", "ForMaskedLM", "ForSequenceClassification", "ForSeq2SeqLM",
               "ForImageTextToText", "ForConditionalGeneration", "Model")  # fmt: skip
_ARGUMENTS = ("TrainingArguments", "Seq2SeqTrainingArguments", *CONFIGS, *OTHER_CONFIGS)
# Keywords of peft's configuration -> their names in files.
LORA = {"r": "lora_r", "target_modules": "lora_target_modules"}
# A class -> the optimizer that the Trainer calls by this name.
_OPTIMIZERS = {built.source.split(":")[1]: name for name, built in BUILT.items()} | {
    "Adam": "adamw_torch",
    "Adam8bit": "adamw_bnb_8bit",
}
NOT_READ = "an expression; scripts are read, never run"


@dataclass(slots=True)
class Script:
    """What the script at `path` says: settings by their names in files, with their places.

    `calls` are the calls that take the settings of a kind: "arguments", "lora", "model",
    "quantization", a name of `_MESHES`, "trainer" or "optimizer". `parsed` is the class of the
    trainer's arguments that the script's command line fills.
    """

    path: str
    values: dict[str, object] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)
    unread: list[NotTaken] = field(default_factory=list)
    calls: dict[str, ast.Call] = field(default_factory=dict)
    classes: set[str] = field(default_factory=set)
    parsed: str | None = None


class Reading:
    """Walks a script once; the names it binds are known before any call is looked at."""

    def __init__(self, path: str, text: str, tree: ast.Module) -> None:
        self._tree = tree
        self._source = Source(text, tree)
        self.script = Script(path)
        self._loader: ast.Call | None = None

    def read(self) -> Script:
        nodes = (node for node in ast.walk(self._tree) if isinstance(node, ast.Call | ast.Assign))
        for node in sorted(nodes, key=lambda node: (node.lineno, node.col_offset)):
            if isinstance(node, ast.Assign):
                self._assigned(node)
                continue
            name = name_of(node.func)
            self.script.classes.update(name.split("."))
            reader = _reader(name)
            if reader is not None:
                reader(self, node)
        self._sizes()
        made = self.script.calls.keys() & _MESHES.values()  # read where it is made
        self.script.unread = [item for item in self.script.unread if item.name not in made]
        return self.script

    # What each call says.

    def arguments(self, call: ast.Call) -> None:
        """`TrainingArguments` and the configurations of TRL."""
        if not self._first("arguments", call):
            return
        kind = _last(call)
        objective = CONFIGS.get(kind, "default")
        if objective != "default":
            self._say("objective", objective, call)
        if kind in OTHER_CONFIGS:
            self._say("objective", "default", call)  # `beta` alone would say DPO
            self._leave(kind, f"{kind}(...)", call, NOT_ITS_STEP)
        self._keywords(call)

    def lora(self, call: ast.Call) -> None:
        """peft's `LoraConfig`, or Unsloth's `get_peft_model`."""
        if not self._first("lora", call):
            return
        self.script.values["use_peft"] = True
        self._keywords(call, LORA, skip=("model", "random_state", "task_type"))

    def quantization(self, call: ast.Call) -> None:
        """transformers' `BitsAndBytesConfig`."""
        if self._first("quantization", call):
            self._keywords(call)

    def parallelism(self, call: ast.Call) -> None:
        """accelerate's `ParallelismConfig`, or transformers' `DistributedConfig`."""
        kind = _MESHES[_last(call)]
        if self._first(kind, call):
            names = [keyword.arg for keyword in call.keywords if keyword.arg]
            named = {name: f"{kind}.{name}" for name in names}
            self._keywords(call, named, skip=("sp_handler",))  # it has the attention again

    def model(self, call: ast.Call) -> None:
        """`from_pretrained` of a model."""
        kind = name_of(call.func).split(".")[-2]
        if "Peft" in kind or not self._first("model", call):
            return
        if call.args:
            self._take("model_name_or_path", call.args[0])
        self._keywords(call, {"model_name": "model_name_or_path"}, skip=(
            "quantization_config", "device_map", "config", "token", "cache_dir"))  # fmt: skip

    def trainer(self, call: ast.Call) -> None:
        """TRL's trainers, which load a model themselves if they get its name."""
        self.script.calls.setdefault("trainer", call)
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        node = given.get("model") or (call.args[0] if call.args else None)
        if node is None or "model_name_or_path" in self.script.values:
            return
        with suppress(UnreadError):
            if isinstance(self._source.value(node), str):
                self._take("model_name_or_path", node)
                self.script.classes.add(LOADED_BY_TRL)

    def optimizer(self, call: ast.Call) -> None:
        """An optimizer that the script makes itself."""
        self.script.calls["optimizer"] = call
        kind = _last(call)
        fused = any(
            keyword.arg == "fused" and ast.unparse(keyword.value) == "True"
            for keyword in call.keywords
        )
        if kind == "AdamW" and "bitsandbytes" not in name_of(call.func):
            self._say("optim", "adamw_torch_fused" if fused else "adamw_torch", call)
            return
        self._say("optim", _OPTIMIZERS[kind], call)

    def autocast(self, call: ast.Call) -> None:
        """Mixed precision in a loop."""
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        node = given.get("dtype") or (call.args[1] if len(call.args) > 1 else None)
        try:
            word = "float16" if node is None else str(self._source.value(node))
        except UnreadError:
            self._unread("autocast", node or call)
            return
        if word in ("bfloat16", "float16"):
            self._say("bf16" if word == "bfloat16" else "fp16", True, call)

    def said(self, call: ast.Call) -> None:
        """Calls that say a setting by being there, or with a keyword."""
        kind, names = _last(call), _TAKES.get(_last(call), {})
        for name, value in _SAYS.get(kind, {}).items():
            self._say(name, value, call)
        for keyword in call.keywords:
            if keyword.arg is not None and keyword.arg in names:
                self._take(names[keyword.arg], keyword.value)

    def only_argument(self, call: ast.Call) -> None:
        """Functions of one argument that set something for the whole process."""
        for node in (*call.args, *(keyword.value for keyword in call.keywords)):
            self._take(_ONLY_ARGUMENT[_last(call)], node)

    def parser(self, call: ast.Call) -> None:
        """What fills the arguments of a trainer from the command line."""
        named = [node.id for node in ast.walk(call) if isinstance(node, ast.Name)]
        self.script.parsed = next((name for name in named if name in _ARGUMENTS), None)

    def cast(self, call: ast.Call) -> None:
        """The function of our own scripts that casts what is trained, or a part of it back."""
        if len(call.args) > 2:
            self._say("adapter_dtype", "default", call)
        elif len(call.args) == 2:
            self._take("adapter_dtype", call.args[1])

    def environment(self, call: ast.Call) -> None:
        """A variable of the allocator."""
        if len(call.args) == 2 and "ALLOC_CONF" in ast.unparse(call.args[0]):
            self._take("PYTORCH_CUDA_ALLOC_CONF", call.args[1])

    def loader(self, call: ast.Call) -> None:
        """What makes the batches of a loop; the first is that of the training."""
        self._loader = self._loader or call

    # The parts.

    def _assigned(self, node: ast.Assign) -> None:
        """Attributes that a script sets."""
        for target in node.targets:
            if (name := _ASSIGNED.get(name_of(target))) is not None:
                self._take(name, node.value)

    def _first(self, kind: str, call: ast.Call) -> bool:
        if self.script.calls.setdefault(kind, call) is call:
            return True
        name = name_of(call.func)
        again = kind != "model"  # scripts load a model again to try what they have trained
        self._leave(name, f"a second {name}", call, _SECOND, matters=again)
        return False

    def _keywords(
        self, call: ast.Call, names: Mapping[str, str] | None = None, skip: tuple[str, ...] = ()
    ) -> None:
        for keyword in call.keywords:
            if keyword.arg is None:
                self._unread(f"**{ast.unparse(keyword.value)}", keyword.value)
            elif keyword.arg not in skip:
                self._take((names or {}).get(keyword.arg, keyword.arg), keyword.value)

    def _take(self, name: str, node: ast.expr) -> None:
        """A setting; of a dict each entry is one."""
        if isinstance(node, ast.Dict) and node.keys:
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    self._take(f"{name}.{key.value}", value)
                else:
                    self._unread(name, value)
            return
        try:
            put(self.script.values, name, self._source.value(node))
        except UnreadError:
            self._unread(name, node)
        else:
            self.script.places[name] = self._source.place(self._source.origin(node))

    def _say(self, name: str, value: object, call: ast.Call) -> None:
        put(self.script.values, name, value)
        self.script.places.setdefault(name, self._source.place(call))

    def _unread(self, name: str, node: ast.AST) -> None:
        self._leave(name, shown(ast.unparse(node)), node, NOT_READ)

    def _leave(
        self, name: str, source: str, node: ast.AST, reason: str, *, matters: bool = True
    ) -> None:
        line = getattr(node, "lineno", 1)
        left = NotTaken(name, source, self.script.path, line, reason, matters)
        self.script.unread.append(left)

    def _sizes(self) -> None:
        """Sizes of a loop: constants and options with a usual name."""
        by_trainer = "arguments" in self.script.calls
        for name, node in self._source.names.items():
            setting = SIZES.get(name.lower())
            if setting is None or self.script.values.get(setting) is not None:
                continue
            whole = isinstance(node, ast.Constant) and isinstance(node.value, int)
            if whole and (setting in OUTSIDE_ARGUMENTS or not by_trainer):
                self.script.values[setting] = self._source.value(node)
                self.script.places[setting] = self._source.place(node)
        if self._loader is not None and not by_trainer and _BATCH not in self.script.values:
            for keyword in self._loader.keywords:
                with suppress(UnreadError):
                    if keyword.arg == "batch_size" and self._source.value(keyword.value):
                        self._take(_BATCH, keyword.value)


_BATCH = "per_device_train_batch_size"
_CALLS = data_of("stacks/calls.toml")
_SAYS: dict[str, dict[str, object]] = _CALLS["says"]
_TAKES: dict[str, dict[str, str]] = _CALLS["takes"]
_ONLY_ARGUMENT: dict[str, str] = _CALLS["only_argument"]
_ASSIGNED: dict[str, str] = _CALLS["assigned"]
_BY_END: dict[str, Callable[[Reading, ast.Call], None]] = {
    **dict.fromkeys(_ARGUMENTS, Reading.arguments),
    **dict.fromkeys(TRAINERS, Reading.trainer),
    **dict.fromkeys(("HfArgumentParser", "TrlParser"), Reading.parser),
    "LoraConfig": Reading.lora,
    **dict.fromkeys((f"{name}.get_peft_model" for name in UNSLOTH_CLASSES), Reading.lora),
    "BitsAndBytesConfig": Reading.quantization,
    **dict.fromkeys(_MESHES, Reading.parallelism),
    "autocast": Reading.autocast,
    **dict.fromkeys(
        {"torch.compile", "model.compile", *_SAYS, *_TAKES} - {"compile"}, Reading.said
    ),
    **dict.fromkeys(_ONLY_ARGUMENT, Reading.only_argument),
    "DataLoader": Reading.loader,
    "cast_trained": Reading.cast,
    "environ.setdefault": Reading.environment,
    **dict.fromkeys(_OPTIMIZERS, Reading.optimizer),
}


def _reader(name: str) -> Callable[[Reading, ast.Call], None] | None:
    """What reads a call of this name."""
    parts = name.split(".")
    if parts[-1] == "from_pretrained" and len(parts) > 1:
        kind = parts[-2]
        return Reading.model if any(word in kind for word in _MODEL_NAMES) else None
    return _BY_END.get(".".join(parts[-2:])) or _BY_END.get(parts[-1])


def _last(call: ast.Call) -> str:
    """The name of what is called, without its modules."""
    return name_of(call.func).rpartition(".")[2]
