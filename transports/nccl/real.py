"""NCCL by nccl4py's bindings, CUDA's runtime by cuda-bindings.

The bindings take addresses, as Ronde does. nccl4py's own communicator takes arrays: it inspects every argument in every
call, ignores strides, and does not support bool, complex or CuPy bfloat16 (docs/decisions/0010-nccl4py.md).
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import numpy as np

from transports.errors import ConfigError
from transports.nccl.api import UNHANDLED_CUDA, Device, NcclError
from transports.nccl.types import FLOAT32, FLOAT64

OLDEST: Final = (0, 5)
"""The first nccl4py whose bindings have communicators as objects."""
_SCALARS: Final = {FLOAT32: np.float32, FLOAT64: np.float64}


class RealNccl:
    """NcclApi by nccl4py and cuda-bindings."""

    def __init__(self) -> None:
        """Raises ConfigError if a package is missing or too old, or if NCCL itself cannot be loaded."""
        try:
            from cuda.bindings import runtime
            from nccl.bindings import nccl
        except ImportError as error:
            raise ConfigError(f"NCCL cannot be used: {error}") from error
        try:
            installed = version("nccl4py")
        except PackageNotFoundError:  # built from source
            installed = ""
        if installed and tuple(int(part) for part in installed.split(".")[:2]) < OLDEST:
            wanted = ".".join(map(str, OLDEST))
            raise ConfigError(f"NCCL cannot be used: nccl4py is {installed}, it must be {wanted} or newer")
        self._nccl: Any = nccl
        self._cuda: Any = runtime
        try:
            self._version = int(nccl.get_version())
        except (ImportError, OSError, RuntimeError) as error:
            raise ConfigError(f"NCCL cannot be used: its library cannot be loaded: {error}") from error

    def version(self) -> int:
        return self._version

    def unique_id(self) -> bytes:
        return bytes(self._ask(self._nccl.get_unique_id))

    def init(self, size: int, rank: int, unique_id: bytes) -> Any:
        config = self._nccl.Config()
        config.blocking = 0
        named = self._nccl.UniqueId.from_buffer(bytearray(unique_id))
        return self._ask(self._nccl.comm_init_rank_config, size, named, rank, config)

    def async_error(self, comm: Any) -> int:
        return int(self._ask(self._nccl.comm_get_async_error, comm))

    def error_text(self, code: int) -> str:
        return str(self._nccl.get_error_string(code))

    def last_error(self, comm: Any) -> str:
        return str(self._nccl.get_last_error(self._nccl.Comm() if comm is None else comm))

    def finalize(self, comm: Any) -> None:
        self._ask(self._nccl.comm_finalize, comm)

    def destroy(self, comm: Any) -> None:
        self._ask(self._nccl.comm_destroy, comm)

    def abort(self, comm: Any) -> None:
        self._ask(self._nccl.comm_abort, comm)

    def group_start(self) -> None:
        self._ask(self._nccl.group_start)

    def group_end(self) -> None:
        self._ask(self._nccl.group_end)

    def send(self, comm: Any, source: int, count: int, kind: int, peer: int, stream: int) -> None:
        self._ask(self._nccl.send, source, count, kind, peer, comm, stream)

    def recv(self, comm: Any, target: int, count: int, kind: int, peer: int, stream: int) -> None:
        self._ask(self._nccl.recv, target, count, kind, peer, comm, stream)

    def broadcast(self, comm: Any, source: int, target: int, count: int, kind: int, root: int, stream: int) -> None:
        self._ask(self._nccl.broadcast, source, target, count, kind, root, comm, stream)

    def all_gather(self, comm: Any, source: int, target: int, count: int, kind: int, stream: int) -> None:
        self._ask(self._nccl.all_gather, source, target, count, kind, comm, stream)

    def all_reduce(self, comm: Any, source: int, target: int, count: int, kind: int, op: int, stream: int) -> None:
        self._ask(self._nccl.all_reduce, source, target, count, kind, op, comm, stream)

    def reduce(
        self, comm: Any, source: int, target: int, count: int, kind: int, op: int, root: int, stream: int
    ) -> None:
        self._ask(self._nccl.reduce, source, target, count, kind, op, root, comm, stream)

    def reduce_scatter(self, comm: Any, source: int, target: int, count: int, kind: int, op: int, stream: int) -> None:
        self._ask(self._nccl.reduce_scatter, source, target, count, kind, op, comm, stream)

    def premultiplied_sum(self, comm: Any, factor: float, kind: int) -> int:
        scalar = np.array([factor], _SCALARS[kind])  # read at once: its residence is "host, immediate"
        residence = int(self._nccl.ScalarResidence.HostImmediate)
        return int(self._ask(self._nccl.red_op_create_pre_mul_sum, scalar.ctypes.data, kind, residence, comm))

    def device(self, number: int) -> Device:
        properties = self._run(self._cuda.cudaGetDeviceProperties, number)
        uuid = bytes(properties.uuid.bytes)[:16].hex()
        name = properties.name.decode() if isinstance(properties.name, bytes) else str(properties.name)
        return Device(uuid, name, (int(properties.major), int(properties.minor)))

    def use(self, number: int) -> None:
        self._run(self._cuda.cudaSetDevice, number)

    def record(self, stream: int) -> int:
        event = self._run(self._cuda.cudaEventCreateWithFlags, self._cuda.cudaEventDisableTiming)
        self._run(self._cuda.cudaEventRecord, event, stream)
        return int(event)

    def happened(self, event: int) -> bool:
        (status,) = self._cuda.cudaEventQuery(event)
        if status == self._cuda.cudaError_t.cudaErrorNotReady:
            return False
        self._check(status)
        return True

    def forget(self, event: int) -> None:
        self._run(self._cuda.cudaEventDestroy, event)

    def _ask(self, function: Callable[..., Any], *arguments: object) -> Any:
        """A call of NCCL."""
        try:
            return function(*arguments)
        except self._nccl.NCCLError as error:
            raise NcclError(int(error.status), str(error)) from None

    def _run(self, function: Callable[..., Any], *arguments: object) -> Any:
        """A call of CUDA's runtime, which returns its status and perhaps a result."""
        status, *results = function(*arguments)
        self._check(status)
        return results[0] if results else None

    def _check(self, status: Any) -> None:
        if status != self._cuda.cudaError_t.cudaSuccess:
            _, text = self._cuda.cudaGetErrorString(status)
            raise NcclError(UNHANDLED_CUDA, f"CUDA: {text.decode()} ({status.name})")
