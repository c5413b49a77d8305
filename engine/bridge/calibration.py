"""How well a drafter's tokens suit a target, on bundled texts: chat, code, and many scripts. The texts were written for this program."""

from __future__ import annotations

from pathlib import Path

from engine.bridge.codec import Codec
from engine.bridge.maps import VocabularyMap

PARTS = ("chat", "code", "multilingual")
FOLDER = Path(__file__).with_name("texts")


def text(part: str) -> bytes:
    """One of the bundled texts."""
    return (FOLDER / f"{part}.txt").read_bytes().replace(b"\r\n", b"\n")  # as written, whatever a checkout made of it


def shares(target: Codec, drafter: Codec, mapping: VocabularyMap, data: bytes) -> tuple[float, float]:
    """(coverage, pieces) of a text: the share of its drafter tokens that the target has too, and the share of those whose first target
    piece is the very token with which the target writes the text from there on. What a drafter that knew the text would get kept."""
    starts: dict[int, int] = {}
    at = 0
    for i in target.encode(data):
        starts[at] = i
        at += len(target.spell([i]))
    ids = drafter.encode(data)
    same, first = mapping.same.tolist(), mapping.first.tolist()
    covered = right = at = 0
    for d in ids:
        covered += same[d] >= 0
        right += starts.get(at) == first[d]
        at += len(drafter.spell([d]))
    return (covered / len(ids), right / len(ids)) if ids else (0.0, 0.0)
