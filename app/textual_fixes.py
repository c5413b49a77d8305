"""The only place that touches what Textual keeps to itself. Checked against textual 8.2.8.

In terminals without an extended key protocol Alt+Enter arrives as ESC CR, which Textual reads as a plain Enter: it would send the
prompt instead of starting a new line.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from textual import _ansi_sequences


class _Keys(StrEnum):
    ALT_ENTER = "alt+enter"


def teach_alt_enter() -> None:
    """Make ESC CR and ESC LF the key alt+enter. Without the table of this version nothing happens."""
    table: Any = getattr(_ansi_sequences, "ANSI_SEQUENCES_KEYS", None)
    if isinstance(table, dict):
        for sequence in ("\x1b\r", "\x1b\n"):
            table.setdefault(sequence, (_Keys.ALT_ENTER,))
