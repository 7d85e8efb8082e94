"""Remedies for memory that changes from step to step: leaks, long batches, evaluation."""

from __future__ import annotations

from oomdoctor.explain.remedies.row import Row, always, difference, rule

LEAK_ROWS: tuple[Row, ...] = (
    Row("detach", 0, "Keep numbers, not tensors: a stored loss keeps its whole graph", always,
        rule("each stored loss keeps all activations of its step"),
        {"pytorch": "total += loss.item()  # or loss.detach()"}),
    Row("empty_lists", 0, "Move stored outputs to the CPU, or drop them after each step", always,
        rule("a list of outputs grows by one batch per step"),
        {"pytorch": "outputs.append(output.detach().cpu())"}),
    Row("zero_grad_none", 0, "Free the gradients after each step",
        lambda case: not case.shows(r"transformers/trainer\.py"),
        rule("gradients that are only zeroed keep their memory"),
        {"pytorch": "optimizer.zero_grad(set_to_none=True)"}),
    Row("longest_first", 0, "Run the longest batch first, to fail early", always,
        rule("if that batch fits, all of them fit"),
        {"pytorch": 'dataset = dataset.sort("length", reverse=True)  # for one step',
         "transformers": 'TrainingArguments(train_sampling_strategy="group_by_length")  # the '
                         "longest batch first; in transformers 4: group_by_length=True"}),
    Row("reduce_logits", 0, "Reduce the logits before they are gathered",
        lambda case: case.phase == "eval",
        rule("one number per token instead of one per vocabulary entry"),
        {"transformers": "Trainer(..., preprocess_logits_for_metrics=lambda logits, labels: "
                         "logits.argmax(-1))"}),
    Row("loss_only", 1, "Evaluate the loss only", lambda case: case.phase == "eval",
        rule("no predictions are stored"),
        {"transformers": "TrainingArguments(prediction_loss_only=True)"}),
    Row("eval_to_host", 2, "Move predictions to host memory every few steps",
        lambda case: case.phase == "eval" and case.setup.eval_accumulation_steps is None,
        rule("frees the GPU and fills host memory instead"),
        {"transformers": "TrainingArguments(eval_accumulation_steps=8)"}),
    Row("smaller_eval", 1, "Use a smaller evaluation batch",
        lambda case: case.phase == "eval" and case.setup.eval_batch_size != 1,
        lambda case: difference(case, {}, "no gradients involved; only the speed changes", 0.5),
        {"transformers": "TrainingArguments(per_device_eval_batch_size=1)",
         "trl": "SFTConfig(per_device_eval_batch_size=1)",
         "pytorch": "DataLoader(eval_set, batch_size=1)"},
        "the default is 8, regardless of the training batch"),
    Row("no_grad", 0, "Evaluate and generate without gradients",
        lambda case: not case.shows(r"train|backward|loss|transformers/generation") and case.grads,
        rule("otherwise activations are saved for a backward pass that never runs"),
        {"pytorch": "with torch.inference_mode(): ..."}),
)  # fmt: skip
