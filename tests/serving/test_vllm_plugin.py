"""The logits processor on stand-ins for vLLM's two runners."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import standins
import tiny
import torch
from standins import SETTINGS, BatchUpdate, LogitsContext, LogitsProcRequestState, MoveDirectionality, SamplingParams

import scone.vllm.settings
from scone.lm import CausalLM

if standins.REAL:
    pytest.skip("these are tests on stand-ins, and vLLM is installed here", allow_module_level=True)

from scone.vllm.plugin import SconeLogitsProcessor

MODEL, TOKENIZER = tiny.llama()
LM = CausalLM(MODEL, TOKENIZER)
VOCABULARY = MODEL.config.vocab_size
POSITIVE, NEGATIVE = {"scone_attribute": "positive"}, {"scone": {"attribute": "negative"}}
SWAP, ONE_WAY = MoveDirectionality.SWAP, MoveDirectionality.UNIDIRECTIONAL


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCONE_VLLM", "tiny.toml")
    monkeypatch.setattr(scone.vllm.settings, "_read", lambda value: SETTINGS)
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", lambda *_, **__: TOKENIZER)


@pytest.fixture
def config() -> Any:
    return standins.config_of("tiny", VOCABULARY)


@pytest.fixture
def first(config: Any) -> Any:
    return SconeLogitsProcessor(config, torch.device("cpu"), False)


def logits_of(texts: list[list[int]]) -> torch.Tensor:
    return LM.prefill(texts).logits


def test_requests_come_go_and_move(first: Any) -> None:
    """Rows follow their requests; whoever asks for nothing keeps his logits bit for bit."""
    ids = [LM.encode(prompt) for prompt in ("the movie was", "a nice day", "the food")]
    outs: list[list[int]] = [[], [], []]
    params = [SamplingParams(POSITIVE), SamplingParams({"other": 1}), SamplingParams(NEGATIVE)]
    first.update_state(BatchUpdate(3, added=[(i, params[i], ids[i], outs[i]) for i in range(3)]))
    logits = logits_of(ids)
    before = logits.clone()
    new = first.apply(logits)
    assert torch.equal(new[1], before[1])
    positive, negative = new[0].clone(), new[2].clone()
    assert int(positive.isfinite().sum()) == int(negative.isfinite().sum()) == 4

    first.update_state(BatchUpdate(3, moved=[(0, 2, SWAP)]))
    new = first.apply(before[[2, 1, 0]].clone())
    assert torch.allclose(new[2], positive, atol=1e-3) and torch.allclose(new[0], negative, atol=1e-3)
    first.update_state(BatchUpdate(2, removed=[1], moved=[(2, 1, ONE_WAY)]))
    new = first.apply(before[[2, 0]].clone())
    assert torch.allclose(new[1], positive, atol=1e-3)
    first.update_state(BatchUpdate(2, added=[(1, SamplingParams(), ids[1], [])]))  # in its place, one that asks nothing
    assert torch.equal(first.apply(before[[2, 1]].clone())[1], before[1])
    first.update_state(BatchUpdate(1, removed=[0]))
    assert not first.served and torch.equal(first.apply(before[[1]].clone()), before[[1]])
    first.update_state(None)


def test_the_runner_s_own_list_is_followed(first: Any) -> None:
    """The output tokens are a list that grows in the runner's hands."""
    ids, out = LM.encode("the movie was"), []
    first.update_state(BatchUpdate(1, added=[(0, SamplingParams(POSITIVE), ids, out)]))
    for _ in range(3):
        out.append(int(first.apply(logits_of([[*ids, *out]]))[0].argmax()))
    text, _ = first.served[0]
    first.apply(logits_of([[*ids, *out]]))
    assert text.new_ids == out and text.text.startswith("the movie was") and len(text.continuation) > 0


def test_found_twice_it_acts_once(config: Any) -> None:
    """By the entry point and by name: control is not applied to what is controlled already."""
    one, two = (SconeLogitsProcessor(config, torch.device("cpu"), False) for _ in range(2))
    assert one.acts and not two.acts and two.controller is None
    two.update_state(BatchUpdate(1, added=[(0, SamplingParams(POSITIVE), [5], [])]))
    logits = torch.randn(1, VOCABULARY)
    assert torch.equal(two.apply(logits.clone()), logits) and not one.is_argmax_invariant()


def test_a_server_without_settings(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It starts, loads nothing, and says what is missing to whoever asks for control."""
    monkeypatch.delenv("SCONE_VLLM")
    processor = SconeLogitsProcessor(config, torch.device("cpu"), False)
    assert processor.controller is None
    processor.validate_params(SamplingParams())
    processor.validate_params(SamplingParams({"other": 3}))
    with pytest.raises(ValueError, match="controls nothing, for SCONE_VLLM was not set when it started"):
        processor.validate_params(SamplingParams(POSITIVE))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"scone_attribute": "posh"}, "scone_attribute must be of positive, negative, got 'posh'"),
        ({"scone_attribute": 3}, "scone_attribute must be of positive, negative, got 3"),
        ({"scone_strength": 3}, "scone_attribute or scone_avoid must name an attribute, got scone_strength alone"),
        (POSITIVE | {"scone_strenght": 3}, "scone_strenght is not known: one of scone_attribute, "),
        (POSITIVE | {"scone_strength": "3"}, "scone_strength must be a number of at least 0, got '3'"),
        (POSITIVE | {"scone_strength": float("nan")}, "scone_strength must be a number of at least 0, got nan"),
        (POSITIVE | {"scone_top_k": 0}, "scone_top_k must be an integer from 1 to 256, got 0"),
        (POSITIVE | {"scone_verdict": "all"}, "scone_verdict must be 'text' or 'continuation', got 'all'"),
        (POSITIVE | {"scone_after": 1}, "scone_after must be a string, got 1"),
        (POSITIVE | {"scone_threshold": 0}, r"scone_threshold must be a number in \(0, 1\], got 0"),
        (POSITIVE | {"scone_below": 2}, r"scone_below must be a number in \[0, 1\], got 2"),
        (POSITIVE | {"scone_seed": 1 << 70}, "scone_seed must be an integer, got "),
        (POSITIVE | {"scone_lookahead": "gibbs"}, "scone_lookahead must be of draft, masked, nothing, with . between several"),
        (POSITIVE | {"scone_end_token": 5}, "scone_end_token must be one of the request's stop_token_ids, got 5"),
        ({"scone": '{"attribute": "positive"}'}, "scone must be a dict of options .over HTTP write scone_attribute"),
    ],
)  # fmt: skip
def test_bad_requests_are_refused(first: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        first.validate_params(SamplingParams(given))


def test_an_end_must_be_seen(first: Any) -> None:
    params = SamplingParams(POSITIVE | {"scone_below": 0.2}, ignore_eos=True)
    with pytest.raises(ValueError, match="scone_end_token must be given where scone_below and ignore_eos are"):
        first.validate_params(params)


class Runner:
    """A V2 runner of few slots: tokens in a tensor, rows in any order."""

    def __init__(self, slots: int = 4) -> None:
        self.tokens = torch.zeros(slots, 64, dtype=torch.int32)
        self.prompt, self.total = np.zeros(slots, dtype=np.int32), np.zeros(slots, dtype=np.int32)
        self.states = LogitsProcRequestState(
            torch.device("cpu"), slots, VOCABULARY, SimpleNamespace(gpu=self.tokens), SimpleNamespace(np=self.prompt),
            SimpleNamespace(np=self.prompt), SimpleNamespace(gpu=torch.from_numpy(self.total)),
        )  # fmt: skip

    def put(self, slot: int, prompt: list[int], written: list[int] = []) -> None:  # noqa: B006
        ids = [*prompt, *written]
        self.tokens[slot] = 0
        self.tokens[slot, : len(ids)] = torch.tensor(ids)
        self.prompt[slot], self.total[slot] = len(prompt), len(ids)

    def context(
        self, slots: list[int], *, read: dict[int, int] | None = None, drafts: dict[int, list[int]] | None = None
    ) -> Any:
        """Rows of these slots; `read`: so many tokens only have been read; `drafts`: tokens that the runner proposes."""
        rows: list[tuple[int, int, int, int]] = []  # slot, offset, token fed, its place
        for slot in slots:
            length = (read or {}).get(slot, int(self.total[slot]))
            rows.append((slot, 0, int(self.tokens[slot, length - 1]), length - 1))
            rows += [(slot, i, token, length - 1 + i) for i, token in enumerate((drafts or {}).get(slot, []), 1)]
        slot, offset, fed, place = (torch.tensor(column) for column in zip(*rows))
        return LogitsContext(slot, torch.tensor(slots), np.array(slots), offset, fed, place, np.array([0]))

    def logits(self, slots: list[int]) -> torch.Tensor:
        return logits_of([self.tokens[slot, : self.total[slot]].tolist() for slot in slots])


@pytest.fixture
def runner() -> Runner:
    return Runner()


@pytest.fixture
def second(runner: Runner) -> Any:
    return SconeLogitsProcessor(standins.config_of("tiny", VOCABULARY), runner.states)


def test_slots_and_rows(second: Any, runner: Runner, first: Any) -> None:
    """Rows come in any order, slots are used again, and the numbers are those of the other runner."""
    ids = [LM.encode(prompt) for prompt in ("the movie was", "a nice day", "the food")]
    for slot, (own, args) in enumerate(zip(ids, (POSITIVE, None, NEGATIVE))):
        runner.put(slot, own)
        assert second.add_request(slot, SamplingParams(args)) == (args is not None)
    before = runner.logits([2, 0, 1])
    new = second.apply(before.clone(), runner.context([2, 0, 1]))
    assert torch.equal(new[2], before[2])
    first.update_state(
        BatchUpdate(2, added=[(0, SamplingParams(NEGATIVE), ids[2], []), (1, SamplingParams(POSITIVE), ids[0], [])])
    )
    assert torch.allclose(first.apply(before[:2].clone()), new[:2], atol=1e-3)
    runner.put(0, ids[0], [int(new[1].argmax())])
    after = second.apply(runner.logits([0]), runner.context([0]))
    runner.put(3, ids[0], [int(new[1].argmax())])  # resumed after it had been put aside, in another slot
    second.add_request(3, SamplingParams(POSITIVE))
    assert torch.allclose(second.apply(runner.logits([3]), runner.context([3])), after, atol=1e-3)
    runner.put(0, ids[1])
    assert not second.add_request(0, SamplingParams())  # a slot that is used again
    assert torch.equal(second.apply(runner.logits([0]), runner.context([0])), runner.logits([0]))
    second.add_request(0, SamplingParams(NEGATIVE))
    assert second.apply(runner.logits([0]), runner.context([0]))[0].isfinite().sum() == 4
    assert second.served[0][0].text == "a nice day"


def test_a_prompt_that_is_read_in_pieces(second: Any, runner: Runner) -> None:
    """Until all of it has been read, its logits are nobody's."""
    runner.put(1, LM.encode("what a wonderful old picture of the river"))
    second.add_request(1, SamplingParams(POSITIVE))
    logits = runner.logits([1])
    assert torch.equal(second.apply(logits.clone(), runner.context([1], read={1: 4})), logits)
    assert not second.served and second.apply(logits.clone(), runner.context([1]))[0].isfinite().sum() == 4


def test_rows_behind_draft_tokens(second: Any, runner: Runner) -> None:
    """A row behind tokens that the runner proposes is judged as if they had been written."""
    ids = LM.encode("the movie was")
    drafts = LM.tokenizer(" nice and")["input_ids"]
    runner.put(0, ids)
    second.add_request(0, SamplingParams(POSITIVE))
    rows = logits_of([[*ids, *drafts[:i]] for i in range(len(drafts) + 1)])
    together = second.apply(rows.clone(), runner.context([0], drafts={0: drafts}))
    for i in range(len(drafts) + 1):
        runner.put(2, ids, drafts[:i])
        second.add_request(2, SamplingParams(POSITIVE))
        alone = second.apply(rows[i : i + 1].clone(), runner.context([2]))
        assert torch.allclose(together[i], alone[0], atol=1e-3)


def test_importing_it_is_light() -> None:
    """A frontend that checks requests loads neither torch nor models for us."""
    code = (
        "import sys, standins; standins.install(); from scone.vllm import SconeLogitsProcessor as P\n"
        "from types import SimpleNamespace as S\n"
        "P.validate_params(S(extra_args={'scone_attribute': 'positive'}, stop_token_ids=[]))\n"
        "print([name for name in ('torch', 'transformers', 'numpy') if name in sys.modules])"
    )
    here = Path(__file__).parent
    env = {"PYTHONPATH": f"{here}:{here.parents[1]}", "SCONE_VLLM": "embedded", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
