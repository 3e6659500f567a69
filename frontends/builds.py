"""Horovod's questions about the way it was built. The frontends with Horovod's API have them under their own names."""

from __future__ import annotations

from transports import registry

__all__ = [
    "ccl_built",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rocm_built",
]


def mpi_threads_supported() -> bool:
    """False: MPI is not used. Operations may be called from any thread."""
    return False


def mpi_enabled() -> bool:
    """False: MPI is not used."""
    return False


def mpi_built() -> bool:
    """False: MPI is not used."""
    return False


def gloo_enabled() -> bool:
    """False: Ronde has its own transports over TCP and shared memory."""
    return False


def gloo_built() -> bool:
    """False: Ronde has its own transports over TCP and shared memory."""
    return False


def nccl_built() -> int:
    """1 if NCCL is usable in this process, else 0."""
    return 0 if registry.backend("nccl").usable() else 1


def cuda_built() -> bool:
    """True if CUDA tensors can travel over NCCL in this process."""
    return bool(nccl_built())


def ddl_built() -> bool:
    """False: DDL is not used."""
    return False


def ccl_built() -> bool:
    """False: oneCCL is not used."""
    return False


def rocm_built() -> bool:
    """False: ROCm is not used."""
    return False
