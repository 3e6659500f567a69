"""The hosts and ranks that an elastic job uses, as hosts come and go and ranks fail.

`Plan` is a pure state machine: the launcher tells it what has happened, with the time, and it answers with actions for
the launcher. It knows no process, no socket and no clock.
"""

from __future__ import annotations

from collectives.scaling.actions import Action, Begin, Close, Finish, Leave, Open, Send, Start
from collectives.scaling.plan import Plan
from collectives.scaling.slots import Cooldown
from collectives.scaling.terms import Terms

__all__ = ["Action", "Begin", "Close", "Cooldown", "Finish", "Leave", "Open", "Plan", "Send", "Start", "Terms"]
