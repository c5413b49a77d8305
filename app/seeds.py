"""The seed of one reply: fresh and random where the person fixed none, else mixed from seed, turn and version.

The mix is part of what a saved chat means, so it never changes: 63 bits of BLAKE2b over "seed/turn/version".
"""

from __future__ import annotations

import hashlib
import secrets

BITS = 63


def reply_seed(seed: int | None, turn: int, version: int) -> int:
    """A 63-bit seed. `run --seed N` is turn 0, version 0; regenerating counts the version up."""
    if seed is None:
        return secrets.randbits(BITS)
    digest = hashlib.blake2b(f"{seed}/{turn}/{version}".encode("ascii"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> (64 - BITS)
