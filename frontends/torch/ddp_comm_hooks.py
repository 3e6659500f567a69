"""A communication hook of DistributedDataParallel that averages gradients by one of Ronde's compressors.

    from ronde.compression import PowerSGD
    from ronde.torch.ddp_comm_hooks import CompressionState, compression_hook

    model.register_comm_hook(CompressionState(PowerSGD(2)), compression_hook)

The model may use any backend. If it is not `ronde`, give the state a group of its own, made by
`torch.distributed.new_group(backend="ronde")`. docs/compression.md describes the compressors.
"""

# No annotations from the future: torch compares those of a hook with its types.

from typing import Any

import torch
import torch.distributed as dist

from collectives.compression import Compressor, State
from frontends.horovod import check_compressor
from frontends.torch.distributed import ProcessGroup


class CompressionState:
    """State of the hook for one model.

    compressor      one of ronde.compression
    process_group   the group over which gradients are averaged, on the backend `ronde`; None for the default group
    memory          error feedback by parameter, different on each rank: the part of the gradients that was not sent
                    yet. It can be pickled into a checkpoint, and passed to the state of the same model after loading

    Parameters are identified by the order of their first gradients. It is the same on all ranks, and does not change
    when DistributedDataParallel rebuilds its buckets after the first step.

    Raises TypeError if `compressor` is not a compressor, and for a group of another backend.
    """

    def __init__(self, compressor: Compressor, process_group: Any = None, memory: State | None = None) -> None:
        check_compressor(compressor, "compressor")
        group = dist.group.WORLD if process_group is None else process_group
        if not isinstance(group, ProcessGroup):
            raise TypeError(
                f"process_group={process_group!r}: must be on the backend ronde; "
                "make one by torch.distributed.new_group(backend='ronde')"
            )
        self.compressor = compressor
        self.process_group = group
        self.memory = State() if memory is None else memory
        self._numbers: dict[torch.Tensor, int] = {}

    def names(self, parameters: list[torch.Tensor]) -> list[str]:
        """Return the parameters' names in the memory."""
        return [str(self._numbers.setdefault(parameter, len(self._numbers))) for parameter in parameters]


def compression_hook(state: CompressionState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Begin to average a bucket's gradients over the ranks; return a future of the bucket's tensor with the averages.

    If the operation fails, the future and with it `backward` fail with DistBackendError; the memory is unchanged.
    Raises TypeError for gradients that are not dense or not in host memory.
    """
    whole = bucket.buffer()
    if whole.is_cuda:
        raise TypeError(f"bucket: is on {whole.device}; Ronde's compressors work in the host's memory only")
    names = state.names(bucket.parameters())
    work = state.process_group.compressed_mean(state.compressor, whole, bucket.gradients(), state.memory, names)
    future: torch.futures.Future[torch.Tensor] = work.get_future().then(_first)
    return future


def _first(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
    return future.value()[0]
