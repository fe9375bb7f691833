"""What people do to the models that they have given to an engine, before and after: the models stay theirs.

Every deed is done to a model that an engine uses and to a twin that never met one. Afterwards both are the same to the
bit: values, flags, attributes, what they answer, and the file that `save_pretrained` writes. And the engine writes what a
fresh engine around the twin would.
"""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import tiny
import torch
from torch import nn
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification, LlamaConfig, LlamaForCausalLM

from scone.decode import Scone, SconeConfig, Verifier
from scone.errors import ModelError
from scone.lookahead import Expectation, Gibbs, Masked, Mix

PARTS = ("lm", "masked_lm", "verifier")
_SIZES: dict[str, Any] = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48)
# All three models have a say, and the verifier's gradients and embeddings are used.
CONFIG = SconeConfig(
    min_mass=0, top_k=4, lookahead=Mix(Expectation(tokens=2), Masked(tokens=2), Gibbs(tokens=3, chains=1, iterations=2))
)


def make(part: str) -> nn.Module:
    """A small model with dropout, whose weights differ from those of the other parts."""
    byte_tok, tok = tiny.byte_bpe(), tiny.wordpiece()
    bert: dict[str, Any] = dict(vocab_size=len(tok), pad_token_id=tok.pad_token_id, hidden_dropout_prob=0.5, **_SIZES)
    llama = LlamaConfig(
        vocab_size=len(byte_tok), max_position_embeddings=64, eos_token_id=byte_tok.eos_token_id, bos_token_id=None,
        num_key_value_heads=1, attention_dropout=0.5, tie_word_embeddings=False, **_SIZES,
    )  # fmt: skip
    makers: dict[str, Callable[[], nn.Module]] = {
        "lm": lambda: LlamaForCausalLM(llama),
        "masked_lm": lambda: BertForMaskedLM(BertConfig(**bert)),
        "verifier": lambda: BertForSequenceClassification(BertConfig(**bert, num_labels=2)),
    }
    torch.manual_seed(PARTS.index(part))
    model = makers[part]().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.mul_(8 if "classifier" in name else 5)
    return model.bfloat16().float()  # weights of 16 bits, which the fast paths keep so


def engine_of(models: dict[str, nn.Module]) -> Scone:
    quantised = "Quantized" in repr(models["verifier"])
    config = CONFIG.replace(lookahead=Expectation(tokens=2)) if quantised else CONFIG  # it has no gradients
    verifier = Verifier(models["verifier"], tiny.wordpiece(), target=1)
    return Scone((models["lm"], tiny.byte_bpe()), (models["masked_lm"], tiny.wordpiece()), verifier, config)


def written(engine: Scone) -> tuple[list[list[int]], torch.Tensor, torch.Tensor]:
    """Tokens, q of all candidates and φ of what an engine writes."""
    out = engine.generate(["the movie was", "a day"], max_new_tokens=3, seed=5)
    return out.token_ids, torch.cat([step.q for trace in out.trace for step in trace]), out.scores


# ---- deeds: each changes a model in place, or returns what takes its place -------------------------------------------


def _linear(model: nn.Module) -> nn.Linear:
    """A linear layer in the middle."""
    names = ("model.layers.1.mlp.up_proj", "bert.encoder.layer.1.intermediate.dense")
    return next(model.get_submodule(name) for name in names if name in dict(model.named_modules()))  # type: ignore[return-value]


def nothing(model): ...


def use_compile(model):
    return torch.compile(model, backend="eager")


def compile_in_place(model):
    model.compile(backend="eager")


def _lora(model):
    from peft import LoraConfig

    targets = ["q_proj", "up_proj"] if hasattr(model, "lm_head") else ["query", "dense"]
    return LoraConfig(r=2, lora_alpha=8, target_modules=targets, init_lora_weights=False, lora_dropout=0.5)


def add_adapters(model):
    from peft import get_peft_model

    torch.manual_seed(7)
    return get_peft_model(model, _lora(model)).eval()


def inject_adapters(model):
    from peft import inject_adapter_in_model

    torch.manual_seed(7)
    inject_adapter_in_model(_lora(model), model).eval()


def merge_adapters(model):
    adapted = add_adapters(model)
    adapted.merge_adapter()
    return adapted


def unload_adapters(model):
    return add_adapters(model).unload()


def merge_and_unload_adapters(model):
    return add_adapters(model).merge_and_unload()


def quantise(model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), {nn.Linear}, dtype=torch.qint8)


def resize(model):
    torch.manual_seed(8)
    model.resize_token_embeddings(model.config.vocab_size + 3, mean_resizing=False)


def tie(model):
    if model.get_output_embeddings() is not None:
        model.config.tie_word_embeddings = True
        model.tie_weights()


def load_weights(model):
    model.load_state_dict({name: value * 1.25 for name, value in model.state_dict().items()})


def assign_weights(model):
    model.load_state_dict({name: value * 1.25 for name, value in model.state_dict().items()}, assign=True)


def copied(model):
    return copy.deepcopy(model)


def pickled(model):
    return pickle.loads(pickle.dumps(model))


def train(model):
    model.train()


def train_a_step(model):
    model.train()
    torch.manual_seed(9)
    ids = torch.tensor([[5, 6, 7, 8]])
    model(input_ids=ids).logits.pow(2).mean().backward()
    torch.optim.SGD(model.parameters(), lr=0.5).step()


def checkpoint_gradients(model):
    model.gradient_checkpointing_enable()
    model.train()


def freeze(model):
    model.requires_grad_(False)


def hook(model):
    _linear(model).register_forward_hook(lambda module, given, out: out * 1.5)


def hook_the_whole(model):
    model.register_forward_hook(lambda module, given, out: out)


def hook_the_embeddings(model):
    model.get_input_embeddings().register_forward_hook(lambda module, given, out: out * 1.5)


def patch_a_forward(model):
    part = _linear(model)
    original = part.forward
    part.forward = lambda x: original(x) * 1.5  # type: ignore[method-assign]


class Wrapped(nn.Module):
    """A layer around a layer: no weight, no bias."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * 1.25


def wrap_every_product(model):
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                setattr(parent, name, Wrapped(child))


def wrap_the_embeddings(model):
    model.set_input_embeddings(Wrapped(model.get_input_embeddings()))


def replace_embeddings(model):
    torch.manual_seed(10)
    old = model.get_input_embeddings()
    model.set_input_embeddings(nn.Embedding(old.num_embeddings, old.embedding_dim))


def replace_the_head(model):
    torch.manual_seed(11)
    old = model.get_output_embeddings()
    if old is None:
        model.classifier = nn.Linear(32, 2)
    else:
        model.set_output_embeddings(nn.Linear(old.in_features, old.out_features, bias=old.bias is not None))


def normalise_weights(model):
    nn.utils.parametrizations.weight_norm(_linear(model))


def to_bfloat16(model):
    model.to(torch.bfloat16)


def change_in_place(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05)


def place_by_map(model):
    from accelerate import dispatch_model

    parts = {name: "cpu" for name, _ in model.named_children()}
    dispatch_model(model, device_map=parts, main_device="cpu", force_hooks=True)


DEEDS = (
    nothing, use_compile, compile_in_place, add_adapters, inject_adapters, merge_adapters, unload_adapters,
    quantise, resize, tie, load_weights, assign_weights, copied, pickled, train, train_a_step,
    checkpoint_gradients, freeze, hook, hook_the_whole, hook_the_embeddings, patch_a_forward, wrap_every_product,
    wrap_the_embeddings, replace_embeddings, replace_the_head, normalise_weights, to_bfloat16, change_in_place,
    place_by_map,
)  # fmt: skip


# ---- what may not differ ----------------------------------------------------------------------------------------------


def answer(model: Any) -> torch.Tensor:
    torch.manual_seed(12)  # dropout
    with torch.no_grad():
        return model(input_ids=torch.tensor([[5, 6, 7, 8]])).logits


def state_of(model: Any) -> list[Any]:
    """Flags, attributes and hooks of every module, and what each parameter is."""
    found: list[Any] = [
        (name, type(p).__name__, p.requires_grad, p.grad is None) for name, p in model.named_parameters()
    ]
    for name, module in model.named_modules():
        plain = {
            key: value
            for key, value in vars(module).items()
            if isinstance(value, int | float | str | None) and "_id" not in key
        }
        hooks = [len(value) for key, value in vars(module).items() if "_hooks" in key]
        found.append((name, type(module).__name__, module.training, sorted(vars(module)), plain, hooks))
    return found


def file_of(model: Any, folder) -> bytes:
    """What `save_pretrained` writes, or torch's own file where that cannot."""
    if hasattr(model, "save_pretrained"):
        try:
            model.save_pretrained(folder)
            return b"".join(path.read_bytes() for path in sorted(folder.glob("*.safetensors")))
        except (AttributeError, RuntimeError, NotImplementedError, ValueError):
            pass
    with io.BytesIO() as file:
        torch.save([value for value in model.state_dict().values() if isinstance(value, torch.Tensor)], file)
        return file.getvalue()


def assert_twins(model: Any, twin: Any, tmp_path) -> None:
    assert state_of(model) == state_of(twin)
    for (name, mine), theirs in zip(model.state_dict().items(), twin.state_dict().values(), strict=True):
        assert not isinstance(mine, torch.Tensor) or (mine.dtype == theirs.dtype and torch.equal(mine, theirs)), name
    assert torch.equal(answer(model), answer(twin))
    assert file_of(model, tmp_path / "mine") == file_of(twin, tmp_path / "theirs")


@pytest.mark.parametrize("when", ("before", "after"))
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("deed", DEEDS, ids=lambda deed: deed.__name__)
def test_a_model_stays_its_owners(deed: Callable[[Any], Any], part: str, when: str, tmp_path) -> None:
    mine, theirs = ({name: make(name) for name in PARTS} for _ in range(2))
    twin = deed(theirs[part])
    twin = theirs[part] if twin is None else twin
    if when == "before":
        model = deed(mine[part])
        model = mine[part] = mine[part] if model is None else model
        theirs[part] = twin
        engine = engine_of(mine)
    else:
        engine = engine_of(mine)
        written(engine)
        model = deed(mine[part])
        model = mine[part] if model is None else model
    found = written(engine)
    assert_twins(model, twin, tmp_path)
    assert_twins(mine[part], theirs[part], tmp_path)
    for one, other in zip(found, written(engine_of(theirs)), strict=True):
        if isinstance(one, list):
            assert one == other
        else:
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_a_verifier_without_gradients_is_named() -> None:
    models: dict[str, Any] = {name: make(name) for name in PARTS}
    verifier = Verifier(quantise(models["verifier"]), tiny.wordpiece(), target=1)
    engine = Scone((models["lm"], tiny.byte_bpe()), (models["masked_lm"], tiny.wordpiece()), verifier, CONFIG)
    with pytest.raises(ModelError, match="verifier BertForSequenceClassification must be differentiable"):
        written(engine)
