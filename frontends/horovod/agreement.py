"""Agreement of the ranks on the gradients of a step, before any operation depends on what a single rank has.

A gradient may be missing on one rank, or sparse on one and dense on another; a parameter may be frozen, added or listed
elsewhere by one rank; the optimizers' arguments may differ. If each rank chose its operations by itself, the ranks
would wait for each other in different ones, or combine gradients of different parameters. So every rank first tells its
`Fact`s as digests, in one small allreduce: a bitwise OR of each digest and of its complement have no bit in common if
all ranks have the same digest. A rank that has joined contributes zeros, which change neither. Only ranks that differ
exchange more.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from collectives import Communicator, Work
from frontends.horovod.errors import as_horovod
from frontends.horovod.names import full_name

__all__ = [
    "DENSE",
    "MISSING",
    "OPTION",
    "SPARSE",
    "VALUE",
    "Fact",
    "Members",
    "Union",
    "agree",
    "agree_on_values",
    "begin_agreement",
    "begin_digests",
    "explain",
    "in_order",
    "numberless",
    "option_facts",
]

MISSING: Final = 0
DENSE: Final = 1
SPARSE: Final = 2
"""Kinds of gradients, which can be combined: DENSE | SPARSE are those of several ranks."""
VALUE: Final = 4
"""The kind of a value that is no gradient, such as a parameter that is broadcast."""
OPTION: Final = 8
"""The kind of an argument by which a rank chooses its operations, such as op."""

_KINDS: Final = {
    MISSING: "has no gradient",
    DENSE: "has a dense gradient",
    SPARSE: "has a sparse gradient",
    VALUE: "has a value",
    OPTION: "has a value",
}

_SHOWN: Final = 80
"""Characters of an argument that an error text has."""


class Fact(NamedTuple):
    """A rank's view of one gradient, or of another value.

    name  of the parameter
    key   the part of the name that must be equal on all ranks: see `numberless`
    form  shape and type, as text, which must be equal on all ranks
    kind  MISSING, DENSE or SPARSE; VALUE and OPTION for what is no gradient
    """

    name: str
    key: str
    form: str
    kind: int


def numberless(name: str) -> str:
    """Return a name without numbers: they count the objects that a process has made, and differ between ranks."""
    return re.sub(r"_?\d+", "", name)


def option_facts(**values: object) -> list[Fact]:
    """Return facts about arguments that must be equal on all ranks."""
    facts = []
    for name, value in values.items():
        text = str(value)
        form = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... #{zlib.crc32(text.encode()):08x}"
        facts.append(Fact(name, name, form, OPTION))
    return facts


def agree(comm: Communicator, label: str, facts: Sequence[Fact]) -> None:
    """Return if all ranks have equal facts. Collective; ranks match the call by `label`.

    The facts are in the order in which the gradients travel. Raises ValueError on every rank, with the names of the
    parameters, if kinds or forms differ, or if the ranks list parameters of equal names in different orders;
    RondeError if a rank is lost.
    """
    more = begin_agreement(comm, label)(begin_digests(comm, label, facts).wait(), facts)
    if more is not None:
        raise ValueError(explain(more.wait()))


def begin_digests(comm: Communicator, label: str, facts: Sequence[Fact]) -> Work[Any]:
    """Begin the allreduce of the digests."""
    words = _with_complements(_digests_in_order(facts))
    return comm.allreduce_async(words, "bor", name=full_name(comm, "agreement", label))


def begin_agreement(comm: Communicator, label: str) -> Callable[[Any, Sequence[Fact]], Work[list[Any]] | None]:
    """Return the function that judges the result of `begin_digests`: None if the ranks agree, otherwise the Work
    with the facts of all ranks, which `explain` makes an error text of."""

    def judge(words: Any, facts: Sequence[Fact]) -> Work[list[Any]] | None:
        same_names, same_order, alike = _equal(words)
        if alike and (same_order or not same_names):
            return None
        return comm.allgather_object_async(list(facts), name=full_name(comm, "disagreement", label))

    return judge


def in_order(names: Iterable[str]) -> list[Fact]:
    """Return facts with which `agree` raises ValueError only if ranks list the same names in different orders."""
    return [Fact(name, "", "", DENSE) for name in names]


def agree_on_values(comm: Communicator, label: str, obstacles: Mapping[str, str], argument: str) -> None:
    """Return if all ranks have values of equal names, and each can broadcast its own. Collective.

    obstacles   by name: the reason why a value cannot be broadcast, empty if it can

    Raises as `agree`; TypeError, with the argument, if no rank can broadcast a value.
    """
    forms = {name: f"a form that cannot be sent ({text})" if text else "" for name, text in obstacles.items()}
    agree(comm, label, [Fact(name, name, form, VALUE) for name, form in forms.items()])
    for name, text in obstacles.items():
        if text:
            raise TypeError(f"{argument}[{name!r}]: {text}")


def explain(views: Sequence[Sequence[Fact]]) -> str:
    """Return the error text for ranks that do not agree. `views` are the facts of each rank."""
    given = [[fact for fact in view if fact.kind == OPTION] for view in views]
    if any(one != given[0] for one in given):
        texts = _differences(given, [[fact.key for fact in one] for one in given])
        return f"arguments: {texts}. All ranks must give the same ones"
    views = [[fact for fact in view if fact.kind != OPTION] for view in views]
    names = [[fact.name for fact in view] for view in views]
    if all(sorted(one) == sorted(names[0]) for one in names):
        moved = [name for place, name in enumerate(names[0]) if any(one[place] != name for one in names)]
        if moved:
            return (
                f"the ranks list {_listed(moved)} in different orders, so they cannot be told apart; all ranks must "
                "list them in one order, or give them names of their own"
            )
        keys = names
    else:  # numbers in names may differ: then parameters are matched by their places
        parts = [[fact.key for fact in view] for view in views]
        keys = names if any(one != parts[0] for one in parts) else [names[0]] * len(views)
    listed = _differences(views, keys)
    if any(fact.kind == VALUE for view in views for fact in view):
        return f"{listed}. All ranks must have values of the same names, in the same form"
    return f"gradients: {listed}. All ranks must have gradients of the same parameters, in the same form"


def _differences(views: Sequence[Sequence[Fact]], keys: Sequence[Sequence[str]]) -> str:
    """Return text about the facts that differ. Those of equal keys are compared."""
    found: dict[str, dict[int, Fact]] = {}
    for rank, (view, own) in enumerate(zip(views, keys, strict=True)):
        for key, fact in zip(own, view, strict=True):
            found.setdefault(key, {})[rank] = fact
    texts = [text for name, facts in found.items() if (text := _difference(name, facts, len(views)))]
    return f"{'; '.join(texts[:4])}{'; and others' * (len(texts) > 4)}"


def _difference(name: str, facts: dict[int, Fact], size: int) -> str:
    """Return text about a parameter that is not the same on all ranks; empty if it is."""
    said: dict[str, list[int]] = {}
    for rank in range(size):
        fact = facts.get(rank)
        text = "does not have it" if fact is None else _KINDS.get(fact.kind, "has several gradients")
        if fact is not None and fact.form and len({other.form for other in facts.values()}) > 1:
            text += f" of {fact.form}"
        said.setdefault(text, []).append(rank)
    if len(said) == 1:
        return ""
    return f"{name!r}: " + ", ".join(f"rank {', '.join(map(str, ranks))} {text}" for text, ranks in said.items())


def _listed(names: Sequence[str]) -> str:
    unique = [repr(name.partition("#")[0]) for name in dict.fromkeys(names)]
    return ", ".join(list(dict.fromkeys(unique))[:4]) + ", ..." * (len(set(unique)) > 4)


# what a rank that adapts to the others needs


class Union(NamedTuple):
    """The facts of all ranks together.

    kinds       for each fact: DENSE, SPARSE, both, or MISSING on all ranks
    wishes      the wishes of all ranks
    same_order  True if all ranks list the parameters in the same order
    """

    kinds: list[int]
    wishes: int
    same_order: bool


class Members:
    """The parameters of this rank, whose kinds of gradients it unites with those of the other ranks.

    names   unique, by which the ranks match them; in any order
    forms   shape and type of each, as text
    given   the optimizer's arguments: see `option_facts`
    """

    def __init__(self, names: Sequence[str], forms: Sequence[str], given: Sequence[Fact] = ()) -> None:
        self._facts = [*given, *(Fact(name, name, form, DENSE) for name, form in zip(names, forms, strict=True))]
        self._order = sorted(range(len(names)), key=names.__getitem__)
        self._digests = [_digest(f"{fact.name} {fact.form}" for fact in sorted(self._facts)), _digest(names)]

    def unite(self, comm: Communicator, label: str, kinds: Sequence[int], wishes: int = 0) -> Union:
        """Return the kinds that the ranks have together. Collective, as `agree`.

        kinds    of this rank's gradients, in the order of the names
        wishes   bits; the ranks get those of all of them

        Raises ValueError on every rank, with the names of the parameters, if ranks have other ones, or other forms, and
        with those arguments that differ; HorovodInternalError if a rank is lost.
        """
        own = np.array([kinds[index] for index in self._order], np.uint8)
        digests = [*self._digests, _digest([own.tobytes().hex()])]
        words = np.append(_with_complements(digests), np.uint64(wishes))
        with as_horovod():
            found = comm.allreduce_async(words, "bor", name=full_name(comm, "agreement", label)).wait()
            same_names, same_order, same_kinds = _equal(found[:-1])
            if not same_names:
                views = comm.allgather_object_async(self._facts, name=full_name(comm, "disagreement", label)).wait()
                raise ValueError(explain([sorted(view) for view in views]))
            if not same_kinds:
                own = comm.allreduce_async(own, "bor", name=full_name(comm, "kinds", label)).wait()
        united = [MISSING] * len(self._order)
        for index, kind in zip(self._order, own.tolist(), strict=True):
            united[index] = kind
        return Union(united, int(found[-1]), same_order)


def _digests_in_order(facts: Sequence[Fact]) -> list[int]:
    return [
        _digest(sorted(fact.name for fact in facts)),
        _digest(fact.name for fact in facts),
        _digest(f"{fact.key} {fact.form} {fact.kind}" for fact in facts),
    ]


def _digest(texts: Iterable[str]) -> int:
    return int.from_bytes(hashlib.blake2b("\n".join(texts).encode(), digest_size=8).digest(), "little")


def _with_complements(digests: Sequence[int]) -> Any:
    words = np.array(digests, np.uint64)
    return np.concatenate([words, ~words])


def _equal(words: Any) -> list[bool]:
    """For each digest: True if it is the same on all ranks that have not joined."""
    half = len(words) // 2
    return [not bits for bits in (words[:half] & words[half:]).tolist()]
