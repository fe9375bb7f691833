import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from recipes.adapters import LowRank, adapter_tensors, add_adapters, pack, quantise
from scone.embedded.adapters import dequantise, merge, unpack


@pytest.mark.parametrize("shape", [(1, 1), (3, 127), (64, 384)])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e3])
def test_quantise_is_within_half_a_step(shape, size):
    delta = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * size
    small, scale = quantise(delta)
    assert small.dtype == torch.int8
    step = scale.float()[:, None]
    assert ((dequantise(small, scale) - delta).abs() <= 0.5 * step * (1 + 1e-5) + 1e-12).all()
    # the step is no coarser than float16 and 127 levels a side make it
    assert (scale.float() <= delta.abs().amax(1) / 127 * 1.002 + 1.3e-7).all()


def test_quantise_of_nothing_is_nothing():
    small, scale = quantise(torch.zeros(4, 5))
    assert not small.any()
    assert torch.isfinite(scale).all()
    assert not dequantise(small, scale).any()


def test_pack_and_unpack_give_the_trained_values_back():
    random = torch.Generator().manual_seed(1)
    base = {"layer.weight": torch.randn(8, 16, generator=random)}
    trained = {
        "layer.weight": base["layer.weight"] + 0.01 * torch.randn(8, 16, generator=random),
        "new.weight": torch.randn(4, 4, generator=random),  # not in the base: stored whole
        "layer.bias": torch.randn(8, generator=random),
    }
    found = unpack(pack(trained, base), base)
    assert set(found) == set(trained)
    torch.testing.assert_close(found["layer.weight"], trained["layer.weight"], atol=2e-4, rtol=0)
    torch.testing.assert_close(found["new.weight"], trained["new.weight"], atol=2e-2, rtol=0)
    torch.testing.assert_close(found["layer.bias"], trained["layer.bias"], atol=2e-3, rtol=2e-3)
    # a delta is stored finer than the weights themselves would be
    assert (found["layer.weight"] - trained["layer.weight"]).abs().max() < 0.02 * base["layer.weight"].abs().max()


def test_low_rank_equals_the_sum_of_weights():
    torch.manual_seed(0)
    linear = torch.nn.Linear(12, 7)
    layer = LowRank(linear, rank=3)
    torch.nn.init.normal_(layer.up)
    x = torch.randn(5, 12)
    expected = torch.nn.functional.linear(x, linear.weight + layer.up @ layer.down, linear.bias)
    torch.testing.assert_close(layer(x), expected)
    assert [name for name, value in layer.named_parameters() if value.requires_grad] == ["down", "up"]


def _tiny_classifier():
    torch.manual_seed(3)
    config = BertConfig(
        initializer_range=0.3,
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        num_labels=2,
    )
    return BertForSequenceClassification(config).eval()


def test_merged_adapters_compute_what_the_adapters_computed():
    plain, adapted = _tiny_classifier(), _tiny_classifier()
    add_adapters(adapted, rank=4)
    for module in adapted.modules():
        if isinstance(module, LowRank):
            torch.nn.init.normal_(module.up, std=0.1)
    ids = torch.randint(0, 50, (3, 9))
    with torch.no_grad():
        before, wanted = plain(ids).logits, adapted(ids).logits
        merge(plain, adapter_tensors(adapted) | {"classifier.bias": adapted.classifier.bias})
        found = plain(ids).logits
    assert (before - wanted).abs().max() > 1e-2
    torch.testing.assert_close(found, wanted, atol=5e-3, rtol=1e-2)
    assert not any(isinstance(module, LowRank) for module in plain.modules())
    # six linear layers in each of two blocks; embeddings, pooler and classifier have none
    assert sum(name.endswith(".up") for name in adapter_tensors(adapted)) == 12
