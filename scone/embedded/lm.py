"""The language model: SmolLM2-135M-Instruct, from the GGUF file of a pip package."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from scone.embedded.cache import cached
from scone.embedded.errors import MissingModelError
from scone.embedded.packages import SMOLLM2

CONVERSION = 1  # raise it when what `_convert` writes changes


def load_lm() -> tuple[LlamaForCausalLM, PreTrainedTokenizerBase]:
    """SmolLM2-135M-Instruct and its tokenizer (with its chat template), float32, in eval mode.

    The first call converts the GGUF file into the cache folder, which takes about half a minute.
    """
    source = SMOLLM2.locate()
    folder = cached(_folder_name(source), lambda fresh: _convert(source, fresh))
    with _silent_transformers():
        model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.padding_side = "left"
    return model.eval(), tokenizer


def _folder_name(source: Path) -> str:
    key = hashlib.sha256(f"{source.name} {source.stat().st_size} {CONVERSION}".encode()).hexdigest()[:10]
    return f"smollm2-135m-instruct-{key}"


def _convert(source: Path, folder: Path) -> None:
    """Write the model as float16 safetensors, and its tokenizer."""
    missing = [name for name in ("gguf", "accelerate") if find_spec(name) is None]
    if missing:
        raise MissingModelError(f"reading {source.name} needs {' and '.join(missing)}: pip install 'scone[embedded]'")
    with _steps("Preparing SmolLM2-135M (once)", 4) as advance, _silent_transformers(), redirect_stderr(StringIO()):
        tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
        advance("tokenizer read")
        loaded = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
        advance("weights read")
        # a model read from GGUF counts as quantised and refuses to be saved: give its weights to a plain one
        config = loaded.config
        if hasattr(config, "quantization_config"):
            del config.quantization_config
        plain = LlamaForCausalLM(config)
        plain.load_state_dict(loaded.state_dict())
        plain.tie_weights()
        plain.generation_config = _generation(tokenizer)
        plain.half().save_pretrained(folder)
        advance("weights written")
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
        tokenizer.save_pretrained(folder)
        advance("tokenizer written")


def _generation(tokenizer: PreTrainedTokenizerBase) -> GenerationConfig:
    ends = [tokenizer.convert_tokens_to_ids(token) for token in ("<|im_end|>", "<|endoftext|>")]
    return GenerationConfig(eos_token_id=ends, pad_token_id=ends[0], bos_token_id=tokenizer.bos_token_id)


@contextmanager
def _steps(title: str, total: int) -> Iterator:
    """A progress bar on standard error, when that is a terminal; yields what advances it."""
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(file=sys.stderr), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(title, total=total)
        yield lambda note: bar.update(task, advance=1, description=f"{title}: {note}")


@contextmanager
def _silent_transformers() -> Iterator[None]:
    """Keep transformers' own bars and notices off the terminal while we load, and give it its settings back."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
