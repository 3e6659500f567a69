"""The torch.distributed backend "ronde", for DistributedDataParallel, FSDP and every script that accepts a backend
name.

    import ronde.torch.distributed                    # not needed if Ronde is installed: torch then knows it
    torch.distributed.init_process_group("ronde")         # under torchrun, `ronde run`, mp.spawn

A process group is a communicator. The transport is Ronde's setting RONDE_TRANSPORT, `auto` by default. The ranks find
each other through the store that torch has opened (stores.py).

Operations of a group run in the order of their calls, except operations begun in callbacks of futures, whose order
differs between ranks (works.py). Synchronous operations run in the caller's thread. Errors of the runtime are raised as
torch.distributed.DistBackendError, a RuntimeError, with the runtime's error as the cause.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeAlias

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import AllgatherOptions

from collectives import Communicator, Config, Status, connect
from collectives import Work as Ours
from collectives.compression import Compressor, State
from collectives.endings import END_SECONDS, end_with_process
from frontends.horovod import listed, rows_for
from frontends.torch import streams
from frontends.torch.calls import collective, message
from frontends.torch.described import Described
from frontends.torch.dispatch import Seen, seen
from frontends.torch.groups import (
    averages_integers,
    check_count,
    check_dtypes,
    check_lists,
    check_part,
    check_shares,
    combined,
    combining,
    contiguous,
    distribute,
    distribute_each,
    elements,
    flat,
    joined,
    shown,
    single,
    sizes,
    sparse,
    whole_mean,
)
from frontends.torch.monitored import MonitoredBarrier
from frontends.torch.stores import leaving, open_store, own_part
from frontends.torch.tensors import as_array, writable_array
from frontends.torch.works import Callbacks, Done, Finish, Work, eager, for_torch
from frontends.torch_backend import announce
from transports import launchers
from transports.errors import RondeError, described
from transports.rendezvous import join

_KEPT: Final = 64
"""Number of works of one number that a group keeps alive."""

_UNSET: Final = dist.AllreduceOptions().timeout
"""Timeout of calls that give none."""

Calls: TypeAlias = Iterable[tuple[tuple[Any, ...], dict[str, Any]]]
"""The arguments of one or more calls of one method."""


def create(store: Any, rank: int, size: int, timeout: timedelta) -> ProcessGroup:
    """Make a process group; called by torch. `timeout` limits the group's rendezvous and its operations.

    Raises DistBackendError if the ranks cannot connect.
    """
    seconds = timeout.total_seconds()
    deadline = time.monotonic() + seconds
    config = Config.load({"timeout": seconds})
    with contextlib.ExitStack() as resources:
        try:
            _check_variables(rank, size)
            meeting, secret = open_store(store, rank, deadline, resources, config.load_tls())
            group = join(rank, size, meeting, secret=secret, deadline=deadline, terms=config.terms)
            communicator = connect(group, config, deadline)
        except RondeError as error:
            raise dist.DistBackendError(str(error)) from error
        monitored = MonitoredBarrier(own_part(store, secret), rank, size)
        return ProcessGroup(communicator, store, monitored, seconds, resources.pop_all())


def _check_variables(rank: int, size: int) -> None:
    """Raise ConfigError if the default group has rank and size by variables that are not meant for this process."""
    given = [os.environ.get(name) for name in ("RANK", "WORLD_SIZE")]
    if given == [str(rank), str(size)] and not dist.is_initialized():
        launchers.check_torch_is_told(os.environ)


@eager
class ProcessGroup(Described):
    """A communicator as a torch process group."""

    def __init__(
        self,
        communicator: Communicator,
        store: Any,
        monitored: MonitoredBarrier,
        seconds: float,
        resources: contextlib.ExitStack,
    ) -> None:
        """`seconds` is the communicator's timeout. `resources` are closed after the communicator."""
        super().__init__(communicator.rank, communicator.size, store)
        self.communicator = communicator
        self._resources = resources
        self._seconds = seconds
        self._options: dict[str, float] = {}
        self._begun = 0
        self._messages = 0  # not in `_begun`, as ranks have different numbers of them
        self._splits = 0
        self._monitored = monitored
        self._group_callbacks = Callbacks()
        self._kept: deque[Work] = deque(maxlen=_KEPT)
        end_with_process(self._end, self._abort_with, resources)

    @functools.cached_property
    def seen(self) -> Seen:
        """This group as torch's dispatcher sees it."""
        return seen(self)

    def boxed(self) -> Any:
        """The group as an argument of the operators c10d::*."""
        return self.seen.boxed()

    def _get_sequence_number_for_group(self) -> int:
        return self._begun

    def _set_sequence_number_for_group(self) -> None:
        """Nothing: the count begins at 0 on all ranks."""

    # Collectives

    @collective("all_reduce", dist.AllreduceOptions, "op", "timeout")
    def allreduce(self, tensors: Sequence[torch.Tensor], opts: Any) -> dist.Work:
        """Reduce in position. Several tensors, of one shape, are also combined with each other, and all of them get the
        result. Sparse COO tensors, also uncoalesced ones, are summed.
        """
        tensor, finish = combined(tensors, opts)
        if isinstance(tensor, torch.Tensor) and tensor.layout is torch.sparse_coo:
            parts, finish = sparse(single(tensors), opts)
            return self._run("grouped_allgather", opts, [tensor], finish, parts)
        array = writable_array(tensor)
        if len(tensors) == 1 and averages_integers(opts, tensor):
            calls, finish = whole_mean(tensor, array, self.size())
            return self._run_all("allreduce", opts, list(tensors), finish, calls)
        return self._run("allreduce", opts, list(tensors), finish, array, out=array, **combining(opts, [tensor]))

    @collective("all_reduce", dist.AllreduceCoalescedOptions)
    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any) -> dist.Work:
        """Reduce several tensors in position, as one operation."""
        arrays = [writable_array(tensor) for tensor in tensors]
        return self._run("grouped_allreduce", opts, list(tensors), None, arrays, out=arrays, **combining(opts, tensors))

    def compressed_mean(
        self,
        compressor: Compressor,
        whole: torch.Tensor,
        tensors: Sequence[torch.Tensor],
        state: State,
        names: Sequence[str],
    ) -> dist.Work:
        """Begin to average tensors over the ranks in position, by a compressor with its state. The result is `whole`,
        the tensor that contains them.
        """
        arrays = [writable_array(tensor) for tensor in tensors]
        begin = partial(compressor.grouped_allreduce_async, self.communicator)
        options = {"out": arrays, "state": state, "names": names}
        return self._begin(begin, [whole], None, [((arrays, "average"), options)], self._group_callbacks.position())

    @collective("broadcast", dist.BroadcastOptions, "root", "timeout")
    def broadcast(self, tensors: Sequence[torch.Tensor], opts: Any) -> dist.Work:
        """Broadcast from opts.rootRank, in position. All of several tensors get the values of number
        opts.rootTensor.
        """
        tensor, finish = shown(tensors, opts)
        array = writable_array(tensor, moved=True)
        return self._run("broadcast", opts, list(tensors), finish, array, root=opts.rootRank, out=array)

    @collective("reduce", dist.ReduceOptions, "root", "op", "timeout")
    def reduce(self, tensors: Sequence[torch.Tensor], opts: Any) -> dist.Work:
        """Reduce in position on opts.rootRank."""
        tensor = single(tensors)
        array = writable_array(tensor)
        return self._run(
            "reduce", opts, [tensor], None, array, root=opts.rootRank, out=array, **combining(opts, [tensor])
        )

    @collective("all_gather", AllgatherOptions, "timeout", tensors=2)
    def allgather(
        self, output_tensors: Sequence[Sequence[torch.Tensor]], input_tensors: Sequence[torch.Tensor], opts: Any
    ) -> dist.Work:
        """Gather the tensors of all ranks into a list; sizes may differ."""
        outputs = list(single(output_tensors))
        check_count(outputs, self.size(), "output_tensors")
        given = as_array(single(input_tensors), moved=True).reshape(-1)
        check_dtypes(outputs, single(input_tensors), "output_tensors")
        return self._run("allgather", opts, outputs, distribute(outputs), given, expected=sizes(outputs))

    @collective("all_gather", AllgatherOptions, tensors=2)
    def allgather_coalesced(
        self, output_lists: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], opts: Any
    ) -> dist.Work:
        """Gather lists of tensors, rank i's into the i-th list, as one operation."""
        check_lists(output_lists, len(inputs), self.size(), "output_lists")
        arrays = [as_array(given, moved=True).reshape(-1) for given in inputs]
        columns = list(zip(*output_lists, strict=True))
        for column, given in zip(columns, inputs, strict=True):
            check_dtypes(column, given, "output_lists")
        outputs = [output for outputs in output_lists for output in outputs]
        expected = [sizes(column) for column in columns]
        return self._run("grouped_allgather", opts, outputs, distribute_each(columns), arrays, expected=expected)

    @collective("all_gather", AllgatherOptions, "timeout", tensors=2, listed=False)
    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> dist.Work:
        """Gather the tensors of all ranks into `output`, one after the other."""
        check_shares(output, input, self.size(), "output")
        given = as_array(input, moved=True).reshape(-1)
        target, finish = contiguous(output)
        options = {"out": flat(target, "output", moved=True), "expected": [input.numel()] * self.size()}
        return self._run("allgather", opts, [output], finish, given, **options)

    @collective("all_gather", AllgatherOptions, tensors=2)
    def all_gather_single_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any
    ) -> dist.Work:
        """Several all_gather_single as one operation."""
        for output, given in zip(outputs, inputs, strict=True):
            check_shares(output, given, self.size(), "outputs")
        arrays = [as_array(given, moved=True).reshape(-1) for given in inputs]
        finish = distribute_each([output] for output in outputs)
        expected = [[given.numel()] * self.size() for given in inputs]
        return self._run("grouped_allgather", opts, list(outputs), finish, arrays, expected=expected)

    @collective("reduce_scatter", dist.ReduceScatterOptions, "op", "timeout", tensors=2)
    def reduce_scatter(
        self, output_tensors: Sequence[torch.Tensor], input_tensors: Sequence[Sequence[torch.Tensor]], opts: Any
    ) -> dist.Work:
        """Reduce the i-th tensors of all ranks' lists for rank i."""
        output, inputs = single(output_tensors), list(single(input_tensors))
        check_count(inputs, self.size(), "input_tensors")
        given = joined(inputs, "input_tensors")
        counts = sizes(inputs)
        check_part(output, inputs[self.communicator.rank], "output")
        finish = distribute([output])
        return self._run("reduce_scatter", opts, [output], finish, given, counts=counts, **combining(opts, inputs))

    @collective("reduce_scatter", dist.ReduceScatterOptions, "op", "timeout", tensors=2, listed=False)
    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> dist.Work:
        """Reduce `input`, and give rank i the i-th share."""
        check_shares(input, output, self.size(), "input")
        given = as_array(input).reshape(-1)
        target, finish = contiguous(output)
        options = {"out": flat(target, "output"), **combining(opts, [input])}
        return self._run("reduce_scatter", opts, [output], finish, given, **options)

    @collective("reduce_scatter", dist.ReduceScatterOptions, tensors=2)
    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any
    ) -> dist.Work:
        """Several reduce_scatter_single."""
        for output, given in zip(outputs, inputs, strict=True):
            check_shares(given, output, self.size(), "inputs")
        targets = [contiguous(output) for output in outputs]
        calls = [
            ((as_array(given).reshape(-1),), {"out": flat(target, "outputs"), **combining(opts, [given])})
            for (target, _), given in zip(targets, inputs, strict=True)
        ]
        copies = [copy for _, copy in targets if copy is not None]
        finish = (lambda values: [copy(values) for copy in copies]) if copies else None
        return self._run_all("reduce_scatter", opts, list(outputs), finish, calls)

    @collective("all_to_all", dist.AllToAllOptions, "timeout", tensors=2)
    def alltoall(
        self, output_tensors: Sequence[torch.Tensor], input_tensors: Sequence[torch.Tensor], opts: Any
    ) -> dist.Work:
        """Send the i-th tensor of the list to rank i; sizes may differ."""
        outputs, inputs = list(output_tensors), list(input_tensors)
        check_count(outputs, self.size(), "output_tensors")
        check_count(inputs, self.size(), "input_tensors")
        given = joined(inputs, "input_tensors", moved=True)
        check_dtypes(outputs, inputs[0], "output_tensors")
        expected = sizes(outputs)
        return self._run("alltoall", opts, outputs, distribute(outputs), given, sizes(inputs), expected=expected)

    @collective("all_to_all", dist.AllToAllOptions, "timeout", tensors=2, listed=False)
    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        opts: Any,
    ) -> dist.Work:
        """Send rows of `input` to the ranks, and receive rows of `output` from them; equal parts without split sizes.
        Rows are moved as elements: those of input and output may have other shapes."""
        going = self._rows(input, input_split_sizes, "input")
        coming = self._rows(output, output_split_sizes, "output")
        given = as_array(input, "input", moved=True).reshape(-1)
        target, finish = contiguous(output)
        options = {"out": flat(target, "output", moved=True), "expected": elements(output, coming)}
        return self._run("alltoall", opts, [output], finish, given, elements(input, going), **options)

    def _rows(self, tensor: torch.Tensor, splits: Any, name: str) -> list[int]:
        given = listed(splits, f"{name}_split_sizes", "integers")
        return rows_for(tensor.shape, given or None, self.size(), name, f"{name}_split_sizes")

    @collective("gather", dist.GatherOptions, "root", "timeout", tensors=2)
    def gather(
        self, output_tensors: Sequence[Sequence[torch.Tensor]], input_tensors: Sequence[torch.Tensor], opts: Any
    ) -> dist.Work:
        """Gather the tensors of all ranks into a list on opts.rootRank."""
        given = as_array(single(input_tensors), moved=True).reshape(-1)
        outputs: list[torch.Tensor] = []
        if opts.rootRank == self.communicator.rank:
            outputs = list(single(output_tensors))
            check_count(outputs, self.size(), "output_tensors")
            check_dtypes(outputs, single(input_tensors), "output_tensors")
        expected = sizes(outputs) or None
        return self._run("gather", opts, outputs, distribute(outputs), given, root=opts.rootRank, expected=expected)

    @collective("scatter", dist.ScatterOptions, "root", "timeout", tensors=2)
    def scatter(
        self, output_tensors: Sequence[torch.Tensor], input_tensors: Sequence[Sequence[torch.Tensor]], opts: Any
    ) -> dist.Work:
        """Receive the i-th tensor of opts.rootRank's list on rank i."""
        output = single(output_tensors)
        given, counts = None, None
        target, finish = contiguous(output)
        if opts.rootRank == self.communicator.rank:
            inputs = list(single(input_tensors))
            check_count(inputs, self.size(), "input_tensors")
            given = joined(inputs, "input_tensors", moved=True)
            counts = sizes(inputs)
        options = {"root": opts.rootRank, "counts": counts, "out": flat(target, "output", moved=True)}
        return self._run("scatter", opts, [output], finish, given, **options)

    @collective("barrier", dist.BarrierOptions, "timeout", tensors=0)
    def barrier(self, opts: Any) -> dist.Work:
        """Wait for all ranks."""
        return self._run("barrier", opts, [], None)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Wait for all ranks. Raises DistBackendError with the ranks that did not come in time, all of them or only
        the first one. The group can be used afterwards.

        torch.distributed.monitored_barrier accepts gloo alone; call this method.
        """
        self._monitored.wait(self._seconds if timeout is None else timeout.total_seconds(), wait_all_ranks)

    # Messages

    @message("send")
    def send(self, tensors: Sequence[torch.Tensor], dst: int, tag: int = 0) -> dist.Work:
        """Begin to send a tensor."""
        tensor = single(tensors)
        return self._begin(
            self.communicator.send_async,
            [tensor],
            None,
            [((as_array(tensor, moved=True), dst), {"tag": tag})],
            message=True,
        )

    @message("recv")
    def recv(self, tensors: Sequence[torch.Tensor], src: int, tag: int = 0) -> dist.Work:
        """Begin to receive a tensor."""
        tensor = single(tensors)
        calls: Calls = [((writable_array(tensor, moved=True), src), {"tag": tag})]
        return self._begin(self.communicator.recv_async, [tensor], None, calls, source=src, message=True)

    @message("recvAnySource")
    def recv_anysource(self, tensors: Sequence[torch.Tensor], tag: int = 0) -> dist.Work:
        """Begin to receive a tensor from any rank; the Work's `_source_rank` then tells which one."""
        tensor, status = single(tensors), Status()
        calls: Calls = [((writable_array(tensor, moved=True), None), {"tag": tag, "status": status})]
        return self._begin(self.communicator.recv_async, [tensor], None, calls, source=status, message=True)

    # Names of before torch 2.13

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # Life

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of operations that begin from now on."""
        self._seconds = timeout.total_seconds()
        self._options = {"timeout": self._seconds}

    _set_default_timeout = set_timeout

    def split_group(
        self,
        new_ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> ProcessGroup | None:
        """Make a group of some ranks of this one; None on other ranks. All ranks of this group must call it, those of
        one new group with the same ranks. `opts` and `device_types` are ignored.

        Raises ValueError for ranks that this group does not have, DistBackendError if the ranks cannot connect.
        """
        self._splits += 1
        ranks = list(new_ranks)
        if len(set(ranks)) < len(ranks) or not set(ranks) <= set(range(self.size())):
            raise ValueError(f"new_ranks={ranks}: must be different ranks of this group, 0 to {self.size() - 1}")
        if self.rank() not in ranks:
            return None
        members = "_".join(map(str, ranks))
        name = group_name or f"{self.group_name}:split:{self._splits}:{members}"
        store = dist.PrefixStore(f"{name}:{members}/", self._store)  # torch 2.9 gives all groups one name
        group = create(store, ranks.index(self.rank()), len(ranks), timeout or timedelta(seconds=self._seconds))
        group._set_group_name(name)
        group._set_group_desc(group_desc or f"{self.group_desc}:split:{self._splits}")
        return group

    def shutdown(self) -> None:
        """Finish the operations in flight and close the group. Idempotent."""
        follows = self.rank() and dist.GroupMember.WORLD is self
        with leaving(self._store) if follows else contextlib.nullcontext():
            try:
                self._close()
            except RondeError as error:
                raise for_torch(error, self._seconds) from error

    def _close(self, *seconds: float, **options: float) -> None:
        try:
            with self._resources:
                self.communicator.close(*seconds, **options)
        finally:
            self._kept.clear()
            self._group_callbacks.close(self._seconds)

    def _end(self) -> None:
        """Close the group when the process ends: torch does not ask for it."""
        with contextlib.suppress(RondeError):
            self._close(END_SECONDS, flush=self._seconds)

    def _abort_with(self, error: BaseException) -> None:
        self.communicator.abort(described(error))

    def abort(self) -> None:
        """Abort the communicator on all ranks."""
        self.communicator.abort("torch.distributed asked for it")

    # How they run

    def _run(
        self, collective: str, opts: Any, results: list[torch.Tensor], finish: Finish | None, *args: Any, **kwargs: Any
    ) -> dist.Work:
        return self._run_all(collective, opts, results, finish, [(args, kwargs)])

    def _run_all(
        self,
        collective: str,
        opts: Any,
        results: list[torch.Tensor],
        finish: Finish | None,
        calls: Calls,
    ) -> dist.Work:
        """Run one or more calls of a communicator method, synchronously or asynchronously as `opts` say."""
        position = self._group_callbacks.position()
        given = opts.timeout
        options = self._options if given == _UNSET else {"timeout": given.total_seconds()}
        if position or opts.asyncOp:
            begin = getattr(self.communicator, f"{collective}_async")
            return self._begin(begin, results, finish, calls, position, options=options)
        method = getattr(self.communicator, collective)
        try:
            values = [method(*args, **kwargs, **options) for args, kwargs in calls]
        except RondeError as error:
            raise for_torch(error, options.get("timeout", self._seconds)) from error
        self._begun += 1  # not if the call is refused: the other ranks do not count it
        if finish is not None:
            finish(values)
            self._group_callbacks.keeper.keep(streams.mark(streams.devices_of(results)), values)
        return Done(results)

    def _begin(
        self,
        begin: Callable[..., Ours[Any]],
        results: list[torch.Tensor],
        finish: Finish | None,
        calls: Calls,
        position: tuple[int, ...] = (),
        source: int | Status = -1,
        options: dict[str, float] | None = None,
        message: bool = False,
    ) -> dist.Work:
        options = self._options if options is None else options
        seconds = options.get("timeout", self._seconds)
        if position:
            name = f"after {'.'.join(map(str, position))}"
            calls = [(args, {**kwargs, "name": f"{name} #{index}"}) for index, (args, kwargs) in enumerate(calls)]
        try:
            works = [begin(*args, **kwargs, **options) for args, kwargs in calls]
        except RondeError as error:
            raise for_torch(error, seconds) from error
        if message:
            self._messages += 1
            position = (-self._messages,)
        elif not position:
            self._begun += 1  # not if the call is refused: the other ranks do not count it
            position = (self._begun,)
        work = Work(works, results, finish, self._group_callbacks, position, seconds, source)
        if sum(tensor.numel() for tensor in results) == 1:
            # DistributedDataParallel.join counts the ranks in the forward pass, drops the work, and asks its C++ part
            # for the result in the backward pass. That part has no methods once the Python object is gone.
            self._kept.append(work)
        return work


announce(create)
