"""Remedies for weights: how a model is loaded, and how many copies are on the GPU."""

from __future__ import annotations

from oomdoctor.explain.diagnosis.case import Case
from oomdoctor.explain.remedies.row import Effect, Row, changing, difference, rule, setting


def _wide_weights(case: Case) -> bool:
    known = case.setup.weights_dtype
    if known is not None:
        return known == "float32"
    return case.phase in ("load", "init") and case.setup.method != "qlora"


def _distributed(case: Case) -> bool:
    return (case.setup.world_size or 1) > 1


def _one_copy(case: Case) -> Effect:
    weights = case.term("weights") or case.term("quantized weights")
    if weights is None:
        return Effect(None, "rule", "one copy of the weights fewer")
    return Effect(weights.size_bytes, "arithmetic", f"one copy fewer: {weights.text()}")


def _half(case: Case) -> Effect:
    text = "2 bytes per parameter instead of 4"
    if case.sizes is None or case.setup.weights_dtype is not None:
        return difference(case, {"weights_dtype": "bfloat16"}, text)
    # The closed form uses the checkpoint's type, but the run may have loaded another one.
    saved = 2 * case.sizes.parameters
    return Effect(saved, "arithmetic", f"{case.sizes.parameters:,} x (4 - 2) bytes, if in 32 bits")


WEIGHT_ROWS: tuple[Row, ...] = (
    setting("half_weights", 1, "Load the weights in bfloat16", _wide_weights,
        _half,
        {"transformers": "AutoModelForCausalLM.from_pretrained(..., dtype=torch.bfloat16)",
         "trl": 'SFTConfig(model_init_kwargs={"dtype": "bfloat16"})',
         "pytorch": "model.to(torch.bfloat16)"},
        "torch_dtype= before transformers 4.56; training in pure bfloat16 loses a little accuracy",
        weights_dtype="bfloat16"),
    Row("quantized_load", 5, "Load the weights in 4 bits",
        lambda case: case.setup.method != "qlora" and case.setup.quantization is None
        and case.phase in ("load", "init", "generate"),
        changing("0.5 bytes per parameter instead of 2", method="qlora", quantization="nf4"),
        {"transformers": "AutoModelForCausalLM.from_pretrained(..., quantization_config="
                         "BitsAndBytesConfig(load_in_4bit=True))"}),
    Row("device_map", 3, "Spread the model across the GPUs and host memory",
        lambda case: case.phase in ("load", "init", "generate") and not _distributed(case),
        rule("layers that do not fit on this GPU go to the next one"),
        {"transformers": 'AutoModelForCausalLM.from_pretrained(..., device_map="auto")'},
        'for inference; replaces .to("cuda")'),
    Row("load_on_cpu", 0, "Load the file into host memory, then copy it into the model",
        lambda case: case.shows(r"torch\.load\(|load_state_dict|optimizer_and_scheduler"),
        rule("the copy from the file never reaches the GPU"),
        {"pytorch": 'torch.load(path, map_location="cpu", mmap=True)'}),
    Row("no_reference_copy", 1, "Drop the second copy of the model",
        lambda case: case.shows(r"ref_model|create_reference_model|deepcopy|dpo|kto"),
        lambda case: _one_copy(case),
        {"trl": "DPOConfig(precompute_ref_log_probs=True)  # or a peft_config: the base model "
                "is the reference"}),
)  # fmt: skip
