"""The whole decoder on a device that it has never seen: every strategy, verifier, dtype and entry point writes the CPU's tokens."""

from __future__ import annotations

import pytest
import tiny
import torch
from models import PROMPTS, classifier, engine, placed
from torch.nn.attention import SDPBackend, sdpa_kernel

from scone.decode import SconeConfig, Verifier
from scone.lookahead import (
    AtMean,
    AtSample,
    Carried,
    Draft,
    Expectation,
    Gibbs,
    Masked,
    Masks,
    Mix,
    Nothing,
    Paths,
    Rollout,
    Taylor,
)


@pytest.fixture(autouse=True)
def _same_attention():
    """The device has no fused attention; neither has the CPU that it is compared with."""
    with sdpa_kernel(SDPBackend.MATH):
        yield


def chains(**options):
    return SconeConfig(lookahead=Gibbs(tokens=4, block=2, iterations=1, **options))


CONFIGS = {
    "default": SconeConfig(),
    "particles": SconeConfig.fast(particles=3, strength=8.0),
    "one drawn": SconeConfig(particles=2, keep="sample", lookahead=Nothing()),
    "paper": SconeConfig.paper().replace(top_k=3, lookahead=SconeConfig.paper().lookahead.replace(tokens=4, iterations=2)),
    "paths": SconeConfig(lookahead=Paths(tokens=3, count=2)),
    "paths as drawn": SconeConfig(lookahead=Paths(tokens=3, count=2, judged="drawn")),
    "masked": SconeConfig(lookahead=Masked(tokens=3)),
    "nothing": SconeConfig(lookahead=Nothing(), min_mass=0, top_p=0.9, min_p=0.01),
    "taylor, carried": chains(start=Carried(), estimate=Taylor()),
    "at the mean, from masks": chains(start=Masks(), estimate=AtMean(marginals="masked")),
    "as drawn, some rolled out": chains(start=Rollout(tokens=2), estimate=AtSample(), thin=1),
    "a mixture of three": SconeConfig(lookahead=Mix(Expectation(2), Masked(tokens=2), Nothing(), weights=(2, 1, 1))),
    "bayes": SconeConfig(lookahead=Nothing(), reweigh="bayes", strength=2.0),
    "no strength": SconeConfig(strength=0),
}  # fmt: skip


def both(write, config=None, **options):
    """What is written on the CPU and on the device."""
    return [write(engine(place, config, **options)) for place in ("cpu", "cuda:0")]


def tokens_of(engine, tokens=3, **options):
    return engine.generate(PROMPTS, max_new_tokens=tokens, seed=1, **options).token_ids


@pytest.mark.parametrize("name", CONFIGS)
def test_every_strategy_writes_the_tokens_of_the_cpu(quick, name):
    expected, found = both(tokens_of, CONFIGS[name])
    assert found == expected


def mean_of_embeddings(device):
    table = placed(tiny.classifier(), device, torch.float32)[0].get_input_embeddings().weight
    return Verifier.from_module(
        lambda embeds, mask: (embeds.mean(-1) * mask).sum(-1).sigmoid(), tiny.wordpiece(), table
    )


VERIFIERS = {
    "three labels": lambda device: classifier(device, labels=3),
    "one logit": lambda device: Verifier(*placed(tiny.classifier(labels=1), device, torch.float32), target=0),
    "module": mean_of_embeddings,
    "function": lambda device: Verifier.from_callable(lambda texts: [text.count("e") / 20 for text in texts]),
    "both, one of them not": lambda device: classifier(device) & ~classifier(device, seed=5).with_strength(0.5),
    "classifier and function": lambda device: (
        classifier(device) & Verifier.from_callable(lambda texts: [text.count("e") / 20 for text in texts])
    ),
    "other tokenizer": lambda device: classifier(device, tokenizer=tiny.unigram()),
}


@pytest.mark.parametrize("name", VERIFIERS)
def test_every_verifier(quick, name):
    expected, found = both(tokens_of, SconeConfig(lookahead=Expectation(2)), verifier=VERIFIERS[name])
    assert found == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_every_dtype(quick, dtype):
    expected, found = both(lambda e: e.next_token(PROMPTS[0], seed=1), dtype=dtype)
    assert found.tokens.tolist() == expected.tokens.tolist()
    torch.testing.assert_close(found.q, expected.q, atol=0.05, rtol=0)


def with_generate(engine, **options):
    batch = engine.lm_tokenizer(PROMPTS, return_tensors="pt", padding=True, padding_side="left").to(engine.lm.device)
    ids = engine.lm.generate(**batch, max_new_tokens=3, **options)
    return ids[:, batch["input_ids"].shape[1] :].tolist()


ENTRIES = {
    "stream": lambda e: list(e.stream(PROMPTS[0], max_new_tokens=4, seed=1)),
    "next token": lambda e: e.next_token(PROMPTS[0], seed=1).tokens.tolist(),
    "several of each": lambda e: tokens_of(e, num_return_sequences=2),
    "greedy": lambda e: tokens_of(e, do_sample=False),
    "a processor": lambda e: tokens_of(e, logits_processor=[lambda ids, scores: scores - ids.shape[1] * scores.softmax(-1)]),
    "some end before others": lambda e: tokens_of(e, 6, stop=["e", "a"]),
    "explained": lambda e: tokens_of(e, explain=True),
    "custom_generate": lambda e: with_generate(e, custom_generate=e.custom_generate, do_sample=True, seed=1),
    "logits processor": lambda e: with_generate(e, logits_processor=[e.logits_processor(max_new_tokens=3)]),
    "scores": lambda e: e.verifier.score(PROMPTS).topk(3).indices.tolist(),
}  # fmt: skip


@pytest.mark.parametrize("name", ENTRIES)
def test_every_entry_point(quick, name):
    tok = tiny.byte_bpe()
    tok.pad_token = tok.pad_token or tok.eos_token
    expected, found = both(ENTRIES[name])
    assert found == expected


@pytest.mark.parametrize("name", ["default", "paths as drawn", "taylor, carried", "particles"])
def test_masked_lm_and_verifier_on_another_device(quick, name):
    expected = tokens_of(engine("cpu", CONFIGS[name]))
    assert tokens_of(engine("cuda:0", CONFIGS[name], others="cuda:1")) == expected
    assert tokens_of(engine("cuda:1", CONFIGS[name], others="cpu")) == expected


def test_a_draft_beside_the_lm(quick):
    def write(place):
        draft = Draft(lm=placed(tiny.llama(seed=7), place, torch.float32), inner=Expectation(2))
        return tokens_of(engine(place, SconeConfig(lookahead=draft)))

    assert write("cuda:0") == write("cpu")


def test_an_lm_on_two_devices(quick):
    """Its states come from one device, its head is on the other; accelerate's hooks move what is in between."""
    dispatch = pytest.importorskip("accelerate").dispatch_model
    split = engine("cpu")
    expected = tokens_of(split)
    lm = split.lm
    names = {"model.embed_tokens": 0, "model.layers.0": 0, "model.layers.1": 1, "model.norm": 1, "model.rotary_emb": 0}
    dispatch(lm, device_map={**names, "lm_head": 1}, force_hooks=True)
    assert lm.get_input_embeddings().weight.device != lm.get_output_embeddings().weight.device
    assert tokens_of(split) == expected
    one, two = (split.parts.lm.prefill([ids]) for ids in ([5, 6], [7, 8]))
    joined = split.parts.lm.join(one, two, [1, 0])  # caches of both devices
    assert torch.equal(joined.logits.cpu(), torch.cat([two.logits, one.logits]).cpu())


def test_two_workers_on_two_streams(quick, monkeypatch):
    """What they write hangs on who was first; that they have streams of their own does not."""
    streams = []
    own = torch.cuda.stream
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: streams.append(stream) or own(stream))
    config = chains(start=Masks(), workers=2, estimate=Taylor())
    written = tokens_of(engine("cuda:0", config), 2)
    assert [len(ids) for ids in written] == [2, 2, 2]
    assert len({id(stream) for stream in streams}) >= 2


def test_a_step_with_our_kernels(device):
    """In the interpreter, whose products differ from the CPU's in the last bits."""
    config = SconeConfig(top_k=3, lookahead=Expectation(2, among=3))
    expected, found = both(lambda e: e.next_token(PROMPTS[1], seed=1), config)
    assert found.tokens.tolist() == expected.tokens.tolist()
    torch.testing.assert_close(found.q, expected.q, atol=1e-3, rtol=0)
    assert device.tally.ops["likely_in_range_kernel"] == 2


def test_nan_is_told_with_the_next_values(quick):
    """Nobody waits to look at what a model returns, and yet nobody is left in the dark."""
    from scone.errors import NumericalError

    broken = engine("cuda:0")
    with torch.no_grad():
        broken.lm.get_output_embeddings().weight.fill_(torch.nan)
    with pytest.raises(NumericalError, match="the causal LM LlamaForCausalLM returned NaN in"):
        tokens_of(broken)
    assert tokens_of(engine("cuda:0")) == tokens_of(engine("cpu"))  # nothing is left of it
