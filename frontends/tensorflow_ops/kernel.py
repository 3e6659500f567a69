"""TensorFlow's operations `RondeCall` and `RondeStatefulCall`, implemented in Python through TensorFlow's C interface.

They are asynchronous kernels, as Horovod's are: an execution submits its call and returns, and Ronde's thread completes
it with the result. No thread of TensorFlow ever waits, so neither the order in which it runs operations nor the number
of its threads can cause a deadlock. Results are written into tensors that TensorFlow has allocated.

In functions, `RondeStatefulCall` runs in program order, between prints and other side effects. `RondeCall` runs as soon
as its inputs are complete, and not at all if its results are not used. One of its inputs is a tensor whose value the
graph optimiser cannot know, so that it never computes the call in advance.

Manual: tensorflow/c/kernels.h and tensorflow/c/ops.h, which are part of TensorFlow.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from ctypes import CFUNCTYPE, POINTER, byref, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context as eager_context
from tensorflow.python.eager import execute
from tensorflow.python.framework import op_def_library

from frontends.tensorflow_ops.done import Done, movable
from frontends.tensorflow_ops.errors import eager, status_of
from transports.errors import described, text_of

Begin = Callable[["Execution"], None]

DTYPES: Final = {
    kind.as_datatype_enum: np.dtype(kind.as_numpy_dtype)
    for kind in (
        *(tf.bool, tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32, tf.uint64),
        *(tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.complex64, tf.complex128),
        *(tf.as_dtype(f"float8_{form}") for form in ("e4m3b11fnuz", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz")),
    )
}
_NUMBERS: Final = {dtype: number for number, dtype in DTYPES.items()}
_INVALID_ARGUMENT: Final = 3
_WRITE: Final = 0x200


def _library() -> ctypes.PyDLL:
    """Load the library. Its functions are short, so they are called without releasing the interpreter lock."""
    folder = Path(tf.sysconfig.get_lib())
    for path in sorted(folder.glob("libtensorflow_framework*")):
        library = ctypes.PyDLL(str(path))
        if hasattr(library, "TF_NewAsyncKernelBuilder"):
            return library
    raise ImportError(f"TensorFlow {tf.__version__} has no C interface for kernels in {folder}; install 2.21 or newer")


_LIBRARY: Final = _library()


def _function(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    found = getattr(_LIBRARY, name)
    found.restype, found.argtypes = result, arguments
    return found  # type: ignore[no-any-return]


class _StringView(ctypes.Structure):
    """TF_StringView."""

    _fields_ = (("data", c_void_p), ("length", c_size_t))


_new_status = _function("TF_NewStatus", c_void_p)
_delete_status = _function("TF_DeleteStatus", None, c_void_p)
_set_status = _function("TF_SetStatus", None, c_void_p, c_int, c_char_p)
_status_code = _function("TF_GetCode", c_int, c_void_p)
_status_text = _function("TF_Message", c_char_p, c_void_p)
_get_input = _function("TF_GetInput", None, c_void_p, c_int, POINTER(c_void_p), c_void_p)
_allocate_output = _function(
    "TF_AllocateOutput", c_void_p, c_void_p, c_int, c_int, POINTER(c_int64), c_int, c_size_t, c_void_p
)
_forward_or_allocate = _function(
    "TF_ForwardInputOrAllocateOutput",
    *(c_void_p, c_void_p, POINTER(c_int), c_int, c_int, POINTER(c_int64), c_int, POINTER(c_int), c_void_p),
)
_fail = _function("TF_OpKernelContext_Failure", None, c_void_p, c_void_p)
_delete_tensor = _function("TF_DeleteTensor", None, c_void_p)
_tensor_data = _function("TF_TensorData", c_void_p, c_void_p)
_tensor_type = _function("TF_TensorType", c_int, c_void_p)
_num_dims = _function("TF_NumDims", c_int, c_void_p)
_dim = _function("TF_Dim", c_int64, c_void_p, c_int)
_attribute_size = _function(
    "TF_OpKernelConstruction_GetAttrSize", None, c_void_p, c_char_p, POINTER(c_int32), POINTER(c_int32), c_void_p
)
_attribute_text = _function(
    "TF_OpKernelConstruction_GetAttrString", None, c_void_p, c_char_p, c_char_p, c_size_t, c_void_p
)
_node_name = _function("TF_OpKernelConstruction_GetName", _StringView, c_void_p)
_iteration = _function("TF_GetIterId", c_int64, c_void_p)
_refuse = _function("TF_OpKernelConstruction_Failure", None, c_void_p, c_void_p)

_run_done = CFUNCTYPE(None, c_void_p)(("TF_RunAsyncOpKernelDoneCallback", _LIBRARY))  # gives the lock away
_memory = ctypes.pythonapi.PyMemoryView_FromMemory
_memory.restype, _memory.argtypes = ctypes.py_object, (c_void_p, ctypes.c_ssize_t, c_int)


def _form(tensor: int) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return a tensor's shape and type."""
    return tuple([_dim(tensor, axis) for axis in range(_num_dims(tensor))]), DTYPES[_tensor_type(tensor)]


def _array(tensor: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return an array over a tensor's memory, valid while the tensor lives."""
    nbytes = prod(shape) * dtype.itemsize
    if not nbytes:
        return np.empty(shape, dtype)
    array = np.frombuffer(_memory(_tensor_data(tensor), nbytes, _WRITE), dtype)
    return array if len(shape) == 1 else array.reshape(shape)


@lru_cache(4096)
def _dims(shape: tuple[int, ...]) -> ctypes.Array[c_int64]:
    """Return a shape as a C array, which TensorFlow only reads."""
    return (c_int64 * len(shape))(*shape)


class _Latest(threading.local):
    """The last execution in a thread: in eager mode, the execution of the thread's own call."""

    execution: Execution | None = None


_latest: Final = _Latest()


class Execution:
    """One execution of the operation. Its owner must call `end` once; after that no array of it may be used."""

    def __init__(self, context: int, done: Done, inputs: int) -> None:
        self._context = context
        self._done = done
        self._inputs = inputs
        self._tensors: list[int] = []
        self._status: int = _new_status()
        self.error: BaseException | None = None
        """The error that it has failed with."""

    @property
    def iteration(self) -> int:
        """Number of the iteration if the operation is in a loop; several may be in flight."""
        return int(_iteration(self._context))

    def inputs(self) -> list[np.ndarray[Any, Any]]:
        """Return the input tensors as read-only arrays."""
        given = [self._input(index) for index in range(self._inputs)]
        return [_array(tensor, *_form(tensor)) for tensor in given]

    def output(self, index: int, shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """Allocate a result."""
        nbytes = prod(shape) * dtype.itemsize
        dims = _dims(tuple(shape))
        tensor = _allocate_output(self._context, index, _NUMBERS[dtype], dims, len(shape), nbytes, self._status)
        self._check()
        self._tensors.append(tensor)
        return _array(tensor, tuple(shape), dtype)

    def pairs(
        self, shapes: Sequence[tuple[int, ...]] | None
    ) -> list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
        """Return each input with memory for a result of its shape: the same memory if no other operation needs the
        input.

        shapes   shapes of the tensors, if the graph has them; then an input need not be read before it is reused
        """
        found = []
        forwarded = c_int()
        for index in range(self._inputs):
            if shapes is None:
                shape = _form(self._input(index))[0]
                _delete_tensor(self._tensors.pop())  # otherwise another execution needs it
            else:
                shape = shapes[index]
            tensor = _forward_or_allocate(
                *(self._context, byref(c_int(index)), 1, index),
                *(_dims(shape), len(shape), byref(forwarded), self._status),
            )
            if tensor is None:
                self._check()
            self._tensors.append(tensor)
            source = target = _array(tensor, shape, DTYPES[_tensor_type(tensor)])
            if forwarded.value != index:
                given = self._input(index)
                source = _array(given, *_form(given))
                if source.shape != shape:
                    raise ValueError(f"tensor {index}: has shape {source.shape}, in the graph {shape}")
            found.append((source, target))
        return found

    def end(self, error: BaseException | None = None) -> None:
        """Complete the execution, with an error or without. TensorFlow continues in its own threads."""
        if error is not None:
            self.error = error
            plain = isinstance(error, (TypeError, ValueError, RuntimeError))
            text = text_of(error) if plain else described(error)
            _set_status(self._status, status_of(error), text.replace("\0", "").encode())
            _fail(self._context, self._status)
        for tensor in self._tensors:
            _delete_tensor(tensor)
        _delete_status(self._status)
        self._done()

    def _input(self, index: int) -> int:
        tensor = c_void_p()
        _get_input(self._context, index, byref(tensor), self._status)
        self._check()
        assert tensor.value is not None
        self._tensors.append(tensor.value)
        return tensor.value

    def _check(self) -> None:
        if _status_code(self._status):
            raise RuntimeError(_status_text(self._status).decode())


class _Kernels:
    """The kernels that TensorFlow has created, one for each description. They are never freed: TensorFlow may keep them
    until the process ends.
    """

    def __init__(self, read: Callable[[str, str], Begin]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._numbers: dict[tuple[str, str, int], int] = {}
        self._kernels: list[tuple[Begin, int]] = []
        self._movable: bool | None = None

    def create(self, construction: int) -> int | None:
        status = _new_status()
        try:
            total, inputs = c_int32(), c_int32()
            _attribute_size(construction, b"what", byref(c_int32()), byref(total), status)
            _attribute_size(construction, b"T", byref(inputs), byref(c_int32()), status)
            text = ctypes.create_string_buffer(total.value + 1)
            _attribute_text(construction, b"what", text, total.value + 1, status)
            node = _node_name(construction)
            what, name = text.raw[: total.value].decode(), ctypes.string_at(node.data, node.length).decode()
            key = what, name, inputs.value
            with self._lock:
                if key not in self._numbers:
                    self._kernels.append((self._read(what, name), inputs.value))
                    self._numbers[key] = len(self._kernels)
                return self._numbers[key]
        except Exception as error:  # noqa: BLE001 - nothing may be raised into C
            _set_status(status, _INVALID_ARGUMENT, str(error).encode())
            _refuse(construction, status)
            return None
        finally:
            _delete_status(status)

    def compute(self, kernel: int, context: int, done: int) -> None:
        begin, inputs = self._kernels[kernel - 1]
        if self._movable is None:
            self._movable = movable(done, _LIBRARY)
        call = Done(done, _run_done, self._movable)
        execution = _latest.execution = Execution(context, call, inputs)
        try:
            begin(execution)
        except BaseException as error:  # noqa: BLE001 - nothing may be raised into C
            execution.end(error)
        call.wait()


_Create = CFUNCTYPE(c_void_p, c_void_p)
_Compute = CFUNCTYPE(None, c_void_p, c_void_p, c_void_p)
_kept: Final[list[object]] = []
"""The objects that TensorFlow has pointers to."""


def register(read: Callable[[str, str], Begin]) -> None:
    """Register the operations with TensorFlow.

    read   called with a node's description and name; returns the function that starts an execution. That function must
           raise, or make sure that `Execution.end` is called later
    """
    kernels = _Kernels(read)
    create, compute = _Create(kernels.create), _Compute(kernels.compute)
    _kept.extend((create, compute))
    new_operation = _function("TF_NewOpDefinitionBuilder", c_void_p, c_char_p)
    for name, stateful in ((b"RondeCall", False), (b"RondeStatefulCall", True)):
        operation = new_operation(name)
        for attribute in (b"what: string", b"T: list(type) >= 0", b"U: list(type) >= 0", b"R: list(type) >= 0"):
            _function("TF_OpDefinitionBuilderAddAttr", None, c_void_p, c_char_p)(operation, attribute)
        for given in (b"tensors: T", b"unknown: U"):
            _function("TF_OpDefinitionBuilderAddInput", None, c_void_p, c_char_p)(operation, given)
        _function("TF_OpDefinitionBuilderAddOutput", None, c_void_p, c_char_p)(operation, b"results: R")
        if stateful:  # a call sets the flag, also with False
            _function("TF_OpDefinitionBuilderSetIsStateful", None, c_void_p, ctypes.c_bool)(operation, True)
        _function("TF_OpDefinitionBuilderSetShapeInferenceFunction", None, c_void_p, c_void_p)(
            operation, ctypes.cast(_LIBRARY.TF_ShapeInferenceContextSetUnknownShape, c_void_p)
        )
        _checked("TF_RegisterOpDefinition", operation)
        kernel = _function("TF_NewAsyncKernelBuilder", c_void_p, c_char_p, c_char_p, _Create, _Compute, c_void_p)(
            name, b"CPU", create, compute, None
        )
        _checked("TF_RegisterKernelBuilder", name, kernel)


def _checked(function: str, *arguments: Any) -> None:
    """Call a function whose last argument is a status. Raises RuntimeError with the text of a bad status."""
    status = _new_status()
    kinds = [c_char_p if isinstance(argument, bytes) else c_void_p for argument in arguments]
    _function(function, None, *kinds, c_void_p)(*arguments, status)
    code, text = _status_code(status), _status_text(status).decode()
    _delete_status(status)
    if code:
        raise RuntimeError(f"{function}: {text}")


def apply(
    what: str, tensors: Sequence[tf.Tensor], kinds: Sequence[tf.DType], name: str, *, stateful: bool = False
) -> list[tf.Tensor]:
    """Execute the operation, or add it to the graph under construction.

    what    description that `read` understands
    kinds   types of its results
    name    name of the node

    Raises, in eager mode, an exception of `errors.eager`.
    """
    with tf.device("/cpu:0"):
        return _apply("RondeStatefulCall" if stateful else "RondeCall", what, tensors, kinds, name)


def _apply(kind: str, what: str, tensors: Sequence[tf.Tensor], kinds: Sequence[tf.DType], name: str) -> list[tf.Tensor]:
    if tf.executing_eagerly():
        context = eager_context.context()
        given, inputs = execute.convert_to_mixed_eager_tensors(list(tensors), context)
        attributes: Any = ("what", what, "T", given, "U", [], "R", [k.as_datatype_enum for k in kinds])
        _latest.execution = None
        try:
            results = list(execute.execute(kind.encode(), len(kinds), inputs, attributes, context, name))
        except (tf.errors.InvalidArgumentError, tf.errors.FailedPreconditionError, tf.errors.UnknownError) as error:
            execution: Execution | None = _latest.execution
            cause = error if execution is None else execution.error or error
            raise eager(cause) from cause
    else:
        unknown = []
        if kind == "RondeCall":
            unknown.append(tf.raw_ops.RandomUniform(shape=[0], dtype=tf.float32, seed=1, seed2=1))
        _, _, operation, results = op_def_library._apply_op_helper(
            kind, tensors=list(tensors), unknown=unknown, what=what, R=list(kinds), name=name
        )
        inputs, results = operation.inputs, list(results) if kinds else [operation]
        attributes = ("what", what, "T", operation.get_attr("T"), "U", operation.get_attr("U"), "R", list(kinds))
    if kinds and execute.must_record_gradient():
        execute.record_gradient(kind, inputs, attributes, results)
    return results
