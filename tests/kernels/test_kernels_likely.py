"""likely_rows: which tokens are likely, what is expected under them, and the draw among them."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import chisquare

from scone_kernels import gibbs_sample_from_logits, likely_rows, likely_rows_from_logits, to_panels
from scone_kernels.ops.likely_rows import MOST

DRAWS = 20_000


def _random(*shapes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def _by_hand(logits, tables, among, min_p=0.0, keep=None):
    """Row by row in Python and float64: tokens, log_p, log_mass, and the mean rows."""
    results = []
    for row in logits.double():
        allowed = [token for token in range(len(row)) if keep is None or keep[token]]
        order = sorted(allowed, key=lambda token: (-float(row[token]), token))[:among]
        order = [token for token in order if row[token] - row[order[0]] >= torch.tensor(min_p).log()]
        log_p = row[order] - row[order].logsumexp(0)
        log_mass = row[order].logsumexp(0) - row[allowed].logsumexp(0)
        results.append((order, log_p, log_mass, [log_p.exp() @ table[order].double() for table in tables]))
    return results


def _assert_by_hand(likely, expected, atol=1e-5):
    for row, (order, log_p, log_mass, means) in enumerate(expected):
        assert likely.tokens[row].tolist() == order + [-1] * (likely.tokens.shape[1] - len(order))
        assert torch.allclose(likely.log_p[row, : len(order)].double(), log_p, atol=atol)
        assert (likely.log_p[row, len(order) :] == -torch.inf).all()
        assert abs(likely.log_mass[row].double() - log_mass) < atol
        for mean, table in zip(likely.rows, means, strict=True):
            assert torch.allclose(mean[row].double(), table, atol=atol)


# Across one panel of rows and several, one group of 192 rows and two, one block of tokens and several.
@pytest.mark.parametrize("rows, vocabulary", [(1, 1), (3, 47), (7, 240), (25, 241), (61, 500), (193, 97)])
@pytest.mark.parametrize("among", [1, 10, MOST])
def test_values(rows, vocabulary, among, backend):
    hidden, weight, wide, narrow, bias = _random(
        (rows, 16), (vocabulary, 16), (vocabulary, 300), (vocabulary, 3), (vocabulary,)
    )
    expected = _by_hand((hidden @ weight.T + bias) / 2, [wide, narrow], among, min_p=0.02)
    options = {"temperature": 2.0, "among": among, "min_p": 0.02, "backend": backend}
    _assert_by_hand(likely_rows(hidden, weight, [wide, narrow], bias=bias, **options), expected)
    ready = hidden @ weight.T + bias
    _assert_by_hand(likely_rows_from_logits(ready, [wide, narrow], **options), expected)


@pytest.mark.parametrize("vocabulary", [2047, 2049, 6000])
def test_values_across_blocks_of_ready_logits(vocabulary, backend):
    """The likeliest tokens stand at both ends of the blocks."""
    logits, table = _random((5, vocabulary), (vocabulary, 4))
    logits[:, [0, 2046, -1]] += torch.tensor([9.0, 8.0, 7.0])
    likely = likely_rows_from_logits(logits, [table], among=3, backend=backend)
    _assert_by_hand(likely, _by_hand(logits, [table], 3))
    assert {0, 2046, vocabulary - 1} >= set(likely.tokens[0].tolist()) - set(range(1, 2046))


@pytest.mark.parametrize("order", [1, -1])
def test_sorted_logits(order, backend):
    """Every token is above all before it, or none is."""
    logits = torch.linspace(-4 * order, 4 * order, 1500).expand(3, -1)
    likely = likely_rows_from_logits(logits, [torch.eye(1500)[:, :20]], among=20, backend=backend)
    _assert_by_hand(likely, _by_hand(logits, [torch.eye(1500)[:, :20]], 20))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("rows", [1, 7, 30, 56])
@pytest.mark.parametrize("vocabulary", [5, 48, 250, 500])
def test_weights_in_panels(rows, vocabulary, dtype, backend):
    hidden, weight, table, bias = _random((rows, 40), (vocabulary, 40), (vocabulary, 9), (vocabulary,))
    weight = weight.to(dtype).float()
    options = {"bias": bias, "keep": torch.arange(vocabulary) % 3 != 1, "min_p": 0.01, "seed": 1, "counter": 2}
    expected = likely_rows(hidden, weight, [table], **options, backend="reference")
    likely = likely_rows(hidden, to_panels(weight), [table], **options, backend=backend)
    alone = likely_rows(hidden, to_panels(weight), width=vocabulary, **options, backend=backend)
    assert torch.equal(likely.tokens, expected.tokens) and torch.equal(likely.drawn, expected.drawn)
    assert torch.equal(alone.tokens, expected.tokens) and alone.rows == []
    for left, right in zip([*likely.rows, likely.log_p, likely.log_mass], [*expected.rows, *expected[2:4]]):
        torch.testing.assert_close(left, right, atol=1e-4, rtol=1e-4)


def test_panels_may_be_views_and_give_the_same_bits_for_any_threads(cpu_builds):
    hidden, weight, table = _random((61, 40), (1500, 40), (1500, 9))
    panels = to_panels(weight.bfloat16().float())
    before = torch.get_num_threads()
    for build in cpu_builds:
        torch.ops.scone_kernels.use_cpu_build(build)
        expected = likely_rows(hidden, panels, [table], among=20)
        view = panels.transpose(1, 2).contiguous().transpose(1, 2)
        try:
            for threads in (1, 2, 5):
                torch.set_num_threads(threads)
                likely = likely_rows(hidden, view, [table], among=20)
                assert torch.equal(likely.tokens, expected.tokens)
                for left, right in zip([*likely.rows, *likely[2:4]], [*expected.rows, *expected[2:4]]):
                    assert torch.equal(left, right)
        finally:
            torch.set_num_threads(before)


def test_tables_of_any_dtype_and_stride(backend):
    logits, table = _random((6, 400), (400, 37))
    tables = [
        table,
        table.bfloat16(),
        table.half(),
        table.T.contiguous().T,
        torch.stack([table, torch.full_like(table, torch.nan)], -1)[..., 0].bfloat16(),
        table[:, :0],
    ]
    likely = likely_rows_from_logits(logits, tables, backend=backend)
    _assert_by_hand(likely, _by_hand(logits, tables, 10))
    assert all(mean.dtype == torch.float32 for mean in likely.rows)


@pytest.mark.parametrize("min_p", [0.0, 0.3])
@pytest.mark.parametrize("among", [1, 4, 40])
def test_the_draw_is_that_of_gibbs_sample_from_truncated_logits(among, min_p, backend):
    """Bit for bit: `gibbs_sample` is given -inf wherever a token is not among the likely ones."""
    (logits,) = _random((300, 700))
    keep = torch.arange(700) % 7 != 0
    seed, counter = torch.arange(300) * 0x123456789ABCDEF - 2**62, torch.arange(300) - 2**40
    likely = likely_rows_from_logits(
        logits, keep=keep, temperature=0.8, among=among, min_p=min_p, seed=seed, counter=counter, backend=backend
    )
    inside = torch.zeros(300, 701, dtype=torch.bool).scatter(1, likely.tokens.masked_fill(likely.tokens < 0, 700), True)
    truncated = logits.masked_fill(~inside[:, :700], -torch.inf)
    draw = gibbs_sample_from_logits(truncated, temperature=0.8, seed=seed, counter=counter, backend="reference")
    assert torch.equal(likely.drawn, draw.tokens)
    place = (likely.tokens == likely.drawn[:, None]).int().argmax(1, keepdim=True)
    assert torch.allclose(likely.log_p.gather(1, place)[:, 0], draw.logprob, atol=1e-5)
    assert (place.unique().numel() > 1) == (among > 1)


@pytest.mark.parametrize("vary", ["seed", "counter"])
def test_draws_follow_the_truncated_softmax(vary, backend):
    logits = torch.linspace(-3, 2, 40)
    keep = torch.arange(40) % 5 != 0
    options = {"seed": 5, "counter": 11} | {vary: torch.arange(DRAWS)}
    likely = likely_rows_from_logits(
        logits.expand(DRAWS, -1), keep=keep, temperature=1.3, among=12, min_p=0.4, backend=backend, **options
    )
    tokens = likely.tokens[0]
    assert (likely.tokens == tokens).all() and 1 < (tokens >= 0).sum() < 12
    expected = likely.log_p[0].double().exp()[tokens >= 0] * DRAWS
    counts = torch.bincount(likely.drawn, minlength=40)
    inside = tokens[tokens >= 0]
    assert counts[inside].sum() == DRAWS
    assert chisquare(counts[inside].numpy(), (expected * DRAWS / expected.sum()).numpy()).pvalue > 1e-3


@pytest.mark.parametrize("among", [1, 3, 10])
def test_of_equal_logits_the_lower_tokens_are_taken(among, backend):
    logits = torch.zeros(2, 5000)
    logits[1, [4, 700, 701, 2048, 2500, 4999]] = 1.0
    likely = likely_rows_from_logits(logits, among=among, backend=backend)
    assert likely.tokens[0].tolist() == list(range(among))
    assert likely.tokens[1].tolist() == [4, 700, 701, 2048, 2500, 4999, 0, 1, 2, 3][:among]
    hidden, weight = torch.ones(30, 1), logits[1, :, None]  # the same from a head
    for head in (weight, to_panels(weight)):
        from_head = likely_rows(hidden, head, among=among, width=5000, backend=backend)
        assert (from_head.tokens == likely.tokens[1]).all()


def test_ties_of_the_draw_go_to_the_lowest_token(backend):
    logits = torch.full((1, 2000), -torch.inf)
    logits[0, [700, 1900]] = 1e30  # noise is below the rounding of 1e30
    for counter in range(8):
        assert likely_rows_from_logits(logits, seed=0, counter=counter, backend=backend).drawn.item() == 700


def test_min_p_is_relative_to_the_likeliest(backend):
    logits = torch.tensor([[0.5, 0.3, 0.2 + 1e-6, 0.1]]).log()
    likely = likely_rows_from_logits(logits, torch.eye(4)[None].unbind(), min_p=0.4, backend=backend)
    assert likely.tokens[0].tolist() == [0, 1, 2] + [-1] * 7
    torch.testing.assert_close(likely.rows[0], torch.tensor([[0.5, 0.3, 0.2, 0.0]]), atol=1e-5, rtol=0)
    all_of_them = likely_rows_from_logits(logits, min_p=1.0, backend=backend)
    assert all_of_them.tokens[0].tolist() == [0] + [-1] * 9


def test_fewer_tokens_than_asked_for(backend):
    """Masked tokens and those at -inf are never likely, and NaN in their rows of a table does not count."""
    logits, table = _random((4, 600), (600, 5))
    keep = torch.zeros(600, dtype=torch.bool)
    keep[[20, 21, 550]] = True
    logits[:, 21] = -torch.inf
    logits[:, 300] = torch.nan  # masked
    table[0] = table[21] = torch.nan
    likely = likely_rows_from_logits(logits, [table], keep=keep, seed=0, counter=torch.arange(4), backend=backend)
    assert (likely.tokens[:, :2].sort(1).values == torch.tensor([20, 550])).all() and (likely.tokens[:, 2:] == -1).all()
    assert likely.rows[0].isfinite().all() and torch.isin(likely.drawn, torch.tensor([20, 550])).all()
    torch.testing.assert_close(likely.log_mass, torch.zeros(4))


def test_without_a_seed_nothing_is_drawn(backend):
    (logits,) = _random((3, 50))
    table = torch.eye(50)
    with_draw = likely_rows_from_logits(logits, [table], seed=0, counter=0, backend=backend)
    without = likely_rows_from_logits(logits, [table], backend=backend)
    assert without.drawn is None and torch.equal(without.tokens, with_draw.tokens)
    assert torch.equal(without.rows[0], with_draw.rows[0])


def test_rows_do_not_depend_on_the_batch(backend):
    hidden, weight, table = _random((200, 16), (3000, 16), (3000, 8))
    together = likely_rows(hidden, weight, [table], seed=0, counter=torch.arange(200), backend=backend)
    for row in (0, 7, 191, 192, 199):
        alone = likely_rows(hidden[row : row + 1], weight, [table], seed=0, counter=row, backend=backend)
        assert torch.equal(alone.tokens[0], together.tokens[row]) and alone.drawn[0] == together.drawn[row]
        torch.testing.assert_close(alone.rows[0][0], together.rows[0][row], atol=1e-5, rtol=1e-5)


def test_compiles_with_panels_and_without_a_draw(cpu_builds):
    hidden, weight, table = _random((5, 6), (100, 6), (100, 4))
    panels = to_panels(weight.bfloat16().float())
    compiled = torch.compile(likely_rows, fullgraph=True, backend="aot_eager")
    found, eager = compiled(hidden, panels, [table]), likely_rows(hidden, panels, [table])
    assert found.drawn is None and torch.equal(found.rows[0], eager.rows[0])
    arguments = (hidden, panels, [table], None, None, 1.0, 100, 10, 0.0, None, None)
    torch.library.opcheck(torch.ops.scone_kernels.likely_rows.default, arguments)
