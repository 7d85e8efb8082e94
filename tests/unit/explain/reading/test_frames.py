"""Phases from frames as transformers, TRL, PEFT, accelerate, Lightning and DeepSpeed print."""

from __future__ import annotations

import pytest

from oomdoctor.analysis.frames import moment_of, phase_of, recomputes, table
from oomdoctor.explain.reading.lines.traceback import frame_in, frames_in
from oomdoctor.records.report.diagnosis import Frame

SITE = "/opt/env/lib/python3.11/site-packages/"
USER = "/home/me/run/train.py:8:main:trainer.train()"
CALL = "torch/nn/modules/module.py:1750:_call_impl:return forward_call(*args, **kwargs)"
STEP = "transformers/trainer.py:4020:training_step:loss = self.compute_loss(model, inputs)"
LOSS = "transformers/trainer.py:4110:compute_loss:outputs = model(**inputs)"
LINEAR = "torch/nn/modules/linear.py:125:forward:return F.linear(input, self.weight, self.bias)"
LLAMA = "transformers/models/llama/modeling_llama.py:300:forward:x = self.self_attn(h)"
BACKWARD = "accelerate/accelerator.py:2500:backward:loss.backward(**kwargs)"
ENGINE = "torch/autograd/graph.py:829:_engine_run_backward:return Variable._execution_engine(...)"
RECOMPUTE = "torch/utils/checkpoint.py:1120:unpack_hook:frame.recompute_fn(*args)"
GENERATE = "transformers/generation/utils.py:2500:generate:result = self._sample("
EVALUATE = "transformers/trainer.py:4400:evaluation_loop:losses = self.prediction_step("


def frames(*places: str) -> tuple[Frame, ...]:
    found = []
    for place in places:
        file, line, function, code = place.split(":", 3)
        file = file if file.startswith("/") else SITE + file
        found.append(Frame(file, int(line), function, code or None))
    return tuple(found)


CASES = [
    ("forward", (USER, STEP, LOSS, CALL, LLAMA, CALL, LINEAR)),
    ("forward", (USER, STEP, LOSS, CALL, LLAMA,
                 "transformers/integrations/sdpa_attention.py:96:sdpa_attention_forward:sdpa(")),
    ("forward", (USER, STEP, LOSS, CALL, "peft/tuners/lora/layer.py:727:forward:r = r + lora_B(")),
    ("forward", (USER, STEP, LOSS, CALL, LLAMA,
                 "bitsandbytes/autograd/_functions.py:313:forward:dequantize_4bit(")),
    ("forward", (USER, STEP, LOSS, CALL,
                 "accelerate/utils/operations.py:818:forward:return model_forward(*args)")),
    ("loss", (USER, STEP, LOSS, CALL,
              "transformers/models/llama/modeling_llama.py:500:forward:x = self.lm_head(h)", CALL,
              LINEAR)),
    ("loss", (USER, STEP, LOSS, CALL,
              "transformers/models/llama/modeling_llama.py:830:forward:logits = logits.float()")),
    ("loss", (USER, STEP, LOSS, CALL,
              "transformers/loss/loss_utils.py:36:fixed_cross_entropy:loss = nn.functional.c(",
              "torch/nn/functional.py:3479:cross_entropy:return torch._C._nn.cross_entropy_loss(")),
    ("loss", (USER, STEP, "trl/trainer/sft_trainer.py:1100:compute_loss:entropy = e(logits)",
              "trl/trainer/utils.py:1500:entropy_from_logits:p = F.log_softmax(logits)")),
    ("loss", (USER, STEP, "trl/trainer/dpo_trainer.py:1600:concatenated_forward:x = s(",
              "trl/trainer/utils.py:1450:selective_log_softmax:l = torch.logsumexp(")),
    ("loss", (USER, STEP, LOSS, CALL, LLAMA,
              "liger_kernel/ops/fused_linear_cross_entropy.py:70:forward:logits = x @ w.t()")),
    ("backward", (USER, STEP, BACKWARD, ENGINE)),
    ("backward", (USER, STEP, BACKWARD, ENGINE, RECOMPUTE, CALL, LLAMA, CALL, LINEAR)),
    ("backward", (USER, STEP, BACKWARD,
                  "deepspeed/runtime/engine.py:2000:backward:self.optimizer.backward(loss)",
                  "deepspeed/runtime/zero/stage3.py:2300:backward:x(",
                  "deepspeed/runtime/zero/stage3.py:1300:__reduce_and_partition_ipg_grads:y(")),
    ("clip", (USER, "transformers/trainer.py:2700:_inner_training_loop:a.clip_grad_norm_(",
              "accelerate/accelerator.py:2700:clip_grad_norm_:torch.nn.utils.clip_grad_norm_(",
              "torch/nn/utils/clip_grad.py:38:_get_total_norm:norms = torch._foreach_norm(")),
    ("optimizer", (USER, "accelerate/optimizer.py:179:step:self.optimizer.step(closure)",
                   "torch/optim/lr_scheduler.py:140:wrapper:return func.__get__(opt)(*args)",
                   "torch/optim/adamw.py:200:_init_group:state['exp_avg'] = torch.zeros_like(")),
    ("optimizer", (USER, "bitsandbytes/optim/optimizer.py:600:get_state_buffer:return zeros(")),
    ("optimizer", (USER, "deepspeed/runtime/engine.py:2300:_take_model_step:self.optimizer.step()",
                   "deepspeed/runtime/bf16_optimizer.py:290:step:self.optimizer.step()")),
    # Lightning runs forward and backward in the closure of the optimizer's step.
    ("forward", (USER, "lightning/pytorch/core/module.py:1300:optimizer_step:optimizer.step(c)",
                 "torch/optim/adamw.py:165:step:loss = closure()",
                 "lightning/pytorch/strategies/strategy.py:390:training_step:return m.training_s(",
                 "/home/me/run/model.py:40:training_step:y = self.net(x)", CALL, LINEAR)),
    ("eval", (USER, "transformers/trainer.py:4200:evaluate:output = loop(", EVALUATE, LOSS, CALL,
              LLAMA, CALL, LINEAR)),
    ("eval", (USER, EVALUATE, "transformers/trainer_pt_utils.py:130:nested_concat:torch.cat(")),
    ("eval", (USER, "lightning/pytorch/loops/evaluation_loop.py:400:_evaluation_step:x(",
              "/home/me/run/model.py:60:validation_step:y = self.net(x)", CALL, LINEAR)),
    ("generate", (USER, STEP, GENERATE, CALL, LLAMA, CALL, LINEAR)),
    ("generate", (USER, EVALUATE, GENERATE, CALL, LLAMA)),
    ("load", (USER, "transformers/modeling_utils.py:277:_wrapper:return func(*args)",
              "transformers/modeling_utils.py:5048:from_pretrained:cls._load_pretrained_model(",
              "transformers/modeling_utils.py:6000:caching_allocator_warmup:_ = torch.empty(")),
    ("load", (USER, "transformers/modeling_utils.py:4200:from_pretrained:model = cls(config)",
              "transformers/models/llama/modeling_llama.py:400:__init__:nn.Linear(",
              "torch/nn/modules/linear.py:106:__init__:torch.empty(")),
    ("load", (USER, "transformers/trainer.py:600:__init__:self._move_model_to_device(model, d)",
              "torch/nn/modules/module.py:1340:to:return self._apply(convert)",
              "torch/nn/modules/module.py:1326:convert:return t.to(")),
    ("load", (USER, "peft/utils/other.py:150:prepare_model_for_kbit_training:param.data.to(f32)")),
    ("load", (USER, "bitsandbytes/nn/modules.py:330:_quantize:w = quantize_4bit(")),
    ("init", (USER, "peft/mapping.py:200:get_peft_model:return PeftModel(",
              "peft/tuners/lora/layer.py:90:update_layer:nn.Linear(",
              "torch/nn/modules/linear.py:106:__init__:torch.empty(")),
    ("init", (USER, "torch/nn/parallel/distributed.py:830:__init__:_sync_module_states(",
              "torch/distributed/utils.py:310:_sync_module_states:dist._broadcast_coalesced(")),
    ("init", (USER, "vllm/v1/worker/gpu_worker.py:240:determine_available_memory:self.m.p(",
              "vllm/v1/worker/gpu_model_runner.py:2900:profile_run:self._dummy_run(", CALL,
              "vllm/model_executor/models/llama.py:500:forward:h = layer(")),
    ("generate", (USER, "vllm/v1/worker/gpu_model_runner.py:1500:execute_model:x(", CALL,
                  "vllm/model_executor/models/llama.py:500:forward:h = layer(")),
    ("save", (USER, "transformers/trainer.py:3200:_save_checkpoint:self.save_model(",
              "transformers/modeling_utils.py:3900:save_pretrained:safe_save_file(")),
    ("save", (USER, "accelerate/accelerator.py:3500:get_state_dict:x(",
              "torch/distributed/fsdp/_state_dict_utils.py:300:_full_post_state_dict_hook:y(")),
    ("data", (USER, "torch/utils/data/dataloader.py:700:__next__:data = self._next_data()",
              "transformers/data/data_collator.py:90:default_data_collator:torch.stack(")),
    ("eval", ("/home/me/run/train.py:8:main:quick_eval(model)",
              "/home/me/run/train.py:31:quick_eval:logits = F.linear(h, w)")),
    ("loss", ("/home/me/run/train.py:8:main:kd_loss(s, t)",
              "/home/me/run/train.py:31:kd_loss:d = (t.exp() * (t - s)).sum()")),
    # data: a copy of a batch belongs to the evaluation it is for, a model in a data set does not
    ("data", ("/home/me/run/train.py:9:main:inputs = batch['x'].to(device)",)),
    ("eval", (USER, EVALUATE, "transformers/trainer.py:3500:_prepare_inputs:x = x.to(self.d)")),
    ("data", (USER, "torch/utils/data/_utils/fetch.py:54:fetch:data = [self.dataset[i] for i in x]",
              "/home/me/run/data.py:9:__getitem__:x = self.encoder(x)", CALL, LINEAR)),
    ("generate", (USER, STEP, "trl/trainer/grpo_trainer.py:1541:_prepare_inputs:g = self._gen(x)",
                  GENERATE, CALL, LLAMA)),
    ("forward", (USER, STEP, "trl/trainer/grpo_trainer.py:1541:_prepare_inputs:g = self._score(x)",
                 CALL, LLAMA)),
    ("data", (USER, "transformers/trainer.py:5620:get_batch_samples:n = (x != -100).sum()")),
    ("load", (USER, "transformers/modeling_utils.py:5048:from_pretrained:cls._load_pretrained_m(",
              "bitsandbytes/nn/modules.py:606:_save_to_state_dict:k, v = q.as_dict()")),
    ("forward", (USER, "/home/me/run/lit.py:23:training_step:self.log('loss', loss)",
                 "lightning/pytorch/trainer/connectors/result.py:199:__init__:self.add_state(")),
    ("init", ("pandas/core/indexes/base.py:3805:get_loc:return self._engine.get_loc(key)",)),
    ("data", (USER, "torch/utils/data/_utils/fetch.py:54:fetch:data = [self.dataset[i] for i in x]",
              "pandas/core/indexes/base.py:3805:get_loc:return self._engine.get_loc(key)")),
    # a copy of the model is no pass though its file is named as one
    ("init", (USER, "trl/models/modeling_base.py:640:create_reference_model:m = deepcopy(model)",
              "copy.py:153:deepcopy:y = copier(memo)")),
    # Lightning steps the optimizer around the pass, and logs within it
    ("forward", (USER, "lightning/pytorch/core/module.py:1360:optimizer_step:o.step(closure)",
                 "/home/me/run/lit.py:20:training_step:h = torch.cat([x, y])")),
    ("loss", (USER, "/home/me/run/lit.py:20:training_step:loss = F.cross_entropy(x.float(), y)")),
    ("loss", ("/home/me/run/train.py:9:main:logits = outputs.logits.float()",)),
    # DeepSpeed
    ("forward", (USER, CALL, "deepspeed/runtime/engine.py:3007:forward:loss = self.module(*inputs)",
                 "deepspeed/runtime/zero/partitioned_param_coordinator.py:260:reset_step:x(")),
    ("clip", (USER, "deepspeed/runtime/zero/stage3.py:2984:unscale_and_clip_grads:g.mul_(1.)")),
    ("init", (USER, "deepspeed/runtime/engine.py:621:__init__:self._configure_zero_optimizer(o)",
              "deepspeed/runtime/zero/stage3.py:1504:create_reduce_and_remove_grad_hooks:p.x()")),
    ("save", (USER, "deepspeed/runtime/engine.py:4000:save_checkpoint:dist.barrier()",
              "torch/distributed/distributed_c10d.py:5300:barrier:work = x.barrier(opts)")),
    # the signal of a dead worker comes in whatever line the main process stands
    ("unknown", (USER, BACKWARD, ENGINE,
                 "torch/utils/data/_utils/signal_handling.py:66:handler:_error_if_any()")),
    ("unknown", ("/home/me/run/a.py:3:<module>:y = torch.randn(9, device='cuda')",)),
    ("unknown", ()),
]  # fmt: skip


@pytest.mark.parametrize(("phase", "places"), CASES)
def test_the_innermost_meaning_is_the_phase(phase, places):
    assert phase_of(frames(*places))[0] == phase


def test_the_users_own_innermost_line_is_found():
    places = (USER, "/home/me/run/model.py:40:training_step:y = self.net(x)", CALL, LINEAR)
    where = phase_of(frames(*places))[1]
    assert (where.file, where.line, where.code) == ("/home/me/run/model.py", 40, "y = self.net(x)")
    assert phase_of(frames(CALL, LINEAR))[1] is None


def test_a_recomputed_forward_is_told():
    assert recomputes(frames(USER, BACKWARD, ENGINE, RECOMPUTE, CALL, LLAMA))
    assert not recomputes(frames(USER, BACKWARD, ENGINE))
    checkpoint = "torch/utils/checkpoint.py:480:checkpoint:ret = function(*args)"
    assert not recomputes(frames(USER, STEP, LOSS, CALL, checkpoint, LLAMA))


def test_words_around_tell_only_where_frames_do_not():
    assert moment_of((), "work = default_pg.barrier(opts=opts)") == "init"
    assert moment_of((), "OutOfResources: out of resource: shared memory, Required") == "forward"


@pytest.mark.parametrize(
    ("lines", "phase"),
    [
        # vLLM
        ("Starting to load model m...", "load"),
        ("Loading safetensors checkpoint shards:  33% Completed | 1/3", "load"),
        ("Model loading took 14.9 GiB and 6.1 seconds", "init"),
        ("Capturing CUDA graph shapes:  17%|#   | 6/35 [00:03<00:15,  1.86it/s]", "init"),
        ("Avg prompt throughput: 812.4 tokens/s, GPU KV cache usage: 31.0%", "generate"),
        # SGLang
        ("Load weight begin. avail mem=78.81 GB", "load"),
        ("Capture cuda graph begin. This can take up to several minutes.", "init"),
        ("Decode batch. #running-req: 41, #token: 60211", "generate"),
        # TGI
        ("ERROR warmup{max_input_length=8000}:warmup: text_generation_client", "init"),
        ("ERROR batch{batch_size=3}:prefill:prefill{id=17 size=3}", "generate"),
        # llama.cpp
        ("load_tensors: offloading 48 repeating layers to GPU", "load"),
        ("llama_kv_cache_init: failed to allocate buffer for kv cache", "init"),
        ("slot launch_slot_: id  0 | task 12 | processing task", "generate"),
        # a training after an engine started
        ("Capturing CUDA graph shapes: 100%\n{'loss': 1.2}", "unknown"),
        ("Loading checkpoint shards: 100%|###| 3/3 [00:10<00:00,  3.4s/it]", "unknown"),
        # what came last counts
        ("Starting to load model m...\nGraph capturing finished in 12 secs", "init"),
    ],
)
def test_the_last_moment_that_a_program_printed_tells_the_phase(lines: str, phase: str):
    assert moment_of(reversed(lines.split("\n")), "") == phase


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('  File "/a/b.py", line 3, in forward', ("/a/b.py", 3, "forward")),
        ('  File "C:\\a\\b.py", line 3, in <module>', ("C:/a/b.py", 3, "<module>")),
        ('  File "b.py", line 3 in run', ("b.py", 3, "run")),
        ('File "/a/b.py", line 3, in \\_wrapped_call', ("/a/b.py", 3, "_wrapped_call")),
        ("File ~/a/b.py:12, in Net.forward(self, x)", ("~/a/b.py", 12, "Net.forward")),
        ("/a/b.py:12 in training_step", ("/a/b.py", 12, "training_step")),
        ("/a/b.py in forward(self, x)", ("/a/b.py", None, "forward")),
        ("Cell In[6], line 5", ("Cell In[6]", 5, "<module>")),
        ("Cell In[6], line 5, in fit(x)", ("Cell In[6]", 5, "fit")),
        ("  net/head.py line 109, in _forward", ("net/head.py", 109, "_forward")),
    ],
)
def test_frames_of_every_shape(line, expected):
    frame = frame_in(line)
    assert (frame.file, frame.line, frame.function) == expected


def test_no_frame_in_ordinary_lines():
    for line in ("", "return x in y", "epoch 3 in 20 s", "done: 5 in total", "x" * 100_000):
        assert frame_in(line) is None


def test_quoted_lines_belong_to_their_frame_without_carets():
    text = [
        '  File "a.py", line 1, in f',
        "    y = g(x)",
        "        ^^^^",
        '  File "b.py", line 2, in g',
        '  File "c.py", line 3, in h',
        "    z",
    ]
    assert [frame.code for frame in frames_in(text)] == ["y = g(x)", None, "z"]


def test_a_place_that_rich_broke_is_whole_again():
    text = [
        "/a/site-packages/torch/nn/modules/module.py:1778 in",
        "_wrapped_call_impl",
        "❱ 1778 │   return self._call_impl(*args, **kwargs)",
        "/a/train.py:20in train_step",
        "❱ 20 │   loss = model(x)",
    ]
    assert [(frame.line, frame.function) for frame in frames_in(text)] == [
        (1778, "_wrapped_call_impl"),
        (20, "train_step"),
    ]


def test_arrows_of_notebooks_give_line_and_code():
    text = ["/a/b.py in f(x)", "     11     a", "---> 12     loss.backward()", "     13     c"]
    assert frames_in(text) == (Frame("/a/b.py", 12, "f", "loss.backward()"),)


def test_every_row_says_something():
    assert all(row.file or row.function or row.code for row in table().rows)
