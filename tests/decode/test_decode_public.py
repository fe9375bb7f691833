"""The public face: names, docstrings, and examples that run."""

from __future__ import annotations

import ast
import dataclasses
import doctest
import functools
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import scone

ROOT = Path(__file__).parents[2]
# From below to above: a room is a module or a folder of scone, and imports only from rooms before it.
ROOMS = [
    "errors", "blame", "forking", "options", "seeds", "trace", "output", "encoder", "decoder_step", "embedded", "loading", "lm", "reweigh",
    "verifier", "text", "failure", "prompts", "lookahead", "config", "particles", "processors", "grammar", "loop", "running",
    "values", "vllm", "hf", "decode", "reference", "settings", "tools", "jobs", "evaluate", "cli", "serve", "__main__",
]  # fmt: skip
FLAT = [
    "blame", "config", "decode", "errors", "failure", "forking", "grammar", "hf", "loading", "loop", "options", "output", "particles", "processors",
    "prompts", "reference", "reweigh", "running", "seeds", "settings", "text", "values",
]  # fmt: skip
MODULES = FLAT + [
    f"{room}.{path.stem}" if path.stem != "__init__" else room
    for room in ("lm", "verifier", "lookahead", "trace")
    for path in sorted((ROOT / "scone" / room).glob("*.py"))
]


@pytest.fixture(scope="module", autouse=True)
def _load_models_once() -> Iterator[None]:
    """Examples load the embedded models again and again; here each is read from disk once."""
    from scone import embedded

    names = ("load_lm", "load_masked_lm", "load_classifier")
    originals = {name: getattr(embedded, name) for name in names}
    for name, load in originals.items():
        setattr(embedded, name, functools.cache(load))
    yield
    for name, load in originals.items():
        setattr(embedded, name, load)


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str) -> None:
    module = importlib.import_module(f"scone.{name}")
    results = doctest.testmod(module)
    assert results.failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_public_names_exist_and_are_documented(name: str) -> None:
    module = importlib.import_module(f"scone.{name}")
    for public in module.__all__:
        thing = getattr(module, public)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert inspect.getdoc(thing), f"{name}.{public} has no docstring"
        if inspect.isclass(thing) and thing.__module__ == module.__name__:
            for attribute, member in vars(thing).items():
                if not attribute.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
                    assert inspect.getdoc(member), f"{name}.{public}.{attribute} has no docstring"


def test_every_method_of_the_decoder_has_an_example() -> None:
    from scone import decode

    methods = [decode.Scone.generate, decode.Scone.stream, decode.Scone.next_token, decode.Scone.from_pretrained]
    methods += [decode.Scone.custom_generate, decode.Scone.logits_processor, decode.Scone.with_config]
    methods += [decode.Scone.value, decode.Verifier.of]
    methods += [decode.Verifier.from_pretrained, decode.Verifier.from_module, decode.Verifier.from_callable]
    methods += [decode.SconeConfig.paper, decode.SconeConfig.fast]
    for thing in methods:
        assert ">>>" in inspect.getdoc(thing), f"{thing.__qualname__} has no example"


PUBLIC = {
    "scone": ["Scone", "SconeConfig", "SconeError", "Verifier", "__version__"],
    "scone.decode": ["Output", "Scone", "SconeConfig", "Step", "Verifier"],
    "scone.jobs": ["Job", "Worker", "do", "here", "look_through", "write_file"],
    "scone.lookahead": [
        "Answer", "AtMean", "AtSample", "Carried", "Draft", "Expectation", "Gibbs", "GibbsPool", "Lookahead", "Masked", "Masks",
        "Mix", "Nothing", "Parts", "Paths", "Query", "Rollout", "Taylor", "draw_from_head", "judge_apart",
    ],
    "scone.lm": [
        "Candidates", "CausalLM", "Embeddings", "LMState", "MaskedLM", "Reading", "attention_mask", "check_finite", "check_known", "check_unicode",
        "choose", "common_prefix", "fetched", "mark", "position_limit", "propose", "read_on", "same_vocabulary",
        "sent", "special_frame", "truncate",
    ],
    "scone.verifier": [
        "Bridge", "EmbeddingVerifier", "Expression", "Leaf", "Linearised", "Reading", "Surfaces", "Verifier", "View", "as_verifier",
    ],
    "scone.errors": [
        "ConfigError", "DeviceError", "ForkError", "ForwardError", "InputError", "LabelError", "ModelError",
        "NumericalError", "SconeError", "StallError",
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names(name: str) -> None:
    module = importlib.import_module(name)
    assert sorted(module.__all__) == PUBLIC[name]
    for public in module.__all__:
        thing = getattr(module, public)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert ">>>" in (inspect.getdoc(thing) or ""), f"{name}.{public} has no example"


def test_names_of_the_decoder() -> None:
    from scone import decode

    assert scone.Scone is decode.Scone and scone.SconeConfig is decode.SconeConfig
    assert scone.Verifier is decode.Verifier
    with pytest.raises(AttributeError, match="no attribute 'Engine'"):
        scone.Engine  # noqa: B018


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """What a file imports of the two packages, module by module: ("top", "function" or "typing", name)."""

    def visit(node: ast.AST, where: str) -> Iterator[tuple[str, str]]:
        for child in ast.iter_child_nodes(node):
            inside = where
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                inside = "function"
            elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                inside = "typing"
            elif isinstance(child, ast.Import):
                yield from ((where, alias.name) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                module = _absolute(path, child)
                yield from ((where, _deepest(module, alias.name)) for alias in child.names)
            yield from visit(child, inside)

    return visit(ast.parse(path.read_text(encoding="utf-8")), "top")


def _absolute(path: Path, node: ast.ImportFrom) -> str:
    """The module that is imported from, where `scone_kernels` names it relatively."""
    if not node.level:
        return node.module or ""
    package = path.relative_to(ROOT).parts[: -node.level]
    return ".".join([*package, *filter(None, [node.module])])


def _deepest(module: str, name: str) -> str:
    """`module.name` where that is a module itself, else `module`."""
    path = ROOT / module.replace(".", "/") / name
    return f"{module}.{name}" if path.is_dir() or path.with_suffix(".py").exists() else module


def room_of(path: Path) -> str:
    first = path.relative_to(ROOT / "scone").parts[0]
    return first.removesuffix(".py")


def sources() -> list[Path]:
    return [path for path in sorted((ROOT / "scone").rglob("*.py")) if path != ROOT / "scone" / "__init__.py"]


def test_every_room_has_its_place() -> None:
    assert {room_of(path) for path in sources()} <= set(ROOMS)
    assert set(ROOMS) - {room_of(path) for path in sources()} <= {"encoder", "decoder_step", "tools"}


@pytest.mark.parametrize("where", ["top", "function"])
def test_imports_go_one_way_between_rooms(where: str) -> None:
    """Also those within functions; only what a type checker alone reads may look back."""
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sources()
        for place, name in imports(path)
        if place == where and name.startswith("scone.") and ROOMS.index(name.split(".")[1]) > ROOMS.index(room_of(path))
    ]
    assert not wrong


def test_the_package_itself_imports_nothing() -> None:
    """`import scone` does not read torch; its names come when they are asked for."""
    assert not [name for _, name in imports(ROOT / "scone" / "__init__.py") if name.startswith(("scone", "torch"))]
    code = "import scone, sys; print('torch' in sys.modules or 'transformers' in sys.modules, bool(scone.SconeError))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == ["False", "True"]


def test_kernels_know_nothing_of_the_engine() -> None:
    files = sorted((ROOT / "scone_kernels").rglob("*.py"))
    assert files
    for path in files:
        named = {name.split(".")[0] for _, name in imports(path)} if "import ." not in path.read_text() else set()
        assert not named & {"scone", "transformers"}, path


STRATEGIES = [
    "chains",
    "draft",
    "expectation",
    "gibbs",
    "masked",
    "mix",
    "nothing",
    "paths",
    "pool",
    "schedule",
    "start",
    "taylor",
]


def test_strategies_are_reached_by_the_names_of_their_room() -> None:
    """Whoever uses them does not know in which file each is; a new one is one file and one line."""
    files = {path.stem for path in (ROOT / "scone" / "lookahead").glob("*.py")}
    assert files == {*STRATEGIES, "__init__", "base", "parts"}
    inside = {f"scone.lookahead.{name}" for name in STRATEGIES}
    for path in sources():
        if room_of(path) not in ("lookahead", "reference"):
            assert not {name for _, name in imports(path)} & inside, path


def test_a_strategy_knows_no_loop_and_no_settings() -> None:
    for path in sorted((ROOT / "scone" / "lookahead").glob("*.py")):
        reached = {name.split(".")[1] for _, name in imports(path) if name.startswith("scone.")}
        assert reached <= {"errors", "options", "seeds", "output", "lm", "verifier", "text", "lookahead"}, path


@pytest.mark.parametrize("page", ["options.md", "trace.md", "transformers.md"])
def test_pages_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python blocks of a page about the decoder, in order, as one session."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.S | re.M)
    assert blocks
    (tmp_path / "hub").symlink_to(ROOT / "hub")  # which a page names as it stands here
    monkeypatch.chdir(tmp_path)
    session: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, page, "exec"), session)


def test_the_tables_of_options_are_complete_and_true() -> None:
    """docs/options.md has a row for each option of each object, in order, with its default, its rule and its help."""
    from scone import lookahead

    page = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    for kind in (
        scone.SconeConfig,
        lookahead.Expectation,
        lookahead.Paths,
        lookahead.Masked,
        lookahead.Gibbs,
        lookahead.Draft,
    ):
        _, _, section = page.partition(f"\n## `{kind.__name__}`")
        rows = re.findall(
            r"^\| `(\w+)` \| `([^|]+)` \| ([^|]+) \| ([^|]+) \|$", section.partition("\n## ")[0], flags=re.M
        )
        fields = dataclasses.fields(kind)
        assert [row[0] for row in rows] == [field.name for field in fields], kind.__name__
        for field, (_, default, expected, meaning) in zip(fields, rows):
            named = {name: getattr(lookahead, name) for name in lookahead.__all__}
            assert eval(default, dict(named)) == field.default, field.name
            if field.metadata["rule"].kind is None:
                assert (expected, meaning) == (field.metadata["rule"].expected, field.metadata["help"]), field.name
    for kind in (
        lookahead.Rollout,
        lookahead.Masks,
        lookahead.Carried,
        lookahead.AtSample,
        lookahead.AtMean,
        lookahead.Taylor,
    ):
        assert kind.__name__ in page and all(f"{field.name}=" in page for field in dataclasses.fields(kind)), kind
