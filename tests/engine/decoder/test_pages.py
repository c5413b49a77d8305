"""Weights in large pages: same bytes at the same addresses, nothing beside them touched, given back with their owner."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.decoder import pages
from engine.decoder.pages import LARGE, PIECE, RESERVE, Pages, Share, later, move

pytestmark = pytest.mark.skipif(not pages.possible(), reason="this system gives no large pages")
SIZE = 3 * PIECE + 5 * 4096  # bytes of the file


@pytest.fixture
def mapped(tmp_path: Path) -> Iterator[Tensor]:
    """(SIZE,) bytes, mapped as packed weights are."""
    file = tmp_path / "weights"
    file.write_bytes(torch.randint(0, 256, (SIZE,), dtype=torch.uint8).numpy().tobytes())
    yield of_file(file)
    while move(10.0):
        pass


def of_file(file: Path) -> Tensor:
    storage = torch.UntypedStorage.from_file(str(file), shared=False, nbytes=SIZE)
    return torch.empty(0, dtype=torch.uint8).set_(storage)


def kind(address: int) -> str:
    """What lies at an address, as the system says: the name of a file, "" for memory of its own, "none" for nothing."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        spans, *rest = line.split(maxsplit=5)
        start, stop = (int(part, 16) for part in spans.split("-"))
        if start <= address < stop:
            return rest[4] if len(rest) > 4 else ""
    return "none"


def test_bytes_and_addresses_stay_and_the_file_is_left(mapped: Tensor, tmp_path: Path) -> None:
    before, address = mapped.clone(), mapped.data_ptr()
    waiting = later([mapped])
    assert SIZE - 2 * LARGE < waiting.left <= SIZE
    assert kind(address + LARGE).endswith("weights")
    while move(0.01):
        pass
    assert waiting.left == 0
    assert mapped.data_ptr() == address
    assert torch.equal(mapped, before)
    assert kind(address + LARGE) == ""
    mapped[LARGE] ^= 1
    assert (tmp_path / "weights").read_bytes()[LARGE] == before[LARGE]  # it is our own memory


def test_only_whole_pages_inside_the_tensors_move(mapped: Tensor) -> None:
    """What lies beside a tensor in the same large page belongs to somebody else."""
    first = -mapped.data_ptr() % LARGE  # the first whole page
    inner = mapped[first + 64 : first + 2 * LARGE + 64]  # holds one whole page, and parts of two
    waiting = later([inner])
    assert waiting.left == LARGE
    move(10.0)
    assert kind(mapped.data_ptr() + first).endswith("weights")
    assert kind(mapped.data_ptr() + first + LARGE) == ""
    assert kind(mapped.data_ptr() + first + 2 * LARGE).endswith("weights")


def test_neighbours_move_as_one_and_small_tensors_not_at_all(mapped: Tensor) -> None:
    first = -mapped.data_ptr() % LARGE
    half = first + LARGE + 128
    assert later([mapped[first : half - 64], mapped[half : first + 2 * LARGE]]).left == 2 * LARGE  # the gap between them is nobody's
    assert later([mapped[: LARGE // 2]]).left == 0
    assert later([]).left == 0


def test_others_may_read_meanwhile(mapped: Tensor) -> None:
    total = int(mapped.sum(dtype=torch.int64))
    wrong: list[int] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            if (found := int(mapped.sum(dtype=torch.int64))) != total:
                wrong.append(found)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for _ in range(20):
        waiting = Pages([mapped])
        while waiting.left:
            waiting.move()
    done.set()
    for reader in readers:
        reader.join()
    assert wrong == []


def test_the_memory_goes_with_its_owner(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(bytes(SIZE))
    mapped = of_file(file)
    address = mapped.data_ptr()
    waiting = later([mapped])
    move(10.0)
    assert waiting.left == 0
    del mapped
    gc.collect()
    assert kind(address + LARGE) == "none"  # a moved piece is given back by whoever mapped the file


def test_what_is_dropped_is_not_moved(mapped: Tensor) -> None:
    waiting = later([mapped])
    assert move(0.0)
    del waiting
    gc.collect()
    assert not move(10.0)
    assert kind(mapped.data_ptr() + LARGE).endswith("weights")


def test_each_thread_moves_its_own(mapped: Tensor) -> None:
    """Another engine's weights may be read, or given back, at any time."""
    waiting = later([mapped])
    left: list[bool] = []
    other = threading.Thread(target=lambda: left.append(move(10.0)))
    other.start()
    other.join()
    assert left == [False]
    assert waiting.left > 0


@pytest.mark.parametrize("spare", [-1, 1])
def test_it_needs_memory_to_spare(mapped: Tensor, monkeypatch: pytest.MonkeyPatch, spare: int) -> None:
    waiting = later([mapped])
    free = waiting.left + RESERVE + spare
    monkeypatch.setattr(pages, "available", lambda: free)
    move(10.0)
    assert waiting.left == 0  # moved, or given up
    assert (kind(mapped.data_ptr() + 2 * LARGE) == "") == (spare > 0)


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), MemoryError()])
def test_trouble_ends_the_moving_and_nothing_else(mapped: Tensor, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail() -> int:
        raise error

    monkeypatch.setattr(pages, "available", fail)
    waiting = later([mapped])
    assert not move(10.0)
    assert waiting.left == 0


def test_a_tensor_that_claims_more_than_it_has_is_left_alone(mapped: Tensor) -> None:
    """A pickle may hold strides of zero: as many bytes as one likes out of a few."""
    assert later([mapped[:4096].view(1, 4096).expand(8 * LARGE // 4096, 4096)]).left == 0
    assert later([mapped.view(-1, 4096)[:, :1]]).left == 0


def test_tensors_of_two_owners_are_two_ranges() -> None:
    """However near they lie: what is between them is not theirs."""
    whole = torch.zeros(4 * LARGE + 64, dtype=torch.uint8)
    first = -whole.data_ptr() % LARGE
    half = first + LARGE + 128
    parts = [whole[first : half - 64], whole[half : first + 2 * LARGE]]
    alone = [torch.frombuffer(part.numpy(), dtype=torch.uint8) for part in parts]
    assert Pages(parts).left == 2 * LARGE
    assert Pages(alone).left == LARGE


def test_a_large_model_moves_in_few_pieces(monkeypatch: pytest.MonkeyPatch, mapped: Tensor) -> None:
    """Each piece stays an area of its own to the system, and it counts them."""
    monkeypatch.setattr(pages, "MOST_PIECES", 1)
    waiting = Pages([mapped])
    assert len(waiting._pieces) == 1


@pytest.mark.parametrize("call", ["mmap", "mremap"])
def test_a_system_that_refuses_changes_nothing(mapped: Tensor, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    class Refusing:
        def __getattr__(self, name: str) -> object:
            return (lambda *_: ctypes.c_void_p(-1).value) if name == call else getattr(real, name)

    real, before = pages._system(), mapped.clone()
    monkeypatch.setattr(pages, "_system", Refusing)
    waiting = later([mapped])
    assert not move(10.0)
    assert waiting.left == 0
    assert torch.equal(mapped, before)
    assert kind(mapped.data_ptr() + LARGE).endswith("weights")


def test_a_reply_gives_a_share_of_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces that take long come the more rarely."""
    clock, moved = [0.0], []

    def slow(seconds: float) -> bool:
        moved.append(seconds)
        clock[0] += 0.05
        return True

    monkeypatch.setattr(pages, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(pages, "move", slow)
    share = Share()
    for _ in range(1000):
        clock[0] += 0.01
        share()
    assert 0.08 < 0.05 * len(moved) / clock[0] < 0.11
    clock[0] += 60.0  # a long prompt was read
    share()
    assert max(moved) <= pages.AT_ONCE_S


@pytest.mark.parametrize(
    ("platform", "setting", "size", "expected"),
    [
        ("linux", "always [madvise] never", LARGE, True),
        ("linux", "always madvise [never]", LARGE, False),
        ("linux", "[always] madvise never", 512 << 20, False),  # pages of 64 KB, as some ARM systems have
        ("linux", None, LARGE, False),
        ("win32", "[always] madvise never", LARGE, False),
    ],
)
def test_where_it_is_possible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str, setting: str | None, size: int, expected: bool
) -> None:
    if setting is not None:
        (tmp_path / "enabled").write_text(setting)
    (tmp_path / "hpage_pmd_size").write_text(f"{size}\n")
    monkeypatch.setattr(pages, "SETTINGS", tmp_path)
    monkeypatch.setattr(sys, "platform", platform)
    assert pages.possible.__wrapped__() == expected
