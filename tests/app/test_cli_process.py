"""The command as a process: fast start, Ctrl+C at every stage, a closed pipe, a full disk, a terminal. The engine is replayed."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S, Patience

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "tests.app.cli_replay"]
posix = pytest.mark.skipif(sys.platform == "win32", reason="signals and pseudo-terminals of Unix")


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "some.gguf").write_bytes(b"GGUF")
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "SPECCHAT_HOME": str(tmp_path / "home"), "PYTHONPATH": paths, "HF_HUB_CACHE": str(tmp_path / "hub")}


def start(env: Mapping[str, str], tmp_path: Path, *arguments: str, stdout: int = subprocess.PIPE, **more: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*COMMAND, "run", "Hi", "-t", str(tmp_path / "some.gguf"), *arguments],
        env={**env, **more},
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
    )


def read_until(stream: int, wanted: bytes) -> bytes:
    """Bytes of a pipe up to something that must come."""
    got, patience = b"", Patience()
    while wanted not in got:
        assert patience.left(), got
        if select.select([stream], [], [], 0.2)[0]:
            new = os.read(stream, 65536)
            assert new, got
            got += new
    return got


@posix
def test_it_starts_in_well_under_a_second(env: dict[str, str]) -> None:
    """Of processor time, and the best of three: a busy machine does not count."""
    import resource

    code = "from app.cli import main; main()"
    for option in ("--version", "--help"):
        seconds = []
        for _ in range(3):
            begin = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, "-c", code, option], env=env, check=True, capture_output=True, timeout=PATIENCE_S)
            end = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds.append(end.ru_utime - begin.ru_utime + end.ru_stime - begin.ru_stime)
        assert min(seconds) < 1.0, option


def test_a_pipe_gets_the_text_and_stderr_stays_quiet(env: dict[str, str], tmp_path: Path) -> None:
    process = start(env, tmp_path, "--seed", "1", REPLAY_TEXT="one \x1b[2J two")
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (0, b"one \x1b[2J two")
    assert err == b"ENGINE\n"


@posix
def test_ctrl_c_in_mid_reply_keeps_the_text(env: dict[str, str], tmp_path: Path) -> None:
    process = start(env, tmp_path, REPLAY_TEXT="word " * 500, REPLAY_STUCK="3")
    assert process.stdout is not None
    first = read_until(process.stdout.fileno(), b"word word")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert set((first + out).decode().split()) == {"word"}
    assert b"Traceback" not in err
    assert b"seed " in err


@posix
def test_ctrl_c_in_mid_reply_with_json_prints_the_object(env: dict[str, str], tmp_path: Path) -> None:
    process = start(env, tmp_path, "--json", REPLAY_TEXT="word " * 500, REPLAY_STUCK="3")
    assert process.stderr is not None
    read_until(process.stderr.fileno(), b"STUCK\n")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    answer = json.loads(out)
    assert answer["finish_reason"] == "cancelled"
    assert answer["text"].startswith("word")
    assert answer["tokens"] == len(answer["token_ids"]) > 0
    assert b"Traceback" not in err


@posix
@pytest.mark.parametrize("as_json", [False, True])
def test_ctrl_c_while_loading(env: dict[str, str], tmp_path: Path, as_json: bool) -> None:
    process = start(env, tmp_path, *(["--json"] if as_json else []), REPLAY_LOAD_S="3600")
    assert process.stderr is not None
    read_until(process.stderr.fileno(), b"ENGINE\n")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert err == b""
    if as_json:
        answer = json.loads(out)
        assert (answer["finish_reason"], answer["text"], answer["stats"]["steps"]) == ("cancelled", "", 0)
        assert (answer["target"], answer["device"]) == ("some", None)
    else:
        assert out == b""


@posix
def test_ctrl_c_while_stdin_is_read(env: dict[str, str]) -> None:
    process = subprocess.Popen(
        [*COMMAND, "run", "-"],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # what a shell starts in the background ignores it
    )
    assert process.stderr is not None
    read_until(process.stderr.fileno(), b"when there is none)\n")  # the whole line
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, err) == (130, b"", b"")


@posix
def test_a_reader_that_goes_away_ends_it_quietly(env: dict[str, str], tmp_path: Path) -> None:
    """As with `| head -1`."""
    process = start(env, tmp_path, REPLAY_TEXT="line\n" * 2000, REPLAY_STEP_S="0.01")
    assert process.stdout is not None
    read_until(process.stdout.fileno(), b"line\n")
    process.stdout.close()
    assert process.stderr is not None
    err = process.stderr.read()
    assert process.wait(timeout=PATIENCE_S) == 0
    assert err == b"ENGINE\n"


@posix
def test_a_closed_stderr_does_not_matter(env: dict[str, str], tmp_path: Path) -> None:
    process = start(env, tmp_path, REPLAY_LOAD_S="0.5")
    assert process.stderr is not None
    process.stderr.close()
    assert process.stdout is not None
    assert process.stdout.read() == b"one two three"
    assert process.wait(timeout=PATIENCE_S) == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_behind_stdout_is_an_error(env: dict[str, str], tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        process = start(env, tmp_path, stdout=full.fileno())
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert b"error: Standard output cannot be written: No space left on device." in err
    assert b"Traceback" not in err


@posix
def test_on_a_terminal_the_text_is_made_safe_and_numbers_follow(env: dict[str, str], tmp_path: Path) -> None:
    import pty

    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "run", "Hi", "-t", str(tmp_path / "some.gguf")],
        env={**env, "REPLAY_TEXT": "one \x1b]0;title\x07 two", "PYTHONIOENCODING": "utf-8"},
        stdin=follower,
        stdout=follower,
        stderr=follower,
    )
    os.close(follower)
    got = b""
    while True:
        try:
            new = os.read(leader, 65536)
        except OSError:  # the other side is closed
            break
        if not new:
            break
        got += new
    assert process.wait(timeout=PATIENCE_S) == 0
    os.close(leader)
    shown = got.decode()
    assert "one ␛]0;title␇ two\r\n" in shown
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "tok/s" in shown
    assert "tau" in shown
    assert "seed " in shown


@posix
def test_the_chat_is_not_opened_without_a_terminal(env: dict[str, str]) -> None:
    process = subprocess.run([*COMMAND], env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE_S, check=False)
    assert process.returncode == 2
    assert process.stdout == b""
    assert process.stderr.startswith(b"error: The chat needs a terminal")


def test_a_dying_engine_thread_is_a_sentence_and_goes_to_the_log(env: dict[str, str], tmp_path: Path) -> None:
    code = (
        "import app.run, engine.client\n"
        "def serve(*ends): raise ImportError('libcudart is missing')\n"
        "engine.client._serve = serve\n"
        "from app.cli import main\nmain()"
    )
    process = subprocess.run(
        [sys.executable, "-c", code, "run", "Hi", "-t", str(tmp_path / "some.gguf")],
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert process.returncode == 1
    error, hint = process.stderr.decode().splitlines()
    assert "ended unexpectedly" in error
    assert "specchat.log" in hint
    assert "libcudart is missing" in (tmp_path / "home" / "logs" / "specchat.log").read_text()
