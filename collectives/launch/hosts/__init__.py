"""The hosts on which ranks run. All are a `Host`: this one, with the ranks as its children (`LocalHost`), or divided
among agents if they are too many for one process (`DividedHost`, which `LocalHost.with_room` makes), and one behind an
agent (`RemoteHost`).

An agent is reached by a `Connection`, such as the command of `Ssh` or `Srun`, and obeys messages over a `Link`.
"""

from __future__ import annotations

from collectives.launch.hosts.agent_commands import Srun, Ssh, agent_header, folder_here
from collectives.launch.hosts.connection import (
    WINDOW,
    CommandConnection,
    Connection,
    Link,
    Message,
    fields_of,
    take_over_pipes,
)
from collectives.launch.hosts.host import (
    LOST,
    Escalation,
    Facts,
    Failure,
    Here,
    Host,
    Hosts,
    Listener,
    RankListener,
    Start,
    cannot_start,
)
from collectives.launch.hosts.local_host import LocalHost
from collectives.launch.hosts.login import address_here, address_of_launcher, end_sshd, free_address_here
from collectives.launch.hosts.remote_host import FINISH_SECONDS, RemoteHost
from collectives.launch.hosts.standard_input import InputReceiver
from collectives.launch.store_keeper import StoreKeeper, serving_address

__all__ = [
    "FINISH_SECONDS",
    "LOST",
    "WINDOW",
    "CommandConnection",
    "Connection",
    "Escalation",
    "Facts",
    "Failure",
    "Here",
    "Host",
    "Hosts",
    "InputReceiver",
    "Link",
    "Listener",
    "LocalHost",
    "Message",
    "RankListener",
    "RemoteHost",
    "Srun",
    "Ssh",
    "Start",
    "StoreKeeper",
    "address_here",
    "address_of_launcher",
    "agent_header",
    "cannot_start",
    "end_sshd",
    "fields_of",
    "folder_here",
    "free_address_here",
    "serving_address",
    "take_over_pipes",
]
