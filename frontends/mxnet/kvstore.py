"""Ronde as a KVStore of MXNet: `mx.kv.create("ronde")`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from collectives import global_process_set, rank, size
from frontends.horovod import Reduction, Sum, allgather_object, init, is_lossy
from frontends.mxnet.compression import AnyCompression, Compression
from frontends.mxnet.library import mx
from frontends.mxnet.tensors import LIBRARY, as_array


class Ronde(mx.kv.KVStoreBase):  # type: ignore[misc]
    """A KVStore without servers: the ranks sum gradients by allreduce, and each updates its parameters.

    Made by `mx.kv.create("ronde")`, or by the name "dist_ronde"; it calls `init`. Give Trainer and Module the store, or
    the name "dist_ronde": for a name without "dist", MXNet makes no store if a rank has one device.

    The result is the sum, as in MXNet's "dist_sync", so `Trainer.step` takes the number of rows of all ranks; Module
    knows that. All calls are collective, by keys that are the same on all ranks, and end when the result is there;
    `priority` is ignored. A value may be a list of arrays on several devices of a rank, which are added first.
    """

    def __init__(self) -> None:
        """Raises HorovodInternalError if the ranks do not connect in time."""
        init()
        self._compression: AnyCompression = Compression.none

    @staticmethod
    def is_capable(capability: str) -> bool:
        """False for "optimizer": the ranks update parameters, not the store. Raises ValueError for another word."""
        if capability.lower() != mx.kv.KVStoreBase.OPTIMIZER:
            raise ValueError(f"capability={capability!r}: must be {mx.kv.KVStoreBase.OPTIMIZER!r}")
        return False

    @property
    def type(self) -> str:
        """The kind of store: Module scales by the number of ranks if there are "dist" and "_sync" in it."""
        return "dist_sync_ronde"

    @property
    def rank(self) -> int:
        """This rank."""
        return rank()

    @property
    def num_workers(self) -> int:
        """The number of ranks."""
        return size()

    def init(self, key: Any, value: Any) -> None:
        """Check that all ranks begin with the same value. Called by Module, which keeps the values.

        Raises ValueError on all ranks if the values differ: `broadcast_parameters` must come before.
        """
        for name, arrays in _items(key, value):
            digest = hashlib.sha256(as_array(arrays[0], "value").tobytes()).digest()
            if len(set(allgather_object(digest, f"kvstore.{name}"))) > 1:
                raise ValueError(
                    f"key={name!r}: the ranks begin with different values; give the module those of rank 0 by "
                    "broadcast_parameters and Module.set_params"
                )

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Write the value of rank 0 into the arrays `out` of all ranks.

        key         a number or a name, or a list of them; the other arguments then are lists, too
        value, out  arrays, or lists of arrays on several devices

        Raises HorovodInternalError if the ranks disagree or a rank is lost.
        """
        for (name, values), (_, outs) in zip(_items(key, value), _items(key, out), strict=True):
            LIBRARY.broadcast(values[0], outs[0], 0, f"kvstore.{name}", global_process_set).synchronize()
            _copy(outs[0], outs[1:])

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Write the sum of all ranks' values into the arrays `out` of all ranks; without `out`, into the values.

        Otherwise as `broadcast`.
        """
        targets = _items(key, value if out is None else out)
        for (name, values), (_, outs) in zip(_items(key, value), targets, strict=True):
            first = outs[0]
            total = values[0]
            for other in values[1:]:
                total = total + other.as_in_context(total.context)
            if total is not first:
                first[:] = total
            self._sum(str(name), first)
            _copy(first, outs[1:])

    def set_gradient_compression(self, compression_params: Mapping[str, Any]) -> None:
        """Compress the values of `pushpull`; what gluon.Trainer(compression_params=...) calls.

        compression_params   {"type": "fp16"}, "bf16", or "int8", "topk" and "powersgd" with their options:
                             {"type": "topk", "ratio": 0.01}

        Raises ValueError for another type.
        """
        options = dict(compression_params)
        kind = options.pop("type", None)
        if kind in ("fp16", "bf16") and not options:
            self._compression = getattr(Compression, kind)
        elif kind in ("int8", "topk", "powersgd"):
            self._compression = getattr(Compression, kind)(**options)
        else:
            raise ValueError(
                f"compression_params={dict(compression_params)}: the type must be fp16, bf16, int8, topk or powersgd"
            )

    def _sum(self, name: str, tensor: Any) -> None:
        """Replace an array by the sum over the ranks."""
        compression, how = self._compression, Reduction(Sum, f"kvstore.{name}", 1.0, 1.0, global_process_set)
        if is_lossy(compression):
            LIBRARY.compressed([tensor], [tensor], how, [name], compression).synchronize()
            return
        sent, context = compression.compress(tensor)
        LIBRARY.allreduce(sent, sent, how).synchronize()
        result = compression.decompress(sent, context)
        if result is not tensor:
            tensor[:] = result


def _items(key: Any, value: Any) -> list[tuple[Any, Sequence[Any]]]:
    """Return pairs of a key and its arrays."""
    if isinstance(key, list | tuple):
        return [pair for one, its in zip(key, value, strict=True) for pair in _items(one, its)]
    return [(key, value if isinstance(value, list | tuple) else [value])]


def _copy(array: Any, others: Sequence[Any]) -> None:
    for other in others:
        other[:] = array.as_in_context(other.context)


mx.kv.KVStoreBase.register(Ronde)
mx.kv.KVStoreBase.register(type("Dist_Ronde", (Ronde,), {}))
