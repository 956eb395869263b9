"""A thread that sends while a step goes on, in torch."""

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from suite.comm.reduce.torch import Tree


class Background:
    """Makes calls one after another in a thread; on a GPU in a second stream, beside the kernels of the step.

    In the step's stream, the GPU would not go on with the step until a collective is done.

    Args:
        device: of the tensors.
    """

    def __init__(self, device: torch.device):
        self.device, self.thread = device, ThreadPoolExecutor(1)
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def submit(self, send: Callable[[], Tree], reads: Iterable[Tensor]) -> Future[Tree]:
        """Call `send` in the thread, and on a GPU after what the current stream was given before.

        Args:
            send: what to call.
            reads: the tensors of other streams that it uses.
        """
        if not self.stream:
            return self.thread.submit(send)
        ready = torch.cuda.current_stream(self.device).record_event()
        for value in reads:
            value.record_stream(self.stream)  # its memory is not reused before
        return self.thread.submit(self._call, send, self.stream, ready)

    def collect(self, sent: Future[Tree]) -> Tree:
        """Wait for a call, and return its result; on a GPU, only the current stream waits."""
        found = sent.result()
        if self.stream:
            current = torch.cuda.current_stream(self.device)
            current.wait_stream(self.stream)
            for value in found.values():
                value.record_stream(current)
        return found

    @staticmethod
    def _call(send: Callable[[], Tree], stream: torch.cuda.Stream, ready: torch.cuda.Event | torch.Event) -> Tree:
        with torch.cuda.stream(stream):
            stream.wait_event(ready)
            return send()
