"""The table in docs/torch-distributed.md, made of results."""

from __future__ import annotations

from typing import Final

from tests.compatibility.results import Bed, Difference, Results, count

BEGIN: Final = "<!-- begin compatibility: written by make compatibility -->\n"
END: Final = "<!-- end compatibility -->"


def table(results: Results) -> str:
    """Return Markdown: a row for each project and number of ranks, and a row for each reason to differ."""
    beds = sorted(results.outcomes)
    columns = sorted({(bed.backend, bed.transport) for bed in beds})
    differing = results.differences()
    lines = [
        " | ".join(["| tests of", "ranks", *(f"{backend} {transport}".strip() for backend, transport in columns)])
        + " | differ from gloo |",
        "|---" * (len(columns) + 3) + "|",
    ]
    for project, size in sorted({(bed.project, bed.size) for bed in beds}):
        cells = []
        for backend, transport in columns:
            outcomes = results.outcomes.get(Bed(project, size, backend, transport), {})
            cells.append(f"{count(outcomes.values(), 'passed')} pass" if outcomes else "")
        here = {each.name for each in differing if (each.bed.project, each.bed.size) == (project, size)}
        lines.append(" | ".join([f"| {project}", str(size), *cells, str(len(here))]) + " |")
    if differing:
        lines += ["", "| differs from gloo | why |", "|---|---|"]
        for reason in dict.fromkeys(each.reason for each in differing):
            names = dict.fromkeys(_name(each) for each in differing if each.reason == reason)
            lines.append(f"| {', '.join(names)} | {reason or 'not deliberate'} |")
    return "\n".join(lines) + "\n"


def _name(difference: Difference) -> str:
    return f"{difference.bed.project}: `{difference.name}`"


def replaced(page: str, text: str) -> str:
    """Return the page with other text between its marks. Raises ValueError if it has none."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no lines {BEGIN.strip()!r} and {END!r}")
    return before + begin + text + end + after
