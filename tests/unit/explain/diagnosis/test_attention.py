"""A line that computes attention scores is told from its own tensors."""

from __future__ import annotations

import pytest
from explain_make import answer, gib, llama

from oomdoctor.explain.reading.lines.traceback import scores_line
from oomdoctor.explain.training.known import Given
from oomdoctor.records.report.diagnosis import Frame

BERT = "/s/transformers/models/bert/modeling_bert.py"
LLAMA = "/s/transformers/models/llama/modeling_llama.py"
FUNCTIONAL = Frame("/s/torch/nn/functional.py", 2100, "softmax", "ret = input.softmax(dim)")
TRAIN = Frame("train.py", 40, "<module>", "trainer.train()")

SCORES = [
    # the query meets the key
    (BERT, "attention_scores = torch.matmul(query_layer, key_layer.transpose(-1, -2))"),
    (LLAMA, "attn_weights = torch.matmul(query_states, key_states.transpose(2, 3)) * scaling"),
    (LLAMA, "attn_weights = torch.matmul(query, key_states.transpose(2, 3)) * scaling"),
    ("model.py", "att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))"),
    ("model.py", 'sim = einsum("b i d, b j d -> b i j", q, k) * self.scale'),
    ("model.py", 'dots = torch.einsum("bhid,bhjd->bhij", q, k)'),
    ("model.py", "attn_weights = torch.bmm(query_states, key_states.transpose(1, 2))"),
    ("/s/diffusers/models/attention.py", "attention_scores = torch.baddbmm("),
    ("/s/transformers/models/bloom/modeling_bloom.py",
     "matmul_result = alibi.baddbmm(batch1=query_layer, batch2=key_layer, beta=self.beta)"),
    ("/s/transformers/models/falcon/modeling_falcon.py",
     "attention_scores = query_layer @ key_layer.transpose(-1, -2)"),
    # something is done to the scores
    (LLAMA, "attn_weights = nn.functional.softmax(attn_weights, dim=-1, dtype=torch.float32)"),
    (LLAMA, "attn_weights = attn_weights + causal_mask"),
    (LLAMA, "attn_weights = nn.functional.dropout(attn_weights, p=dropout, training=training)"),
    (BERT, "attention_probs = nn.functional.softmax(attention_scores, dim=-1)"),
    (BERT, "attention_probs = self.dropout(attention_probs)"),
    (BERT, "attention_scores = attention_scores / math.sqrt(self.attention_head_size)"),
    ("/s/transformers/models/gpt2/modeling_gpt2.py",
     "attn_weights = torch.where(causal_mask, attn_weights.to(attn_weights.dtype), mask_value)"),
    ("/s/models/gpt2/modeling_gpt2.py", "attn_weights = self.attn_dropout(attn_weights)"),
    ("model.py", "att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float('-inf'))"),
    ("model.py", "att = F.softmax(att, dim=-1)"),
    ("attention.py", "scores = scores.masked_fill(mask == 0, -1e9)"),
    ("/s/transformers/models/t5/modeling_t5.py",
     "attn_weights = nn.functional.softmax(scores.float(), dim=-1).type_as(scores)"),
]  # fmt: skip
OTHERS = [
    (LLAMA, "down_proj = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))"),
    (LLAMA, "attn_output = torch.matmul(attn_weights, value_states)"),
    (LLAMA, "attn_output = attn_output.transpose(1, 2).contiguous()"),
    (LLAMA, "query_states = self.q_proj(hidden_states).view(hidden_shape).transpose(1, 2)"),
    (LLAMA, "key_states = repeat_kv(key, module.num_key_value_groups)"),
    (LLAMA, "attention_mask = attention_mask.to(torch.float32)"),
    (BERT, "attention_output = self.dense(hidden_states)"),
    ("mlp.py", "hidden = torch.matmul(x, self.weight.t())"),
    ("mlp.py", "out = torch.einsum('bsh,hi->bsi', x, self.w1)"),
    ("moe.py", "routing_weights = F.softmax(router_logits, dim=1, dtype=torch.float)"),
    ("moe.py", "scores = logits.softmax(dim=-1, dtype=torch.float32)"),
    ("clip.py", "logits_per_text = torch.matmul(text_embeds, image_embeds.t())"),
    ("loss.py", "probs = torch.softmax(logits, -1)"),
    ("head.py", "logits = self.lm_head(hidden_states[:, slice_indices, :])"),
    ("sdpa.py", "out = torch.nn.functional.scaled_dot_product_attention(query, key, value)"),
    ("bank.py", "self.queue_k = torch.cat([queue, k])"),
]  # fmt: skip


@pytest.mark.parametrize(("file", "code"), SCORES)
def test_a_line_that_works_on_scores(file: str, code: str) -> None:
    frame = Frame(file, 200, "forward", code)
    assert scores_line((TRAIN, frame)) == frame
    assert scores_line((TRAIN, frame, FUNCTIONAL)) == frame
    found = answer(phase="forward", frames=(TRAIN, frame))
    first = found.causes[0]
    assert (first.cause, first.detail, first.confidence) == (
        "activations", "attention scores", "high",
    )  # fmt: skip
    if "/bloom/" in file:  # it has no sdpa: asking for it is an error
        assert not any("fused attention" in remedy.change for remedy in found.remedies)
        return
    assert "fused attention" in found.remedies[0].change
    if "/diffusers/" not in file:
        assert 'attn_implementation="sdpa"' in found.remedies[0].lines["transformers"]
    assert any(code in line for line in first.evidence)


@pytest.mark.parametrize(("file", "code"), OTHERS)
def test_a_line_that_does_not(file: str, code: str) -> None:
    frame = Frame(file, 200, "forward", code)
    assert scores_line((TRAIN, frame)) is None
    found = answer(phase="forward", frames=(TRAIN, frame))
    assert all(cause.detail is None for cause in found.causes)


def test_only_the_innermost_line_counts() -> None:
    scores = Frame(LLAMA, 200, "forward", "attn_weights = torch.matmul(query_states, key_states)")
    inner = Frame(LLAMA, 90, "forward", "return self.down_proj(x)")
    assert scores_line((TRAIN, scores, inner)) is None


def test_the_size_of_the_scores_is_told_if_the_settings_are_known() -> None:
    frame = Frame(LLAMA, 200, "forward", "attn_weights = torch.matmul(query_states, key_states)")
    given = Given(llama(), sequence_length=4096, micro_batch_size=1)
    found = answer(phase="forward", frames=(TRAIN, frame), given=given)
    line = "attention scores of one layer: 1 x 32 x 4096 x 4096 x 2 bytes = 1.00 GiB"
    assert line in found.causes[0].evidence
    assert "fused attention" in found.remedies[0].change
    (fused,) = (remedy for remedy in found.remedies if remedy.change.startswith("Use fused"))
    # float32 softmax and its 16-bit cast, in each of 32 layers
    assert fused.frees_bytes == 32 * 32 * 4096 * 4096 * 6
    assert fused.basis == "arithmetic"


def test_without_settings_the_request_itself_is_given_back() -> None:
    frame = Frame(BERT, 200, "forward", SCORES[0][1])
    found = answer(phase="forward", frames=(TRAIN, frame), event_requested_bytes=gib(3))
    assert found.remedies[0].frees_bytes == gib(3)
    assert "at least the request itself" in str(found.remedies[0].arithmetic)


def test_fused_attention_is_part_of_every_first_remedy() -> None:
    frame = Frame(LLAMA, 200, "forward", "attn_weights = torch.matmul(query_states, key_states)")
    given = Given(llama(), sequence_length=4096, micro_batch_size=2)
    found = answer(phase="forward", frames=(TRAIN, frame), given=given)
    assert found.causes[0].detail == "attention scores"
    first = found.remedies[0]
    assert first.parts == ("SDPA attention", "activation checkpointing")
    assert first.enough is True
    assert 'attn_implementation="sdpa"' in first.lines["transformers"]
    assert "gradient_checkpointing=True" in first.lines["transformers"]
