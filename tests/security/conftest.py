"""Certificates for the tests of a session."""

from __future__ import annotations

import pytest

from tests.security.certificates import Authority, Files


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The job's."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def files(authority: Authority) -> Files:
    """The files of a good end."""
    return authority.end()


@pytest.fixture(scope="session")
def strange_files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """The files of an end of somebody else's."""
    return Authority(tmp_path_factory.mktemp("stranger")).end()
