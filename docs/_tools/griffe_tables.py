"""The extension of griffe, which mkdocstrings uses, that turns docstrings into Markdown."""

from __future__ import annotations

from typing import Any

import griffe

from docs._tools.docstrings import to_markdown


class Tables(griffe.Extension):
    """Rewrites the docstring of every object when it is loaded."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called for each module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value)
