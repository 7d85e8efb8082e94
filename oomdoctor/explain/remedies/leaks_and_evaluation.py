"""The remedies for what differs from step to step: leaks, long batches, evaluation."""

from __future__ import annotations

from oomdoctor.explain.remedies.row import Row, always, difference, rule

STEPS_ROWS: tuple[Row, ...] = (
    Row("detach", 0, "keep numbers, not tensors: what holds a loss holds its graph", always,
        rule("each kept loss keeps all activations of its step"),
        {"pytorch": "total += loss.item()  # or loss.detach()"}),
    Row("empty_lists", 0, "move kept outputs off the card, or drop them each step", always,
        rule("a list of outputs grows by one batch a step"),
        {"pytorch": "outputs.append(output.detach().cpu())"}),
    Row("zero_grad_none", 0, "free gradients after the step",
        lambda case: not case.shows(r"transformers/trainer\.py"),
        rule("gradients that are only set to zero keep their memory"),
        {"pytorch": "optimizer.zero_grad(set_to_none=True)"}),
    Row("longest_first", 0, "find out before the run: the longest batch first", always,
        rule("if that one fits, all fit"),
        {"pytorch": 'dataset = dataset.sort("length", reverse=True)  # for one step',
         "transformers": 'TrainingArguments(train_sampling_strategy="group_by_length")  # the '
                         "longest batch first; transformers 4: group_by_length=True"}),
    Row("reduce_logits", 0, "reduce the logits before they are gathered",
        lambda case: case.phase == "eval",
        rule("from vocabulary-wide rows to one number a token"),
        {"transformers": "Trainer(..., preprocess_logits_for_metrics=lambda logits, labels: "
                         "logits.argmax(-1))"}),
    Row("loss_only", 1, "evaluate the loss only", lambda case: case.phase == "eval",
        rule("no predictions are kept"),
        {"transformers": "TrainingArguments(prediction_loss_only=True)"}),
    Row("eval_to_host", 2, "move predictions to host memory every few steps",
        lambda case: case.phase == "eval" and case.setup.eval_accumulation_steps is None,
        rule("the card is relieved, host memory fills instead"),
        {"transformers": "TrainingArguments(eval_accumulation_steps=8)"}),
    Row("smaller_eval", 1, "smaller evaluation batch",
        lambda case: case.phase == "eval" and case.setup.eval_batch_size != 1,
        lambda case: difference(case, {}, "no gradient is involved; only speed changes", 0.5),
        {"transformers": "TrainingArguments(per_device_eval_batch_size=1)",
         "trl": "SFTConfig(per_device_eval_batch_size=1)",
         "pytorch": "DataLoader(eval_set, batch_size=1)"},
        "the default is 8, whatever the training batch"),
    Row("no_grad", 0, "evaluate and generate without gradients",
        lambda case: not case.shows(r"train|backward|loss|transformers/generation") and case.grads,
        rule("otherwise what the layers make is kept for a backward pass that never comes"),
        {"pytorch": "with torch.inference_mode(): ..."}),
)  # fmt: skip
