"""The way to meet at an address that all ranks know or compute: rank 0 serves the store there."""

from __future__ import annotations

import itertools
from typing import Final

from transports.launchers import secret as secrets
from transports.launchers.dialing import dial
from transports.launchers.serving import derived_ports, listening_addresses, serve
from transports.launchers.variables import Env, integer
from transports.launchers.ways import Meeting, Way
from transports.store import Store

PORT: Final = "RONDE_PORT"


class AtAddress(Way):
    """Rank 0 serves the store on one of several ports, which follow from the job's id; the others try them in turn.

    Two jobs on one host may have the same ports: the id is part of what both ends prove, so that a rank refuses the
    store of another job and tries the next port. The secret is given by the user.

    host    where rank 0 is; None: it cannot be known, and `lacking` says why
    port    the port that is known to all, in place of those that follow from the id
    """

    def __init__(self, env: Env, host: str | None, lacking: str = "", *, port: int | None = None) -> None:
        self._env = env
        self._host = host
        self._lacking = lacking
        self._port = integer(env, PORT, 1, 65535, "") if env.get(PORT) else port

    def describe(self) -> str:
        port = "a port that follows from the job's id" if self._port is None else f"port {self._port}"
        return f"rank 0 serves the store on {self._host or 'its host'}, {port}"

    def missing(self) -> str | None:
        if self._host is None:
            return self._lacking
        return secrets.HOW if secrets.given_secret(self._env) is None else None

    def open(self, meeting: Meeting) -> tuple[Store, bytes]:
        secret = secrets.given_secret(self._env)
        assert secret is not None
        assert self._host is not None
        ports = derived_ports(meeting.job) if self._port is None else [self._port]
        if meeting.rank == 0:
            server = serve(ports, secret, meeting, self._host)
            return dial(server.addresses, secret, meeting, meeting.purpose), secret
        hosts = listening_addresses(meeting, self._host) if meeting.one_host else [self._host]
        return dial(list(itertools.product(hosts, ports)), secret, meeting, meeting.purpose), secret
