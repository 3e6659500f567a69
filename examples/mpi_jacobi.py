"""Jacobi iterations for Laplace's equation on a grid of ranks, with mpi4py's API: halos on a Cartesian communicator.

    ronde run -np 4 --mpi4py examples/mpi_jacobi.py          or, with mpi4py and an MPI: mpiexec -n 4 python ...

Every rank has a block of the plate and a margin of one cell, which it gets from its four neighbours in each step: rows
as they lie in memory, columns by a vector datatype. Rank 0 collects the blocks and compares them with one process.
"""

import numpy as np
from mpi4py import MPI

ROWS, COLUMNS, STEPS = 48, 36, 200


def edges(plate: np.ndarray) -> None:
    """The fixed temperatures: 100 at the upper edge, 0 elsewhere."""
    plate[...] = 0.0
    plate[0] = 100.0


def step(old: np.ndarray, new: np.ndarray) -> None:
    """The mean of the four neighbours of each inner cell."""
    new[1:-1, 1:-1] = (old[:-2, 1:-1] + old[2:, 1:-1] + old[1:-1, :-2] + old[1:-1, 2:]) / 4


def exchange(cart: MPI.Cartcomm, block: np.ndarray, column: MPI.Datatype) -> None:
    """Fill the margins from the neighbours; at the edge of the plate there are none (PROC_NULL)."""
    up, down = cart.Shift(0, 1)
    left, right = cart.Shift(1, 1)
    cart.Sendrecv(block[-2, 1:-1], down, 0, block[0, 1:-1], up, 0)
    cart.Sendrecv(block[1, 1:-1], up, 0, block[-1, 1:-1], down, 0)
    flat, width = block.reshape(-1), block.shape[1]
    cart.Sendrecv([flat[2 * width - 2 :], 1, column], right, 0, [flat[width:], 1, column], left, 0)
    cart.Sendrecv([flat[width + 1 :], 1, column], left, 0, [flat[2 * width - 1 :], 1, column], right, 0)


def main() -> None:
    """Solve it, and compare."""
    comm = MPI.COMM_WORLD
    cart = comm.Create_cart(MPI.Compute_dims(comm.size, 2))
    (down, across), (row, place) = cart.dims, cart.coords
    rows, columns = ROWS // down, COLUMNS // across
    assert (ROWS % down, COLUMNS % across) == (0, 0), "the ranks must divide the plate"

    whole = np.empty((ROWS + 2, COLUMNS + 2))
    edges(whole)
    block = whole[row * rows : (row + 1) * rows + 2, place * columns : (place + 1) * columns + 2].copy()
    other = block.copy()
    column = MPI.DOUBLE.Create_vector(rows, 1, columns + 2).Commit()
    for _ in range(STEPS):
        exchange(cart, block, column)
        other[...] = block
        step(block, other)
        block, other = other, block
    column.Free()

    mine = np.ascontiguousarray(block[1:-1, 1:-1])
    parts = np.empty((comm.size, rows, columns)) if cart.rank == 0 else None
    cart.Gather(mine, parts)
    warmest = cart.allreduce(float(mine.max()), MPI.MAX)
    if cart.rank != 0:
        return
    found = np.block([[parts[cart.Get_cart_rank([i, j])] for j in range(across)] for i in range(down)])
    old, new = whole.copy(), whole.copy()
    for _ in range(STEPS):
        step(old, new)
        old, new = new, old
    same = np.array_equal(found, old[1:-1, 1:-1])
    print(f"{down} x {across} ranks, {STEPS} steps: warmest {warmest:.4f}; as one process: {'yes' if same else 'no'}")


if __name__ == "__main__":
    main()
