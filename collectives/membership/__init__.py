"""Ranks come and go: those of a group and newcomers agree on the next generation of the group, and connect.

The survivors of a failure and the newcomers are decided on at once, by pure functions of a rank's knowledge
(`decision`, `roster`). The agreement goes through the store in which the ranks first met, and through a `Standby` if
that one is lost. `regroup` is a rank's way from one generation to the next, `wait_to_join` that of a newcomer into it,
and `Fence` the agreement on the boundary at which the ranks regroup. The launcher has `set_bounds`, `ask_to_leave` and
`History`. All of it knows nothing of communicators.
"""

from __future__ import annotations

from collectives.membership.fence import Fence
from collectives.membership.newcomer import wait_to_join
from collectives.membership.registry import (
    Change,
    History,
    ask_to_leave,
    is_elastic,
    set_bounds,
)
from collectives.membership.regrouping import (
    CONNECT_SECONDS,
    regroup,
)
from collectives.membership.standby import Standby

__all__ = [
    "CONNECT_SECONDS",
    "Change",
    "Fence",
    "History",
    "Standby",
    "ask_to_leave",
    "is_elastic",
    "regroup",
    "set_bounds",
    "wait_to_join",
]
