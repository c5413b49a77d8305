"""Before anything imports torch: no network, and compute threads that sleep instead of spinning (see engine/thread.py)."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("GOMP_SPINCOUNT", "20000")
