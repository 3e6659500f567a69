"""Samples the posterior of a straight line with emcee, on a pool of ranks with mpi4py's API.

    pip install emcee
    ronde run -np 4 python -m ronde.mpi.futures examples/mpi_emcee.py

With mpi4py and an MPI: mpiexec -n 4 python -m mpi4py.futures ... The other ranks call the likelihood, the walkers are
those of rank 0. The result does not depend on the number of ranks.
"""

import emcee
import numpy as np
from mpi4py.util.pool import Pool

SLOPE, HEIGHT, NOISE = 0.7, 2.0, 0.3
WALKERS, STEPS, BURNT = 16, 200, 50

X = np.linspace(0, 10, 50)
Y = SLOPE * X + HEIGHT + np.random.default_rng(1).normal(0, NOISE, X.size)


def log_likelihood(line: np.ndarray) -> float:
    """The logarithm of the likelihood of a slope and a height, but for a constant."""
    return float(-0.5 * np.sum(((Y - line[0] * X - line[1]) / NOISE) ** 2))


def main() -> None:
    """Sample, and print the means."""
    np.random.seed(2)
    start = np.array([1.0, 1.0]) + 1e-2 * np.random.randn(WALKERS, 2)
    with Pool() as pool:
        sampler = emcee.EnsembleSampler(WALKERS, 2, log_likelihood, pool=pool)
        sampler.run_mcmc(start, STEPS)
    slope, height = sampler.get_chain(discard=BURNT, flat=True).mean(axis=0)
    print(f"slope {slope:.2f}, height {height:.2f}, accepted {sampler.acceptance_fraction.mean():.2f}")


if __name__ == "__main__":
    main()
