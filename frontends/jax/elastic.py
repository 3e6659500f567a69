"""Horovod's elastic API for JAX; frontends/horovod/elastic.py has the loop."""

from __future__ import annotations

import jax

from frontends.horovod import HostsUpdatedInterrupt, ObjectState, recovering
from frontends.jax.primitive import begin_anew

__all__ = ["HostsUpdatedInterrupt", "JaxState", "ObjectState", "run"]

run = recovering(jax.errors.JaxRuntimeError)


class JaxState(ObjectState):
    """ObjectState whose values are trees of arrays: `JaxState(parameters=..., optimizer_state=..., step=0)`."""

    def reset(self) -> None:
        """Forget the calls that have failed, and discard compiled functions: the number of ranks is a constant in
        them."""
        begin_anew()
