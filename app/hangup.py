"""A terminal that is gone without a word. One that does not control this process closes without SIGHUP, and SIGHUP may be ignored
(`nohup`); then reads find an end for ever, writes fail, and nothing would end the program.

`hung_up` asks one descriptor and is cheap enough to be asked now and then; `let_go` makes the rest of the program quiet.
"""

from __future__ import annotations

import os
import select
import stat
from contextlib import suppress

LOOK_S = 1.0
EXIT_CODE = 129  # what a shell says of a program that SIGHUP ended
CAN_LOOK = hasattr(select, "poll")  # Windows has neither this nor such terminals


def hung_up(descriptor: int = 0) -> bool:
    """Whether this is a terminal whose other side is closed. Takes no input; of pipes, files and closed descriptors it is never true."""
    try:
        if not stat.S_ISCHR(os.fstat(descriptor).st_mode):  # isatty() says no of a terminal that is gone
            return False
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)  # macOS does not look at all where nothing is asked
        # Not POLLNVAL: macOS says it of devices that it cannot poll, which are well.
        return any(found & select.POLLHUP for _, found in poll.poll(0))
    except OSError:
        return False


def let_go() -> None:
    """Put nothing in the place of what is gone: all that is still read from or written to it has no effect, and raises nothing."""
    with suppress(OSError):
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            if hung_up(descriptor):
                os.dup2(nothing, descriptor)
        os.close(nothing)
