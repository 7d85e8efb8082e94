"""Phases told by the functions of people's own scripts, and what is inside of what."""

from __future__ import annotations

import time

import pytest

from oomdoctor.analysis.frames import phase_of
from oomdoctor.records.report.diagnosis import Frame

SITE = "/env/lib/python3.11/site-packages/"
CALL = "torch/nn/modules/module.py:_call_impl:return forward_call(*args, **kwargs)"
LINEAR = "torch/nn/modules/linear.py:forward:return F.linear(input, self.weight, self.bias)"
CAT = "joined = torch.cat(parts)"

EVALUATION = """evaluate validate validation_step estimate_loss eval_epoch test_step run_validation
    compute_val_loss calc_loss_loader_val val_one_epoch valid_epoch validate_epoch test_epoch test
    evaluate_model eval_on_dataset get_val_loss calculate_perplexity compute_ppl do_validation
    on_validation_epoch_end eval_ppl _evaluate run_eval_loop val valid evaluation eval_fn
    Trainer.evaluate evaluate_on_test_set test_model inner_eval eval_loop evaluate_dataset
    validation_loop log_validation estimate_val_loss validating Runner.val_step"""
GENERATION = """generate sample_text generate_text predict_next predict_next_token greedy_decode
    beam_search sample_next_token generate_sample sample_image sample_images generate_images
    generate_completions rollout collect_rollout beam_search_decode top_k_sampling p_sample_loop
    autoregressive_decode p_sample ddim_sample generate_and_print_sample translate_sentence
    text_completion generate_response decode_one_token sample_sequence stream_generate sample decode
    Transformer.generate transcribe summarize generate_speech nucleus_sampling"""
SAVING = """save save_checkpoint save_model gather_full_param gather_full_state_dict maybe_zero_3
    get_full_state_dict consolidate_state_dict full_state_dict export_checkpoint save_full_model
    consolidate_checkpoint gather_full_params export_model save_sharded merge_and_unload save_ckpt
    get_fp32_state_dict _gather_state_dict checkpoint_save write_checkpoint dump_checkpoint
    Checkpointer.save get_peft_state_maybe_zero_3"""
OTHERS = """get_val_loader build_eval_dataset load_validation_set validate_args validate_config
    train_and_evaluate training_loop make_eval_config main run step update fit is_valid_batch
    generate_square_subsequent_mask generate_anchors generate_position_ids generate_batch_mask
    sample_timesteps sample_noise resample upsample grid_sample sample_from_buffer retest latest
    invalidate value_head evaluate_while_training"""
DATA = """load_data load_dataset to_device move_to_device tokenize_function collate_batch get_batch
    custom_collate preprocess_examples Corpus.load_images prepare_batch"""


def trace(*places: str) -> tuple[Frame, ...]:
    """Frames from "file:function:code"; a place without a colon is a function of train.py."""
    found = []
    for place in ("/home/me/train.py:<module>:main()", *places):
        file, function, code = place.split(":", 2) if ":" in place else ("", place, "y = f(x)")
        path = file if file.startswith("/") else SITE + file if file else "/home/me/train.py"
        found.append(Frame(path, 7, function, code or None))
    return tuple(found)


@pytest.mark.parametrize(
    ("phase", "name"),
    [("eval", name) for name in EVALUATION.split()]
    + [("generate", name) for name in GENERATION.split()],
)
def test_a_forward_pass_belongs_to_the_function_that_runs_it(phase, name):
    assert phase_of(trace(name, CALL, LINEAR))[0] == phase
    assert phase_of(trace("train", "train_epoch", name, CALL, LINEAR))[0] == phase
    assert phase_of(trace(f"/home/me/train.py:{name}:{CAT}"))[0] == phase


@pytest.mark.parametrize(
    ("phase", "name"),
    [("save", name) for name in SAVING.split()] + [("data", name) for name in DATA.split()],
)
def test_an_allocation_of_a_function_s_own(phase, name):
    assert phase_of(trace("train", f"/home/me/train.py:{name}:{CAT}"))[0] == phase


@pytest.mark.parametrize("name", OTHERS.split())
def test_words_within_other_names_do_not_tell(name):
    assert phase_of(trace(name, CALL, LINEAR))[0] == "forward"


STEP = "torch/optim/adamw.py:step:has_complex = self._init_group("
HALF = "torch/nn/modules/module.py:half:return self._apply(lambda t: t.half())"
APPLY = "torch/nn/modules/module.py:_apply:module._apply(fn)"
BACKWARD = "torch/_tensor.py:backward:torch.autograd.backward("
BNB = "bitsandbytes/optim/optimizer.py"
FUNCTIONAL = "bitsandbytes/functional.py"
STAGE3 = "deepspeed/runtime/zero/stage3.py"
ENGINE = "deepspeed/runtime/engine.py"
MERGE = "peft/tuners/lora/layer.py:merge:base_layer.weight.data += delta_weight"


@pytest.mark.parametrize(
    ("phase", "places"),
    [
        # what runs is what it is, whatever the functions around it are called
        ("backward", ("evaluate_and_train", "run", BACKWARD)),
        ("backward", ("validate", "run", BACKWARD)),
        ("optimizer", ("validate_hparams", "train", "generate", STEP)),
        # a training inside of an evaluation is a training
        ("forward", ("evaluate_config", "train", "train_step", CALL, LINEAR)),
        ("forward", ("evaluate", "transformers/trainer.py:train:x", CALL, LINEAR)),
        ("generate", ("train", "evaluate", "generate", CALL, LINEAR)),
        # methods that a forward pass calls
        ("forward", ("train", CALL, "/me/vae.py:forward:y = self.decode(z)",
                     "/me/vae.py:decode:return self.net(z)", CALL, LINEAR)),
        ("forward", ("main", CALL, "/me/vae.py:forward:y = self.sample(z)",
                     "/me/vae.py:sample:e = torch.randn_like(s)")),
        ("generate", ("main", "/me/vae.py:sample:return self.decode(z)",
                      "/me/vae.py:decode:return self.net(z)", CALL, LINEAR)),
        # saving
        ("save", ("save_model", HALF, APPLY)),
        ("save", ("peft/tuners/lora/model.py:merge_and_unload:return self._unload_and_o(", MERGE,
                  "peft/tuners/lora/layer.py:get_delta_weight:output = weight_B @ weight_A")),
        ("load", ("load_model", "peft/tuners/lora/model.py:merge_and_unload:x", MERGE)),
        ("save", ("main", "torch/optim/optimizer.py:state_dict:x")),
        ("load", ("resume", "torch/optim/optimizer.py:load_state_dict:x",
                  "torch/optim/optimizer.py:_process_value_according_to_param_policy:value.to(")),
        ("load", ("evaluate", "transformers/modeling_utils.py:from_pretrained:x(")),
        # optimizers
        ("optimizer", ("train", f"{BNB}:step:self.update_step(group, p, gindex, pindex)",
                       f"{BNB}:update_step:F.optimizer_update_8bit_blockwise(",
                       f"{FUNCTIONAL}:optimizer_update_8bit_blockwise:torch.ops.bitsandbytes.o(",
                       "torch/_ops.py:__call__:return self._op(*args, **(kwargs or {}))",
                       "torch/_library/custom_ops.py:backend_impl:result = f(*args, **kwargs)")),
        ("optimizer", ("train", f"{BNB}:step:self.init_state(group, p, gindex, pindex)",
                       f"{BNB}:init_state:state['state1'] = self.get_state_buffer(p, dtype)",
                       f"{BNB}:get_state_buffer:return torch.zeros_like(p)")),
        ("optimizer", ("train", f"{BNB}:get_state_buffer:buff = F.get_paged(*p.shape)",
                       f"{FUNCTIONAL}:get_paged:cuda_ptr = lib.cget_managed_ptr(num_bytes)")),
        ("optimizer", (f"{ENGINE}:_take_model_step:self.optimizer.step()",
                       f"{STAGE3}:step:self._prepare_sub_group(sub_group_id)",
                       f"{STAGE3}:_prepare_fp32_grad_for_sub_group:x = torch.cat(")),
        ("init", (f"{ENGINE}:__init__:self._configure_optimizer(optimizer)",
                  "deepspeed/runtime/zero/stage_1_and_2.py:initialize_optimizer_states:x", STEP)),
        ("optimizer", ("/x/apex/optimizers/fused_adam.py:step:multi_tensor_applier(",
                       "/x/apex/multi_tensor_apply/multi_tensor_apply.py:__call__:return op(")),
        ("optimizer", ("galore_torch/adamw.py:step:g = state['projector'].project(grad)",
                       "galore_torch/galore_projector.py:get_orthogonal_matrix:torch.linalg.svd(")),
        ("optimizer", ("torch/optim/adamw.py:_fused_adamw:torch._fused_adamw_(",)),
        ("optimizer", ("train", "/me/muon.py:step:g = newton(g)", "/me/muon.py:newton:a = x@x.T")),
        ("optimizer", ("lion_pytorch/lion_pytorch.py:step:state['exp_avg'] = zeros_like(p)",)),
        ("clip", (f"/home/me/train.py:clip_grads:{CAT}",)),
        # modules of losses, and what they run
        ("loss", ("train", "/me/train.py:train:loss = criterion(out, y)", CALL,
                  "/me/train.py:forward:p = torch.softmax(x, 1)")),
        ("loss", ("train", CALL, "/me/losses.py:forward:d = torch.cdist(a, b)")),
        ("loss", ("train", CALL, "/me/perceptual_loss.py:forward:f = self.vgg(x)", CALL, LINEAR)),
        ("forward", ("train", CALL, "/me/criterions/ce.py:forward:y = model(**x)", CALL, LINEAR)),
        ("forward", ("train", "/me/train.py:train:loss = compute_loss(model, x)", CALL, LINEAR)),
        ("forward", ("train", "/me/train.py:train:loss = loss_fn(model, x)", CALL, LINEAR)),
        ("eval", ("validate", "/me/train.py:validate:loss = criterion(out, y)", CALL, LINEAR)),
        # copies
        ("save", ("train", "/me/train.py:train:best = copy.deepcopy(model.state_dict())",
                  "copy.py:deepcopy:y = copier(x, memo)")),
        ("init", ("main", "/me/train.py:main:ref = copy.deepcopy(model)",
                  "copy.py:deepcopy:y = copier(x, memo)")),
        # servers and other programs
        ("generate", ("main", "sglang/srt/managers/scheduler.py:run_batch:x", CALL, LINEAR)),
        ("init", ("main", "sglang/srt/model_executor/model_runner.py:init_memory_pool:x")),
        ("generate", ("main", "/w/modules/processing.py:process_images_inner:x", CALL, LINEAR)),
        ("generate", ("main", "/c/comfy/samplers.py:inner_sample:x", CALL, LINEAR)),
        ("load", ("main", "accelerate/accelerator.py:prepare_model:model = model.to(self.device)",
                  "torch/nn/modules/module.py:to:return self._apply(convert)")),
        # calls that are no forward pass
        ("unknown", ("click/core.py:__call__:return self.main(*args)", "main")),
        ("data", ("main", "transformers/tokenization_utils_base.py:__call__:x")),
        ("forward", ("main", "/me/flax_model.py:__call__:y = nn.Dense(9)(x)")),
        # the quoted line tells more than the name of a step
        ("backward", ("/me/lit.py:training_step:loss.backward()",)),
        ("forward", ("/me/lit.py:training_step:y = torch.cat([x, z])",)),
    ],
)  # fmt: skip
def test_what_is_inside_of_what(phase, places):
    assert phase_of(trace(*places))[0] == phase


def test_an_absurd_name_costs_no_time():
    start = time.process_time()
    phase_of(trace("eval_a" * 500 + "!", "a_" * 2000, "get_val_" * 400))
    assert time.process_time() - start < 2
