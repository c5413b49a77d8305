"""Passes that are made once and run many times, at fixed addresses.

`Recorder.record` takes a function without arguments that reads static tensors and returns tensors; what it gives back does the same work
again and returns the same result tensors, filled anew: they are valid until the next run of the same pass. On a card this is a CUDA
graph: nothing in the function may wait for the device, and no number of the host that changes may be read inside. `EagerRecorder` runs
the function itself on the same static tensors, on any device: all but the capture is the same code.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

Outputs = tuple[Tensor | None, ...]
Run = Callable[[], Outputs]
WARM_UPS = 2  # runs before a capture: libraries load kernels and choose algorithms in the first ones


class Recorder(Protocol):
    """See the module."""

    device: torch.device
    nbytes: int  # device memory that recorded passes hold besides their results' and inputs' owners

    def host(self, numbers: int) -> Tensor:
        """A host buffer (numbers,) int64 from which `upload` can copy without waiting."""

    def upload(self, numbers: np.ndarray, source: Tensor, target: Tensor) -> None:
        """Fill a host buffer with numbers (n,) int64 and copy it to its static tensor, in order with the passes."""

    def record(self, run: Run) -> Run:
        """Run once and keep. Raises RuntimeError where the device refuses."""

    def seconds(self, run: Run, times: int) -> float:
        """Seconds of one of so many runs, the device's own time included."""


class EagerRecorder:
    """Runs the function each time and copies into the first results."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.nbytes = 0

    def host(self, numbers: int) -> Tensor:
        """An ordinary tensor."""
        return torch.zeros(numbers, dtype=torch.int64)

    def upload(self, numbers: np.ndarray, source: Tensor, target: Tensor) -> None:
        """Two copies."""
        source.numpy()[:] = numbers
        target.copy_(source)

    def record(self, run: Run) -> Run:
        """See the class."""
        with torch.inference_mode():
            kept = tuple(None if out is None else out.clone() for out in run())

        def again() -> Outputs:
            with torch.inference_mode():
                for held, out in zip(kept, run(), strict=True):
                    if held is not None and out is not None:
                        held.copy_(out)
            return kept

        return again

    def seconds(self, run: Run, times: int) -> float:
        """By the host's clock."""
        self._wait()
        begun = perf_counter()
        for _ in range(times):
            run()
        self._wait()
        return (perf_counter() - begun) / times

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class CudaRecorder(EagerRecorder):
    """CUDA graphs that share one memory pool: they run one after the other on one stream, so each may use what the others left. Captured
    on a stream of its own, in the mode that lets other threads use the device meanwhile."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._uploaded: dict[int, torch.cuda.Event] = {}

    def host(self, numbers: int) -> Tensor:
        """Page-locked, so that copies do not stop the host."""
        return torch.zeros(numbers, dtype=torch.int64, pin_memory=True)

    def upload(self, numbers: np.ndarray, source: Tensor, target: Tensor) -> None:
        """The host waits only for its own earlier copy from this buffer; reading a result has waited for more than that already."""
        event = self._uploaded.setdefault(source.data_ptr(), torch.cuda.Event())
        event.synchronize()
        source.numpy()[:] = numbers
        target.copy_(source, non_blocking=True)
        event.record(torch.cuda.current_stream(self.device))

    def record(self, run: Run) -> Run:
        """Warm up, capture."""
        graph = torch.cuda.CUDAGraph()
        with torch.inference_mode(), torch.cuda.device(self.device):
            here = torch.cuda.current_stream(self.device)
            self._stream.wait_stream(here)
            with torch.cuda.stream(self._stream):
                for _ in range(WARM_UPS):
                    run()
            torch.cuda.synchronize(self.device)
            held = torch.cuda.memory_reserved(self.device)
            with torch.cuda.stream(self._stream):
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    outputs = run()
                finally:
                    graph.capture_end()
            here.wait_stream(self._stream)
            self.nbytes += max(0, torch.cuda.memory_reserved(self.device) - held)

        def again() -> Outputs:
            graph.replay()
            return outputs

        again()  # a capture runs nothing
        return again
