"""`specchat --demo`, some times faster than life, in the terminal it is started in; for the smoke test in tmux."""

from __future__ import annotations

import sys

from app.demo import demo
from app.tui import run_chat

if __name__ == "__main__":
    sys.exit(run_chat(*demo(float(sys.argv[1]))))
