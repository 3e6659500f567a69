"""The packages themselves, where they are installed: what needs no GPU, and that every call fits its signature."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from collectives.gpu import devices
from collectives.gpu.devices import Cuda
from transports.errors import ConfigError
from transports.nccl import load, missing, usable
from transports.nccl.api import INVALID_ARGUMENT, OLDEST, REMOTE, UNHANDLED_CUDA, NcclApi, NcclError, dotted
from transports.nccl.types import FLOAT32

USED_OF_CUPY = """
    ndarray empty empty_like from_dlpack asarray ascontiguousarray copyto concatenate may_share_memory
    ndarray.set ndarray.get ndarray.astype
    cuda.Device cuda.Event cuda.Event.done cuda.Stream cuda.Stream.from_external cuda.Stream.null cuda.Stream.record
    cuda.Stream.wait_event cuda.alloc_pinned_memory cuda.get_current_stream cuda.get_elapsed_time
    cuda.runtime.memcpyAsync cuda.runtime.memcpyHostToDevice cuda.runtime.memcpyDeviceToHost cuda.runtime.getDevice
    cuda.runtime.getDeviceCount cuda.runtime.getDeviceProperties cuda.runtime.driverGetVersion
"""

absent = missing()
needs_the_packages = pytest.mark.skipif(absent is not None, reason=str(absent))
needs_no_gpu = pytest.mark.skipif(usable() is None, reason="there is a GPU here; run_one_gpu.py tries it")


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> None:
    """Instead of the look at what is left: NCCL keeps the listener and the thread of every id that it has minted."""


@pytest.fixture
def api() -> Any:
    return load()


@needs_the_packages
def test_it_loads_and_tells_its_version(api: Any) -> None:
    from nccl.core import get_version

    library = get_version().libnccl
    assert library is not None
    assert dotted(api.version()) == str(library.version)
    assert api.version() >= OLDEST


@needs_the_packages
def test_unique_ids(api: Any) -> None:
    ids = {api.unique_id() for _ in range(3)}
    assert len(ids) == 3
    assert {len(one) for one in ids} == {128}


@needs_the_packages
def test_error_texts(api: Any) -> None:
    assert "remote" in api.error_text(REMOTE)
    assert api.error_text(INVALID_ARGUMENT).startswith("invalid argument")


@needs_the_packages
def test_empty_groups(api: Any) -> None:
    api.group_start()
    api.group_end()


@needs_the_packages
@needs_no_gpu
def test_without_a_gpu_making_a_communicator_fails_and_tells_why(api: Any) -> None:
    with pytest.raises(NcclError) as caught:
        api.init(1, 0, api.unique_id())
    assert caught.value.code == UNHANDLED_CUDA
    assert "CUDA" in api.last_error(None)


@needs_the_packages
@needs_no_gpu
def test_without_a_gpu_cuda_fails_and_tells_why(api: Any) -> None:
    for call in (api.device, api.use, api.record, api.happened, api.forget):
        with pytest.raises(NcclError, match=r"CUDA: .*driver") as caught:
            call(0)
        assert caught.value.code == UNHANDLED_CUDA


@needs_the_packages
def test_every_call_fits_the_bindings(api: Any) -> None:
    """With a communicator that is none NCCL itself refuses each of them; a wrong number or kind of arguments would be a
    TypeError of the bindings."""
    none = api._nccl.Comm()
    calls: list[tuple[str, tuple[Any, ...]]] = [
        ("send", (0, 1, FLOAT32, 0, 0)),
        ("recv", (0, 1, FLOAT32, 0, 0)),
        ("broadcast", (0, 0, 1, FLOAT32, 0, 0)),
        ("all_gather", (0, 0, 1, FLOAT32, 0)),
        ("all_reduce", (0, 0, 1, FLOAT32, 0, 0)),
        ("reduce", (0, 0, 1, FLOAT32, 0, 0, 0)),
        ("reduce_scatter", (0, 0, 1, FLOAT32, 0, 0)),
        ("premultiplied_sum", (0.5, FLOAT32)),
        ("async_error", ()),
    ]
    for name, arguments in calls:
        with pytest.raises(NcclError) as caught:
            getattr(api, name)(none, *arguments)
        assert caught.value.code == INVALID_ARGUMENT, name
    for name in ("finalize", "destroy", "abort"):  # which nothing needs to be done for
        getattr(api, name)(none)
    assert isinstance(api.last_error(none), str)


@needs_the_packages
def test_it_has_all_that_is_asked_of_it(api: Any) -> None:
    for name, promised in vars(NcclApi).items():
        if inspect.isfunction(promised) and not name.startswith("_"):
            own = inspect.signature(getattr(api, name)).parameters
            assert list(inspect.signature(promised).parameters)[1:] == list(own), name


@needs_the_packages
def test_an_old_nccl4py_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transports.nccl.real.version", lambda name: "0.4.1")
    with pytest.raises(ConfigError, match=r"nccl4py .*0\.4\.1, .*0\.5 "):
        load()


@needs_the_packages
def test_cupy_has_the_used_names() -> None:
    devices.cuda.cache_clear()
    cuda = devices.cuda()
    assert isinstance(cuda, Cuda)
    module = cuda.module
    for path in USED_OF_CUPY.split():
        found = module
        for name in path.split("."):
            found = getattr(found, name)
    assert int(module.__version__.split(".")[0]) >= 14
    assert module.cuda.runtime.memcpyHostToDevice == 1
    assert module.cuda.runtime.memcpyDeviceToHost == 2


@needs_the_packages
@needs_no_gpu
def test_cupy_without_a_gpu_raises_instead_of_crashing() -> None:
    module = devices.cuda().module
    with pytest.raises(module.cuda.runtime.CUDARuntimeError):
        devices.cuda().empty((3,), np.dtype(np.float32))
