"""Batch normalisation over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from collectives import ProcessSet, global_process_set
from frontends.horovod import Sum, communicator_of
from frontends.torch import ops
from frontends.torch.works import eager


@eager
class SyncBatchNorm(torch.nn.modules.batchnorm._BatchNorm):  # type: ignore[misc]
    """torch.nn.BatchNorm1d/2d/3d with mean and variance over the batches of all ranks (Ioffe and Szegedy, 2015).

    process_set   the ranks whose batches count; all by default

    Batches may differ in size. Input is (N, C) or (N, C, ...), of any floating type, which the output has, too.
    `forward` is collective in training; in evaluation it is ordinary batch normalisation. Gradients cannot be
    differentiated again.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self._process_set = process_set

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"input: has {input.dim()} dimensions, must have 2 or more: (N, C, ...)")
        if input.shape[1] != self.num_features and (self.affine or self.track_running_stats):
            raise ValueError(f"input: has {input.shape[1]} channels, must have {self.num_features}, as the layer has")
        if not input.is_floating_point():
            raise TypeError(f"input: has dtype {input.dtype}, must have a floating type")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalise a batch. Collective in training."""
        self._check_input_dim(input)
        if not (self.training or not self.track_running_stats) or communicator_of(self._process_set).size == 1:
            return super().forward(input)
        factor = 0.0 if self.momentum is None else self.momentum
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                factor = 1.0 / float(self.num_batches_tracked)
        normalised, mean, variance, count = _Normalise.apply(input, self.eps, self._process_set)
        if self.training and self.track_running_stats and count:  # as torch, which lets empty batches change nothing
            with torch.no_grad():
                unbiased = variance * (count / max(count - 1, 1))
                self.running_mean.lerp_(mean.to(self.running_mean.dtype), factor)
                self.running_var.lerp_(unbiased.to(self.running_var.dtype), factor)
        if not self.affine:
            return normalised
        shape = _per_channel(input)
        return (normalised * self.weight.reshape(shape) + self.bias.reshape(shape)).to(input.dtype)


def _per_channel(x: torch.Tensor) -> tuple[int, ...]:
    return (1, -1, *[1] * (x.dim() - 2))


def _total(sums: torch.Tensor, process_set: ProcessSet) -> torch.Tensor:
    result: torch.Tensor = ops.allreduce_async_(sums, None, None, Sum, 1.0, 1.0, process_set).synchronize()
    return result


class _Normalise(torch.autograd.Function):  # type: ignore[misc]
    """(x - mean) / sqrt(variance + eps) over all ranks; also mean, biased variance and number of values.

    Sums are float64, so that a mean that is large against the deviation costs no precision. Squares of float64 would
    lose it: their variance is summed around the mean, by a second reduction.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, eps: float, process_set: ProcessSet) -> tuple[Any, ...]:
        axes = [axis for axis in range(x.dim()) if axis != 1]
        wide = x.to(torch.float64)
        own = wide.new_tensor([x.numel() / max(x.shape[1], 1)])  # on the device of x
        sums = torch.cat([wide.sum(axes), (wide * wide).sum(axes), own])
        totals = _total(sums, process_set)
        channels, count = x.shape[1], totals[-1].item()
        mean = totals[:channels] / count
        shape = _per_channel(x)
        centred = wide - mean.reshape(shape)
        if x.dtype is torch.float64:
            variance = _total((centred * centred).sum(axes), process_set) / count
        else:
            variance = (totals[channels:-1] / count - mean * mean).clamp_min(0)
        scale = torch.rsqrt(variance + eps)
        normalised = (centred * scale.reshape(shape)).to(x.dtype)
        ctx.save_for_backward(x, mean, scale)  # not the result, which may be changed in place
        ctx.count, ctx.process_set = count, process_set
        ctx.mark_non_differentiable(mean, variance)
        return normalised, mean, variance, count

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: torch.Tensor, *_: Any) -> Any:
        x, mean, scale = ctx.saved_tensors
        axes = [axis for axis in range(gradient.dim()) if axis != 1]
        shape = _per_channel(gradient)
        wide = gradient.to(torch.float64)
        values = (x.to(torch.float64) - mean.reshape(shape)) * scale.reshape(shape)
        totals = _total(torch.cat([wide.sum(axes), (wide * values).sum(axes)]), ctx.process_set) / ctx.count
        level, slope = totals.chunk(2)
        result = (wide - level.reshape(shape) - values * slope.reshape(shape)) * scale.reshape(shape)
        return result.to(gradient.dtype), None, None
