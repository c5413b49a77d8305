"""The published static trees, as paths of ranks; the most useful paths stand first, so a prefix of a list is a good smaller tree."""

from __future__ import annotations

from engine.drafters.heads.grow import Path


def _paths(text: str) -> tuple[Path, ...]:
    return tuple(tuple(int(rank) for rank in word) for word in text.split())


# mc_sim_7b_63, of Medusa and Hydra: 63 nodes, 4 deep; one digit a rank
MC_SIM_7B_63 = _paths(
    "0 00 1 01 2 000 10 02 3 03 4 04 20 05 001 5 06 6 07 010 11 7 08 002 30 09 8 9 100 020 12 003 40 21 004 005 0000 011 006 030 50 13 "
    "007 008 009 60 040 14 70 012 200 31 22 80 050 15 101 021 90 060 0001 16 070"
)
# EAGLE-1: 25 nodes, 5 deep; published by depth, here by how likely such ranks are to be kept
EAGLE_1 = _paths("0 00 000 1 0000 01 10 2 00000 001 010 100 3 02 20 0001 30 002 020 11 00001 0002 011 21 021")
