"""What people do to their models, before and after `accelerate`: the model stays theirs, and the fast answers stay its own.

Every deed is done to a model that is accelerated and to a twin that never was. Afterwards both must be the same to the bit, and
the accelerated model must answer as the twin does: from its kernels, or where it steps aside exactly.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from small import IDS, cache_of, classifier, lm, one_token
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

import scone_kernels
from scone_kernels.inference import accelerate

pytestmark = pytest.mark.skipif(not scone_kernels.status().cpu.live, reason="needs the C++ extension")


def _lm_call(model) -> dict[str, Any]:
    return one_token(cache_of(model))


def _classifier_call(model) -> dict[str, Any]:
    return {"input_ids": IDS, "attention_mask": torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]])}


LINEAR = {"lm": "model.layers.1.mlp.up_proj", "classifier": "bert.encoder.layer.1.intermediate.dense"}
MAKE = {"lm": lambda: lm(halves=True), "classifier": classifier}
CALL = {"lm": _lm_call, "classifier": _classifier_call}
KINDS = tuple(MAKE)


def _kind(model) -> str:
    return "lm" if hasattr(model, "lm_head") else "classifier"


def _linear(model) -> nn.Linear:
    return model.get_submodule(LINEAR[_kind(model)])


def _replace(model, path: str, part: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, part)


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(5)) / 5


# ---- deeds that it follows ------------------------------------------------------------------------------------------


def nothing(model) -> None: ...


def change_in_place(model) -> None:
    with torch.no_grad():
        _linear(model).weight.add_(_random(*_linear(model).weight.shape))


def change_a_norm_in_place(model) -> None:
    with torch.no_grad():
        (model.model.norm if _kind(model) == "lm" else model.bert.encoder.layer[0].output.LayerNorm).weight.mul_(-2)


def change_every_weight_in_place(model) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.25)


def load_other_weights(model) -> None:
    model.load_state_dict({name: value * 1.5 for name, value in model.state_dict().items()})


def load_other_weights_by_assignment(model) -> None:
    others = {name: (value * 1.5 if value.is_floating_point() else value) for name, value in model.state_dict().items()}
    model.load_state_dict(others, assign=True)


def replace_a_layer(model) -> None:
    old = _linear(model)
    new = nn.Linear(old.in_features, old.out_features, bias=old.bias is not None)
    with torch.no_grad():
        for parameter in new.parameters():
            parameter.copy_(_random(*parameter.shape))
    _replace(model, LINEAR[_kind(model)], new)


def replace_a_parameter(model) -> None:
    _linear(model).weight = nn.Parameter(_random(*_linear(model).weight.shape))


def exchange_the_memory_of_a_parameter(model) -> None:
    _linear(model).weight.data = _random(*_linear(model).weight.shape)


def swap_two_layers(model) -> None:
    layers = model.model.layers if _kind(model) == "lm" else model.bert.encoder.layer
    layers[0], layers[1] = layers[1], layers[0]
    for i, layer in enumerate(layers):
        if _kind(model) == "lm":
            layer.self_attn.layer_idx = i


def to_bfloat16_and_back(model) -> None:
    model.to(torch.bfloat16).to(torch.float32)


def to_float16_and_back_after_a_change(model) -> None:
    change_in_place(model)
    model.half().float()


def to_bfloat16(model) -> None:
    model.to(torch.bfloat16)


def to_float16(model) -> None:
    model.half()


def other_attention(model) -> None:
    model.set_attn_implementation("eager")


def freeze(model) -> None:
    model.requires_grad_(False)


def train_without_dropout(model) -> None:
    if _kind(model) == "lm":  # it has none
        model.train()


def resize_the_vocabulary(model) -> None:
    torch.manual_seed(3)
    model.resize_token_embeddings(60, mean_resizing=False)


FOLLOWED = (
    *(nothing, change_in_place, change_a_norm_in_place, change_every_weight_in_place, load_other_weights),
    *(load_other_weights_by_assignment, replace_a_layer, replace_a_parameter, exchange_the_memory_of_a_parameter),
    *(swap_two_layers, to_bfloat16_and_back, to_float16_and_back_after_a_change, other_attention, freeze),
    *(train_without_dropout, resize_the_vocabulary, to_bfloat16, to_float16),
)

# ---- deeds at which it steps aside ----------------------------------------------------------------------------------


class LowRank(nn.Module):
    """What an adapter library puts in the place of a layer."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Parameter(_random(2, base.in_features))
        self.up = nn.Parameter(_random(base.out_features, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + x @ self.down.T @ self.up.T


def inject_adapters(model) -> None:
    _replace(model, LINEAR[_kind(model)], LowRank(_linear(model)))


def wrap_a_forward(model) -> None:
    part = _linear(model)
    original = part.forward
    part.forward = lambda x: 2 * original(x)


def wrap_the_top_forward(model) -> None:
    original = model.forward

    def doubled(*args: Any, **kwargs: Any) -> Any:
        out = original(*args, **kwargs)
        out.logits = 2 * out.logits
        return out

    model.forward = doubled


def change_a_scale(model) -> None:
    attention = model.model.layers[1].self_attn if _kind(model) == "lm" else model.bert.encoder.layer[1].attention.self
    attention.scaling = 3.0


def change_an_activation(model) -> None:
    if _kind(model) == "lm":
        model.model.layers[1].mlp.act_fn = nn.Tanh()
    else:
        model.bert.encoder.layer[1].intermediate.intermediate_act_fn = nn.Softplus()


def parametrise(model) -> None:
    class Doubled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

    parametrize.register_parametrization(_linear(model), "weight", Doubled())


def normalise_weights(model) -> None:
    parametrizations.weight_norm(_linear(model))


def normalise_weights_by_hook(model) -> None:
    nn.utils.weight_norm(_linear(model))


def prune_weights(model) -> None:
    prune.l1_unstructured(_linear(model), "weight", 0.5)


def checkpoint_gradients(model) -> None:
    model.gradient_checkpointing_enable()  # hooks into the embeddings


def to_two_types(model) -> None:
    """Layers in 16 bits, and in 32 what some prefer so."""
    model.to(torch.bfloat16)
    for name, module in model.named_modules():
        if name in ("model.norm", "lm_head") or isinstance(module, nn.LayerNorm):
            module.float()


def train_with_dropout(model) -> None:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.3
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.3
    model.train()


def subclass_a_parameter(model) -> None:
    class Own(nn.Parameter):
        """A parameter that could do anything."""

    _linear(model).weight = Own(_linear(model).weight.detach().clone())


ASIDE = (
    *(inject_adapters, wrap_a_forward, wrap_the_top_forward, change_a_scale, change_an_activation, parametrise),
    *(
        normalise_weights,
        normalise_weights_by_hook,
        prune_weights,
        checkpoint_gradients,
        to_two_types,
        train_with_dropout,
    ),
    subclass_a_parameter,
)
# An encoder gives up the kernel alone for these, and goes on to spare the last layer by calling the model's own layers.
SPARED = (change_a_scale, to_two_types, subclass_a_parameter)


UNHEARD = (  # deeds that change no answer by much
    *(nothing, to_bfloat16_and_back, other_attention, freeze, checkpoint_gradients, train_without_dropout, to_bfloat16),
    *(
        to_float16,
        to_two_types,
        resize_the_vocabulary,
        subclass_a_parameter,
        normalise_weights,
        normalise_weights_by_hook,
    ),
)


def _answer(by: Any, call: dict[str, Any]) -> torch.Tensor:
    torch.manual_seed(9)  # dropout
    return by(**copy.deepcopy(call)).logits


def _all_of(model) -> list[Any]:
    """Everything that may not change: values, types, flags, attributes, hooks."""
    found: list[Any] = [(name, type(value), value.requires_grad) for name, value in model.named_parameters()]
    for name, module in model.named_modules():
        attributes = sorted(
            (key, repr(value)) for key, value in vars(module).items() if isinstance(value, float | int | str)
        )
        found.append((name, type(module), module.training, sorted(vars(module)), attributes, "forward" in vars(module)))
        found.append([len(value) for key, value in vars(module).items() if key.endswith("_hooks")])
    return [*found, sorted(vars(model.config)), list(model.state_dict())]


def _assert_twins(model, twin) -> None:
    """By all that is printed of them, and by every bit of their values."""
    for mine, theirs in zip(_all_of(model), _all_of(twin), strict=True):
        assert mine == theirs or repr(mine) == repr(theirs)  # local classes are made twice
    for mine, theirs in zip(model.state_dict().values(), twin.state_dict().values(), strict=True):
        assert mine.dtype == theirs.dtype and torch.equal(mine, theirs)


@pytest.mark.parametrize("when", ("before", "after"))
@pytest.mark.parametrize("deed", (*FOLLOWED, *ASIDE), ids=lambda deed: deed.__name__)
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_model_stays_its_owners(kind: str, deed: Callable[[Any], None], when: str) -> None:
    model, twin = MAKE[kind](), MAKE[kind]()
    if when == "before":
        deed(model)
    fast = accelerate(model)
    first = CALL[kind](model)
    _answer(fast, first)
    if when == "after":
        deed(model)
    deed(twin)
    call = CALL[kind](twin)
    expected = _answer(twin, call)
    found = _answer(fast, call)
    _assert_twins(model, twin)
    assert torch.equal(_answer(model, call), expected)
    aside = deed in ASIDE and not (kind == "classifier" and deed in SPARED)
    assert (fast.why_not(**copy.deepcopy(call)) is not None) == aside
    if aside:
        assert torch.equal(found, expected)
    else:
        width = 5e-2 if deed in (to_bfloat16, to_float16, to_two_types) else 1e-4
        torch.testing.assert_close(found, expected, atol=width, rtol=width)
    if deed not in UNHEARD:
        assert not torch.allclose(
            expected, _answer(MAKE[kind](), CALL[kind](MAKE[kind]())), atol=1e-3
        )  # it does something


# ---- who listens is heard as often as without us ---------------------------------------------------------------------

PLACES = {
    "lm": ("", "model", "model.embed_tokens", "model.layers.1", LINEAR["lm"], "model.norm", "lm_head"),
    "classifier": (
        "",
        "bert",
        "bert.embeddings",
        "bert.encoder",
        "bert.encoder.layer.1",
        LINEAR["classifier"],
        "classifier",
    ),
}
LISTEN: dict[str, Callable[[nn.Module, list[int]], Any]] = {
    "forward": lambda part, heard: part.register_forward_hook(lambda *_: heard.append(1)),
    "before": lambda part, heard: part.register_forward_pre_hook(lambda *_: heard.append(1)),
    "everywhere": lambda _, heard: nn.modules.module.register_module_forward_hook(lambda *_: heard.append(1)),
    "everywhere before": lambda _, heard: nn.modules.module.register_module_forward_pre_hook(
        lambda *_: heard.append(1)
    ),
}


@pytest.mark.parametrize("how", LISTEN)
@pytest.mark.parametrize("kind, place", [(kind, place) for kind in KINDS for place in PLACES[kind]])
@torch.no_grad()
def test_a_hook_is_called_as_often_as_without_us(kind: str, place: str, how: str) -> None:
    model = MAKE[kind]()
    fast, heard = accelerate(model), []
    call = CALL[kind](model)
    _answer(fast, call)
    handle = LISTEN[how](model.get_submodule(place), heard)
    try:
        expected = _answer(model, call)
        without = len(heard)
        found = _answer(fast, call)
    finally:
        handle.remove()
    assert len(heard) == 2 * without > 0
    assert torch.equal(found, expected)
    assert fast.why_not(**copy.deepcopy(call)) is None  # nobody listens any more


@pytest.mark.parametrize("register", ("register_full_backward_hook", "register_full_backward_pre_hook"))
@pytest.mark.parametrize("kind", KINDS)
def test_a_backward_hook_makes_it_step_aside(kind: str, register: str) -> None:
    model = MAKE[kind]()
    fast, call = accelerate(model), CALL[kind](model)
    with torch.no_grad():
        assert fast.why_not(**copy.deepcopy(call)) is None
        getattr(_linear(model), register)(lambda *_: None)
        assert "hooked" in fast.why_not(**call)


@torch.no_grad()
def test_a_class_whose_forward_is_replaced_is_seen(monkeypatch) -> None:
    model = lm()
    fast, call = accelerate(model), _lm_call(model)
    kind = type(model.model.layers[0].mlp)
    assert fast.why_not(**copy.deepcopy(call)) is None
    monkeypatch.setattr(kind, "forward", lambda self, x: -x)
    assert "forward of its own" in fast.why_not(**copy.deepcopy(call))
    assert torch.equal(_answer(fast, call), _answer(model, call))


# ---- compilation, copies and files -----------------------------------------------------------------------------------


@torch.no_grad()
def test_a_compiled_model_stays_compiled() -> None:
    model = classifier()
    compiled = torch.compile(model, backend="eager")
    before, call = dict(vars(compiled)), _classifier_call(model)
    fast, beneath = accelerate(compiled), accelerate(model)
    expected = compiled(**call).logits
    assert torch.equal(fast(**call).logits, expected)
    assert fast.why_not(**call)
    torch.testing.assert_close(beneath(**call).logits, expected, atol=1e-5, rtol=1e-5)
    assert vars(compiled).keys() == before.keys() and compiled._orig_mod is model
    assert torch.equal(compiled(**call).logits, expected)
    model.compile(backend="eager")
    assert "forward of its own" in beneath.why_not(**call)
    assert torch.equal(beneath(**call).logits, model(**call).logits)


@torch.no_grad()
def test_it_may_be_called_inside_of_a_compiled_function() -> None:
    model = classifier()
    fast, call = accelerate(model), _classifier_call(model)
    compiled = torch.compile(lambda **call: fast(**call).logits, backend="eager")
    torch.testing.assert_close(compiled(**call), model(**call).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_models_are_copied_pickled_and_saved_as_without_us(kind: str, tmp_path) -> None:
    model, twin = MAKE[kind](), MAKE[kind]()
    fast, call = accelerate(model), CALL[kind](model)
    found = _answer(fast, call)
    _assert_twins(copy.deepcopy(model), twin)
    with io.BytesIO() as file:
        torch.save(model, file)
        file.seek(0)
        _assert_twins(torch.load(file, weights_only=False), twin)
    model.save_pretrained(tmp_path / "mine")
    twin.save_pretrained(tmp_path / "theirs")
    weights = [(tmp_path / whose / "model.safetensors").read_bytes() for whose in ("mine", "theirs")]
    assert weights[0] == weights[1]
    again = type(model).from_pretrained(tmp_path / "mine")
    torch.testing.assert_close(_answer(again, call), _answer(model, call), atol=1e-5, rtol=1e-5)
    for other in (copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        assert other.model is not model and torch.equal(_answer(other, call), found)


@torch.no_grad()
def test_heads_are_exchanged_and_tied() -> None:
    model = lm(halves=True)
    fast, call = accelerate(model), _lm_call(model)

    def follows() -> torch.Tensor:
        found = _answer(fast, call)
        assert fast.why_not(**copy.deepcopy(call)) is None
        torch.testing.assert_close(found, _answer(model, call), atol=1e-4, rtol=1e-4)
        return found

    before = follows()
    head = nn.Linear(24, 50, bias=False)
    head.weight.copy_(_random(50, 24))
    model.set_output_embeddings(head)
    other = follows()
    model.config.tie_word_embeddings = True
    model.tie_weights()
    assert model.lm_head.weight is model.model.embed_tokens.weight
    tied = follows()
    model.model.embed_tokens.weight.mul_(2)
    assert not torch.allclose(before, other) and not torch.allclose(other, tied) and not torch.allclose(tied, follows())


@torch.no_grad()
def test_quantised_models_answer_themselves() -> None:
    model = lm()
    quantised = torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), {nn.Linear}, dtype=torch.qint8)
    fast, call = accelerate(quantised), _lm_call(model)
    assert "not known" in fast.why_not(**copy.deepcopy(call))
    assert torch.equal(_answer(fast, call), _answer(quantised, call))


@torch.no_grad()
def test_what_is_written_past_torch_is_seen_after_refresh() -> None:
    model = lm(halves=True)
    fast, call = accelerate(model), _lm_call(model)
    before = _answer(fast, call)
    weight = _linear(model).weight
    weight.data.copy_(-weight.data)
    if torch.ops.scone_kernels.cpu_build() != "baseline":
        assert torch.equal(_answer(fast, call), before)  # as documented: it shows in nothing that torch keeps
    fast.refresh()
    torch.testing.assert_close(_answer(fast, call), _answer(model, call), atol=1e-4, rtol=1e-4)
    assert not torch.allclose(_answer(fast, call), before)


@torch.no_grad()
def test_memory_of_packed_weights_is_not_held() -> None:
    """What was packed is let go when its owner lets go, and memory that comes to lie where it was is not mistaken for it."""
    model = lm(halves=True)
    fast, call = accelerate(model), _lm_call(model)
    _answer(fast, call)
    for _ in range(20):
        weight = _linear(model).weight
        place = weight.untyped_storage()._weak_ref()
        weight.data = -weight.data.clone()
        assert torch.UntypedStorage._expired(place)
        torch.UntypedStorage._free_weak_ref(place)
        torch.testing.assert_close(_answer(fast, call), _answer(model, call), atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_only_what_has_changed_is_packed_again(monkeypatch) -> None:
    from scone_kernels.inference import packed

    model, made, original = lm(halves=True), [], packed._packed
    monkeypatch.setattr(packed, "_packed", lambda weight: made.append(weight) or original(weight))
    fast, call = accelerate(model), _lm_call(model)
    counts = []
    for deed in (
        nothing,
        nothing,
        change_in_place,
        train_without_dropout,
        replace_a_layer,
        change_every_weight_in_place,
    ):
        deed(model)
        made.clear()
        _answer(fast, call)
        counts.append(len(made))
    assert counts == [22, 0, 1, 0, 1, 22]
