"""The audit on a world whose q is known: rollouts are coin flips with a chosen probability."""

from pathlib import Path

import numpy as np
import pytest
import torch

from scone.config import SconeConfig
from scone.errors import InputError
from scone.evaluate import audit as auditing
from scone.evaluate import estimators
from scone.evaluate.models import Models
from scone.evaluate.progress import Progress
from scone.evaluate.records import Records
from scone.evaluate.rollouts import Prefix, Rollouts
from scone.evaluate.walk import carries, next_token_after
from scone.lookahead import AtSample, Carried, Gibbs, Mix, Nothing
from scone.output import Cost
from scone.settings import parse_settings

K, R = 10, 72


@pytest.fixture(scope="module")
def world():
    """60 steps; `truth[path]` is the q that a perfect estimator would give."""
    rng = np.random.default_rng(0)
    stored, phis, truth = [], [], {}
    for index in range(60):
        place = ("start", "middle", "end")[index % 3]
        step = Prefix(f"prompt {index // 3}", "prefix", place, 25, (1, 2), tuple(range(K)), 0)
        path = Path(f"step-{index}")
        q = rng.uniform(0.3, 0.7) + rng.uniform(-0.25, 0.25, K)
        truth[path] = q
        stored.append(Rollouts(step, np.log(np.full(K, 1 / K)), np.zeros((K, R, 25), np.int32), path))
        phis.append(rng.binomial(1, q[:, None], (K, R)).astype(float))
    return stored, phis, truth


def run(world, **functions):
    stored, phis, _ = world
    result = auditing.audit(stored, phis, functions)
    return result, {row.name: row for row in result.rows}


def test_a_perfect_estimate_is_recognised(world):
    _, _, truth = world
    result, rows = run(world, perfect=lambda r: truth[r.path], reverse=lambda r: 1 - truth[r.path])
    assert 0.75 < result.reliability < 0.95
    assert rows["perfect"].correlation < 0.95
    assert rows["perfect"].corrected.value == pytest.approx(1.0, abs=0.03)
    assert rows["perfect"].corrected.low <= rows["perfect"].corrected.value <= rows["perfect"].corrected.high
    assert rows["reverse"].corrected.value == pytest.approx(-1.0, abs=0.03)
    assert rows["perfect"].error < 0.06 < rows["reverse"].error
    assert rows["perfect"].lift >= result.best_lift - 0.003 > 0 > rows["reverse"].lift
    assert set(rows["perfect"].by_place) == {"start", "middle", "end"}
    for point in rows["perfect"].curve:
        assert point.size < 5 or point.estimate == pytest.approx(point.target, abs=0.05)


def test_a_shift_costs_error_but_no_rank(world):
    _, _, truth = world
    _, rows = run(world, right=lambda r: truth[r.path], shifted=lambda r: truth[r.path] + 0.2)
    assert rows["shifted"].correlation == rows["right"].correlation
    assert rows["shifted"].error == pytest.approx(0.2, abs=0.01)


def test_rows_are_compared_with_the_first_step_by_step(world):
    _, _, truth = world
    noise = np.random.default_rng(1)
    rough = {path: q + noise.normal(0, 0.1, K) for path, q in truth.items()}
    _, rows = run(world, right=lambda r: truth[r.path], rough=lambda r: rough[r.path], same=lambda r: truth[r.path])
    assert rows["right"].difference == rows["same"].difference == (0.0, 0.0, 0.0)
    less = rows["rough"].difference
    assert less.value == pytest.approx(rows["rough"].corrected.value - rows["right"].corrected.value)
    assert less.low < less.value < less.high < 0
    # Paired: prompts that are hard for one are hard for the other, so that the difference is surer than either.
    assert less.high - less.low < rows["rough"].corrected.high - rows["rough"].corrected.low


def test_an_estimate_is_asked_for_once(world, tmp_path):
    stored, _, truth = world
    asked, said = [], []

    def slow(rollouts):
        asked.append(rollouts.path)
        return auditing.Answered(np.array([truth[rollouts.path], [np.nan] * K]), 2.5, 7.0, 9.0)

    def again(facts):
        progress = Progress(4, "estimates", say=said.append)
        remembering = estimators.remembered(slow, facts, Records(tmp_path / "e.jsonl"), progress)
        return [remembering(rollouts) for rollouts in stored[:2]]

    first, second = again({"row": "slow"}), again({"row": "slow"})
    assert len(asked) == 2 and len(said) == 2
    for one, other, rollouts in zip(first, second, stored):
        np.testing.assert_array_equal(one.q, other.q)
        np.testing.assert_array_equal(one.q[0], truth[rollouts.path])
        assert other[1:] == (2.5, 7.0, 9.0)
    again({"row": "slow", "config": "another"})
    assert len(asked) == 4


def test_plain_rollouts_come_from_the_spare_ones(world):
    stored, phis, _ = world
    one = estimators.plain_rollouts(1, stored, phis, kept_apart=64)
    four = estimators.plain_rollouts(4, stored, phis, kept_apart=64)
    np.testing.assert_array_equal(one(stored[5]), phis[5][:, 64:].T)
    np.testing.assert_allclose(four(stored[5])[1], phis[5][:, 68:72].mean(1))
    _, rows = run(world, **{"rollouts:1": one, "rollouts:4": four})
    assert 0 < rows["rollouts:1"].corrected.value < rows["rollouts:4"].corrected.value < 0.9


def test_candidates_without_q_are_left_out_and_counted(world):
    _, _, truth = world
    half = np.where(np.arange(K) < K // 2, 1.0, np.nan)
    _, rows = run(world, half=lambda r: truth[r.path] * half)
    assert rows["half"].covered == pytest.approx(0.5)
    assert rows["half"].corrected.value > 0.8


def test_next_token_is_matched_by_token(world):
    stored, _, _ = world

    class Engine:
        def next_token(self, prefix, *, max_new_tokens, seed):
            assert (prefix, max_new_tokens) == ("prefix", 25)
            tokens = [7, 3, 99]
            return type(
                "Found",
                (),
                {
                    "tokens": np.array(tokens),
                    "q": np.array([0.7, 0.3, 0.99]) + seed / 100,
                    "cost": Cost(lm_rows=5, verifier_rows=8),
                },
            )

    answered = estimators.next_token(lambda step: Engine(), seeds=(0, 1), walk=None)(stored[0])
    assert (answered.lm_rows, answered.verifier_rows) == (5, 8)
    q = answered.q
    assert q.shape == (2, K) and q[0, 7] == 0.7 and q[1, 3] == pytest.approx(0.31)
    assert np.isnan(q[0, 0]) and np.isfinite(q).sum() == 4


def test_myopic_scores_prefix_and_candidate(lm):
    step = Prefix("the film", "the film", "start", 5, (16, 18), (6, 7, 0), 0)
    rollouts = Rollouts(step, np.zeros(3), np.zeros((3, 1, 5), np.int32), Path("s"))
    seen = []

    def score(step, texts):
        seen.extend(texts)
        return np.zeros(len(texts))

    assert estimators.myopic(score, lm)(rollouts).shape == (3,)
    assert seen == ["the film good", "the film bad", "the film"]


def test_too_few_rollouts_are_refused(world):
    stored, phis, _ = world
    with pytest.raises(InputError, match="at least 100 rollouts"):
        auditing.audit(stored, phis, {}, target_rollouts=100)
    with pytest.raises(InputError, match="rollouts:9 needs 73"):
        estimators.plain_rollouts(9, stored, phis, kept_apart=64)


CHAINS = Gibbs(tokens=4, start=Carried(warmup=1), block=2, estimate=AtSample())
CARRYING = {"alone": CHAINS, "mixed": Mix(Nothing(), CHAINS)}


@pytest.fixture(scope="module")
def engine_with(names):
    models = Models(names, "sentiment")
    options = {"top_k": 4, "min_mass": 0.0, "particles": 1}  # so that `generate` keeps the text that it began with
    return lambda lookahead: models.engine("positive", False, SconeConfig(lookahead=lookahead, **options))


@pytest.mark.parametrize("lookahead", CARRYING.values(), ids=CARRYING)
def test_an_engine_that_carries_is_walked_to_where_decoding_would_be(engine_with, lookahead):
    """In `generate` the q of a step is what the walk through the same tokens gives."""
    engine = engine_with(lookahead)
    prompt = engine.parts.lm.encode("the film was")
    out = engine.generate(["the film was"], max_new_tokens=6, seed=3)
    assert len(out.token_ids[0]) > 3
    for i in (0, 1, 3):
        found = next_token_after(engine, prompt, out.token_ids[0][:i], max_new_tokens=6 - i, seed=3)
        torch.testing.assert_close(found.q, out.trace[0][i].q)
        assert found.tokens.tolist() == out.trace[0][i].tokens.tolist()


def test_the_walk_goes_through_tokens_that_were_no_candidates(engine_with):
    engine = engine_with(CHAINS)
    prompt = engine.parts.lm.encode("the film was")
    unlikely = int(engine.parts.lm.prefill([prompt]).logits[0].argmin())
    found = next_token_after(engine, prompt, [unlikely], max_new_tokens=4, seed=0)
    assert len(found.tokens) == 4 and bool(found.q.isfinite().all())


def a_step(engine, prompt="the film was", prefix="the film was very good and nice"):
    ids = engine.parts.lm.encode(prefix)
    candidates = engine.parts.lm.prefill([ids]).logits[0].topk(4).indices.tolist()
    step = Prefix(prompt, prefix, "middle", 8, tuple(ids), tuple(candidates), 0)
    return Rollouts(step, np.zeros(4), np.zeros((4, 1, 8), np.int32), Path("s"))


@pytest.mark.parametrize("lookahead", CARRYING.values(), ids=CARRYING)
def test_the_estimate_of_an_engine_that_carries_depends_on_the_walk(engine_with, lookahead):
    engine = engine_with(lookahead)
    rollouts = a_step(engine)
    warm = estimators.next_token(lambda step: engine)(rollouts)
    cold = estimators.next_token(lambda step: engine, walk=None)(rollouts)
    ids = rollouts.step.prefix_ids
    walked = next_token_after(engine, ids[:3], ids[3:], max_new_tokens=8, seed=0)
    np.testing.assert_allclose(warm.q[0], walked.q.numpy())
    assert not np.allclose(warm.q, cold.q)


def test_an_engine_that_carries_nothing_is_not_walked(engine_with):
    engine, asked = engine_with(Nothing()), []
    rollouts = a_step(engine)

    def walk(*args, **options):
        pytest.fail("it was walked")

    def watched(*args, **options):
        asked.append(carries(*args, **options))
        return asked[-1]

    estimate = estimators.next_token(lambda step: engine, walk=walk, carries=watched)
    for _ in range(2):
        np.testing.assert_allclose(estimate(rollouts).q[0], engine.next_token(rollouts.step.prefix, max_new_tokens=8).q)
    assert asked == [False]  # found out once
    assert carries(engine_with(CHAINS), [15], max_new_tokens=4, seed=0) is True
    assert carries(engine_with(CHAINS), [15], max_new_tokens=1, seed=0) is None  # nothing to look ahead for


def test_rows_of_the_table_are_all_different():
    """In what an estimate hangs on: how many texts are written side by side plays no part."""
    configs = [parse_settings(row).replace(particles=1) for row in estimators.OPTION_ROWS]
    assert len(set(map(repr, configs))) == len(configs)
    assert {type(config.lookahead).__name__ for config in configs} == {
        "Expectation", "Gibbs", "Masked", "Mix", "Nothing", "Paths",
    }  # fmt: skip


@pytest.mark.parametrize("row", estimators.OPTION_ROWS)
def test_every_row_of_the_table_gives_a_q_for_each_candidate(names, engine_with, row):
    config = parse_settings(row).replace(min_mass=0.0)
    engine = engine_with(config.lookahead).with_config(config)
    q = estimators.next_token(lambda step: engine)(a_step(engine)).q
    assert q.shape == (1, 4) and bool(((q > 0) & (q < 1)).all())
