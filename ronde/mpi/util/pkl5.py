"""Objects whose large buffers travel apart from the pickle. The code is in frontends.mpi.util.pkl5."""

from __future__ import annotations

from frontends.mpi.util.pkl5 import Comm, Intercomm, Intracomm, Message, Pickle, Request, Status, pickle

__all__ = ["Comm", "Intercomm", "Intracomm", "Message", "Pickle", "Request", "Status", "pickle"]
