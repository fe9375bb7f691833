import json
import subprocess
import sys

import pytest

from scone.embedded import cache
from scone.embedded.cache import MANIFEST, cache_folder, cached, is_whole
from scone.embedded.errors import CacheError


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


def _empty_the_manifest(folder):
    (folder / MANIFEST).write_text('{"files": {}}')


@pytest.mark.parametrize(
    "damage", [_flip_a_byte, _truncate, _lose_a_file, _lose_the_manifest, _garble_the_manifest, _empty_the_manifest]
)
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


KILLED = """
import sys, time
from pathlib import Path
from scone.embedded.cache import cached

def build(folder):
    (folder / "half").write_text("x" * 1000)
    print("building", flush=True)
    time.sleep(600)

cached("model", build, root=Path(sys.argv[1]))
"""


@pytest.mark.parametrize("damaged_before", [False, True])
def test_a_builder_that_was_killed_leaves_nothing_for_ever(tmp_path, damaged_before):
    if damaged_before:
        _truncate(cached("model", _builder([]), root=tmp_path))
    (tmp_path / "model.txt").write_text("another's")
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as builder:
        assert builder.stdout.readline() == "building\n"
        builder.kill()
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 1  # what it was at
    assert not (tmp_path / "model").exists()
    assert is_whole(cached("model", _builder([]), root=tmp_path))
    assert {path.name for path in tmp_path.iterdir()} <= {"model", "model.lock", "model.txt"}


@pytest.mark.parametrize("place", ["file/models", "/proc/models"])
def test_a_folder_that_cannot_be_written_to_is_named(tmp_path, place):
    (tmp_path / "file").touch()
    with pytest.raises(CacheError, match=r"must be one that can be written to.*SCONE_CACHE") as caught:
        cached("model", _builder([]), root=tmp_path / place)
    assert str(tmp_path / place) in str(caught.value)


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits on the size of files")
def test_a_full_disk_is_named_and_leaves_nothing(tmp_path):
    import resource

    def build(folder):
        (folder / "weights.bin").write_bytes(b"0" * 2_000_000)

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))  # a file that grows beyond this is a failed write
    try:
        with pytest.raises(CacheError, match="has room"):
            cached("model", build, root=tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []
    assert is_whole(cached("model", build, root=tmp_path))


def test_a_whole_cache_is_only_read(tmp_path, monkeypatch):
    folder = cached("model", _builder([]), root=tmp_path)
    monkeypatch.setattr(cache, "FileLock", lambda path: pytest.fail("a lock is written"))
    assert cached("model", _builder([]), root=tmp_path) == folder


def test_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("SCONE_CACHE", str(tmp_path / "mine"))
    assert cache_folder() == tmp_path / "mine"
    monkeypatch.delenv("SCONE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr(sys, "platform", "linux")
    assert cache_folder() == tmp_path / "xdg" / "scone"
