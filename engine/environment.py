"""What libraries read from the environment when they are imported. Import this first on the engine's thread; `BEGUN_S` is when that was."""

from __future__ import annotations

import logging
import os
from time import perf_counter

BEGUN_S = perf_counter()

os.environ["HF_HUB_OFFLINE"] = "1"  # libraries look for kernels and updates on the hub otherwise
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# OpenMP threads that spin for long at the end of a parallel region hold the core that another one is waiting for as soon as any other
# program runs: a step then takes ten times as long. A short spin and then sleep costs next to nothing on a quiet machine.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it warns of optional kernels on the hub that we never use
