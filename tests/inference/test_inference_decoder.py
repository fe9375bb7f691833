"""A step in one call says what transformers says, for every family and in every shape that it takes."""

from __future__ import annotations

import copy

import pytest
import torch
from small import IDS, LMS, PADDED, SIZES, cache_of, lm, one_token, positions
from transformers import (
    DynamicCache,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

import scone_kernels
from scone_kernels.inference import accelerate

pytestmark = pytest.mark.skipif(not scone_kernels.status().cpu.live, reason="needs the C++ extension")
HAS_VECTORS = scone_kernels.status().cpu.live and torch.ops.scone_kernels.cpu_build() != "baseline"


@torch.no_grad()
def _two_steps(model, mask):
    """Two steps by transformers and by ours: the logits, and the caches after them."""
    fast, found = accelerate(model), []
    for by in (model, fast):
        cache, logits = cache_of(model, 3, mask), []
        for end in (4, 5):
            extra = (
                {}
                if mask is None
                else {"attention_mask": mask[:, :end], "position_ids": positions(mask)[:, end - 1 : end]}
            )
            call = one_token(cache, ids=IDS[:, end - 1 : end]) | extra
            assert fast.why_not(**call) is None
            out = by(**call)
            assert out.past_key_values is cache and type(out).__name__ == "CausalLMOutputWithPast"
            logits.append(out.logits)
        found.append((torch.stack(logits), cache))
    return found


@pytest.mark.parametrize("halves", (False, True))
@pytest.mark.parametrize("padded", (False, True))
@pytest.mark.parametrize("family", LMS)
def test_steps_are_those_of_transformers(family, padded, halves):
    model = lm(family, halves=halves)
    (expected, cache), (actual, grown) = _two_steps(model, PADDED if padded else None)
    torch.testing.assert_close(actual, expected, atol=2e-5, rtol=2e-5)
    for mine, theirs in zip(grown.layers, cache.layers):
        real = slice(2, None) if padded else slice(None)  # what transformers keeps at padding is nobody's business
        torch.testing.assert_close(mine.keys[:, :, real], theirs.keys[:, :, real], atol=2e-5, rtol=2e-5)
        torch.testing.assert_close(mine.values[:, :, real], theirs.values[:, :, real], atol=2e-5, rtol=2e-5)


HALVES = (torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("padded", (False, True))
@pytest.mark.parametrize("family", LMS)
@torch.no_grad()
def test_a_model_in_16_bits_is_that_in_float32_rounded_once(family, padded, dtype):
    model, mask = lm(family).to(dtype), PADDED if padded else None
    exact, fast, cache = copy.deepcopy(model).float(), accelerate(model), cache_of(model, mask=mask)
    extra = {} if mask is None else {"attention_mask": mask, "position_ids": positions(mask)[:, 4:]}
    wide = copy.deepcopy(cache)
    for layer in wide.layers:
        layer.keys, layer.values = layer.keys.float(), layer.values.float()
    own = model(**one_token(copy.deepcopy(cache)) | extra)
    assert fast.why_not(**one_token(cache) | extra) is None
    out, right = fast(**one_token(cache) | extra), exact(**one_token(wide) | extra).logits
    assert out.logits.dtype is own.logits.dtype is dtype and out.past_key_values is cache
    once = torch.finfo(dtype).eps
    torch.testing.assert_close(out.logits.float(), right, atol=2e-5, rtol=once)
    assert 2 * (out.logits - right).square().mean() < (own.logits - right).square().mean()
    for mine, theirs, layer in zip(cache.layers, own.past_key_values.layers, wide.layers):
        for name in ("keys", "values"):
            found = getattr(mine, name)
            assert found.dtype is dtype and found.shape == getattr(theirs, name).shape
            torch.testing.assert_close(found[:, :, 4:].float(), getattr(layer, name)[:, :, 4:], atol=2e-5, rtol=once)


@torch.no_grad()
def test_a_layer_of_another_type_is_the_models_own_trouble():
    model = lm()
    fast, call = accelerate(model), one_token(cache_of(model))
    model.model.layers[1].mlp.up_proj.bfloat16()
    assert "not of one type" in fast.why_not(**call)
    with pytest.raises(RuntimeError, match="same dtype"):
        fast(**call)


@torch.no_grad()
def test_weights_of_16_bits_that_nobody_can_watch_are_not_copied():
    with torch.inference_mode():
        model = lm().bfloat16()
    fast, call = accelerate(model), one_token(cache_of(model))
    assert "bfloat16" in fast.why_not(**call)
    assert torch.equal(fast(**copy.deepcopy(call)).logits, model(**call).logits)


@pytest.mark.skipif(not HAS_VECTORS, reason="nothing is packed without vector kernels")
@torch.no_grad()
def test_weights_of_16_bits_are_packed_and_others_are_not():
    for dtype in (torch.bfloat16, torch.float16):
        model = lm(halves=dtype is torch.bfloat16).to(dtype).float()
        model.model.layers[1].mlp.up_proj.weight += 1e-7  # no longer a number of 16 bits
        fast = accelerate(model)
        fast(**one_token(cache_of(model)))
        *layers, head, _ = fast._packed.values()
        kinds = [weight.dtype for weight in (*layers, head) if weight is not None and weight.dim() > 1]
        assert kinds.count(dtype) == 7 * SIZES["num_hidden_layers"] and kinds.count(torch.float32) == 1


@pytest.mark.parametrize("dtype", (torch.float32, *HALVES))
@torch.no_grad()
def test_embeddings_may_take_the_place_of_ids(dtype):
    model = lm().to(dtype)
    fast, cache = accelerate(model), cache_of(model)
    call = one_token(copy.deepcopy(cache))
    by_ids = fast(**call).logits
    embeds = model.get_input_embeddings()(call.pop("input_ids"))
    assert torch.equal(by_ids, fast(**call | {"inputs_embeds": embeds, "past_key_values": cache}).logits)


@torch.no_grad()
@pytest.mark.parametrize("prompt", (False, True))
@pytest.mark.parametrize("family", (*LMS, "gpt2"))
def test_hidden_states_make_the_logits(family, prompt):
    model = (
        GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=8, n_layer=1, n_head=2)).eval()
        if family == "gpt2"
        else lm(family)
    )
    fast = accelerate(model)
    assert fast.gives_hidden
    call = {"input_ids": IDS, "use_cache": True} if prompt else one_token(cache_of(model))
    states, cache = fast.hidden(**copy.deepcopy(call))
    assert cache.get_seq_length() == 5
    expected = model(**call).logits[:, -1]
    torch.testing.assert_close(torch.nn.functional.linear(states, *fast.head), expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("prompt", (False, True))
@pytest.mark.parametrize("dtype", HALVES)
@torch.no_grad()
def test_hidden_states_and_what_is_made_of_them_are_of_the_models_type(dtype, prompt):
    model = lm().to(dtype)
    fast, call = accelerate(model), one_token(cache_of(model))
    if prompt:
        call = {"input_ids": IDS, "use_cache": True}
    states, _ = fast.hidden(**copy.deepcopy(call))
    logits = fast.logits(states)
    assert states.dtype is logits.dtype is torch.nn.functional.linear(states, *fast.head).dtype is dtype
    torch.testing.assert_close(logits, model(**call).logits[:, -1], atol=5e-2, rtol=5e-2)


def test_hidden_states_are_not_given_where_somebody_would_miss_the_logits():
    model = lm()
    fast = accelerate(model)
    for module in (model, model.lm_head):
        handle = module.register_forward_hook(lambda *_: None)
        assert not fast.gives_hidden
        with pytest.raises(ValueError, match="only where gives_hidden is true"):
            fast.hidden(input_ids=IDS)
        handle.remove()
    model.forward = model.forward
    assert not fast.gives_hidden
    del model.forward
    model.lm_head = torch.nn.Sequential(model.lm_head)
    assert not fast.gives_hidden
    assert not accelerate(torch.nn.Linear(2, 2)).gives_hidden


@torch.no_grad()
def test_calls_that_are_not_one_plain_step_go_to_the_model():
    model = lm()
    fast, cache = accelerate(model), cache_of(model)
    call, mask = one_token(cache), torch.ones(2, 5, dtype=torch.long)

    def why(**change):
        return fast.why_not(**(call | change))

    assert why() is None and why(attention_mask=mask) is None
    assert "one token" in why(input_ids=IDS) and "one token" in why(input_ids=None)
    assert "one token" in why(inputs_embeds=torch.zeros(2, 1, 24))
    assert "float32" in why(input_ids=None, inputs_embeds=torch.zeros(2, 1, 24).bfloat16())
    assert "plain cache" in why(past_key_values=None) and "plain cache" in why(past_key_values=DynamicCache())
    assert "plain cache" in why(use_cache=False)
    assert "labels" in why(labels=IDS) and "output_attentions" in why(output_attentions=True)
    assert "mask" in why(attention_mask=mask[:, 1:]) and "mask" in why(attention_mask=torch.zeros(2, 1, 1, 5))
    assert "padding" in why(attention_mask=mask.flip(0) * torch.tensor([1, 1, 1, 1, 0]))
    assert "positions" in why(position_ids=torch.zeros(2, 3))
    assert "logits_to_keep" in why(logits_to_keep=torch.tensor([0]))
    assert "cache" in why(input_ids=IDS[:1, 4:])
    with torch.enable_grad():
        assert "gradient" in why()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert "autocast" in why()


def test_models_that_are_not_known_answer_themselves():
    class Own(LlamaForCausalLM):
        """A user's own: it may do anything."""

    sliding = Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=4, max_window_layers=1)
    few = LlamaForCausalLM(LlamaConfig(**SIZES)).eval()
    few.config.num_hidden_layers = 2
    others = (
        Own(LlamaConfig(**SIZES)),
        GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=24, n_layer=1, n_head=2)),
        LlamaForCausalLM(LlamaConfig(**SIZES, attention_bias=True)),
        LlamaForCausalLM(LlamaConfig(**SIZES, hidden_act="gelu")),
        MistralForCausalLM(MistralConfig(**SIZES, sliding_window=4)),
        Qwen2ForCausalLM(sliding),
        few,
    )
    with torch.no_grad():
        for model in others:
            call = one_token(cache_of(model.eval()))
            fast, again = accelerate(model), copy.deepcopy(call)
            assert fast.why_not(**call)
            assert torch.equal(fast(**call).logits, model(**again).logits)
