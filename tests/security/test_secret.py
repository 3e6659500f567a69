"""The job's secret: where it must never be seen, what is listened on, and how proofs are compared."""

from __future__ import annotations

import base64
import contextlib
import hmac
import logging
import os
import socket
import stat
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import collectives
from collectives.launch.hosts.host import Start
from collectives.launch.job import job as launching
from tests.collectives.launch.launcher import ronde
from tests.transports.groups import groups, soon
from tests.transports.tcp_ranks import in_threads, link, ranks
from tests.worlds import SECRET, world_of
from transports import auth, launchers
from transports.base import Group, Member
from transports.errors import ConfigError, RendezvousError, TransportError
from transports.rendezvous import bootstrap
from transports.rendezvous.file import FileStore
from transports.rendezvous.memory import MemoryStore
from transports.rendezvous.tcp import TcpStore, TcpStoreServer
from transports.shm import segments
from transports.tcp import TcpTransport


def spellings(secret: bytes) -> list[bytes]:
    """The forms in which a secret might be printed."""
    return [
        secret,
        secret.hex().encode(),
        secret.hex().upper().encode(),
        base64.b64encode(secret),
        base64.urlsafe_b64encode(secret),
        repr(secret).encode(),
    ]


def shown(secret: bytes, text: str | bytes) -> bool:
    data = text.encode(errors="replace") if isinstance(text, str) else text
    return any(spelling in data for spelling in spellings(secret))


def test_this_test_would_notice() -> None:
    secret = auth.new_secret()
    for text in (secret.hex(), f"Job(secret={secret!r})", base64.b64encode(secret).decode()):
        assert shown(secret, text)
    assert not shown(secret, auth.new_secret().hex())


# A whole job

PROGRAM = """
import contextlib, io, logging, os, pathlib, subprocess, sys
logging.basicConfig(level=logging.DEBUG, stream=sys.stdout)
import numpy, collectives
from frontends.command_line import cli
from transports import launchers
comm = collectives.init()
comm.allreduce(numpy.ones(1000))
if comm.rank == 0:
    pathlib.Path(sys.argv[1]).write_text(os.environ["RONDE_SECRET"])
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError):
                print("argv", pathlib.Path("/proc", name, "cmdline").read_bytes())
    for words in (["doctor"], ["doctor", "--json"]):
        with contextlib.suppress(SystemExit):
            cli.main(words)
    print(launchers.job_from_environment(os.environ), comm, vars(comm))
comm.barrier()
if comm.rank == 1:
    raise RuntimeError("one rank fails")
comm.allreduce(numpy.ones(1000))
"""


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_a_job_never_shows_its_secret(transport: str, tmp_path: Path) -> None:
    program, told = tmp_path / "program.py", tmp_path / "told"
    program.write_text(PROGRAM)
    done = ronde("run", "-np", "2", "--transport", transport, str(program), str(told))
    assert done.returncode == 1
    assert b"one rank fails" in done.stderr
    assert b"argv" in done.stdout
    assert b"transport" in done.stdout
    secret = bytes.fromhex(told.read_text())
    assert len(secret) == 32
    assert not shown(secret, done.stdout)
    assert not shown(secret, done.stderr)


def leak(rank: int) -> str:
    """The command lines of all processes, in hexadecimal."""
    lines = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError):
                lines.append(Path("/proc", name, "cmdline").read_bytes().hex())
    return os.environ["RONDE_SECRET"] + "\n" + "\n".join(lines)


def leak_of_own() -> str:
    return leak(collectives.rank())


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_processes_of_run_have_it_not_in_their_command_lines() -> None:
    secret, *lines = collectives.run(leak_of_own, np=1, transport="tcp", timeout=60)[0].split("\n")
    assert len(lines) > 1
    assert not any(shown(bytes.fromhex(secret), bytes.fromhex(line)) for line in lines)


def test_two_jobs_have_two_secrets() -> None:
    secrets = {ronde("run", "-np", "1", "--no-prefix", "sh", "-c", "echo $RONDE_SECRET").stdout for _ in range(2)}
    assert len(secrets) == 2
    assert all(len(bytes.fromhex(secret.decode())) == 32 for secret in secrets)


def test_the_launcher_replaces_a_secret_that_it_inherits() -> None:
    done = ronde("run", "-np", "1", "--no-prefix", "sh", "-c", "echo $RONDE_SECRET", extra={"RONDE_SECRET": "ab" * 32})
    assert done.stdout.strip() != b"ab" * 32


# Objects and errors


def test_no_repr_shows_it() -> None:
    secret = auth.new_secret()
    job = launchers.Job(0, 2, "tcp://localhost:1", secret)
    group = Group(0, (Member("host", "name", 1),), MemoryStore(), secret)
    variables = launchers.job_to_environment(job)
    with TcpStoreServer("127.0.0.1", secret=secret) as server:
        things = [
            job,
            group,
            launching.Job(["true"], [launching.Place("h", [0])], secret, variables, variables),
            Start(["true"], [0], 1, "tcp://localhost:1", "job", ("localhost", 1), secret),
            TcpTransport(group),
            server,
            TcpStore(*server.address, secret),
            auth.Client(secret, b"p"),
            auth.Server(secret, b"p"),
        ]
        assert not any(shown(secret, f"{thing!r} {thing}") for thing in things)


@pytest.mark.parametrize(
    "value", ["5ec4e7" * 6 + "zz", "5ec4e7" * 6 + "a", "5ec4e75ec4e7", "\u00e95ec4e7", "5e c4 e7", "0x5ec4e7" * 5]
)
def test_an_error_about_it_does_not_show_it(value: str) -> None:
    env = {"RONDE_RANK": "0", "RONDE_SIZE": "2", "RONDE_STORE": "tcp://localhost:1", "RONDE_SECRET": value}
    with pytest.raises(ConfigError) as caught:
        launchers.job_from_environment(env)
    error: BaseException | None = caught.value
    while error is not None:
        assert "5ec4e7" not in f"{error!r} {error}"
        assert "c4 e7" not in str(error)
        error = error.__context__ if not error.__suppress_context__ else None


def test_refusals_do_not_show_it(caplog: pytest.LogCaptureFixture) -> None:
    secret, wrong = auth.new_secret(), auth.new_secret()
    with (
        caplog.at_level(logging.DEBUG),
        TcpStoreServer("127.0.0.1", secret=secret) as server,
        contextlib.closing(TcpStore(*server.address, wrong)) as client,
        pytest.raises(RendezvousError) as caught,
    ):
        client.set("key", b"")
    assert not shown(secret, str(caught.value) + caplog.text)
    assert not shown(wrong, str(caught.value) + caplog.text)


def test_no_store_ever_holds_it(tmp_path: Path) -> None:
    """Every reader of the store sees its content, for example in the file store's directory."""
    with contextlib.closing(FileStore(tmp_path / "store")) as store:

        def body(rank: int) -> None:
            group = bootstrap.join(rank, 2, store, secret=SECRET, deadline=soon())
            config = collectives.Config.load({"transport": "tcp"}, environment={})
            with contextlib.closing(collectives.connect(group, config, soon())) as comm:
                comm.allreduce(1.0)
                comm.allgather_object("x")

        in_threads(*(lambda rank=rank: body(rank) for rank in range(2)))
    written = b"".join(path.read_bytes() for path in (tmp_path / "store").iterdir())
    assert b"127.0.0.1" in written
    assert not shown(SECRET, written)


class Trap:
    """An object that detects being unpickled."""

    caught = False

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return spring, ()


def spring() -> None:
    Trap.caught = True


@pytest.mark.parametrize(("secret", "caught"), [(b"", False), (SECRET, True)])
def test_nothing_is_unpickled_without_a_secret(secret: bytes, caught: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trap, "caught", False)
    store = MemoryStore()

    def body(rank: int) -> None:
        group = bootstrap.join(rank, 2, store, secret=secret, deadline=soon())
        config = collectives.Config.load({"transport": "tcp"}, environment={})
        with contextlib.closing(collectives.connect(group, config, soon())) as comm:
            calls = (
                lambda: comm.broadcast_object(Trap() if rank == 0 else None),
                lambda: comm.allgather_object(Trap()),
            )
            for call in calls:
                if secret:
                    call()
                else:
                    with pytest.raises(TransportError, match=r"not authenticated: .*secret"):
                        call()
            assert comm.allreduce(1.0) == 2.0

    in_threads(*(lambda rank=rank: body(rank) for rank in range(2)))
    assert Trap.caught is caught


# Comparisons


def test_proofs_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    true = hmac.compare_digest

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return true(a, b)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    client, server = auth.Client(SECRET, b"p"), auth.Server(SECRET, b"p")
    challenge = server.challenge(client.hello)
    proof = client.answer(challenge)
    server.verify(proof)
    assert [a for a, _ in compared[1:]] == [challenge[auth.NONCE :], proof]


# Addresses


def listening() -> set[str]:
    """The addresses that this process listens on (proc(5))."""
    inodes = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(f"/proc/self/fd/{name}").removeprefix("socket:[").rstrip("]"))
    lines = Path("/proc/net/tcp").read_text().splitlines() + Path("/proc/net/tcp6").read_text().splitlines()
    rows = [line.split() for line in lines]
    return {address_of(row[1].partition(":")[0]) for row in rows if row[3] == "0A" and row[9] in inodes}


def address_of(digits: str) -> str:
    """An address as the kernel prints it: 32-bit words, each in the machine's byte order."""
    words = [int(digits[at : at + 8], 16) for at in range(0, len(digits), 8)]
    packed = b"".join(word.to_bytes(4, sys.byteorder) for word in words)
    return socket.inet_ntop(socket.AF_INET if len(words) == 1 else socket.AF_INET6, packed)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/net/tcp")
def test_everything_listens_on_one_address() -> None:
    with socket.create_server(("0.0.0.0", 0)):
        assert listening() == {"0.0.0.0"}
    with TcpStoreServer("127.0.0.1", secret=SECRET), ranks(2) as transports:
        link(transports)
        assert listening() == {"127.0.0.1"}


@pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 is an address of every Linux")
def test_the_chosen_interface_is_the_one_listened_on() -> None:
    with world_of("tcp", 2, tcp={"interface": "127.0.0.2"}) as world:
        world.run(lambda comm: comm.allreduce(1.0))
        assert listening() == {"127.0.0.2"}


@pytest.mark.parametrize("interface", ["0.0.0.0", "::"])
def test_all_interfaces_cannot_be_chosen(interface: str) -> None:
    transport = TcpTransport(
        groups(2)[0],
        collectives.Config.load({"tcp": {"interface": interface}}, environment={}).transport_options("tcp"),
    )
    with pytest.raises(ConfigError, match="address, not all"):
        transport.open(soon())
    transport.close(soon())


# Shared memory


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no /dev/shm")
def test_segments_are_private_and_gone_once_all_have_attached(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, int]] = []
    lock, create = threading.Lock(), segments.Segment.create.__func__  # type: ignore[attr-defined]

    def watched(cls: type[segments.Segment], nbytes: int, directory: str = "") -> segments.Segment:
        before = os.umask(0)
        try:
            segment: segments.Segment = create(cls, nbytes, directory)
        finally:
            os.umask(before)
        with lock:
            made.append((segment.path, stat.S_IMODE(os.stat(segment.path).st_mode)))
        return segment

    monkeypatch.setattr(segments.Segment, "create", classmethod(watched))
    with world_of("shm", 3) as world:
        world.run(lambda comm: comm.allreduce(1.0))
        assert len(made) >= 1
        assert {mode for _, mode in made} == {0o600}
        assert len({path for path, _ in made}) == len(made)
        assert not any(os.path.exists(path) for path, _ in made)


NAME = "ronde-" + "0" * 32


def test_only_a_segment_of_this_user_is_attached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / NAME
    mine.write_bytes(bytes(4096))
    segments.Segment.attach(str(mine), 4096).close()
    link = tmp_path / ("ronde-" + "1" * 32)
    link.symlink_to(mine)
    directory = tmp_path / ("ronde-" + "2" * 32)
    directory.mkdir()
    other = tmp_path / "something-else"
    other.write_bytes(bytes(4096))
    relative = os.path.relpath(mine)
    for path, nbytes in [(link, 4096), (directory, 4096), (other, 4096), (mine, 4095), (relative, 4096)]:
        with pytest.raises(OSError):
            segments.Segment.attach(str(path), nbytes)
    for path in (f"{mine}\0", "", "/dev/zero", f"{tmp_path}/ronde-../{NAME[6:]}"):
        with pytest.raises(OSError):
            segments.Segment.attach(path, 4096)
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000)
    with pytest.raises(OSError, match="of this user"):
        segments.Segment.attach(str(mine), 4096)
