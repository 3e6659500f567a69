"""The hosts and ranks that a job uses, as hosts come and go and ranks fail.

`Plan`, for an elastic job, and `FixedPlan`, for hosts and ranks that are given, are pure state machines: the launcher
tells them what has happened, with the time, and they answer with actions for the launcher. They know no process, no
socket and no clock.
"""

from __future__ import annotations

from collectives.scaling.actions import Action, Ask, Begin, Close, Finish, Leave, Open, Refuse, Send, Serve, Start
from collectives.scaling.fixed import MOST_AT_ONCE, REPORT_SECONDS, FixedPlan
from collectives.scaling.plan import Plan
from collectives.scaling.slots import Cooldown
from collectives.scaling.terms import Terms

__all__ = [
    "MOST_AT_ONCE",
    "REPORT_SECONDS",
    "Action",
    "Ask",
    "Begin",
    "Close",
    "Cooldown",
    "Finish",
    "FixedPlan",
    "Leave",
    "Open",
    "Plan",
    "Refuse",
    "Send",
    "Serve",
    "Start",
    "Terms",
]
