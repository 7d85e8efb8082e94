"""A rung as a plain training loop: no Trainer and no accelerate."""

from __future__ import annotations

from dataclasses import replace

from oomdoctor.records.config import TrainConfig
from oomdoctor.stacks.rung import StackRung, not_in
from oomdoctor.stacks.scripts import data, parts
from oomdoctor.stacks.scripts import model as models
from oomdoctor.stacks.scripts.code import call, literal
from oomdoctor.stacks.scripts.model import Part
from oomdoctor.stacks.scripts.optimizers import optimizer
from oomdoctor.stacks.scripts.said import check_said

_LOADER = """loader = DataLoader(
    packed_rows(args.data, tokenizer),
    batch_size=MICRO_BATCH_SIZE,
    shuffle=True,
    drop_last=True,
    collate_fn=collate,
)"""
_STEPS_LEFT = """steps_of_epoch = len(loader) // ACCUMULATION_STEPS
steps = args.epochs * steps_of_epoch
if not steps:
    raise SystemExit(f"{args.data} has fewer rows than one optimizer step needs")
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)"""


def render(rung: StackRung) -> str:
    """The script.

    Raises:
        OomDoctorError: a plain loop cannot express the rung (exit 3).
    """
    config = rung.config
    _check(rung)
    if not rung.epochs.is_integer():  # the loop has whole epochs
        rung = replace(rung, beside={**rung.beside, "epochs": 1})
    found = [
        models.tokenizer(rung),
        models.loading(rung),
        models.adapter(config),
        models.float8(config),
        models.liger(config),
        _placed(config),
        _checkpointing(rung),
        models.part_checkpointing(config),
        Part("model.train()"),
        optimizer(rung),
    ]
    functions = [function for part in found for function in part.functions]
    names = [
        *parts.ARGUMENT_IMPORTS,
        *data.TEXT.names,
        *parts.COLLATE_IMPORTS,
        "torch.utils.data:DataLoader",
        "collections.abc:Iterator",
        *(f"itertools:{name}" for name in ("chain", "islice", "pairwise")),
        *(name for part in found for name in part.names),
    ]
    body = [
        "args = parse_arguments()",
        'device = torch.device("cuda" if torch.cuda.is_available() else "cpu")',
        *(part.body for part in found),
        _LOADER,
        _STEPS_LEFT,
        *(["scaler = torch.amp.GradScaler(device.type)"] if _scaled(config) else []),
        _loop(config),
        "model.save_pretrained(args.output)",
        "tokenizer.save_pretrained(args.output)",
    ]
    return parts.script(
        rung,
        "plain PyTorch",
        names,
        [
            parts.arguments(rung),
            *data.TEXT.functions,
            parts.COLLATE,
            _READ_AHEAD,
            _micro_step(config),
            *functions,
            parts.main(body),
        ],
        "python train.py --data train.jsonl",
    )


def _check(rung: StackRung) -> None:
    check_said(rung, "pytorch")
    if rung.config.offload != "none":
        instead = "use --to trl" if rung.config.offload == "activations" else "use --to deepspeed"
        raise not_in("pytorch", f"offload = {rung.config.offload}", instead)


def _scaled(config: TrainConfig) -> bool:
    return config.autocast_dtype == "float16"


def _placed(config: TrainConfig) -> Part:
    """Quantized weights are made on the device; others are moved there."""
    return Part("" if config.quantization != "none" else "model.to(device)")


def _checkpointing(rung: StackRung) -> Part:
    settings = models.checkpointing_settings(rung)
    if settings is None:
        return Part()
    new = models.renamed_checkpointing(rung)
    start = "activation_checkpointing" if new else "gradient_checkpointing"
    inner = {"use_reentrant": settings.pop("use_reentrant")}
    arguments = {f"{start}_kwargs": literal(inner)} | {k: literal(v) for k, v in settings.items()}
    return Part(call(f"model.{start}_enable", arguments, indent=4))


def _micro_step(config: TrainConfig) -> str:
    forward = "loss = model(**micro, num_items_in_batch=predicted).loss"
    if config.autocast_dtype != "none":
        precision = f"torch.autocast(predicted.device.type, dtype=torch.{config.autocast_dtype})"
        forward = f"with {precision}:\n        {forward}"
    scaler = "\n    scaler: torch.amp.GradScaler," if _scaled(config) else ""
    backward = "scaler.scale(loss).backward()" if _scaled(config) else "loss.backward()"
    return f"""
def micro_step(
    model: torch.nn.Module,
    micro: dict[str, torch.Tensor],
    predicted: torch.Tensor,{scaler}
) -> torch.Tensor:
    \"\"\"The loss of a micro-batch, after its backward pass.

    It is divided by the number of predicted tokens of the whole step, so the losses of all its
    micro-batches add up to the mean.
    \"\"\"
    {forward}
    value = loss.detach().clone()  # without its graph, which ends with this function
    {backward}
    return value
"""


_READ_AHEAD = """
def read_ahead(loader: DataLoader, device: torch.device) -> Iterator[dict[str, torch.Tensor]]:
    \"\"\"The micro-batches on the device; the next one is read while the device computes.\"\"\"
    for batch, _ in pairwise(chain(loader, [None])):
        yield {name: rows.to(device) for name, rows in batch.items()}
"""


def _loop(config: TrainConfig) -> str:
    compiled = "model.compile()\n" if config.compile else ""
    scaler = ", scaler" if _scaled(config) else ""
    step = "optimizer.step()"
    unscale = ""
    if _scaled(config):
        unscale = "scaler.unscale_(optimizer)\n        "
        step = "scaler.step(optimizer)\n        scaler.update()"
    return f"""\
{compiled}running = torch.tensor(0.0, device=device)  # the loss since the last line of the log
for _ in range(args.epochs):
    batches = read_ahead(loader, device)
    for _ in range(steps_of_epoch):
        step = list(islice(batches, ACCUMULATION_STEPS))
        predicted = sum((micro["labels"][:, 1:] != -100).sum() for micro in step).float()
        for micro in step:
            loss = micro_step(model, micro, predicted{scaler})
            running += loss
        {unscale}norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        {step}
        schedule.step()
        optimizer.zero_grad()
        done = schedule.last_epoch
        print(f"step {{done}}/{{steps}}: loss {{running:.3f}}, gradients {{norm:.3f}}", flush=True)
        running.zero_()"""
