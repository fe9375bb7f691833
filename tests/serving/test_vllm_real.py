"""The plug-in in the real engine: a server, the `openai` client, requests of all kinds at once. `make test-vllm` runs this."""

from __future__ import annotations

import inspect
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import standins

if not standins.REAL:
    pytest.skip("needs vLLM, in an environment of its own: make test-vllm", allow_module_level=True)

import openai
import psutil

from scone.decode import Verifier
from scone.embedded import load_lm

ROOT = Path(__file__).resolve().parents[2]
REQUESTS = int(os.environ.get("SCONE_VLLM_REQUESTS", "200"))
POSITIVE, NEGATIVE = {"scone_attribute": "positive"}, {"scone_attribute": "negative"}
PROMPT = "I went to the restaurant and"


def test_the_stand_ins_are_like_the_real_ones() -> None:
    """Every field and argument that the unit tests rely on is there."""
    from vllm import SamplingParams
    from vllm.config import ModelConfig
    from vllm.v1.sample import logits_processor as first
    from vllm.v1.worker.gpu.sample import logits_processor as second

    pairs = [(standins.BatchUpdate, first.BatchUpdate), (standins.LogitsContext, second.LogitsContext)]
    pairs.append((standins.LogitsProcRequestState, second.LogitsProcRequestState))
    for ours, theirs in pairs:
        assert [field.name for field in fields(ours)] == [field.name for field in fields(theirs)]
    assert [one.name for one in standins.MoveDirectionality] == [one.name for one in first.MoveDirectionality]
    for ours, theirs in (
        (standins.FirstInterface, first.LogitsProcessor),
        (standins.SecondInterface, second.LogitsProcessor),
    ):
        for name in (name for name in vars(ours) if not name.startswith("_") or name == "__init__"):
            assert list(inspect.signature(getattr(ours, name)).parameters) == list(
                inspect.signature(getattr(theirs, name)).parameters
            ), name
    params = SamplingParams()
    assert all(hasattr(params, field.name) for field in fields(standins.SamplingParams))
    model = vars(standins.config_of("x", 1).model_config)
    assert {
        name for name in model if not hasattr(ModelConfig, name) and name not in ModelConfig.__dataclass_fields__
    } == set()


class Server:
    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.log = (folder / "server.log").open("w")
        env = {**os.environ, "PORT": str(self.port), "PYTHON": sys.executable, "SCONE_VLLM": "embedded"}
        env.setdefault("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "1800")  # a machine may have other things to do
        # Little room at a time: prompts are read in pieces, and requests wait for each other.
        options = ["--max-num-seqs", "16", "--max-num-batched-tokens", "128", "--no-async-scheduling"]
        model = load_lm()[0].config._name_or_path
        options += ["--dtype", "bfloat16", "--max-model-len", "512", "--enforce-eager"]
        self.process = subprocess.Popen(
            ["sh", str(ROOT / "examples/vllm/serve.sh"), model, *options],
            env=env, stdout=self.log, stderr=subprocess.STDOUT, cwd=ROOT, start_new_session=True,
        )  # fmt: skip
        self.base = f"http://127.0.0.1:{self.port}/v1"
        self.client = openai.OpenAI(base_url=self.base, api_key="none", max_retries=0, timeout=1800)

    def wait(self) -> None:
        while self.process.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5)
                return
            except OSError:
                time.sleep(2)
        raise RuntimeError(Path(self.log.name).read_text()[-4000:])

    def ask(self, args: dict[str, Any] | None = None, prompt: str = PROMPT, **options: Any) -> Any:
        extra = {**options.pop("extra", {}), **({"vllm_xargs": args} if args else {})}
        options = {"max_tokens": 12, "temperature": 0, **options}
        return self.client.completions.create(model="lm", prompt=prompt, extra_body=extra or None, **options)

    def running(self) -> float:
        """Requests that the engine has, also those that wait."""
        page = urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=60).read().decode()
        return sum(
            float(value) for value in re.findall(r"^vllm:num_requests_(?:running|waiting)\{[^}]*\} (\S+)", page, re.M)
        )

    def memory(self) -> float:
        """Megabytes of the server and all its processes."""
        tree = [psutil.Process(self.process.pid)]
        tree += tree[0].children(recursive=True)
        return sum(one.memory_info().rss for one in tree) / 1e6


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    made = Server(tmp_path_factory.mktemp("vllm"))
    try:
        made.wait()
        yield made
    finally:
        for one in [*psutil.Process(made.process.pid).children(recursive=True), made.process]:
            one.terminate()
        made.process.wait(60)
        print(Path(made.log.name).read_text()[-3000:])


def test_the_example_client(server: Server) -> None:
    """Two that want opposite things and one that wants nothing; the last gets what it gets alone."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/vllm/client.py"), server.base], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    texts = {
        name.strip(): eval(text[len(PROMPT) :])
        for name, text in re.findall(r"^ *(\w+): (I went .*)$", done.stdout, re.M)
    }
    positive, negative, plain = (PROMPT + texts[name] for name in ("positive", "negative", "plain"))
    phi = Verifier.from_pretrained("embedded:sentiment", target="positive").score([positive, negative])
    assert phi[0] > 0.8 and phi[1] < 0.2
    assert PROMPT + server.ask(max_tokens=20).choices[0].text == plain
    assert "guarded:" in done.stdout


def test_bad_requests(server: Server) -> None:
    """A sentence and status 400; the server goes on."""
    for args, message in (
        ({"scone_attribute": "posh"}, "scone_attribute must be of positive, negative"),
        (POSITIVE | {"scone_strength": "high"}, "scone_strength must be a number of at least 0, got 'high'"),
        (POSITIVE | {"scone_far": 1}, "scone_far is not known"),
    ):
        with pytest.raises(openai.BadRequestError, match=message):
            server.ask(args)
    assert server.ask(POSITIVE, max_tokens=2).choices[0].text


def test_several_ends_and_copies(server: Server) -> None:
    """n, stop strings, seeds, a choice by grammar, a prompt that is read in pieces, and logprobs of what was steered."""
    several = server.ask(POSITIVE, n=3, temperature=1, seed=4)
    assert len({choice.text for choice in several.choices}) > 1
    assert [c.text for c in server.ask(POSITIVE, n=3, temperature=1, seed=4).choices] == [
        c.text for c in several.choices
    ]
    stopped = server.ask(POSITIVE, stop=["the"], max_tokens=30)
    assert stopped.choices[0].finish_reason in ("stop", "length") and "the" not in stopped.choices[0].text
    chosen = server.ask(
        NEGATIVE, extra={"structured_outputs": {"choice": ["wonderful", "terrible"]}}, prompt="The movie was"
    )
    assert chosen.choices[0].text == "terrible"
    chosen = server.ask(
        POSITIVE, extra={"structured_outputs": {"choice": ["wonderful", "terrible"]}}, prompt="The movie was"
    )
    assert chosen.choices[0].text == "wonderful"
    long = "It was a bright cold day in spring. " * 30 + "The film was"
    assert server.ask(POSITIVE, prompt=long, max_tokens=4).choices[0].text
    again = server.ask(POSITIVE, prompt=long, max_tokens=4)  # from the prefix cache
    assert again.choices[0].text


def test_a_filter(server: Server) -> None:
    """Where nothing is good enough, the text ends by the token that the request named."""
    ended = server.ask(POSITIVE | {"scone_below": 1.0, "scone_end_token": 3}, extra={"stop_token_ids": [3]})
    choice = ended.choices[0]
    assert choice.text == "" and choice.finish_reason == "stop" and choice.model_extra["stop_reason"] == 3


def test_a_client_that_goes_away(server: Server) -> None:
    """Its request leaves the engine, and others go on."""
    stream = server.ask(POSITIVE, stream=True, max_tokens=400, extra={"ignore_eos": True})
    for _, _ in zip(range(2), stream):
        pass
    stream.close()
    killed = subprocess.Popen(
        [sys.executable, "-c", f"import openai; openai.OpenAI(base_url={server.base!r}, api_key='none').completions.create("
         f"model='lm', prompt='x', max_tokens=400, extra_body={{'ignore_eos': True, 'vllm_xargs': {POSITIVE!r}}})"],
    )  # fmt: skip
    while not server.running():
        time.sleep(0.2)
    killed.kill()
    killed.wait()
    for _ in range(600):
        if not server.running():
            break
        time.sleep(1)
    assert not server.running()
    assert server.ask(NEGATIVE, max_tokens=2).choices[0].text


def test_many_requests(server: Server) -> None:
    """Hundreds of all kinds, more than fit at once: each is answered, none is left, memory stays where it was."""
    kinds: list[dict[str, Any] | None] = [
        None,
        POSITIVE,
        NEGATIVE,
        {"scone_avoid": "toxic", "scone_verdict": "continuation"},
    ]

    def one(i: int) -> str:
        args = kinds[i % len(kinds)]
        return server.ask(args, prompt=f"Number {i} of the list is", max_tokens=2 + i % 3).choices[0].finish_reason

    memory = []
    with ThreadPoolExecutor(24) as pool:
        for part in range(2):
            reasons = list(pool.map(one, range(part * REQUESTS // 2, (part + 1) * REQUESTS // 2)))
            assert len(reasons) == REQUESTS // 2 and set(reasons) <= {"stop", "length"}
            memory.append(server.memory())
    assert not server.running()
    assert memory[1] - memory[0] < 300, memory
    print(json.dumps({"requests": REQUESTS, "megabytes": memory}))


def test_offline() -> None:
    """`LLM(...).generate` with a dict of options for each request."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/vllm/offline.py")], capture_output=True, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    texts = dict(re.findall(r"^ *(positive|negative|plain): The movie was(.*)$", done.stdout, re.M))
    phi = Verifier.from_pretrained("embedded:sentiment", target="positive").score(
        ["The movie was" + eval(texts[name]) for name in ("positive", "negative")]
    )
    assert phi[0] - phi[1] > 0.3 and texts["plain"]  # fifteen tokens of a small LM
