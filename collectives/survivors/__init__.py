"""After a failure: the ranks that are left agree on the survivors and connect again.

The decision is a pure function of a rank's knowledge. The agreement goes through the store in which the ranks first
met. `regroup` is the only way in; it knows nothing of communicators.
"""

from __future__ import annotations

from collectives.survivors.regrouping import (
    CONNECT_SECONDS,
    regroup,
)

__all__ = ["CONNECT_SECONDS", "regroup"]
