"""Plain sampling by other engines on the same LM, against our own.

    pip install 'scone[bench]'
    python -m bench peers                  one text and eight
    python -m bench peers --out docs/results

CTranslate2 reads the weights that transformers has; llama.cpp reads the GGUF file that they come from, and the same in 16 bits.
All take turns and sample among ten tokens. One that is not installed is left out.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import torch

from bench.machine import describe
from bench.tables import markdown
from scone.decode import Scone, SconeConfig
from scone.embedded import load_lm
from scone.embedded.packages import SMOLLM2

PROMPTS = (
    *("The movie was", "Our hotel room", "I went to the restaurant and", "My first week at the new job"),
    *("The book starts slowly, but", "After two hours of waiting, we", "It was", "On the way home"),
)
TEXTS = (1, 8)
OWN = "own plain"

Writer = Callable[[list[list[int]], int], int]
"""(prompts as tokens, new tokens of each) → tokens written"""


def main(argv: list[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m bench peers", description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=25, help="new tokens a text (default 25)")
    parser.add_argument("--rounds", type=int, default=7, help="(default 7)")
    parser.add_argument("--out", type=Path, help="folder for the table as Markdown")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        writers = dict(_all(Path(folder)))
        text = f"`{' '.join(['python -m bench peers', *argv])}`\n\n{describe()}\n\n"
        text += compare(writers, args.tokens, args.rounds)
    text += "".join(f"\n{name} is not installed: {how}\n" for name, how in _missing())
    print(text)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "peers.md").write_text(f"# Plain sampling by others\n\n{text}")
    return 0


def compare(writers: dict[str, Writer], tokens: int, rounds: int) -> str:
    """Milliseconds a token, and how they relate to our own in the same round."""
    lm = load_lm()[1]
    prompts = [lm(prompt)["input_ids"] for prompt in PROMPTS]
    columns: dict[str, list[str]] = {name: [] for name in writers}
    for count in TEXTS:
        found: dict[str, list[float]] = {name: [] for name in writers}
        for turn in range(rounds + 1):  # the first is not counted
            for name, writer in writers.items():
                start = time.perf_counter()
                written = writer(prompts[:count], tokens)
                if turn:
                    found[name].append(1000 * (time.perf_counter() - start) / written)
        for name, own in found.items():
            ratios = sorted(a / b for a, b in zip(own, found[OWN]))
            spread = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
            columns[name] += [f"{statistics.median(own):.1f}", spread]
    header = ["", *(part for count in TEXTS for part in (f"{count}: ms a token", "× own plain"))]
    return markdown(header, [[name, *cells] for name, cells in columns.items()])


def _all(folder: Path) -> Iterator[tuple[str, Writer]]:
    yield OWN, _own(torch.float32)
    yield f"{OWN}, bfloat16", _own(torch.bfloat16)
    yield "transformers' `generate`", _transformers()
    if find_spec("ctranslate2"):
        yield from _ctranslate2(folder)
    if find_spec("llama_cpp"):
        yield from _llama_cpp(folder)


def _missing() -> list[tuple[str, str]]:
    modules = {"ctranslate2": "CTranslate2", "llama_cpp": "llama.cpp"}
    return [(name, "pip install 'scone[bench]'") for module, name in modules.items() if not find_spec(module)]


def _own(dtype: torch.dtype) -> Writer:
    engine = Scone.from_pretrained(config=SconeConfig.plain(), dtype=dtype)

    def write(prompts: list[list[int]], tokens: int) -> int:
        texts = [engine.lm_tokenizer.decode(ids) for ids in prompts]
        return sum(map(len, engine.generate(texts, max_new_tokens=tokens, seed=0).token_ids))

    return write


def _transformers() -> Writer:
    model, tokenizer = load_lm()

    @torch.inference_mode()
    def write(prompts: list[list[int]], tokens: int) -> int:
        batch = tokenizer.pad({"input_ids": prompts}, return_tensors="pt")
        model.generate(**batch, do_sample=True, top_k=10, min_new_tokens=tokens, max_new_tokens=tokens)
        return tokens * len(prompts)

    return write


def _ctranslate2(folder: Path) -> Iterator[tuple[str, Writer]]:
    import ctranslate2

    model, tokenizer = load_lm()
    model.save_pretrained(folder / "lm")
    tokenizer.save_pretrained(folder / "lm")
    ctranslate2.converters.TransformersConverter(str(folder / "lm")).convert(str(folder / "converted"))
    for kind in ("float32", "int8"):
        generator = ctranslate2.Generator(
            str(folder / "converted"), compute_type=kind, inter_threads=1, intra_threads=torch.get_num_threads()
        )

        def write(prompts: list[list[int]], tokens: int, generator=generator) -> int:
            found = generator.generate_batch(
                [tokenizer.convert_ids_to_tokens(ids) for ids in prompts],
                min_length=tokens, max_length=tokens, sampling_topk=10, include_prompt_in_result=False,
            )  # fmt: skip
            return sum(len(each.sequences_ids[0]) for each in found)

        yield f"CTranslate2, {kind}", write


def _llama_cpp(folder: Path) -> Iterator[tuple[str, Writer]]:
    """Text after text: the Python package writes one at a time."""
    import llama_cpp

    source, wide = SMOLLM2.locate(), folder / "f16.gguf"
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype, options.allow_requantize = llama_cpp.LLAMA_FTYPE_MOSTLY_F16, True
    llama_cpp.llama_model_quantize(str(source).encode(), str(wide).encode(), options)
    for kind, path in (("Q4", source), ("f16", wide)):
        llama = llama_cpp.Llama(str(path), n_ctx=512, n_threads=torch.get_num_threads(), verbose=False)

        def write(prompts: list[list[int]], tokens: int, llama=llama) -> int:
            for ids in prompts:
                for _, _ in zip(range(tokens), llama.generate(ids, top_k=10)):
                    pass
            return tokens * len(prompts)

        yield f"llama.cpp, {kind}", write


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
