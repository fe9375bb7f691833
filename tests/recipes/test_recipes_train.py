import numpy as np
import pytest
import torch

from recipes import mlm, publish
from recipes.__main__ import main
from recipes.cards import write_card
from recipes.classifier import calibration_error
from recipes.loop import Average, Clock, Run, sharing_copy
from recipes.muon import orthogonalise
from recipes.tokens import MASK, VOCABULARY
from scone.embedded.cards import FIELDS, read_card


class _Toy(torch.nn.Module):
    """Learns to copy a fixed linear map; one parameter is frozen and must stay so."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.frozen = torch.nn.Parameter(torch.ones(3), requires_grad=False)
        self.linear = torch.nn.Linear(6, 3)

    def forward(self, x):
        return self.linear(x) * self.frozen


TARGET = torch.randn(3, 6, generator=torch.Generator().manual_seed(5))


def _loss(model, random):
    x = torch.from_numpy(random.standard_normal((16, 6))).float()
    return (model(x.to(model.linear.weight.dtype)) - x @ TARGET.T).square().mean(), 16


def _run(folder, minutes, reports, loss=_loss, **options):
    def report(snapshot, state):
        reports.append(state)

    return Run(_Toy(), loss, report, folder, minutes, rate=0.05, decay=0.9, **options)


def test_run_learns_with_two_workers_and_ends_by_the_clock(tmp_path):
    reports = []
    model = _run(tmp_path, 2 / 60, reports, workers=2).finish()
    assert reports[-1]["loss"] < 0.3 * TARGET.square().sum(1).mean().item()
    assert torch.equal(model.frozen, torch.ones(3))
    assert not model.training
    assert (tmp_path / "state.safetensors").exists()


@pytest.mark.parametrize("matrix_rate", [None, 0.2])
def test_run_in_bfloat16_updates_parameters_in_float32(tmp_path, matrix_rate):
    reports, seen = [], set()

    def loss(model, random):
        seen.add(model.linear.weight.dtype)
        return _loss(model, random)

    run = _run(tmp_path, 2 / 60, reports, loss, workers=2, matrix_rate=matrix_rate, precision=torch.bfloat16)
    model = run.finish()
    assert seen == {torch.bfloat16}
    assert reports[-1]["loss"] < 0.3 * TARGET.square().sum(1).mean().item()
    weight = run.model.linear.weight
    assert model.linear.weight.dtype == weight.dtype == torch.float32
    assert not torch.equal(weight, weight.bfloat16().float())  # more than bfloat16 could hold
    torch.testing.assert_close(run.read.linear.weight, weight.bfloat16())


def test_an_error_of_a_worker_ends_the_run_at_once(tmp_path):
    def loss(model, random):
        raise ArithmeticError("no gradient today")

    with pytest.raises(ArithmeticError, match="no gradient today"):
        _run(tmp_path, 60.0, [], loss, workers=2).finish()
    assert not (tmp_path / "state.safetensors").exists()


@pytest.mark.parametrize(("matrix_rate", "moment"), [(None, "exp_avg_sq"), (0.05, "momentum")])
def test_run_resumes_from_its_checkpoint(tmp_path, matrix_rate, moment):
    first = _run(tmp_path, 1 / 60, [], workers=1, matrix_rate=matrix_rate, pieces=2)
    trained = first.finish()
    resumed = _run(tmp_path, 10.0, [], matrix_rate=matrix_rate)
    assert resumed.state["step"] == first.state["step"] > 0
    assert resumed.clock.spent >= 1.0
    torch.testing.assert_close(resumed.averaged().linear.weight, trained.linear.weight)
    old = first.optimizers[-1].state[first.trainable[0]]
    new = resumed.optimizers[-1].state[resumed.trainable[0]]
    torch.testing.assert_close(new[moment], old[moment])


def test_muon_steps_are_near_orthogonal_and_learn(tmp_path):
    tall = torch.randn(40, 12, generator=torch.Generator().manual_seed(1))
    left, _, right = torch.linalg.svd(tall, full_matrices=False)
    step = orthogonalise(tall)
    assert step.shape == tall.shape
    values = torch.linalg.svdvals(step)
    assert values.min() > 0.5 and values.max() < 1.3
    torch.testing.assert_close(
        left.T @ step @ right.T, torch.diag((left.T @ step @ right.T).diagonal()), atol=1e-4, rtol=0
    )
    reports = []
    _run(tmp_path, 2 / 60, reports, workers=1, matrix_rate=0.2).finish()
    assert reports[-1]["loss"] < 0.3 * TARGET.square().sum(1).mean().item()


def test_replicas_share_parameters_but_not_gradients():
    model = _Toy()
    replica = sharing_copy(model)
    replica(torch.ones(1, 6)).sum().backward()
    assert model.linear.weight.grad is None
    with torch.no_grad():
        model.linear.weight.fill_(2.0)
    assert (replica.linear.weight == 2.0).all()


def test_learning_rate_rises_then_falls_to_zero():
    at = {share: Clock(1.0, spent=60 * share).rate(1.0) for share in (0.0, 0.01, 0.02, 0.5, 1.0)}
    assert at[0.0] < 0.01
    assert at[0.01] == pytest.approx(0.5, abs=0.05)
    assert at[0.02] == pytest.approx(1.0, abs=0.05)
    assert at[0.5] == pytest.approx(0.51, abs=0.02)
    assert at[1.0] == 0.0
    clock = Clock(1.0)
    clock.end()
    assert clock.share == 1.0


def test_a_pause_of_the_process_counts_as_one_minute(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("recipes.loop.time.monotonic", lambda: now[0])
    clock = Clock(10.0)
    for seconds in (3.0, 3.0, 3600.0, 4.0):
        now[0] += seconds
        clock.tick()
    assert clock.spent == 10.0 + Clock.PAUSE


def test_masked_logits_are_the_models_own():
    from recipes.mlm import masked_logits
    from scone.embedded import load_masked_lm

    model, _ = load_masked_lm()
    seen = torch.randint(1000, 20000, (3, 17), generator=torch.Generator().manual_seed(2))
    chosen = torch.rand(3, 17, generator=torch.Generator().manual_seed(3)) < 0.3
    with torch.no_grad():
        found, own = masked_logits(model, seen, chosen), model(input_ids=seen).logits[chosen]
        exact = model.double()(input_ids=seen).logits[chosen]
    assert (found - exact).abs().max() < 3 * (own - exact).abs().max()  # no further off than float32 is anyway


def test_average_follows_the_parameters():
    model = torch.nn.Linear(1, 1, bias=False)
    average = Average(model, decay=0.5)
    start = model.weight.item()
    with torch.no_grad():
        model.weight.fill_(start + 1.0)
    average.update()
    assert average.snapshot(model).weight.item() == pytest.approx(start + 0.5)
    assert model.weight.item() == pytest.approx(start + 1.0)


def test_calibration_error_knows_good_from_bad():
    random = np.random.default_rng(0)
    p = random.uniform(0, 1, 20000)
    label = (random.uniform(0, 1, 20000) < p).astype(int)
    honest = np.stack([1 - p, p], 1)
    assert calibration_error(honest, label) < 0.02
    boastful = np.stack([1 - (p > 0.5), p > 0.5], 1).astype(float)
    assert calibration_error(boastful, label) == pytest.approx(0.25, abs=0.02)


def test_area_under_curve_counts_pairs():
    random = np.random.default_rng(1)
    score, label = random.integers(0, 5, 60) / 5, random.integers(0, 2, 60)
    pairs = [(a > b) + 0.5 * (a == b) for a in score[label == 1] for b in score[label == 0]]
    assert publish.area_under_curve(score, label) == pytest.approx(np.mean(pairs))


def test_card_takes_size_and_checksum_from_the_file_and_refuses_gaps(tmp_path):
    weights = tmp_path / "thing.safetensors"
    weights.write_bytes(b"12345")
    entries = {"base": "b", "licence": "MIT", "data": [], "command": "c", "training": {}, "scores": {"top-1": 0.5}}
    write_card(weights, **entries)
    card = read_card("thing", tmp_path)
    assert set(FIELDS) <= set(card)
    assert card["bytes"] == 5
    del entries["licence"]
    with pytest.raises(ValueError, match="licence"):
        write_card(weights, **entries)


def test_recipes_refuse_nonsense(capsys):
    with pytest.raises(SystemExit):
        main(["mlm", "--minutes", "-3"])
    assert "--minutes must be positive, got -3" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["sentiment", "--bfloat16"])
    assert "--bfloat16 must come with mlm, got sentiment" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["topic", "--score"])
    assert "--score must come with mlm, got topic" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["poetry"])


class _Parrot(torch.nn.Module):
    """A masked LM that says again what it sees, and "the" where it sees [MASK]."""

    def forward(self, input_ids):
        said = torch.where(input_ids == MASK, 1996, input_ids)
        return (torch.nn.functional.one_hot(said, VOCABULARY).float(),)


@pytest.mark.parametrize(("hidden", "right"), [(1.0, 0.0), (0.8, 0.1), (0.0, 0.5)])
def test_accuracy_hides_as_many_of_the_chosen_tokens_as_it_is_told(monkeypatch, hidden, right):
    monkeypatch.setattr(mlm, "masked_logits", lambda model, seen, chosen: model(input_ids=seen)[0][chosen])
    window = np.random.default_rng(0).integers(2000, 20000, (80, 64))
    top1, _ = mlm.accuracy(_Parrot(), window, rate=0.5, hidden=hidden)
    assert top1 == pytest.approx(right, abs=0.03)  # of 2,500 tokens: three standard deviations


def test_score_prints_both_counts_of_the_shipped_model_and_of_what_it_began_with(monkeypatch, capsys):
    windows = np.random.default_rng(0).integers(2000, 20000, (160, 64))
    monkeypatch.setattr(mlm, "masked_logits", lambda model, seen, chosen: _Parrot()(input_ids=seen[chosen])[0])
    monkeypatch.setattr(mlm, "evaluation_windows", lambda split, rows, length: {f"{split} text": windows})
    assert main(["mlm", "--score"]) == 0
    printed = capsys.readouterr().out
    for model in printed.split("masked-lm before training"):
        lines = dict(reversed(line.split(maxsplit=1)) for line in model.splitlines() if "top-1" in line)
        assert float(lines["test text top-1, 15 % of 64 tokens masked"]) == 0
        assert float(lines["test text top-1, 64 tokens, chosen as BERT's training does"]) == pytest.approx(
            0.1, abs=0.03
        )
