"""From a call to a plan: choose an algorithm, lower it, and keep the result for the next call of the same kind.

The same call gives the same plan on all ranks and at all times. The caller's `algorithm=` decides, else a rule table,
else a cost model. This room neither communicates nor holds memory. Other rooms use `Call`, `Plan`, `Planner` and
`Selector`; add an algorithm in algorithms/, not here.
"""

from __future__ import annotations

from collectives.planning.call import Call, WindowOffset, WindowOffsets
from collectives.planning.cost_model import Model, predict, terms, told_apart
from collectives.planning.plan import MOST_PHASES, Plan, Planner, all_blocks
from collectives.planning.rules import NO_LIMIT, CopyKernel, Costs, Rule, Rules, SingleCopy
from collectives.planning.select import Choice, Demand, Selector
from collectives.planning.tally import Tally

__all__ = [
    "MOST_PHASES",
    "NO_LIMIT",
    "Call",
    "Choice",
    "CopyKernel",
    "Costs",
    "Demand",
    "Model",
    "Plan",
    "Planner",
    "Rule",
    "Rules",
    "Selector",
    "SingleCopy",
    "Tally",
    "WindowOffset",
    "WindowOffsets",
    "all_blocks",
    "predict",
    "terms",
    "told_apart",
]
