"""Downloads from a fake hub on loopback: what is fetched, resuming, stopping, and every way it can fail."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import namedtuple
from pathlib import Path

import psutil
import pytest

from engine.catalog import hub as hub_module
from engine.catalog import progress, stored
from engine.catalog.hub import disk_use, locate, pull, remove
from engine.catalog.progress import Progress
from engine.catalog.specs import ModelSpec
from engine.errors import EngineError
from tests.engine.catalog.fakes import COMMIT, HANG_S, SMALL, WEIGHTS, FakeHub, gguf_bytes, safetensors_bytes
from tests.patience import PATIENCE_S, wait_until

TINY = ModelSpec("tiny", repo="org/tiny")
BIG = safetensors_bytes({"model.embed_tokens.weight": (3000, 500)})  # 3 MB


def failure(spec: ModelSpec = TINY) -> EngineError:
    with pytest.raises(EngineError) as caught:
        pull(spec)
    error = caught.value
    assert error.message.endswith(".")
    assert error.hint
    return error


def test_pull_fetches_only_what_is_needed(hub: FakeHub) -> None:
    seen: list[Progress] = []
    assert locate(TINY) is None
    path = pull(TINY, seen.append)
    assert path == locate(TINY)
    assert path.name == COMMIT
    assert {f.name for f in path.iterdir()} == {"config.json", "tokenizer.json", "model.safetensors"}
    assert (path / "model.safetensors").read_bytes() == WEIGHTS
    assert set(hub.fetched()) == {"config.json", "tokenizer.json", "model.safetensors"}
    assert seen[-1].done == seen[-1].total == len(WEIGHTS) + len(SMALL["config.json"]) + 2
    assert [p.done for p in seen] == sorted(p.done for p in seen)
    assert {p.source for p in seen} == {"hub"}


def test_the_cache_is_an_ordinary_hub_cache(hub: FakeHub) -> None:
    from huggingface_hub import snapshot_download

    path = pull(TINY)
    assert snapshot_download("org/tiny", cache_dir=stored.hub_cache(), local_files_only=True) == str(path)


def test_pull_again_asks_nobody(hub: FakeHub) -> None:
    path = pull(TINY)
    asked = len(hub.requests)
    assert pull(TINY) == path
    assert len(hub.requests) == asked


def test_pull_works_while_this_process_is_offline(hub: FakeHub) -> None:
    from huggingface_hub import constants

    assert os.environ["HF_HUB_OFFLINE"] == "1"
    before = constants.HF_HUB_OFFLINE
    assert pull(TINY).exists()
    assert before == constants.HF_HUB_OFFLINE
    assert os.environ["HF_HUB_OFFLINE"] == "1"


def test_the_token_is_sent(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    pull(TINY)
    assert hub.tokens == {"Bearer hf_secret"}


def test_shards_are_those_of_the_index(hub: FakeHub) -> None:
    first, second = safetensors_bytes({"a": (4, 4)}), safetensors_bytes({"b": (4, 4)})
    del hub.files["model.safetensors"]
    hub.files |= {
        "model.safetensors.index.json": json.dumps(
            {"weight_map": {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}}
        ).encode(),
        "model-1-of-2.safetensors": first,
        "model-2-of-2.safetensors": second,
        "consolidated.safetensors": first,
    }
    path = pull(TINY)
    assert {f.name for f in path.glob("*.safetensors")} == {"model-1-of-2.safetensors", "model-2-of-2.safetensors"}
    (path / "model-2-of-2.safetensors").unlink()
    assert locate(TINY) is None


def test_a_single_gguf(hub: FakeHub) -> None:
    hub.files |= {"q4.gguf": gguf_bytes({"general.architecture": "llama"}, {"a": (4, 4)}), "q8.gguf": b"other"}
    spec = ModelSpec("tiny", repo="org/tiny", file="q4.gguf")
    path = pull(spec)
    assert path.name == "q4.gguf"
    assert path == locate(spec)
    assert hub.fetched() == ["q4.gguf"]
    assert remove(spec) == len(hub.files["q4.gguf"])
    assert locate(spec) is None


def test_an_interrupted_file_goes_on_where_it_stopped(hub: FakeHub) -> None:
    hub.files["model.safetensors"] = BIG
    hub.held_at = 2_000_000
    with pytest.raises(EngineError) as caught:
        pull(TINY, None, lambda: disk_use(TINY) > 1_500_000)  # the file itself: progress is told ten times a second at most
    assert caught.value.kind == "cancelled"
    assert locate(TINY) is None
    have = disk_use(TINY)
    others = sum(len(data) for name, data in hub.files.items() if name != "model.safetensors")
    assert 1_000_000 < have < len(BIG) + others
    hub.held_at = 0
    hub.requests.clear()
    path = pull(TINY)
    assert (path / "model.safetensors").read_bytes() == BIG
    start = next(wanted for _, url, wanted in hub.requests if url.endswith("model.safetensors") and wanted)
    assert 1_000_000 < int(start.removeprefix("bytes=").rstrip("-")) <= have


def test_a_server_without_ranges_starts_over(hub: FakeHub) -> None:
    hub.files["model.safetensors"] = BIG
    hub.cut_after, hub.cuts, hub.ranges = 700_000, 1, False
    assert (pull(TINY) / "model.safetensors").read_bytes() == BIG


def test_a_broken_connection_is_taken_up_again(hub: FakeHub) -> None:
    hub.files["model.safetensors"] = BIG
    hub.cut_after, hub.cuts = 700_000, 3
    seen: list[Progress] = []
    assert (pull(TINY, seen.append) / "model.safetensors").read_bytes() == BIG
    assert hub.fetched().count("model.safetensors") == 4
    assert "retrying: the connection broke" in [p.note for p in seen]
    assert [p.done for p in seen] == sorted(p.done for p in seen)
    assert not seen[-1].note


def test_a_hub_that_is_silent_is_said_to_be(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "STALL_S", 0.3)
    hub.hang = True
    seen: list[Progress] = []
    with pytest.raises(EngineError) as caught:
        pull(TINY, seen.append, lambda: any(p.state == "stalled" for p in seen))
    assert caught.value.kind == "cancelled"
    assert seen[-1].note.endswith(" s (asking the hub)")


def test_a_connection_that_always_breaks(hub: FakeHub) -> None:
    hub.files["model.safetensors"] = BIG
    hub.cut_after, hub.cuts = 0, 99
    error = failure()
    assert error.kind == "network"
    assert "broke" in error.message


def test_stopping_is_fast_even_when_the_hub_hangs(hub: FakeHub) -> None:
    hub.hang = True
    started = time.monotonic()
    with pytest.raises(EngineError) as caught:
        pull(TINY, None, lambda: bool(hub.requests))
    assert caught.value.kind == "cancelled"
    assert time.monotonic() - started < PATIENCE_S


def test_a_hub_that_never_answers(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.hang = True
    monkeypatch.setenv("SPECCHAT_ANSWER_S", "0.5")
    started = time.monotonic()
    assert failure().kind == "network"
    assert time.monotonic() - started < PATIENCE_S


def test_no_network(no_hub: None) -> None:
    started = time.monotonic()
    assert failure().kind == "network"
    assert time.monotonic() - started < PATIENCE_S


def test_a_connection_that_is_never_taken_gives_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()

    def never(*_: object, **__: object) -> None:
        over.wait(HANG_S)
        raise OSError

    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(hub_module, "CONNECT_S", 0.5)
    monkeypatch.setattr(hub_module.socket, "create_connection", never)
    started = time.monotonic()
    assert failure().kind == "network"
    assert time.monotonic() - started < PATIENCE_S
    over.set()


def test_a_proxy_is_asked_instead_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    monkeypatch.setattr(
        hub_module.socket, "create_connection", lambda address, **_: asked.append(address) or (_ for _ in ()).throw(OSError())
    )
    assert not hub_module._reachable("https://hub.example", lambda: False, "tiny")
    assert asked == [("proxy.example", 3128)]


def test_gated(hub: FakeHub) -> None:
    hub.gated = True
    error = failure()
    assert error.kind == "gated"
    assert f"{hub.url}/org/tiny" in error.hint
    assert "hf auth login" in error.hint


def test_missing_repository(hub: FakeHub) -> None:
    error = failure(ModelSpec("other", repo="org/other"))
    assert error.kind == "unknown_name"
    assert "org/other" in error.message


@pytest.mark.parametrize(("status", "kind"), [(500, "network"), (503, "network"), (403, "gated")])
def test_error_answers(hub: FakeHub, status: int, kind: str) -> None:
    hub.status = status
    assert failure().kind == kind


def test_no_weights_names_the_ggufs(hub: FakeHub) -> None:
    hub.files = {"config.json": b"{}", "m-q4.gguf": b"x"}
    error = failure()
    assert error.kind == "missing_weights"
    assert "org/tiny/m-q4.gguf" in error.hint


def test_wrong_checksum_deletes_and_says_so(hub: FakeHub) -> None:
    hub.sent["model.safetensors"] = WEIGHTS[:-1] + b"\x01"
    error = failure()
    assert error.kind == "checksum"
    assert "deleted" in error.message
    assert not list(stored.hub_cache().rglob("*.incomplete"))
    hub.sent.clear()
    assert pull(TINY).exists()


def test_too_short_file(hub: FakeHub) -> None:
    hub.sent["model.safetensors"] = WEIGHTS[:-100]
    assert failure().kind == "corrupt_weights"
    assert locate(TINY) is None


def test_a_file_that_was_damaged_on_disk_is_fetched_again(hub: FakeHub) -> None:
    path = pull(TINY)
    weights = (path / "model.safetensors").resolve()
    weights.write_bytes(WEIGHTS[:5000])
    hub.requests.clear()
    assert (pull(TINY) / "model.safetensors").read_bytes() == WEIGHTS
    assert hub.fetched() == ["model.safetensors"]


def test_full_disk(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9, 1000))
    error = failure()
    assert error.kind == "disk_full"
    assert error.numbers["free"] == 1000
    assert error.numbers["need"] > len(WEIGHTS)
    assert "model.safetensors" not in hub.fetched()


def test_another_process_is_at_it(hub: FakeHub) -> None:
    hub.files["model.safetensors"] = BIG
    code = "import sys; from engine.catalog import disk\nwith disk.alone('org--tiny', 'x'): print('held', flush=True); sys.stdin.read()"
    other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout
    assert other.stdout.readline() == "held\n"
    assert failure().kind == "busy"
    other.communicate("")
    assert pull(TINY).exists()


def test_unwritable_cache(hub: FakeHub, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "file").write_text("")
    monkeypatch.setenv("HF_HOME", str(home / "file" / "below"))
    assert failure().kind == "unwritable"


def test_the_child_ends_with_its_parent(hub: FakeHub) -> None:
    hub.files["model.safetensors"] = BIG
    hub.block_s = 1.0
    code = "from engine.catalog import hub\nfrom engine.catalog.specs import ModelSpec\nhub.pull(ModelSpec('tiny', repo='org/tiny'), print)"
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    while "model.safetensors" not in parent.stdout.readline():
        pass
    children = psutil.Process(parent.pid).children(recursive=True)
    assert children
    parent.kill()
    parent.wait()
    wait_until(lambda: not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children))
    partial = next(stored.hub_cache().rglob("*.incomplete"))
    assert partial.stat().st_size < len(BIG)
