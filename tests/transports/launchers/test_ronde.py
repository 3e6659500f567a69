"""The job in the environment that our own launchers set, and the secret in a file."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from transports.errors import ConfigError
from transports.launchers import Job, job_from_environment, job_to_environment

JOB = Job(1, 4, "tcp://10.0.0.1:5000", bytes(range(32)), 1, 2, "train-7")
ENV = {
    "RONDE_RANK": "1",
    "RONDE_SIZE": "4",
    "RONDE_LOCAL_RANK": "1",
    "RONDE_LOCAL_SIZE": "2",
    "RONDE_STORE": "tcp://10.0.0.1:5000",
    "RONDE_SECRET": bytes(range(32)).hex(),
    "RONDE_JOB": "train-7",
}


def test_job_and_environment_are_each_others_inverse() -> None:
    assert job_to_environment(JOB) == ENV
    assert job_from_environment(ENV | {"PATH": "/bin"}) == JOB
    for job in (
        Job(0, 1, "memory:"),
        Job(0, 2, "file:///tmp/x", b""),
        dataclasses.replace(JOB, local_rank=None, local_size=None, name=""),
    ):
        assert job_from_environment(job_to_environment(job)) == job


def test_process_that_no_launcher_started_has_no_job() -> None:
    assert job_from_environment({}) is None
    assert job_from_environment({"RONDE_STORE": "tcp://h:1", "RONDE_TRANSPORT": "tcp", "PATH": "/bin"}) is None


def test_world_of_one_needs_rank_and_size_only() -> None:
    assert job_from_environment({"RONDE_RANK": "0", "RONDE_SIZE": "1"}) == Job(0, 1, "memory:")


def test_secret_is_not_shown() -> None:
    assert JOB.secret.hex() not in repr(JOB)
    assert repr(JOB.secret) not in repr(JOB)


@pytest.mark.parametrize("missing", ["RONDE_RANK", "RONDE_SIZE", "RONDE_LOCAL_RANK", "RONDE_LOCAL_SIZE"])
def test_half_of_a_pair_names_the_other_half(missing: str) -> None:
    partner = missing.replace("RANK", "SIZE") if "RANK" in missing else missing.replace("SIZE", "RANK")
    with pytest.raises(ConfigError, match=rf"^{missing}: .* {partner}$"):
        job_from_environment({name: value for name, value in ENV.items() if name != missing})


@pytest.mark.parametrize("missing", ["RONDE_STORE", "RONDE_SECRET"])
def test_more_than_one_rank_need_store_and_secret(missing: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{missing}: .*RONDE_SIZE"):
        job_from_environment({name: value for name, value in ENV.items() if name != missing})


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("RONDE_RANK", "", "0 to 3"),
        ("RONDE_RANK", "4", "0 to 3"),
        ("RONDE_RANK", "-1", "0 to 3"),
        ("RONDE_RANK", "1.0", "0 to 3"),
        ("RONDE_RANK", " 1", "0 to 3"),
        ("RONDE_RANK", "\u0661", "0 to 3"),
        ("RONDE_SIZE", "0", "1 or more"),
        ("RONDE_SIZE", "many", "1 or more"),
        ("RONDE_SIZE", "9" * 5000, "1 or more"),
        ("RONDE_LOCAL_RANK", "2", "0 to 1"),
        ("RONDE_LOCAL_SIZE", "5", "1 to 4"),
    ],
)
def test_bad_integer_is_named_with_what_is_allowed(name: str, value: str, allowed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        job_from_environment(ENV | {name: value})
    assert str(caught.value) == f"{name}={value!r}: must be an integer, {allowed}"


@pytest.mark.parametrize("secret", ["c0ffee", "no hexadecimal digits, but a good many", "a" * 33])
def test_bad_secret_is_named_and_not_shown(secret: str) -> None:
    with pytest.raises(ConfigError, match=r"^RONDE_SECRET: .*32 hexadecimal digits") as caught:
        job_from_environment(ENV | {"RONDE_SECRET": secret})
    assert secret not in str(caught.value)


# The file with the secret


def without_secret(path: Path) -> dict[str, str]:
    return {name: value for name, value in ENV.items() if name != "RONDE_SECRET"} | {"RONDE_SECRET_FILE": str(path)}


def private(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_secret_from_a_private_file(tmp_path: Path) -> None:
    path = private(tmp_path / "secret", bytes(range(32)).hex() + "\n")
    assert job_from_environment(without_secret(path)) == JOB
    other = without_secret(path) | {"RONDE_SECRET": "5a" * 16}
    found = job_from_environment(other)
    assert found is not None
    assert found.secret == b"Z" * 16


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o610])
def test_file_that_others_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    path = private(tmp_path / "secret", "5a" * 16, mode)
    with pytest.raises(ConfigError, match=rf"mode 0{mode:o}: .*chmod 600"):
        job_from_environment(without_secret(path))


def test_file_that_cannot_serve_is_named_and_its_text_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none': .*No such file"):
        job_from_environment(without_secret(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"'/dev/null': .*regular file"):
        job_from_environment(without_secret(Path(os.devnull)))
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(ConfigError, match=r"pipe': .*regular file"):
        job_from_environment(without_secret(tmp_path / "pipe"))
    with pytest.raises(ConfigError, match=r"RONDE_SECRET_FILE.* is empty"):
        job_from_environment(without_secret(private(tmp_path / "empty", "\n")))
    path = private(tmp_path / "secret", "not hexadecimal at all, but long enough")
    with pytest.raises(ConfigError, match=r"RONDE_SECRET_FILE.* 32 hexadecimal digits") as caught:
        job_from_environment(without_secret(path))
    assert "long enough" not in str(caught.value)
