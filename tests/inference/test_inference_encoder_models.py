"""Classifiers and encoders say what transformers says, with or without a gradient, wherever they are read."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch
from small import ENCODERS, classifier
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import BertForSequenceClassification, DistilBertConfig, DistilBertModel

import scone_kernels
from scone_kernels.inference import accelerate

LENGTHS = (5, 3, 9)
MASK = torch.arange(9)[None] < torch.tensor(LENGTHS)[:, None]
IDS = torch.randint(3, 50, MASK.shape, generator=torch.Generator().manual_seed(0)).masked_fill(~MASK, 1)
LIVE = scone_kernels.status().cpu.live


def _call(side="right"):
    flip = (lambda x: x.flip(1)) if side == "left" else (lambda x: x)
    return {"input_ids": flip(IDS), "attention_mask": flip(MASK).long()}


class Rows(TorchDispatchMode):
    """Counts the rows that go through linear layers; unlike torch's own counter it hooks into no module."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket is torch.ops.aten.addmm:
            self.count += len(args[1])
        return func(*args, **(kwargs or {}))


def _ours(run) -> int:
    """How often it calls the op."""
    with torch.profiler.profile() as recorded:
        run()
    return sum(event.count for event in recorded.key_averages() if event.key == "scone_kernels::encoder")


@pytest.mark.parametrize("attention", ("eager", "sdpa"))
@pytest.mark.parametrize("family", ENCODERS)
def test_a_classifiers_logits_are_those_of_transformers(family, attention):
    model = classifier(family, attention=attention)
    fast = accelerate(model)
    assert fast.why_not(**_call()) is None
    for call in (_call(), {"input_ids": IDS[:, :4]}, {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}):
        with torch.no_grad():
            out = fast(**call)
            assert type(out).__name__ == "SequenceClassifierOutput"
            torch.testing.assert_close(out.logits, model(**call).logits, atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        assert _ours(lambda: fast(**_call())) == LIVE


@pytest.mark.parametrize("attention", ("eager", "sdpa"))
@pytest.mark.parametrize("family", ENCODERS)
def test_a_classifiers_gradient_is_that_of_transformers(family, attention):
    model, found, work = classifier(family, attention=attention), [], []
    for by in (accelerate(model), model):
        embeds = model.get_input_embeddings()(IDS).detach().requires_grad_()
        with Rows() as rows:
            logits = by(inputs_embeds=embeds, attention_mask=MASK.long()).logits
        work.append(rows.count)
        found.append((logits, *torch.autograd.grad(logits[:, 0].sum(), embeds)))
    for ours, theirs in zip(*found):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    assert found[1][1].abs().max() > 1e-4
    assert work[0] < 0.9 * work[1]  # the last layer is computed only where it is read


@pytest.mark.parametrize("side", ("left", "right"))
@pytest.mark.parametrize("attention", ("eager", "sdpa"))
@pytest.mark.parametrize("family", ("bert", "electra", "roberta"))
def test_states_are_read_anywhere(family, attention, side):
    encoder, call = classifier(family, attention=attention).base_model, _call(side)
    fast, real = accelerate(encoder), call["attention_mask"].bool()
    row, col = real.nonzero(as_tuple=True)
    row, col = row.flip(0)[::2].repeat(2), col.flip(0)[::2].repeat(2)  # in any order, and twice
    with torch.no_grad():
        whole = encoder(**call)[0]
        assert torch.equal(fast(**call)[0], whole)  # nothing is picked: the model's own answer
        for pick in (lambda states: states[row, col], lambda states: states[real]):
            assert _ours(lambda pick=pick: fast.read(pick, **call)) == LIVE
            torch.testing.assert_close(fast.read(pick, **call), pick(whole), atol=1e-5, rtol=1e-5)
        everything = fast.read(lambda states: states, **call)  # padding is asked for
        torch.testing.assert_close(everything[real], whole[real], atol=1e-5, rtol=1e-5)
        assert _ours(lambda: fast.read(lambda states: states, **call)) == 0


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16))
@pytest.mark.parametrize("family", ENCODERS)
def test_a_model_in_16_bits_is_closer_to_float32_than_it_is_itself(family, dtype):
    model = classifier(family).to(dtype)
    exact, fast = copy.deepcopy(model).float(), accelerate(model)
    with torch.no_grad():
        assert _ours(lambda: fast(**_call())) == LIVE
        logits, right = fast(**_call()).logits, exact(**_call()).logits
        states = accelerate(model.base_model).read(lambda states: states[MASK], **_call())
        own, wanted = (by.base_model(**_call())[0][MASK] for by in (model, exact))
    assert logits.dtype is states.dtype is own.dtype is dtype
    torch.testing.assert_close(logits.float(), right, atol=5e-2, rtol=5e-2)  # the head is the model's own
    torch.testing.assert_close(states.float(), wanted, atol=5e-2, rtol=5e-2)
    assert not LIVE or 1.5 * (states - wanted).square().mean() < (own - wanted).square().mean()


def test_threads_read_each_for_itself():
    """Hogwild workers share a model: what one asks for must not show in another's."""
    encoder, together = classifier().base_model, Barrier(2)
    fast, call = accelerate(encoder), {"input_ids": IDS[2:]}

    def read(position):
        with torch.no_grad():
            together.wait()
            return fast.read(lambda states: states[:, position], **call)

    with torch.no_grad():
        whole = encoder(**call)[0]
    with ThreadPoolExecutor(2) as pool:
        for _ in range(10):
            for position, found in zip((1, 3), pool.map(read, (1, 3))):
                assert torch.allclose(found, whole[:, position], atol=1e-5)


def test_models_that_are_not_known_answer_themselves():
    class Pooling(BertForSequenceClassification):
        """A user's own: it may read every position."""

    model = classifier()
    strange = classifier()
    strange.bert.encoder.layer[-1].output = torch.nn.Sequential(torch.nn.Identity())
    distil = DistilBertModel(DistilBertConfig(vocab_size=50, dim=24, n_heads=2, n_layers=1, hidden_dim=30)).eval()
    for other in (Pooling(model.config).eval(), strange, distil):
        assert accelerate(other).why_not(**_call())
    with torch.no_grad():
        found = accelerate(distil).read(lambda states: states[:, 1], **_call())
        assert torch.equal(found, distil(**_call())[0][:, 1])


@torch.no_grad()
def test_calls_that_ask_for_more_go_to_the_model():
    fast = accelerate(classifier())
    assert "labels" in fast.why_not(**_call(), labels=torch.zeros(3, dtype=torch.long))
    assert "output_hidden_states" in fast.why_not(**_call(), output_hidden_states=True)
    square = MASK[:, None, None].expand(-1, 1, 9, -1)
    assert "mask" in fast.why_not(input_ids=IDS, attention_mask=square)
    assert fast(**_call(), output_hidden_states=True).hidden_states is not None
