"""Futures for torch's C++ code, such as DistributedDataParallel's.

C++ code does not know the exceptions of torch.futures.Future: it takes them for values, and crashes. One reader of it
accepts only lists of C++. Python code needs a future of another kind (works.Future), so a Work has to know who asks.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.futures

_SOURCE = """
def after(over: Future[int], tensors: List[Tensor]) -> List[Tensor]:
    torch.jit.wait(over)
    return tensors

def begin(over: Future[int], tensors: List[Tensor]) -> Future[List[Tensor]]:
    return torch.jit.fork(after, over, tensors)
"""


def asked_by_native_code(method: str) -> bool:
    """Return True if C++ code called the method that calls this function.

    Python code that calls a method names it. A call from C++ comes from a function that does not, or from none.
    """
    frame = inspect.currentframe()
    called = frame and frame.f_back
    caller = called and called.f_back
    return caller is None or method not in caller.f_code.co_names


def native(future: torch.futures.Future[list[torch.Tensor]], tensors: list[torch.Tensor]) -> torch.futures.Future[Any]:
    """Return a future for C++ code, of the same tensors as `future`. An exception becomes a RuntimeError with its text.

    The value of float16 tensors is a list of C++, which the hook FP16_COMPRESS requires. TorchScript makes it, in a
    thread of its pool, a little later than `future`. Other values are Python's lists, without this detour.
    """
    checked: torch.futures.Future[Any] = torch._C.Future.then(future, torch.futures.Future.value)
    if all(tensor.dtype is torch.float16 for tensor in tensors):
        checked = _begin()(checked, tensors)
    return checked


@cache
def _begin() -> Callable[..., Any]:
    begin: Callable[..., Any] = torch.jit.CompilationUnit(_SOURCE).begin
    return begin
