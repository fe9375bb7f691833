"""An LM's own step in one call says what transformers says, and gives way where it cannot."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from scone.decoder_step import DecoderStep
from scone_kernels import keep_halves
from scone_kernels.ops.linear_half import HalfLinear

SIZES = {"vocab_size": 50, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 6,
         "num_key_value_heads": 2, "max_position_embeddings": 64}  # fmt: skip
FAMILIES = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "tied": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True)),
    "wide heads": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, head_dim=10)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=None)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
}
IDS = torch.tensor([[3, 4, 5, 6, 7], [8, 9, 10, 11, 12]])


def _model(family: str = "llama"):
    torch.manual_seed(0)
    model = FAMILIES[family]().eval()
    for parameter in model.parameters():  # biases and norms begin as zeros and ones
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model


@torch.no_grad()
def _both(model, mask: torch.Tensor | None):
    """Two steps by transformers and by ours: the logits, and the caches after them."""
    step, found = DecoderStep.of(model), []
    positions = None if mask is None else (mask.cumsum(1) - 1).clamp(min=0)
    for ours in (False, True):
        cache, logits = None, []
        for begin, end in ((0, 3), (3, 4), (4, 5)):
            ids, so_far = IDS[:, begin:end], None if mask is None else mask[:, :end]
            if ours and cache is not None:
                assert step.takes(ids, cache)
                logits.append(step(ids, so_far, cache))
                continue
            extra = {} if mask is None else {"position_ids": positions[:, begin:end]}
            out = model(ids, attention_mask=so_far, past_key_values=cache, use_cache=True, **extra)
            cache = out.past_key_values
            logits.append(out.logits[:, -1])
        found.append((torch.stack(logits), cache))
    return found


@pytest.mark.parametrize("padded", (False, True))
@pytest.mark.parametrize("family", FAMILIES)
def test_steps_are_those_of_transformers(family: str, padded: bool) -> None:
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]) if padded else None
    (expected, cache), (actual, grown) = _both(_model(family), mask)
    torch.testing.assert_close(actual, expected, atol=2e-5, rtol=2e-5)
    for mine, theirs in zip(grown.layers, cache.layers):
        real = slice(2, None) if padded else slice(None)  # what transformers keeps at padding is nobody's business
        torch.testing.assert_close(mine.keys[:, :, real], theirs.keys[:, :, real], atol=2e-5, rtol=2e-5)
        torch.testing.assert_close(mine.values[:, :, real], theirs.values[:, :, real], atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
@pytest.mark.parametrize("family", FAMILIES)
def test_weights_may_be_kept_in_16_bits(family: str, dtype: torch.dtype) -> None:
    if torch.ops.scone_kernels.cpu_build() == "baseline":
        pytest.skip("needs a CPU with AVX2: without it keep_halves leaves every model as it is")
    model = _model(family).to(dtype).float()
    (expected, cache), _ = _both(model, None)
    assert keep_halves(model) == 7 * SIZES["num_hidden_layers"] + 1 and isinstance(model.lm_head, HalfLinear)
    (theirs, _), (ours, grown) = _both(model, None)
    torch.testing.assert_close(theirs, expected, atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(ours, expected, atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(grown.layers[-1].keys, cache.layers[-1].keys, atol=2e-5, rtol=2e-5)
    step = DecoderStep.of(model)
    model.bfloat16()
    assert not step.takes(IDS[:, 4:], grown)


@torch.no_grad()
def test_embeddings_may_take_the_place_of_ids() -> None:
    model = _model()
    step, cache = DecoderStep.of(model), model(IDS[:, :4], use_cache=True).past_key_values
    other = copy.deepcopy(cache)
    by_ids = step(IDS[:, 4:], None, cache)
    assert torch.equal(by_ids, step(model.get_input_embeddings()(IDS[:, 4:]), None, other))


@torch.no_grad()
def test_a_step_gives_way_to_hooks_to_other_types_and_to_several_tokens() -> None:
    model = _model()
    step, cache = DecoderStep.of(model), model(IDS[:, :4], use_cache=True).past_key_values
    assert step.takes(IDS[:, 4:], cache)
    assert not step.takes(IDS[:, 3:], cache) and not step.takes(IDS[:, 4:], None)
    with torch.enable_grad():
        assert not step.takes(IDS[:, 4:], cache)
    hook = model.model.layers[1].mlp.register_forward_hook(lambda *_: None)
    assert not step.takes(IDS[:, 4:], cache)
    hook.remove()
    assert step.takes(IDS[:, 4:], cache)
    model.bfloat16()
    assert not step.takes(IDS[:, 4:], cache)


@torch.no_grad()
def test_the_step_follows_the_model() -> None:
    model = _model()
    step, cache = DecoderStep.of(model), model(IDS[:, :4], use_cache=True).past_key_values
    before = step(IDS[:, 4:], None, copy.deepcopy(cache))
    model.model.layers[0].mlp.down_proj.weight.mul_(-3)
    after = step(IDS[:, 4:], None, copy.deepcopy(cache))
    assert not torch.allclose(before, after)
    expected = model(IDS[:, 4:], past_key_values=cache, use_cache=True).logits[:, -1]
    torch.testing.assert_close(after, expected, atol=2e-5, rtol=2e-5)


def test_models_that_are_not_known_have_none() -> None:
    class Own(LlamaForCausalLM):
        """A user's own: it may do anything."""

    assert DecoderStep.of(Own(LlamaConfig(**SIZES))) is None
    assert DecoderStep.of(GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=8, n_layer=1, n_head=2))) is None
    assert DecoderStep.of(LlamaForCausalLM(LlamaConfig(**SIZES, attention_bias=True))) is None
    assert DecoderStep.of(LlamaForCausalLM(LlamaConfig(**SIZES, hidden_act="gelu"))) is None
    assert DecoderStep.of(MistralForCausalLM(MistralConfig(**SIZES, sliding_window=4))) is None
    sliding = Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=4, max_window_layers=1)
    assert DecoderStep.of(Qwen2ForCausalLM(sliding)) is None
    wrapped = _model()
    wrapped.model.layers[0].self_attn.q_proj = torch.nn.Sequential(wrapped.model.layers[0].self_attn.q_proj)
    assert DecoderStep.of(wrapped) is None
