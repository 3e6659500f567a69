"""Parts of frontends.ray that need no cluster: room for workers."""

from __future__ import annotations

import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'ronde[ray]'")

from frontends.ray.placement import room_in


@pytest.mark.parametrize(
    ("offered", "wanted", "room"),
    [
        ({"CPU": 1.0}, {"CPU": 0.1}, 10),
        ({"CPU": 0.3}, {"CPU": 0.1}, 3),
        ({"CPU": 0.7, "GPU": 1.0}, {"CPU": 0.1, "GPU": 0.5}, 2),
        ({"CPU": 2.0}, {"CPU": 0.3}, 6),
        ({"CPU": 2.0}, {"GPU": 1.0}, 0),
        ({"CPU": 1.0}, {"CPU": 2.0}, 0),
    ],
)
def test_room_for_workers(offered: dict[str, float], wanted: dict[str, float], room: int) -> None:
    assert room_in(offered, wanted) == room
