"""Engines inside the harness of lm-eval and inside genlm-control, with the real libraries: `make test-tools`."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest
import torch

from scone.decode import Scone, SconeConfig
from scone.errors import InputError
from scone.lookahead import Expectation

TASK = """
task: endings
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{prompt}}}}"
doc_to_target: "{{{{word}}}}"
generation_kwargs: {{until: ["\\n"], max_gen_toks: 8}}
metric_list: [{{metric: exact_match}}]
"""
PROMPTS = ["The movie was", "The food in this place is", "My holiday"]


@pytest.fixture(scope="module")
def engine() -> Scone:
    return Scone.from_pretrained(config=SconeConfig.fast())


@pytest.fixture
def task(tmp_path):
    data = tmp_path / "endings.jsonl"
    data.write_text("".join(json.dumps({"prompt": prompt, "word": "x"}) + "\n" for prompt in PROMPTS))
    (tmp_path / "endings.yaml").write_text(TASK.format(data=data))
    return tmp_path


@pytest.mark.skipif("lm_eval" in sys.modules, reason="is about what is said without lm-eval")
def test_what_is_missing_is_named(monkeypatch) -> None:
    from scone.tools import genlm, harness

    for name in ("lm_eval", "lm_eval.api.registry", "genlm", "genlm.control"):
        monkeypatch.setitem(sys.modules, name, None)
    harness.model_class.cache_clear()
    with pytest.raises(InputError, match=r"the harness needs lm-eval: pip install 'scone\[lm-eval\]'"):
        harness.model_class()
    with pytest.raises(InputError, match=r"a potential needs genlm-control: pip install 'scone\[genlm\]'"):
        genlm.potential(None, None)


def test_the_harness_steers_what_it_generates(engine: Scone, task) -> None:
    pytest.importorskip("lm_eval", reason="needs lm-eval: make test-tools")
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    from scone.tools.harness import model_class

    def answers(steered: Scone) -> list[str]:
        model = model_class()(steered, batch_size=2)
        found = simple_evaluate(
            model, tasks=["endings"], task_manager=TaskManager(include_path=str(task)), bootstrap_iters=0
        )
        ordered = sorted(found["samples"]["endings"], key=lambda sample: sample["doc_id"])
        return [sample["resps"][0][0] for sample in ordered]

    steered, plain = answers(engine), answers(engine.with_config(SconeConfig.plain()))
    expected = engine.generate(PROMPTS, max_new_tokens=8, do_sample=False).continuations
    assert [text.partition("\n")[0] for text in expected] == steered and steered != plain
    score = engine.verifier.score
    assert (
        score([a + b for a, b in zip(PROMPTS, steered)]).mean() > score([a + b for a, b in zip(PROMPTS, plain)]).mean()
    )


def test_the_command_line_of_the_harness(task, monkeypatch, capsys) -> None:
    pytest.importorskip("lm_eval", reason="needs lm-eval: make test-tools")
    from scone.tools import harness

    arguments = "verifier=embedded:sentiment,target=positive,preset=fast,strength=12"
    argv = [
        "--model",
        "scone",
        "--model_args",
        arguments,
        "--tasks",
        "endings",
        "--include_path",
        str(task),
        "--limit",
        "1",
    ]
    monkeypatch.setattr(sys, "argv", ["harness", *argv])
    harness.main()
    printed = capsys.readouterr().out
    assert "endings" in printed and "exact_match" in printed
    with pytest.raises(InputError, match="preset must be one of default, fast, quality, paper, plain, got 'quick'"):
        harness.model_class()(preset="quick")


def test_a_particle_filter_of_genlm(engine: Scone) -> None:
    """Particles differ, and their mean φ is above that of the LM's own texts."""
    pytest.importorskip("genlm.control", reason="needs genlm-control: make test-tools")
    from genlm.backend.llm import AsyncTransformer
    from genlm.control import PromptedLLM, direct_token_sampler

    from scone.tools.genlm import potential

    judged = engine.with_config(lookahead=Expectation(tokens=2))
    # Texts end with a sentence: where an end is forced, its probability outweighs the critic.
    llm = PromptedLLM(AsyncTransformer(engine.lm, engine.lm_tokenizer), eos_byte_strings=[b".", b"!"])
    llm.set_prompt_from_str("The movie was")
    critic = potential(judged, llm, max_new_tokens=25)

    async def run(critic) -> list[str]:
        torch.manual_seed(0)
        share = 0.5 if critic else 0.0
        found = await direct_token_sampler(llm).smc(16, ess_threshold=share, max_tokens=25, critic=critic)
        return ["The movie was" + b"".join(t for t in context if isinstance(t, bytes)).decode("utf-8", "ignore")
                for context in found.contexts]  # fmt: skip

    steered, plain = asyncio.run(run(critic)), asyncio.run(run(None))
    assert len(set(steered)) > 3
    assert engine.verifier.score(steered).mean() > engine.verifier.score(plain).mean() + 0.1
    context = [llm.vocab[40], llm.vocab[50]]
    alone = asyncio.run(critic.prefix(context))
    ids = [*llm.prompt_ids, context[0].token_id, context[1].token_id]
    expected = torch.nn.functional.logsigmoid(judged.value([ids], max_new_tokens=23))
    assert alone == pytest.approx(float(expected), abs=1e-4)
    done = asyncio.run(critic.complete(context))
    assert done == pytest.approx(float(engine.verifier.score(engine.lm_tokenizer.decode(ids)).log()), abs=1e-3)
