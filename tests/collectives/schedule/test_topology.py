"""Rings, trees, folds and lanes."""

from __future__ import annotations

from itertools import chain

import pytest

from collectives.schedule.topology import (
    Fold,
    Tree,
    around,
    binomial_children,
    binomial_parent,
    binomial_width,
    by_host,
    canonical_siblings,
    canonical_tree,
    circular_runs,
    dissemination,
    lanes,
    neighbours,
    reduction_links,
    reverse_bits,
    rounds,
    runs,
)

SIZES = range(1, 65)


def leaves(tree: Tree) -> list[int]:
    return [tree] if isinstance(tree, int) else leaves(tree[0]) + leaves(tree[1])


def depth(tree: Tree) -> int:
    return 0 if isinstance(tree, int) else 1 + max(depth(tree[0]), depth(tree[1]))


def test_ring_neighbours_wrap_around() -> None:
    assert neighbours(0, 4) == (3, 1)
    assert neighbours(3, 4) == (2, 0)
    assert neighbours(0, 1) == (0, 0)
    assert around(2, 4) == [3, 0, 1]


def test_rounds_is_the_logarithm_rounded_up() -> None:
    assert [rounds(size) for size in (1, 2, 3, 4, 5, 8, 9)] == [0, 1, 2, 2, 3, 3, 4]


def test_reversed_bits() -> None:
    assert [reverse_bits(value, 3) for value in range(8)] == [0, 4, 2, 6, 1, 5, 3, 7]
    assert reverse_bits(0, 0) == 0


def test_runs_join_adjacent_intervals() -> None:
    assert runs([5, 1, 2, 3, 7, 6]) == [(1, 3), (5, 3)]
    assert runs([]) == []
    assert circular_runs(6, 3, 8) == [(6, 2), (0, 1)]
    assert circular_runs(6, 2, 8) == [(6, 2)]
    assert circular_runs(9, 2, 8) == [(1, 2)]


def test_dissemination_reaches_everybody() -> None:
    for size in SIZES:
        heard = [{rank} for rank in range(size)]
        for k in range(rounds(size)):
            links = [dissemination(rank, size)[k] for rank in range(size)]
            assert all(links[ahead][1] == rank for rank, (ahead, _) in enumerate(links))
            heard = [heard[rank] | heard[links[rank][1]] for rank in range(size)]
        assert all(len(known) == size for known in heard)


def test_binomial_trees_hold_every_position_once() -> None:
    for size in SIZES:
        seen = [0]
        for position in range(size):
            children = binomial_children(position, size)
            assert children == sorted(children, reverse=True)
            assert all(binomial_parent(child) == position for child in children)
            assert binomial_width(position, size) == 1 + sum(binomial_width(child, size) for child in children)
            seen += children
        assert sorted(seen) == list(range(size))


def test_folds_group_adjacent_ranks() -> None:
    for size in SIZES:
        fold = Fold(size)
        assert fold.power == 1 << fold.bits <= size < 2 * fold.power
        members = [list(fold.members(group)) for group in range(fold.power)]
        assert list(chain(*members)) == list(range(size))
        assert all(fold.group(rank) == group for group, ranks in enumerate(members) for rank in ranks)
        assert [len(ranks) for ranks in members] == [2] * fold.pairs + [1] * (fold.power - fold.pairs)


def test_the_canonical_tree_has_its_documented_shape() -> None:
    """These trees fix the bits of reproducible results: they may not change."""
    assert canonical_tree(1) == 0
    assert canonical_tree(2) == (0, 1)
    assert canonical_tree(3) == ((0, 1), 2)
    assert canonical_tree(4) == ((0, 1), (2, 3))
    assert canonical_tree(6) == (((0, 1), (2, 3)), (4, 5))
    assert canonical_tree(7) == (((0, 1), (2, 3)), ((4, 5), 6))


def test_the_canonical_tree_keeps_the_order_of_ranks_and_is_shallow() -> None:
    for size in SIZES:
        tree = canonical_tree(size)
        assert leaves(tree) == list(range(size))
        assert depth(tree) == rounds(size)
        siblings = canonical_siblings(size)
        assert len(siblings) == 2 * size - 2
        assert all(node in pair and sum(pair[0]) == pair[1][0] for node, pair in siblings.items())


def test_reduction_links_follow_the_canonical_tree_to_any_root() -> None:
    for size in [*range(1, 20), 33, 64]:
        for root in range(size):
            links = [reduction_links(rank, size, root) for rank in range(size)]
            assert [rank for rank in range(size) if links[rank][1] is None] == [root]

            def combined(rank: int, links: list[tuple[list[int], int | None]] = links) -> Tree:
                value: Tree = rank
                for child in links[rank][0]:
                    assert links[child][1] == rank
                    value = (combined(child), value) if child < rank else (value, combined(child))
                return value

            assert combined(root) == canonical_tree(size)


def test_hosts_and_lanes() -> None:
    assert by_host((0, 1, 0, 1), 4) == [[0, 2], [1, 3]]
    assert by_host((), 3) == [[0, 1, 2]]
    equal = lanes((0, 0, 1, 1), 4)
    assert equal.teams == (((0,), (1,)), ((2,), (3,)))
    uneven = lanes((0, 0, 0, 1), 4)
    assert uneven.teams == (((0, 1, 2),), ((3,),))
    assert (uneven.hosts, uneven.lanes, uneven.find(2), uneven.find(3)) == (2, 1, (0, 0), (1, 0))
    with pytest.raises(ValueError, match=r"rank 4 .*host"):
        uneven.find(4)
