"""The environment of ranks: what goes to other hosts, what the launcher adds, and `-x`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from transports import launchers
from transports.core_count import usable_cores
from transports.errors import ConfigError

PASSED_ON: Final = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_*", "RONDE_*")
"""Variables that ranks on other hosts get from the launcher; '*' stands for any ending. All others are those of a login
there. So names of hosts and folders, displays, and what another launcher says of this process stay where they are."""

_MASTER: Final = ("MASTER_ADDR", "MASTER_PORT")

THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
"""OpenBLAS and MKL read the first by default, Apple's Accelerate the second."""


def exported(words: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of the options `-x NAME` and `-x NAME=VALUE`. Raises ConfigError for a bad name, or one without a
    value that is not in `environment`."""
    variables = {}
    for word in words:
        name, given, value = word.partition("=")
        if not name or "\0" in word:
            raise ConfigError(f"-x {word!r}: must be NAME or NAME=VALUE")
        if not given and name not in environment:
            raise ConfigError(f"-x {name}: is not set here; give it a value by -x {name}=VALUE")
        variables[name] = value if given else environment[name]
    return variables


def check_free(variables: Mapping[str, str]) -> None:
    """Raise ConfigError for variables that the launcher sets for each rank itself, and for a bad MASTER_PORT."""
    free = launchers.without_launchers(variables)
    for name in variables:
        if name == launchers.VARIABLE or (name not in free and name not in _MASTER):
            raise ConfigError(f"-x {name}: the launcher sets it for each rank, or takes it away")
    torch_address(("", 1), variables)


def torch_address(found: tuple[str, int], given: Mapping[str, str]) -> tuple[str, int]:
    """Address and port for rank 0 of torch: those that were found, unless the variables `given` have others. Raises
    ConfigError."""
    host, text = given.get(_MASTER[0], found[0]), given.get(_MASTER[1], str(found[1]))
    if not re.fullmatch("[0-9]{1,5}", text) or not 0 < int(text) < 65536:
        raise ConfigError(f"-x {_MASTER[1]}={text}: must be a port, 1 to 65535")
    return host, int(text)


def passed_on(environment: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    """The variables for ranks on other hosts: PASSED_ON of `environment`, and all of `extra`."""
    pattern = "|".join(re.escape(name).replace(r"\*", ".*") for name in PASSED_ON)
    kept = {
        name: value
        for name, value in environment.items()
        if re.fullmatch(pattern, name, re.DOTALL) and name not in launchers.OF_A_RANK
    }
    return kept | dict(extra)


def rank_environment(job: launchers.Job, base: Mapping[str, str], torch: tuple[str, int]) -> dict[str, str]:
    """The environment of a rank: `base` with the variables of Ronde, of torchrun, and for threads of numeric libraries.

    torch  address and port on which rank 0 of torch listens
    """
    assert job.local_rank is not None
    assert job.local_size is not None
    like_torchrun = {
        "RANK": str(job.rank),
        "WORLD_SIZE": str(job.size),
        "LOCAL_RANK": str(job.local_rank),
        "LOCAL_WORLD_SIZE": str(job.local_size),
        "MASTER_ADDR": torch[0],
        "MASTER_PORT": str(torch[1]),
    }
    defaults = dict.fromkeys(THREAD_VARIABLES, str(max(1, usable_cores() // job.local_size)))
    defaults["PYTHONUNBUFFERED"] = "1"
    base = launchers.without_launchers(base)  # the launcher that starts a rank says which it is
    base.pop(launchers.VARIABLE, None)
    return defaults | base | like_torchrun | launchers.job_to_environment(job)
