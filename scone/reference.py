"""The paper's four algorithms, written as plainly as they can be: one prompt, whole logits, no kernels, no reuse.

This is what the fast path is compared with. It takes its random numbers from the same (seed, counter) as the fast path,
so that for the same seed both see the same lookaheads and must agree on q. The masked LM and the verifier share a
tokenizer here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import MinPLogitsWarper, TopPLogitsWarper

import scone_kernels as kernels
from scone.decode import Scone
from scone.errors import ModelError
from scone.lm import same_vocabulary, special_frame
from scone.lm.tokens import drawable
from scone.output import Step
from scone.seeds import block_start, chain_seed, mix, rollout_seed, text_seed, token_seed, update_counter

__all__ = ["Parts", "cond_marginals", "estimate_prob", "generate", "gibbs_sampler", "linearize_verifier", "next_token"]


@dataclass(frozen=True)
class Parts:
    """The three models; `tokenizer` is that of the masked LM and of the verifier.

    >>> Parts.of(Scone.from_pretrained(target="positive")).target
    1
    """

    lm: Any
    lm_tokenizer: Any
    masked_lm: Any
    verifier: Any
    target: int
    tokenizer: Any
    density: float  # masked-LM tokens for each token of the LM

    @classmethod
    def of(cls, engine: Scone) -> Parts:
        """The parts of an engine whose verifier is a single classifier with the masked LM's tokenizer."""
        verifier, tokenizer = engine.verifier, engine.masked_lm_tokenizer
        if not hasattr(verifier, "model") or not same_vocabulary(tokenizer, verifier.tokenizer):
            raise ModelError("verifier must be one classifier with the masked LM's tokenizer, got another kind")
        return cls(
            lm=engine.lm,
            lm_tokenizer=engine.lm_tokenizer,
            masked_lm=engine.masked_lm,
            verifier=verifier.model,
            target=verifier.target,
            tokenizer=tokenizer,
            density=engine.parts.density,
        )


@dataclass(frozen=True)
class Sequences:
    """R texts in the masked LM's tokens: [CLS] prefix, candidate, future [SEP], padding."""

    ids: Tensor  # (R, T)
    mask: Tensor  # (R, T)
    first: list[int]  # where each future begins
    length: list[int]  # and its number of tokens


@torch.no_grad()
def next_token(
    parts: Parts,
    prompt: str,
    *,
    max_new_tokens: int = 25,
    seed: int = 0,
    new_ids: tuple[int, ...] = (),
    top_k: int = 10,
    chains: int = 2,
    iterations: int = 20,
    thin: int = 5,
    block: int = 1,
    lookahead: int = 25,
) -> Step:
    """Algorithm 1: the next-token distribution given the attribute, after `prompt` and the tokens already written.

    >>> from scone.decode import Scone, SconeConfig
    >>> engine = Scone.from_pretrained(target="positive")
    >>> small, paper = dict(chains=1, iterations=2, thin=2), SconeConfig.paper(top_k=2)
    >>> plain = next_token(Parts.of(engine), "The movie was", top_k=2, lookahead=4, **small)
    >>> paper = paper.replace(lookahead=paper.lookahead.replace(tokens=4, **small))
    >>> fast = engine.with_config(paper).next_token("The movie was")
    >>> bool(torch.allclose(plain.q, fast.q, atol=1e-4))
    True
    """
    prompt_ids = list(parts.lm_tokenizer(prompt)["input_ids"])
    prefix = prompt_ids + list(new_ids)
    step, remaining = len(new_ids), max_new_tokens - len(new_ids) - 1
    logits = parts.lm(input_ids=torch.tensor([prefix])).logits[0, -1].float()
    log_p, candidates = logits.log_softmax(-1).topk(top_k)

    # Expand the batch: n chains of each of the k candidates.
    token = candidates.repeat_interleave(chains)
    chain = torch.tensor([chain_seed(text_seed(seed, 0, prompt_ids), c) for _ in range(top_k) for c in range(chains)])
    chain = mix(chain, token)
    horizon = min(lookahead, max(1, round(remaining * parts.density))) if remaining else 0
    start = initialize_sequences(parts, prompt, prompt_ids, list(new_ids), token, chain, step, horizon)

    q = torch.zeros(top_k)
    for state in gibbs_sampler(parts, start, chain, step=step, iterations=iterations, thin=thin, block=block):
        score, gradient, embeddings = linearize_verifier(parts, state)
        marginals = cond_marginals(parts, state)
        estimates = estimate_prob(parts, state, score, gradient, embeddings, marginals)  # (k * chains,)
        q += estimates.reshape(top_k, chains).sum(1)
    log_p_star = (log_p + q.log_softmax(-1)).log_softmax(-1)
    return Step(candidates, log_p, q / (chains * -(-iterations // thin)), log_p_star)


def generate(
    parts: Parts, prompt: str, *, max_new_tokens: int = 25, seed: int = 0, **options: int
) -> tuple[str, list[Step]]:
    """Algorithm 1 step after step: the continuation and its steps; ends at the LM's end-of-text token.

    >>> parts = Parts.of(Scone.from_pretrained(target="positive"))
    >>> text, steps = generate(parts, "The movie was", max_new_tokens=2, top_k=2, chains=1, iterations=1, thin=1)
    >>> len(steps)
    2
    """
    prompt_ids = list(parts.lm_tokenizer(prompt)["input_ids"])
    noise = token_seed(text_seed(seed, 0, prompt_ids))
    new_ids: list[int] = []
    steps: list[Step] = []
    for i in range(max_new_tokens):
        step = next_token(parts, prompt, max_new_tokens=max_new_tokens, seed=seed, new_ids=tuple(new_ids), **options)
        spread = torch.full((1, parts.lm.config.vocab_size), -torch.inf)
        spread[0, step.tokens] = step.log_p_star
        new_ids.append(int(draw(spread, torch.tensor([noise]), i)))
        steps.append(step)
        if new_ids[-1] == parts.lm_tokenizer.eos_token_id:
            break
    return parts.lm_tokenizer.decode(prompt_ids + new_ids)[len(parts.lm_tokenizer.decode(prompt_ids)) :], steps


def initialize_sequences(
    parts: Parts,
    prompt: str,
    prompt_ids: list[int],
    new_ids: list[int],
    token: Tensor,
    chain: Tensor,
    step: int,
    horizon: int,
) -> Sequences:
    """First guesses of the futures: drawn from the LM with top_p 0.9 and min_p 0.1, read by the masked LM's tokenizer."""
    ends = token == parts.lm_tokenizer.eos_token_id
    written = roll_out(parts, prompt_ids + new_ids, token, chain, step, max(1, round(horizon / parts.density)))
    opening, closing = special_frame(parts.tokenizer)
    rows, first, length = [], [], []
    for own, ended, future in zip(token.tolist(), ends.tolist(), written):
        fixed = prompt + text_of(parts, prompt_ids, [*new_ids, own])
        whole = prompt + text_of(parts, prompt_ids, [*new_ids, own, *future])
        read = parts.tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True)
        before = sum(begin < len(fixed) for begin, _ in read["offset_mapping"])
        after = 0 if ended else min(horizon, len(read["input_ids"]) - before)
        rows.append([*opening, *read["input_ids"][: before + after], *closing])
        first.append(len(opening) + before)
        length.append(after)
    width = max(map(len, rows))
    ids = torch.tensor([row + [parts.tokenizer.pad_token_id] * (width - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    return Sequences(ids, mask, first, length)


def roll_out(parts: Parts, prefix: list[int], token: Tensor, chain: Tensor, step: int, length: int) -> list[list[int]]:
    """Up to `length` tokens of the LM after each candidate, ended by its end-of-text token."""
    prefixes = torch.tensor([prefix] * len(token))
    cache = parts.lm(input_ids=prefixes, use_cache=True).past_key_values
    top_p, min_p = TopPLogitsWarper(0.9), MinPLogitsWarper(0.1)
    drawn = []
    for i in range(length):
        out = parts.lm(input_ids=token[:, None], past_key_values=cache, use_cache=True)
        logits = min_p(None, top_p(None, out.logits[:, -1].float()))  # type: ignore[arg-type]  # they do not look at tokens
        token = draw(logits, rollout_seed(chain, step), i)
        drawn.append(token)
    futures = torch.stack(drawn, 1).tolist()
    eos = parts.lm_tokenizer.eos_token_id
    return [row[: row.index(eos)] if eos in row else row for row in futures]


def gibbs_sampler(
    parts: Parts, state: Sequences, chain: Tensor, *, step: int, iterations: int, thin: int, block: int
) -> list[Sequences]:
    """Algorithm 4 with one worker: mask a random block of each future, draw it again; keep every `thin`-th state.

    >>> parts = Parts.of(Scone.from_pretrained(target="positive"))
    >>> ids = parts.tokenizer("The food was cold", return_tensors="pt")["input_ids"]
    >>> state = Sequences(ids, torch.ones_like(ids), first=[4], length=[1])  # "cold" may change
    >>> (drawn,) = gibbs_sampler(parts, state, torch.tensor([0]), step=0, iterations=2, thin=2, block=1)
    >>> torch.equal(drawn.ids[:, :4], ids[:, :4])
    True
    """
    keep = drawable(parts.tokenizer, parts.masked_lm.config.vocab_size)
    kept, ids = [], state.ids.clone()
    for i in range(iterations):
        masked, places = ids.clone(), []
        for r, (first, length) in enumerate(zip(state.first, state.length)):
            size = min(block, length)
            j = int(block_start(chain[r : r + 1], step, i, torch.tensor([max(1, length - size + 1)])))
            masked[r, first + j : first + j + size] = parts.tokenizer.mask_token_id
            places += [(r, first + j + b, j + b) for b in range(size)]
        logits = parts.masked_lm(input_ids=masked, attention_mask=state.mask).logits  # (R, T, V)
        for r, position, offset in places:
            row = logits[r, position].float().masked_fill(~keep, -torch.inf)
            ids[r, position] = draw(row[None], chain[r : r + 1], update_counter(step, i, torch.tensor([offset])))
        if (i + 1) % thin == 0 or i + 1 == iterations:
            kept.append(Sequences(ids.clone(), state.mask, state.first, state.length))
    return kept


def cond_marginals(parts: Parts, state: Sequences) -> Tensor:
    """p(y_i | the rest) at every position, from one pass over the sample: (R, T, V).

    >>> parts = Parts.of(Scone.from_pretrained(target="positive"))
    >>> ids = parts.tokenizer("The food was cold", return_tensors="pt")["input_ids"]
    >>> cond_marginals(parts, Sequences(ids, torch.ones_like(ids), first=[4], length=[1])).shape
    torch.Size([1, 6, 30522])
    """
    keep = drawable(parts.tokenizer, parts.masked_lm.config.vocab_size)
    logits = parts.masked_lm(input_ids=state.ids, attention_mask=state.mask).logits.float()
    return logits.masked_fill(~keep, -torch.inf).softmax(-1)


def linearize_verifier(parts: Parts, state: Sequences) -> tuple[Tensor, Tensor, Tensor]:
    """Algorithm 2: φ (R,), its gradient in the embeddings (R, T, d), and the embeddings (R, T, d).

    >>> engine = Scone.from_pretrained(target="positive")
    >>> parts, text = Parts.of(engine), "The food was cold"
    >>> ids = parts.tokenizer(text, return_tensors="pt")["input_ids"]
    >>> score, gradient, embeddings = linearize_verifier(parts, Sequences(ids, torch.ones_like(ids), [4], [1]))
    >>> bool(torch.allclose(score, engine.verifier.score(text), atol=1e-4)), gradient.shape == embeddings.shape
    (True, True)
    """
    with torch.enable_grad():
        embeddings = parts.verifier.get_input_embeddings()(state.ids).detach().requires_grad_()
        logits = parts.verifier(inputs_embeds=embeddings, attention_mask=state.mask).logits.float()
        if logits.shape[1] == 1 or parts.verifier.config.problem_type == "multi_label_classification":
            score = logits[:, parts.target].sigmoid()
        else:
            score = logits.softmax(-1)[:, parts.target]
        (gradient,) = torch.autograd.grad(score.sum(), embeddings)
    return score.detach(), gradient, embeddings.detach()


def estimate_prob(
    parts: Parts, state: Sequences, score: Tensor, gradient: Tensor, embeddings: Tensor, marginals: Tensor
) -> Tensor:
    """Algorithm 3: φ(s) + (sum of the gradient) · (mean expected embedding - mean embedding), over the future: (R,).

    >>> parts = Parts.of(Scone.from_pretrained(target="positive"))
    >>> ids = parts.tokenizer("The food was cold", return_tensors="pt")["input_ids"]
    >>> state = Sequences(ids, torch.ones_like(ids), first=[4], length=[1])
    >>> certain = torch.nn.functional.one_hot(ids, 30522).float()  # marginals that leave no choice
    >>> score, gradient, embeddings = linearize_verifier(parts, state)
    >>> bool(torch.allclose(estimate_prob(parts, state, score, gradient, embeddings, certain), score, atol=1e-4))
    True
    """
    table = parts.verifier.get_input_embeddings().weight.detach()
    estimates = score.clone()
    for r, (first, length) in enumerate(zip(state.first, state.length)):
        future = slice(first, first + length)
        if length:
            expected = (marginals[r, future] @ table).mean(0)
            estimates[r] += gradient[r, future].sum(0) @ (expected - embeddings[r, future].mean(0))
    return estimates


def text_of(parts: Parts, prompt_ids: list[int], more: list[int]) -> str:
    """What tokens after the prompt add to its text, without a last character that is not complete."""
    lead = parts.lm_tokenizer.decode(prompt_ids, skip_special_tokens=True)
    whole = parts.lm_tokenizer.decode(prompt_ids + more, skip_special_tokens=True)
    return whole.rstrip("\N{REPLACEMENT CHARACTER}")[len(lead) :]


def draw(logits: Tensor, seed: Tensor, counter: Tensor | int) -> Tensor:
    """A categorical draw for each row by the Gumbel trick, with the noise of (seed, counter, token)."""
    return kernels.gibbs_sample_from_logits(logits, seed=seed, counter=counter, backend="reference").tokens
