"""`for_terminal`: the one function that makes foreign text safe to draw. Text of models, names, paths and errors goes through it.

Controls could move the cursor, change the title or fill the clipboard of the person's terminal, and bidirectional overrides could
show a text in another order than it has. They are drawn as symbols instead. Copies, exports and pipes get the exact text.
"""

from __future__ import annotations

from rich.cells import cell_len, set_cell_size

_SYMBOLS = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"}  # ␀ … ␛ …
_SYMBOLS[0x7F] = "␡"
_SYMBOLS |= {code: f"‹{code:02X}›" for code in range(0x80, 0xA0)}  # C1, no pictures exist
_SYMBOLS |= {code: f"‹{code:04X}›" for code in (0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A))}
_SYMBOLS |= {code: f"‹{code:04X}›" for code in range(0xFFF9, 0xFFFC)}  # interlinear annotation
_SURROGATES = dict.fromkeys(range(0xD800, 0xE000), "\ufffd")  # cannot be encoded; from paths with broken names
_TABLE = str.maketrans(_SYMBOLS | _SURROGATES)


def for_terminal(text: str) -> str:
    """The text with newlines and tabs kept, Windows line ends made plain, all other controls as visible symbols."""
    return text.replace("\r\n", "\n").translate(_TABLE)


def one_line(text: str, width: int | None = None) -> str:
    """The same on one line, for names and titles: white space runs become one space, cut with … at `width` cells."""
    line = " ".join(for_terminal(text).split())
    if width is None or cell_len(line) <= width:
        return line
    return set_cell_size(line, width - 1).rstrip() + "…" if width > 0 else ""


def column(text: str, width: int) -> str:
    """One line in a column of `width` cells, the last of which stays free."""
    return set_cell_size(one_line(text, width - 1), width)
