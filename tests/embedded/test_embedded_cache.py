import json
import subprocess
import sys

import pytest

from scone.embedded.cache import MANIFEST, cache_folder, cached, is_whole


def _builder(log):
    def build(folder):
        log.append(folder)
        (folder / "weights.bin").write_bytes(b"0123456789" * 100)
        (folder / "sub").mkdir()
        (folder / "sub" / "config.json").write_text("{}")

    return build


def test_builds_once_and_leaves_nothing_else_behind(tmp_path):
    built = []
    first = cached("model", _builder(built), root=tmp_path)
    second = cached("model", _builder(built), root=tmp_path)
    assert first == second == tmp_path / "model"
    assert len(built) == 1
    assert {path.name for path in tmp_path.iterdir()} <= {"model", "model.lock"}
    assert set(json.loads((first / MANIFEST).read_text())["files"]) == {"weights.bin", "sub/config.json"}


def _flip_a_byte(folder):
    path = folder / "weights.bin"
    content = bytearray(path.read_bytes())
    content[500] ^= 1
    path.write_bytes(content)


def _truncate(folder):
    (folder / "weights.bin").write_bytes(b"01234")


def _lose_a_file(folder):
    (folder / "sub" / "config.json").unlink()


def _lose_the_manifest(folder):
    (folder / MANIFEST).unlink()


def _garble_the_manifest(folder):
    (folder / MANIFEST).write_text('{"files": {"weights.bin"')


@pytest.mark.parametrize("damage", [_flip_a_byte, _truncate, _lose_a_file, _lose_the_manifest, _garble_the_manifest])
def test_damage_is_noticed_and_rebuilt(tmp_path, damage):
    built = []
    folder = cached("model", _builder(built), root=tmp_path)
    damage(folder)
    assert not is_whole(folder)
    assert cached("model", _builder(built), root=tmp_path) == folder
    assert is_whole(folder)
    assert len(built) == 2
    assert {path.name for path in tmp_path.iterdir()} <= {"model", "model.lock"}


def test_a_failed_build_leaves_no_model(tmp_path):
    def build(folder):
        (folder / "weights.bin").write_bytes(b"half")
        raise RuntimeError("the disk is full")

    with pytest.raises(RuntimeError, match="disk is full"):
        cached("model", build, root=tmp_path)
    assert not (tmp_path / "model").exists()
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []


RACER = """
import sys, time
from pathlib import Path
from scone.embedded.cache import cached
root = Path(sys.argv[1])

def build(folder):
    with open(root / "builds.log", "a") as log:
        log.write("built\\n")
    for part in range(5):  # slow enough for the other process to arrive in the middle
        (folder / f"part-{part}").write_text("x" * 1000)
        time.sleep(0.1)

folder = cached("model", build, root=root)
print(sorted(path.name for path in folder.iterdir()))
"""


def test_two_processes_at_once_build_once_and_both_get_the_whole(tmp_path):
    command = [sys.executable, "-c", RACER, str(tmp_path)]
    racers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [racer.communicate(timeout=300)[0] for racer in racers]
    assert [racer.returncode for racer in racers] == [0, 0]
    assert (tmp_path / "builds.log").read_text() == "built\n"
    assert outputs[0] == outputs[1]
    assert "part-4" in outputs[0]


def test_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("SCONE_CACHE", str(tmp_path / "mine"))
    assert cache_folder() == tmp_path / "mine"
    monkeypatch.delenv("SCONE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr(sys, "platform", "linux")
    assert cache_folder() == tmp_path / "xdg" / "scone"
