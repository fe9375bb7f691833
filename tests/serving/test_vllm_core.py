"""Control of texts whose LM runs elsewhere: histories and logits in, logits out."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import tiny
import torch
from standins import SamplingParams

from scone.decode import Scone, SconeConfig, Verifier
from scone.lm import CausalLM
from scone.lookahead import Draft, Expectation, Masked, Mix, Nothing
from scone.vllm.asked import Asked
from scone.vllm.core import Controller
from scone.vllm.settings import Settings

MODEL, TOKENIZER = tiny.llama()
LM = CausalLM(MODEL, TOKENIZER)
END = TOKENIZER.eos_token_id
PROMPTS = ["the movie was", "a nice day", "what a wonderful old picture of the river it is"]


def asked_of(controller: Controller, **options: Any) -> Asked:
    found = Asked.read({"scone": {"attribute": "positive", **options}}, controller.settings)
    assert found is not None
    return found


def logits_of(prompts: list[list[int]]) -> torch.Tensor:
    return LM.prefill(prompts).logits


def written(controller: Controller, prompt: str, tokens: int, **options: Any) -> tuple[list[int], list[torch.Tensor]]:
    """The likeliest tokens under control, and the logits of each step."""
    ids, history, steps = LM.encode(prompt), [], []
    text = controller.serve(asked_of(controller, **options), ids, SamplingParams(max_tokens=tokens))
    for _ in range(tokens):
        new = controller.steer([text], [history], logits_of([[*ids, *history]]))
        steps.append(new[0])
        history.append(int(new[0].argmax()))
    return history, steps


@pytest.mark.parametrize(
    ("name", "lookahead"),
    [
        ("draft+nothing", Mix(Draft(tiny.llama(seed=5), Expectation(tokens=2)), Nothing())),
        ("masked", Masked(tokens=4)),
        ("nothing", Nothing()),
    ],
)
def test_as_the_engine_has_it(controller: Controller, name: str, lookahead: Any) -> None:
    """Token by token, also the last ones, the distribution of an engine that runs the LM itself."""
    config = SconeConfig(lookahead=lookahead, strength=8.0, top_k=4, min_mass=0.0)
    engine = Scone((MODEL, TOKENIZER), tiny.masked_lm("bert"), Verifier(*tiny.classifier(), target="positive"), config)
    for prompt in PROMPTS[:2]:
        out = engine.generate([prompt], max_new_tokens=6, do_sample=False)
        history, steps = written(controller, prompt, 6, lookahead=name)
        assert history[: len(out.token_ids[0])] == out.token_ids[0]
        for new, step in zip(steps, out.trace[0]):
            assert torch.allclose(new[step.tokens], step.log_p_star, atol=1e-3)
            assert int(new.isfinite().sum()) == len(step.tokens)


def test_requests_of_all_kinds_in_one_batch(controller: Controller) -> None:
    """Each gets what it gets alone: other attributes, strengths, candidates, lookaheads, lengths and ends."""
    kinds: list[dict[str, Any]] = [
        {}, {"attribute": "negative"}, {"attribute": (), "avoid": "positive", "strength": 3},
        {"top_k": 9, "verdict": "continuation"}, {"attribute": ["positive", "negative"], "lookahead": "masked+nothing"},
        {"lookahead": "draft"}, {"threshold": 0.4}, {"strength": 0},
    ]  # fmt: skip
    prompts = [LM.encode(PROMPTS[i % 3]) for i in range(len(kinds))]
    ends = [None, 3, 2, 9, 9, 4, 9, 9]

    def opened() -> list[Any]:
        return [
            controller.serve(asked_of(controller, **kind), ids, SamplingParams(max_tokens=end))
            for kind, ids, end in zip(kinds, prompts, ends)
        ]

    together, alone = opened(), opened()
    histories: list[list[int]] = [[] for _ in kinds]
    for _ in range(2):
        logits = logits_of([[*ids, *history] for ids, history in zip(prompts, histories)])
        new = controller.steer(together, histories, logits)
        for b, text in enumerate(alone):
            (own,) = controller.steer([text], [histories[b]], logits[b : b + 1])
            assert torch.allclose(new[b], own, atol=1e-3), kinds[b]
            histories[b] = [*histories[b], int(own.argmax())]
    assert torch.equal(new[7], logits[7])  # nothing is asked of strength 0
    assert not torch.allclose(new[0][new[0].isfinite()], logits[0].log_softmax(-1)[new[0].isfinite()], atol=0.1)
    assert int(new[3].isfinite().sum()) == 9


def test_a_step_is_one_batch_of_work(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many texts there are and whatever they ask for, the draft runs as often as for one."""
    passes: list[int] = []
    read = CausalLM.read
    monkeypatch.setattr(CausalLM, "read", lambda lm, ids, *a, **k: (passes.append(len(ids)), read(lm, ids, *a, **k))[1])
    prompts = [LM.encode("the movie was")] * 4
    logits = logits_of(prompts)
    texts = [
        controller.serve(asked_of(controller, attribute=name), ids)
        for name, ids in zip(["positive", "negative"] * 2, prompts)
    ]
    passes.clear()
    controller.steer(texts, [[]] * 4, logits)
    assert passes == [4, 16, 16]  # the texts, their candidates, one token more
    passes.clear()
    controller.steer(texts, [[int(logits[b].argmax())] for b in range(4)], logits)
    assert passes == [16, 16]  # what was taken had been read as a candidate


def test_what_grammar_forbids_stays_forbidden(controller: Controller) -> None:
    ids = LM.encode("the movie was")
    logits = logits_of([ids] * 4)
    logits[0, 50:] = -torch.inf
    logits[1] = -torch.inf
    logits[2, 7] = torch.nan
    one = logits[3].argmax()
    logits[3] = torch.full_like(logits[3], -torch.inf).index_fill(0, one, 1.0)
    texts = [controller.serve(asked_of(controller), ids) for _ in range(4)]
    before = logits.clone()
    new = controller.steer(texts, [[]] * 4, logits)
    assert new[0, 50:].isneginf().all() and int(new[0].isfinite().sum()) == 4
    assert (
        torch.equal(new[1], before[1])
        and torch.equal(
            new[2],
            before[2],
        )
    ) or new[2].isnan().any()
    assert int(new[3].argmax()) == int(one) and int(new[3].isfinite().sum()) == 1
    assert torch.equal(logits.nan_to_num(), before.nan_to_num())


def test_verdict_and_marker(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the verifier is shown: all, the continuation, or what is behind the marker, and before that nothing."""
    seen: list[str] = []
    leaf = controller.models.parts.readers[0]
    shown = type(leaf).value_of_expected
    monkeypatch.setattr(
        type(leaf), "value_of_expected", lambda own, texts, m: (seen.extend(texts), shown(own, texts, m))[1]
    )
    ids = LM.encode("the movie was")

    def shown_to(history: str, **options: Any) -> set[str]:
        seen.clear()
        text = controller.serve(asked_of(controller, lookahead="nothing", **options), ids)
        more = TOKENIZER(history)["input_ids"] if history else []
        logits = logits_of([[*ids, *more]])
        new = controller.steer([text], [more], logits)
        assert bool(seen) != torch.equal(new, logits)
        return set(seen)

    assert all(text.startswith("the movie was nice") for text in shown_to(" nice"))
    assert all(text.startswith(" nice") for text in shown_to(" nice", verdict="continuation"))
    assert not shown_to(" nice", after="</t>")
    behind = shown_to(" nice</t> and", after="</t>", verdict="continuation")
    assert behind and all(text.startswith(" and") for text in behind)
    thoughts = " music" * controller.settings.context_window  # more than is judged at once
    for verdict in ("text", "continuation"):
        behind = shown_to(thoughts + "</t> and", after="</t>", verdict=verdict)
        assert behind and all(" and" in text and "music" not in text for text in behind)


def test_a_bound_on_q(controller: Controller) -> None:
    """Tokens below it are forbidden; where all are, the text ends, by the token that the request names."""
    ids = LM.encode("the movie was")
    logits = logits_of([ids])

    def steered(**options: Any) -> torch.Tensor:
        params = SamplingParams(stop_token_ids=[7])
        return controller.steer([controller.serve(asked_of(controller, **options), ids, params)], [[]], logits)[0]

    free = steered(strength=1)
    config = SconeConfig(
        lookahead=Mix(Draft(tiny.llama(seed=5), Expectation(tokens=2)), Nothing()), top_k=4, min_mass=0.0
    )
    engine = Scone((MODEL, TOKENIZER), None, Verifier(*tiny.classifier(), target="positive"), config)
    step = engine.next_token("the movie was", max_new_tokens=16)
    middle = float(step.q.sort().values[1:3].mean())
    some = steered(strength=1, below=middle)
    assert sorted(some.isfinite().nonzero()[:, 0].tolist()) == sorted(step.tokens[step.q > middle].tolist())
    assert int(free.isfinite().sum()) == 4
    for options, end in (({}, END), ({"end_token": 7}, 7)):
        assert steered(below=1.0, **options).isfinite().nonzero()[:, 0].tolist() == [end]


def test_what_cannot_be_judged_is_not_written(
    make_controller: Any, caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    """A verifier that fails ends the texts that it should have judged, and no others; so does a runner that hides tokens."""
    controller = make_controller()
    ids = LM.encode("the movie was")
    logits = logits_of([ids, ids])
    texts = [controller.serve(asked_of(controller, lookahead=name), ids) for name in ("nothing", "masked")]
    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
        patch.setattr(Masked, "judge", lambda *_: 1 / 0)
        new = controller.steer(texts, [[], []], logits)
    assert new[1].isfinite().nonzero()[:, 0].tolist() == [END] and int(new[0].isfinite().sum()) == 4
    assert "1 texts are ended" in caplog.text and "division by zero" in caplog.text
    new = controller.steer(texts, [[], [-1]], logits)
    assert new[1].isfinite().nonzero()[:, 0].tolist() == [END] and "--logits-processors" in caplog.text


def test_only_what_is_new_is_read(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text is read once, also where the runner has put it aside and takes it up again as a new request."""
    widths: list[int] = []
    read = CausalLM.read
    monkeypatch.setattr(
        CausalLM, "read", lambda lm, ids, *a, **k: (widths.append(ids.shape[1]), read(lm, ids, *a, **k))[1]
    )
    ids = LM.encode("what a wonderful old picture of the river it is")
    text, history = controller.serve(asked_of(controller), ids), []
    for step in range(4):
        logits = logits_of([[*ids, *history]])
        widths.clear()
        new = controller.steer([text], [history], logits)
        assert max(widths) == (len(ids) if step == 0 else 1)
        history = [*history, int(new[0].argmax())]
    resumed = controller.serve(asked_of(controller), ids)
    logits = logits_of([[*ids, *history]])
    assert torch.allclose(
        controller.steer([resumed], [history], logits), controller.steer([text], [history], logits), atol=1e-3
    )


def test_threshold(controller: Controller) -> None:
    """Above it nothing is to be gained: p stays as it was among the candidates."""
    ids = LM.encode("the movie was")
    logits = logits_of([ids])
    (new,) = controller.steer([controller.serve(asked_of(controller, threshold=1e-6), ids)], [[]], logits)
    live = new.isfinite()
    assert torch.allclose(new[live], logits[0][live].log_softmax(0), atol=1e-4)


def test_a_lookahead_that_the_server_cannot_do(make_controller: Any) -> None:
    with pytest.raises(ValueError, match="lookahead must do without masked, for this server has no such model"):
        make_controller(masked_lm="", lookahead="masked")
    assert isinstance(Settings().lookahead, str)
