"""Perplexity against a plain loop; counters and memory against known work."""

import mmap
import time

import pytest
import torch

from scone.evaluate import work
from scone.evaluate.cost import count_sequences, measure
from scone.evaluate.fluency import negative_log_likelihood
from scone.evaluate.methods import Job, generate, parse_method
from scone.evaluate.models import Models


def test_nll_is_that_of_the_continuation_alone(lm):
    prompt, continuations = "the film was", [" good", " very bad and dull", " nice"]
    nll, tokens = negative_log_likelihood(lm, prompt, continuations, batch=2)
    assert tokens.tolist() == [1, 4, 1]
    for total, continuation in zip(nll, continuations):
        ids = lm.encode(prompt + continuation)
        expected = 0.0
        for i in range(3, len(ids)):
            with torch.inference_mode():
                log_p = lm.model(input_ids=torch.tensor([ids[:i]])).logits[0, -1].log_softmax(0)
            expected -= log_p[ids[i]].item()
        assert total == pytest.approx(expected, rel=1e-4)


METHODS = (
    "random", "beamsearch", "bon:2", "myopic", "scone", "scone:paper,tokens=4", "scone:lookahead=masked+nothing",
    "scone:lookahead=paths,judged=drawn", "scone:lookahead=gibbs,start=carried,tokens=4,workers=2",
)  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_sequences_are_those_that_the_models_see(names, name):
    """Counted without a hook on any model, and found by hooks of our own."""
    models, method = Models(names, "sentiment"), parse_method(name)
    job = Job("the film was", "positive", avoid=True, samples=2, max_new_tokens=4, seed=0)
    parts = work._parts(method, models, job)
    seen = dict.fromkeys(parts, 0)
    bases = {"lm": models.lm.model, "verifier": models.classifier[0]}
    if parts.get("masked_lm"):
        bases["masked_lm"] = parts["masked_lm"][0].model
    handles = []
    for part, model in bases.items():

        def look(module, args, given, part=part):
            seen[part] += next(x for x in (*args, *given.values()) if isinstance(x, torch.Tensor)).shape[0]

        handles.append(model.base_model.register_forward_pre_hook(look, with_kwargs=True))
    try:
        with count_sequences(**parts) as counts:
            generate(method, models, job)
    finally:
        for handle in handles:
            handle.remove()
    assert counts == seen
    assert counts["lm"] > 0
    assert ("masked_lm" in counts) == name.startswith("scone") and bool(
        counts.get("masked_lm")
    ) == method.uses_masked_lm


def test_counting_leaves_models_and_objects_as_they_were(names):
    models = Models(names, "sentiment")
    job = Job("the film was", "positive", avoid=False, samples=1, max_new_tokens=2, seed=0)
    parts = work._parts(parse_method("scone:lookahead=masked"), models, job)
    of_all = [models.lm.model, models.classifier[0], parts["masked_lm"][0].model]
    before = [set(vars(part)) for some in parts.values() for part in some]
    with count_sequences(**parts) as counts:
        hooks = [module._forward_pre_hooks or module._forward_hooks for one in of_all for module in one.modules()]
        assert not any(hooks)
        models.lm.prefill([[15], [16]])
    models.lm.prefill([[15], [16]])
    assert counts == {"lm": 2, "verifier": 0, "masked_lm": 0}
    assert [set(vars(part)) for some in parts.values() for part in some] == before


def test_a_lookaheads_own_count_agrees(names):
    models, method = Models(names, "sentiment"), parse_method("scone:lookahead=masked")
    job = Job("the film was", "positive", avoid=False, samples=2, max_new_tokens=4, seed=0)
    engine = models.engine("positive", False, method.config)
    with count_sequences(**work._parts(method, models, job)) as counts:
        cost = engine.generate([job.prompt], max_new_tokens=4, num_return_sequences=2, seed=0).cost
    assert counts["masked_lm"] == cost.masked_lm_rows > 0
    assert counts["verifier"] == cost.verifier_rows + 2 * method.config.particles  # φ of the finished texts


def test_peak_memory_sees_what_was_freed_again():
    # New pages: an allocator may hand out what is resident already.
    with measure(every=0.001) as cost, mmap.mmap(-1, 160_000_000) as block:
        block.write(b"1" * len(block))
        time.sleep(0.2)  # the watcher may be kept waiting on a busy machine
    assert cost.peak_bytes > 100_000_000
    assert cost.seconds > 0
