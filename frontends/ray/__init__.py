"""Ronde inside a Ray cluster: Ray places the workers, Ronde connects them.

`RayExecutor` has Horovod's methods, `ElasticRayExecutor` goes on after a lost worker. `RondeConfig` connects the
workers of Ray Train's trainers, `register` makes a backend for `ray.util.collective`; each is loaded when it is first
used. The ranks meet as guests of collectives.launch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from frontends.needs import needs

with needs(ray="ronde.ray needs ray: pip install 'ronde[ray]'"):
    import ray as _ray  # noqa: F401

from collectives.launch import WorkerLost
from frontends.ray.elastic import ElasticRayExecutor
from frontends.ray.executor import RayExecutor
from frontends.ray.ranks import RaySettings

if TYPE_CHECKING:
    from frontends.ray.groups import register
    from frontends.ray.train import RondeConfig

__all__ = [
    "ElasticRayExecutor",
    "RayExecutor",
    "RaySettings",
    "RondeConfig",
    "WorkerLost",
    "register",
]


def __getattr__(name: str) -> Any:
    """Import `register` and RondeConfig at their first use: their modules load more of Ray, and torch with it."""
    if name == "register":
        from frontends.ray.groups import register

        return register
    if name == "RondeConfig":
        from frontends.ray.train import RondeConfig

        return RondeConfig
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
