"""Tiny models are faster on one thread, and leave the other core to the rest of the suite."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

torch.set_num_threads(1)
