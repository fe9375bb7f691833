"""A twin that computes its last layer only where it is read says what the whole model says."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import tiny
import torch
from transformers import (
    BertForSequenceClassification,
    CamembertConfig,
    CamembertForSequenceClassification,
    ElectraForSequenceClassification,
    RobertaForSequenceClassification,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
)

from scone.decode import Verifier
from scone.encoder import reading, sparing

CLASSIFIERS = {
    "bert": BertForSequenceClassification,
    "electra": ElectraForSequenceClassification,
    "roberta": RobertaForSequenceClassification,
    "xlm-roberta": XLMRobertaForSequenceClassification,
    "camembert": CamembertForSequenceClassification,
}
CONFIGS = {"xlm-roberta": XLMRobertaConfig, "camembert": CamembertConfig}
TEXTS = ["the movie was great", "a day", "what a wonderful day it is"]


def _classifier(family: str):
    masked, tok = tiny.masked_lm("roberta" if family in CONFIGS else family)
    settings = masked.config.to_dict() | {"num_labels": 2, "id2label": {0: "negative", 1: "positive"}}
    settings.pop("model_type")
    torch.manual_seed(0)
    model = CLASSIFIERS[family](CONFIGS.get(family, type(masked.config))(**settings)).eval()
    return model, tok


def _counting_rows(model, seen: list[int]) -> None:
    """Note the rows that reach the last layer's feed-forward part."""
    *_, last = model.base_model.encoder.layer
    last.intermediate.register_forward_hook(lambda _, inputs, out: seen.append(out.shape[:-1].numel()))


@pytest.mark.parametrize("family", CLASSIFIERS)
def test_a_verifiers_value_and_gradient_stay_the_same(family: str) -> None:
    model, tok = _classifier(family)
    verifier, rows = Verifier(model, tok, target="positive"), []
    _counting_rows(model, rows)
    ids, mask = verifier.frame(tok(TEXTS, add_special_tokens=False)["input_ids"])
    spared = verifier.linearise(ids, mask, kind="logit")
    assert rows == [len(TEXTS)]
    embeds = verifier.table[ids].requires_grad_()
    logits = model(inputs_embeds=embeds, attention_mask=mask.long()).logits
    assert rows == [len(TEXTS), ids.numel()]
    value = logits[:, 1] - logits[:, 0]
    (grad,) = torch.autograd.grad(value.sum(), embeds)
    assert torch.allclose(spared.value, value, atol=1e-5)
    assert torch.allclose(spared.grad, grad, atol=1e-5) and grad.abs().max() > 1e-3


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", ["bert", "electra", "roberta"])
def test_a_masked_lms_states_stay_the_same(family: str, attention: str) -> None:
    model, tok = tiny.masked_lm(family)
    encoder = model.base_model
    encoder.set_attn_implementation(attention)
    batch = tok(TEXTS, return_tensors="pt", padding=True)
    row, col = torch.tensor([2, 0, 2, 1, 2]), torch.tensor([0, 1, 3, 1, 0])  # in any order, and one twice
    with torch.no_grad():
        with reading(lambda states: states[row, col]):
            spared = sparing(encoder)(**batch)[0]
        whole = sparing(encoder)(**batch)[0]
        assert torch.equal(whole, encoder(**batch)[0])  # nothing is asked for: all of it
    assert torch.allclose(spared, whole[row, col], atol=1e-5)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_all_layers_in_one_call_say_the_same(monkeypatch, attention: str, side: str) -> None:
    """Padding on either side, hooks that must be heard, other types: the call is made where it can be, and only there."""
    model, tok = tiny.masked_lm("bert")
    encoder, calls = model.base_model, []
    encoder.set_attn_implementation(attention)
    tok.padding_side = side
    batch, twin = tok(TEXTS, return_tensors="pt", padding=True), sparing(encoder)
    real = batch["attention_mask"].bool()

    def read(pick=lambda states: states[real]):
        spared = twin.encoder.spared.forward
        monkeypatch.setattr(twin.encoder.spared, "forward", lambda *a, **k: calls.append(1) or spared(*a, **k))
        with torch.no_grad(), reading(pick):
            found = twin(**batch)[0]
        monkeypatch.undo()
        return found

    with torch.no_grad():
        whole = encoder(**batch)[0]
    assert torch.allclose(read(), whole[real], atol=1e-5) and not calls
    assert read(lambda states: states).shape == whole.shape and len(calls) == 1  # padding is asked for
    hook = encoder.encoder.layer[0].output.register_forward_hook(lambda module, inputs, out: 2 * out)
    with torch.no_grad():
        changed = encoder(**batch)[0]
    assert torch.allclose(read(), changed[real], atol=1e-5) and len(calls) == 2
    assert not torch.allclose(changed, whole, atol=1e-2)
    hook.remove()
    encoder.bfloat16()
    read()
    assert len(calls) == 3


def test_threads_read_each_for_itself() -> None:
    """Hogwild workers share a model: what one asks for must not show in another's."""
    encoder, tok = tiny.masked_lm("bert")[0].base_model, tiny.masked_lm("bert")[1]
    batch, twin, together = tok(TEXTS[:1], return_tensors="pt"), sparing(encoder), Barrier(2)

    def read(position: int) -> torch.Tensor:
        with torch.no_grad(), reading(lambda states: states[:, position]):
            together.wait()
            return twin(**batch)[0]

    with torch.no_grad():
        whole = encoder(**batch)[0]
    with ThreadPoolExecutor(2) as pool:
        for _ in range(10):
            for position, found in zip((1, 3), pool.map(read, (1, 3))):
                assert torch.allclose(found, whole[:, position], atol=1e-5)


def test_the_twin_follows_the_model() -> None:
    model, tok = _classifier("bert")
    verifier = Verifier(model, tok, target="positive")
    before = verifier.score(TEXTS)
    with torch.no_grad():
        model.bert.encoder.layer[-1].output.dense.weight.mul_(-3)
    after = verifier.score(TEXTS)
    assert not torch.allclose(before, after)
    with torch.no_grad():
        batch = tok(TEXTS, return_tensors="pt", padding=True)
        expected = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits.softmax(-1)[:, 1]
    assert torch.allclose(after, expected, atol=1e-5)


def test_models_that_are_not_known_stay_as_they_are() -> None:
    class Pooling(BertForSequenceClassification):
        """A user's own: it may read every position."""

    model, _ = _classifier("bert")
    own = Pooling(model.config)
    assert sparing(own) is own
    model.bert.encoder.layer[-1] = torch.nn.Identity()
    assert sparing(model) is model
    for family in ("distilbert", "modernbert"):
        other = tiny.masked_lm(family)[0].base_model
        assert sparing(other) is other
