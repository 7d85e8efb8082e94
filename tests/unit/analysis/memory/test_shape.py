"""Sizes from config.json under the names of several families."""

from __future__ import annotations

import pytest

from oomdoctor.analysis.memory.shape import shape_of


@pytest.mark.parametrize(
    "config",
    [
        {"num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12},
        {"n_layer": 12, "n_embd": 768, "n_head": 12},
        {"num_layers": 12, "d_model": 768, "num_heads": 12},
        {"text_config": {"n_layers": 12, "dim": 768, "n_heads": 12}, "hidden_size": 1},
    ],
)
def test_families_name_sizes_differently(config):
    shape = shape_of(config)
    assert (shape.layers, shape.hidden, shape.heads, shape.head_width) == (12, 768, 12, 64)


def test_head_width_is_its_own_where_the_config_says_so():
    assert shape_of({"hidden_size": 1024, "num_attention_heads": 16}).head_width == 64
    wide = {"hidden_size": 1024, "num_attention_heads": 16, "head_dim": 128}
    assert shape_of(wide).head_width == 128
    latent = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    assert shape_of(latent).head_width == 160


def test_what_the_config_does_not_say_is_unknown():
    shape = shape_of({"hidden_size": "wide", "vocab_size": True})
    assert (shape.layers, shape.hidden, shape.vocabulary, shape.head_width) == (None,) * 4


def test_factorised_embeddings_and_towers():
    albert = shape_of({"hidden_size": 768, "embedding_size": 128, "vocab_size": 30_000})
    assert (albert.hidden, albert.embedding) == (768, 128)
    assert shape_of({"text_config": {}, "vision_config": {}}).towers
    assert not shape_of({"hidden_size": 8}).towers
