"""Pictures of algorithms: the messages of all ranks by time, as text, SVG, or an animated page.

The data are the algorithm's steps in the simulator's virtual time, so a picture shows what runs. `picture.py` collects
it; each other module draws it in one form. Another form is one more module with a function of a `Picture`.
"""

from __future__ import annotations

from collectives.drawing.animation import draw_animation
from collectives.drawing.picture import MOST_RANKS, Event, Picture, picture_of
from collectives.drawing.svg import draw_svg
from collectives.drawing.text import draw_text

__all__ = ["MOST_RANKS", "Event", "Picture", "draw_animation", "draw_svg", "draw_text", "picture_of"]
