"""Schedules from files of MSCCL: XML that tells what every thread block of every GPU does.

    <algo name="swap" coll="allreduce" ngpus="2" nchunksperloop="2" inplace="1">
      <gpu id="0" i_chunks="2" o_chunks="0" s_chunks="0">
        <tb id="0" send="1" recv="1" chan="0">
          <step s="0" type="s" srcbuf="i" srcoff="1" dstbuf="i" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>

Thread blocks run side by side; a rank of Ronde takes one step after the other. So all blocks of all GPUs are run here
symbolically, in turn, and the steps of a rank are those of its blocks in the order in which they ran. (Cowan et al.,
"MSCCLang: Microsoft Collective Communication Language", 2023.)
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from collectives.algorithms.registry import Algorithm, Cost
from collectives.schedule import Buf, Geometry, Ref, Step, copy, inp, out, recv, reduce, scratch, send

if TYPE_CHECKING:
    from xml.etree import ElementTree

_COLLECTIVES: Final = {"allreduce": "allreduce", "allgather": "allgather", "reduce_scatter": "reduce_scatter"}
_RECEIVING: Final = ("r", "rcs", "rrs", "rrc", "rrcs")
_TYPES: Final = (*_RECEIVING, "s", "cpy", "re", "nop")
_BUFFERED: Final = 8
"""Chunks that a thread block has received to combine and perhaps still passes on: as many as NCCL buffers."""
_Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class _Task:
    """One step of a thread block; `after` names the step of another block that comes before, (-1, -1) if none."""

    kind: str
    source: _Key
    target: _Key
    count: int
    after: tuple[int, int]
    where: str


@dataclass(slots=True)
class _Block:
    """A thread block. `done` counts its tasks that are done, `landed` chunks that it has received to combine."""

    number: int
    to: int
    source: int
    channel: int
    tasks: list[_Task]
    done: int = 0
    landed: int = 0


@dataclass(slots=True)
class _Rank:
    """A rank: its blocks, its steps so far, and the memory of what its buffers hold."""

    blocks: dict[int, _Block]
    slots: int
    steps: list[Step] = field(default_factory=list)
    held: dict[_Key, Ref] = field(default_factory=dict)


def _number(item: ElementTree.Element, name: str, low: int, where: str, default: str | None = None) -> int:
    text = item.get(name, default)
    if text is None or not re.fullmatch(r"-?[0-9]{1,9}", text) or int(text) < low:
        raise ValueError(f"{where}: {name}={text!r}: must be a whole number, {low} or more")
    return int(text)


def _task(item: ElementTree.Element, where: str) -> _Task:
    kind = item.get("type", "")
    if kind not in _TYPES:
        raise ValueError(f"{where}: type={kind!r}: must be one of {', '.join(_TYPES)}")
    keys = []
    for side in ("src", "dst"):
        buffer = item.get(f"{side}buf", "i")
        if buffer not in ("i", "o", "s"):
            raise ValueError(f"{where}: {side}buf={buffer!r}: must be i, o or s")
        keys.append((buffer, _number(item, f"{side}off", -1, where, "-1")))
    after = -1, -1
    if _number(item, "depid", -1, where, "-1") >= 0:
        after = _number(item, "depid", 0, where), _number(item, "deps", 0, where)
    return _Task(kind, keys[0], keys[1], _number(item, "cnt", 0, where, "1"), after, where)


class _Machine:
    """All blocks of all ranks, run in turn."""

    def __init__(self, root: ElementTree.Element) -> None:
        if root.tag != "algo":
            raise ValueError(f"<{root.tag}>: the file must begin with <algo>")
        self.name = root.get("name", "")
        self.collective = root.get("coll", "")
        if self.collective not in _COLLECTIVES:
            raise ValueError(f"coll={self.collective!r}: must be one of {', '.join(_COLLECTIVES)}")
        self.size = _number(root, "ngpus", 1, "algo")
        self.chunks = _number(root, "nchunksperloop", 1, "algo")
        if self.collective != "allreduce" and self.chunks != self.size:
            raise ValueError(f"nchunksperloop={self.chunks}: must be ngpus={self.size} for {self.collective}")
        self.inplace = _number(root, "inplace", 0, "algo", "0") > 0
        self.messages: dict[tuple[int, int], deque[tuple[int, list[int]]]] = defaultdict(deque)
        self.ranks: list[_Rank] = []
        for rank, gpu in enumerate(root.findall("gpu")):
            if _number(gpu, "id", 0, "gpu") != rank:
                raise ValueError(f"gpu id={gpu.get('id')!r}: must be {rank}, they stand in order")
            self.ranks.append(self.read(rank, gpu))
        if len(self.ranks) != self.size:
            raise ValueError(f"ngpus={self.size}: the file has {len(self.ranks)} <gpu>")
        self.rounds = 0
        while any(block.done < len(block.tasks) for rank in self.ranks for block in rank.blocks.values()):
            self.rounds += 1
            if not self.turn():
                stuck = (b.tasks[b.done].where for r in self.ranks for b in r.blocks.values() if b.done < len(b.tasks))
                raise ValueError(f"the thread blocks wait for each other: {', '.join(list(stuck)[:4])}")
        for number, one in enumerate(self.ranks):
            for chunk in range(self.chunks) if self.collective != "reduce_scatter" else [number]:
                ref = one.held.get(self.key(number, ("o", 0 if self.collective == "reduce_scatter" else chunk)))
                if ref is not None and ref.buf is not Buf.OUT:
                    one.steps.append(copy(ref, out(chunk), "copy"))

    def read(self, rank: int, gpu: ElementTree.Element) -> _Rank:
        blocks = {}
        for item in gpu.findall("tb"):
            number = _number(item, "id", 0, f"gpu {rank}")
            where = f"gpu {rank}, tb {number}"
            tasks = [_task(step, f"{where}, step {place}") for place, step in enumerate(item.findall("step"))]
            to, source = (_number(item, side, -1, where, "-1") for side in ("send", "recv"))
            if max(to, source) >= self.size:
                raise ValueError(f"{where}: send={to}, recv={source}: must be GPUs, below {self.size}")
            blocks[number] = _Block(number, to, source, _number(item, "chan", 0, where, "0"), tasks)
        made = _Rank(blocks, _number(gpu, "s_chunks", 0, f"gpu {rank}", "0"))
        for chunk in range(self.chunks):
            if self.collective != "allgather":
                made.held[self.key(rank, ("i", chunk))] = inp(chunk)
        if self.collective == "allgather":
            made.held[self.key(rank, ("i", 0))] = inp(rank)
        return made

    def key(self, rank: int, key: _Key) -> _Key:
        """Return one name for memory that has two, because IN and OUT are the same memory or a part of each other."""
        buffer, offset = key
        if self.inplace and self.collective == "allreduce" and buffer == "i":
            return "o", offset
        if self.inplace and self.collective == "allgather" and buffer == "i":
            return "o", rank
        if self.inplace and self.collective == "reduce_scatter" and buffer == "o":
            return "i", rank
        return key

    def place(self, rank: int, key: _Key, chunk: int, where: str) -> Ref:
        """Return the memory for a chunk that is written to a buffer."""
        buffer, offset = key
        spread = self.collective == "reduce_scatter"
        if buffer == "s" and 0 <= offset < self.ranks[rank].slots:
            return scratch(self.chunks + offset, chunk)
        if buffer == "o" and 0 <= offset < (1 if spread else self.chunks):
            return out(rank if spread else offset)
        if buffer == "i" and self.inplace and 0 <= offset < self.chunks:
            return out(rank) if offset == rank else scratch(offset, chunk)
        raise ValueError(f"{where}: writes {buffer}[{offset}], which is not in a buffer that it may write")

    def turn(self) -> bool:
        """Let every block do one task if it can; return False if none can."""
        went = False
        for rank, one in enumerate(self.ranks):
            for block in one.blocks.values():
                if block.done < len(block.tasks) and self.able(rank, block):
                    self.do(rank, block, block.tasks[block.done])
                    block.done += 1
                    went = True
        return went

    def able(self, rank: int, block: _Block) -> bool:
        task = block.tasks[block.done]
        other, step = task.after
        if other >= 0:
            if other not in self.ranks[rank].blocks:
                raise ValueError(f"{task.where}: depid={other}: there is no such thread block")
            if self.ranks[rank].blocks[other].done <= step:
                return False
        if task.kind not in _RECEIVING:
            return True
        waiting = self.messages[block.source, rank]
        return bool(waiting) and waiting[0][0] == block.channel

    def do(self, rank: int, block: _Block, task: _Task) -> None:
        """Do a task, chunk by chunk, and write the steps of the rank."""
        one, kind = self.ranks[rank], task.kind
        if kind == "nop":
            return
        label = f"{kind} of tb {block.number}"
        arrived = [-1] * task.count
        if kind in _RECEIVING:
            arrived = self.messages[block.source, rank].popleft()[1]
            if len(arrived) != task.count:
                raise ValueError(f"{task.where}: receives {task.count} chunks, GPU {block.source} sends {len(arrived)}")
        sends = "s" in kind
        if sends and block.to < 0:
            raise ValueError(f"{task.where}: its thread block has no GPU to send to")
        leaving = []
        for turn, chunk in enumerate(arrived):
            source = self.key(rank, (task.source[0], task.source[1] + turn))
            target = self.key(rank, (task.target[0], task.target[1] + turn))
            ref = None
            if kind not in ("r", "rcs"):
                if source not in one.held:
                    raise ValueError(f"{task.where}: reads {source[0]}[{source[1]}], which nothing has been written to")
                ref = one.held[source]
            result = self.combine(rank, block, task, label, chunk, ref, target)
            if sends:
                one.steps.append(send(block.to, result, label))
                leaving.append(result.chunk)
        if sends:
            self.messages[rank, block.to].append((block.channel, leaving))

    def combine(
        self, rank: int, block: _Block, task: _Task, label: str, chunk: int, ref: Ref | None, target: _Key
    ) -> Ref:
        """Write the steps for one chunk but its SEND; return the memory of the result."""
        one, kind = self.ranks[rank], task.kind
        if kind == "s":
            assert ref is not None
            return ref
        if ref is None:
            result = self.place(rank, target, chunk, task.where)
            one.steps.append(recv(block.source, result, label))
        elif kind == "cpy":
            result = self.place(rank, target, ref.chunk, task.where)
            one.steps.append(copy(ref, result, label))
        elif kind == "re":
            if target not in one.held:
                raise ValueError(f"{task.where}: reads {target[0]}[{target[1]}], which nothing has been written to")
            result = self.place(rank, target, ref.chunk, task.where)
            one.steps.append(reduce(one.held[target], ref, result, label))
        else:
            first = self.chunks + one.slots + _BUFFERED * list(one.blocks).index(block.number)
            got = scratch(first + block.landed % _BUFFERED, chunk)
            block.landed += 1
            one.steps.append(recv(block.source, got, label))
            result = got if kind == "rrs" else self.place(rank, target, chunk, task.where)
            one.steps.append(reduce(got, ref, result, label))
        if kind != "rrs":
            one.held[target] = result
        return result


def read_msccl(text: str) -> Algorithm:
    """Return the algorithm that a file of MSCCL describes. It is not proved.

    Raises ValueError for text that is no such file, and for what Ronde does not support, naming GPU, thread block and
    step.
    """
    from xml.etree import ElementTree  # here, since few ranks read a file

    try:
        machine = _Machine(ElementTree.fromstring(text))
    except ElementTree.ParseError as error:
        raise ValueError(f"it is no XML: {error}") from error
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", machine.name):
        raise ValueError(f"name={machine.name!r}: must be 1 to 64 letters, digits, '_', '.' or '-'")
    steps = [tuple(one.steps) for one in machine.ranks]
    sent = [sum(step.sent for step in of) for of in steps]

    def generate(g: Geometry) -> Iterator[Step]:
        yield from steps[g.rank]

    return Algorithm(
        generate,
        machine.collective,
        machine.name,
        cost=lambda g: Cost(machine.rounds, max(sent) / machine.chunks),
        traffic=lambda g: Fraction(sum(sent), machine.chunks),
        blocks=lambda size: machine.chunks,
        only_size=machine.size,
    )
