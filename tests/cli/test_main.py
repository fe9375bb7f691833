"""Commands, exit codes and what happens when something goes wrong."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest

from scone.cli import COMMANDS, main
from scone.cli.doctor import Finding
from scone.errors import ForwardError, InputError


@pytest.fixture
def failing(monkeypatch):
    """A way to let `scone doctor` fail with a given exception."""

    def fail_with(problem):
        def examine():
            raise problem

        monkeypatch.setattr("scone.cli.doctor.examine", examine)
        return main(["doctor"])

    return fail_with


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command, capsys):
    assert main([command, "--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: scone ")


def test_version_and_help(capsys):
    assert main(["--version"]) == 0
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(command in shown for command in COMMANDS)


def test_without_a_command_help_is_shown_and_it_is_a_mistake(capsys):
    assert main([]) == 2
    shown = capsys.readouterr()
    assert "generate" in shown.err and not shown.out


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["polish"], "polish"),
        (["generate", "--colour"], "--colour"),
        (["generate", "x", "--attribute", "posh"], "posh"),
        (["generate", "x", "--attribute", "positive=-1"], "-1"),
        (["generate", "x", "--attribute", "embedded:sentiment"], "embedded:sentiment"),
        (["generate", "x", "--samples", "0"], "at least 1"),
        (["generate", "x", "--seed", "zero"], "zero"),
        (["generate", "x", "--top-k", "0"], "--top-k must be"),
        (["generate", "x", "--chains", "2"], "--chains is an option of lookahead gibbs"),
        (["generate", "x", "--preset", "paper", "--thin", "some"], "--thin must be"),
        (["demo", "--samples", "0"], "at least 1"),
        (["demo", "--strength", "-1"], "strength must be"),
        (["generate", "x", "--stream", "--json"], "--json"),
        (["generate", "x", "--stream", "--samples", "2"], "--samples 2"),
        (["generate", "x", "--file", "y"], "--file"),
        (["generate", "--file", "no/such/file"], "no/such/file"),
        (["generate", "x", "--lm", "./no-such-model"], "no-such-model"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line_and_code_2(argv, named, capsys):
    assert main(argv) == 2
    message = capsys.readouterr().err.removeprefix("loading models …\n")
    assert named in message
    assert message.count("\n") == 1


def test_scone_errors_are_the_users(failing, capsys):
    assert failing(InputError("prompts must be short, got a novel")) == 2
    assert capsys.readouterr().err == "scone: prompts must be short, got a novel\n"


def test_a_model_that_fails_is_no_mistake_of_the_users(failing, capsys):
    assert failing(ForwardError("the verifier ran out of memory, at token 3")) == 1
    assert capsys.readouterr().err == "scone: the verifier ran out of memory, at token 3\n"


def test_other_failures_are_ours(failing, capsys):
    assert failing(ZeroDivisionError("division by zero")) == 1
    message = capsys.readouterr().err
    assert "ZeroDivisionError: division by zero" in message and "--debug" in message
    assert "Traceback" not in message


@pytest.mark.parametrize("argv", [["--debug", "doctor"], ["doctor", "--debug"]])
def test_debug_shows_the_traceback(argv, monkeypatch, capsys):
    monkeypatch.setattr("scone.cli.doctor.examine", lambda: 1 / 0)
    assert main(argv) == 1
    assert "Traceback" in capsys.readouterr().err


def test_interrupt(failing, capsys):
    assert failing(KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == "scone: interrupted\n"


def test_a_closed_pipe_is_quiet():
    script = "import sys; from scone.cli import main; sys.exit(main(['--help']))"
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()  # before anything is written
    assert process.stderr.read() == b""
    assert process.wait() == 0


@pytest.mark.parametrize("argv", [["--help"], ["--version"], ["demo", "--help"], ["doctor", "--help"]], ids=" ".join)
def test_help_does_not_import_torch(argv):
    script = (
        "import sys; from scone.cli import main; main(sys.argv[1:]); print('torch' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script, *argv], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "False"


@pytest.mark.parametrize(("argv", "code"), [(["--version"], 0), (["polish"], 2), ([], 2)])
def test_python_dash_m_has_the_exit_code_of_the_command(argv, code):
    done = subprocess.run([sys.executable, "-m", "scone", *argv], capture_output=True, text=True)
    assert done.returncode == code
    assert done.stdout.startswith("scone ") == (code == 0)


class Terminal(io.StringIO):
    """Standard output that says it is a terminal."""

    def isatty(self):
        return True


def test_colours_only_on_a_terminal_and_never_with_no_color(monkeypatch, capsys):
    monkeypatch.setattr("scone.cli.doctor.examine", lambda: [Finding("part", "ok", "detail")])
    monkeypatch.setenv("TERM", "xterm-256color")
    green = "\x1b[32m"

    main(["doctor"])
    assert "\x1b" not in capsys.readouterr().out

    monkeypatch.setattr(sys, "stdout", Terminal())
    main(["doctor"])
    assert green in sys.stdout.getvalue()

    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys, "stdout", Terminal())
    main(["doctor"])
    assert green not in sys.stdout.getvalue()
