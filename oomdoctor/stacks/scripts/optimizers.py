"""The optimizers that a plain loop can build: what transformers' Trainer makes for each name."""

from __future__ import annotations

from dataclasses import dataclass

from oomdoctor.records.facts.optimizers import canonical
from oomdoctor.stacks.rung import StackRung, not_in
from oomdoctor.stacks.scripts.code import call, literal
from oomdoctor.stacks.scripts.model import Part


@dataclass(frozen=True, slots=True)
class Built:
    """How an optimizer is built: its class, as it is imported, and its keyword arguments.

    `eight_bit`: bitsandbytes would keep 8-bit states for embeddings, too.
    """

    source: str
    arguments: tuple[tuple[str, object], ...] = ()
    eight_bit: bool = False


BUILT = {
    "adamw_torch_fused": Built("torch:AdamW", (("fused", True),)),
    "adamw_torch": Built("torch:AdamW"),
    "sgd": Built("torch:SGD"),
    "adagrad": Built("torch:Adagrad"),
    "rmsprop": Built("torch:RMSprop"),
    "adafactor": Built(
        "transformers:Adafactor", (("scale_parameter", False), ("relative_step", False))
    ),
    "adamw_bnb_8bit": Built("bitsandbytes:AdamW8bit", eight_bit=True),
    "paged_adamw_8bit": Built("bitsandbytes:PagedAdamW8bit", eight_bit=True),
    "paged_adamw_32bit": Built("bitsandbytes:PagedAdamW32bit"),
    "lion_8bit": Built("bitsandbytes:Lion8bit", eight_bit=True),
    "lion_32bit": Built("bitsandbytes:Lion32bit"),
    "paged_lion_8bit": Built("bitsandbytes:PagedLion8bit", eight_bit=True),
    "paged_lion_32bit": Built("bitsandbytes:PagedLion32bit"),
    "ademamix_8bit": Built("bitsandbytes:AdEMAMix8bit", eight_bit=True),
}
_EMBEDDINGS = '''
def keep_embeddings_in_32_bits(model: torch.nn.Module) -> None:
    """8-bit states are too coarse for embeddings."""
    manager = bitsandbytes.optim.GlobalOptimManager.get_instance()
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            manager.register_module_override(module, "weight", {"optim_bits": 32})
'''
_GROUPS = '''
def parameter_groups(model: torch.nn.Module) -> list[dict[str, object]]:
    """Matrices decay; biases and norms never do."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [p for p in trained if p.dim() > 1], "weight_decay": 0.0},
        {"params": [p for p in trained if p.dim() <= 1], "weight_decay": 0.0},
    ]
'''


def optimizer(rung: StackRung) -> Part:
    """`optimizer = ...` in a plain loop.

    Raises:
        OomDoctorError: a plain loop cannot build it (exit 3).
    """
    name = canonical(rung.config.optimizer)
    built = BUILT.get(name)
    if built is None:
        raise not_in("pytorch", f"the optimizer {name}", "use --to trainer, which makes it by name")
    library, kind = built.source.split(":")
    prefix = {"torch": "torch.optim.", "bitsandbytes": "bitsandbytes.optim."}.get(library, "")
    settings = {"lr": "args.learning_rate", **{k: literal(v) for k, v in built.arguments}}
    body = call(f"optimizer = {prefix}{kind}", settings, "parameter_groups(model)", indent=4)
    names = [built.source if library == "transformers" else library]
    functions = [_GROUPS]
    if built.eight_bit:
        names.append("bitsandbytes")
        functions.append(_EMBEDDINGS)
        body += "\nkeep_embeddings_in_32_bits(model)"
    return Part(body, tuple(names), tuple(functions))
