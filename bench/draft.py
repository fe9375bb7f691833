"""Who looks ahead where only the LM's logits are seen: control, fluency and cost, against the LM's own states.

python -m bench draft --lm FOLDER --prompts 12       an LM of another family, for which the embedded one looks ahead
"""

from __future__ import annotations

import argparse
import time

import torch

from bench.control import mean_and_error
from bench.machine import describe
from bench.tables import markdown
from scone.decode import Scone, SconeConfig
from scone.evaluate.fluency import negative_log_likelihood
from scone.evaluate.judges import load_judge
from scone.evaluate.tasks import TASKS, builtin_prompts
from scone.lookahead import Draft, Expectation, Lookahead, Masked, Mix, Nothing, Paths

WAYS: dict[str, Lookahead] = {
    "its own states: the default": Mix(Expectation(tokens=3), Nothing()),
    "text and candidate": Nothing(),
    "masked LM + text and candidate": Mix(Masked(tokens=6), Nothing()),
    "draft + text and candidate": Mix(Draft(inner=Expectation(tokens=3)), Nothing()),
    "draft, paths + text and candidate": Mix(Draft(inner=Paths(tokens=6)), Nothing()),
    "draft + masked LM + text and candidate": Mix(Draft(inner=Expectation(tokens=3)), Masked(tokens=6), Nothing()),
}


def main(argv: list[str]) -> int:
    """Print a row for plain sampling and for each way to look ahead."""
    parser = argparse.ArgumentParser(prog="python -m bench draft", description=__doc__.splitlines()[0])
    parser.add_argument("--lm", default="embedded", help="the LM that writes")
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=20)
    parser.add_argument("--strength", type=float, default=SconeConfig().strength)
    parser.add_argument("--without", nargs="*", default=[], metavar="WORD", help="leave out the ways whose name has it")
    args = parser.parse_args(argv)
    ways = {name: way for name, way in WAYS.items() if not any(word in name for word in args.without)}
    engine = Scone.from_pretrained(lm=args.lm, target="positive")
    known = [prompt.text for prompt in builtin_prompts(TASKS["sentiment"])]
    prompts = [known[i * len(known) // args.prompts] for i in range(args.prompts)]
    judge, plain, rows = load_judge("sentiment"), Nothing(), []
    print(describe(), flush=True)
    for name, lookahead in {"plain": plain, **ways}.items():
        strength = 0.0 if lookahead is plain else args.strength
        steered = engine.with_config(SconeConfig(lookahead=lookahead, strength=strength))
        steered.generate(prompts[:1], max_new_tokens=2, seed=0)  # what is made once: bridges, packed weights
        texts, nll, written, began = [], [], 0, time.process_time()
        for i, prompt in enumerate(prompts):
            out = steered.generate([prompt], max_new_tokens=args.tokens, seed=i)
            texts.append(out)
            written += len(out.token_ids[0])
        milliseconds = 1000 * (time.process_time() - began) / written
        for prompt, out in zip(prompts, texts):
            total, count = negative_log_likelihood(engine.parts.lm, prompt, out.continuations)
            nll.append(float(total[0]) / max(1, int(count[0])))
        finished = [out.texts[0] for out in texts]
        row = [
            name,
            mean_and_error(engine.verifier.score(finished)),
            mean_and_error(torch.from_numpy(judge.score(finished, "positive")).float()),
            mean_and_error(torch.tensor(nll)),
            f"{milliseconds:.0f}",
        ]
        print(*row, sep="\t", flush=True)
        rows.append(row)
    print(markdown(["who looks ahead", "φ", "independent judge", "log-perplexity", "CPU ms a token"], rows))
    return 0
