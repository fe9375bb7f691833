"""Models out of GGUF files: read once, kept in the cache as safetensors in 16 bits."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from scone.embedded.errors import MissingModelError


def convert(source: Path, folder: Path, *, title: str, dtype: torch.dtype, finish: Callable[[Any, Any], None]) -> None:
    """Write the model as safetensors, and its tokenizer; `finish(model, tokenizer)` sets what the file does not say."""
    missing = [name for name in ("gguf", "accelerate") if find_spec(name) is None]
    if missing:
        raise MissingModelError(f"reading {source.name} needs {' and '.join(missing)}: pip install 'scone[embedded]'")
    with _steps(f"Preparing {title} (once)", 4) as advance, silent_transformers(), redirect_stderr(StringIO()):
        tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
        advance("tokenizer read")
        loaded = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
        advance("weights read")
        # a model read from GGUF counts as quantised and refuses to be saved: give its weights to a plain one
        config = loaded.config
        if hasattr(config, "quantization_config"):
            del config.quantization_config
        plain: Any = type(loaded)(config)
        plain.load_state_dict(loaded.state_dict())
        plain.tie_weights()
        finish(plain, tokenizer)
        plain.to(dtype).save_pretrained(folder)
        advance("weights written")
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
        tokenizer.save_pretrained(folder)
        advance("tokenizer written")


def load(folder: Path) -> tuple[Any, Any]:
    """What `convert` wrote: the model in float32 and eval mode, and its tokenizer, which pads on the left."""
    with silent_transformers():
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.padding_side = "left"
    return model.eval(), tokenizer


@contextmanager
def _steps(title: str, total: int) -> Iterator:
    """A progress bar on standard error, when that is a terminal; yields what advances it."""
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(file=sys.stderr), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(title, total=total)
        yield lambda note: bar.update(task, advance=1, description=f"{title}: {note}")


@contextmanager
def silent_transformers() -> Iterator[None]:
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
