"""A picture as text: a table with a row for each round and a column for each rank."""

from __future__ import annotations

from collectives.drawing.picture import Event, Picture, chunk_text

_LEGEND = {
    "send": "'3 > 1': the rank sends part 3 to rank 1",
    "read": "'3 < 1': the rank reads part 3 in the memory of rank 1",
}


def draw_text(picture: Picture, width: int = 120) -> str:
    """The picture in lines of at most `width` characters, unless one column needs more; several tables if the ranks do
    not fit side by side."""
    rounds = picture.rounds()
    kinds = {event.kind for _, events in rounds for event in events}
    legend = "; ".join(text for kind, text in _LEGEND.items() if kind in kinds)
    labels = [events[0].label for _, events in rounds]
    cells = [
        [", ".join(_cell(event) for event in events if event.rank == rank) for rank in range(picture.size)]
        for _, events in rounds
    ]
    column = max(len(text) for text in [f"rank {picture.size - 1}", *(cell for row in cells for cell in row)]) + 2
    side = max((len(label) for label in labels), default=0)
    fit = max(1, (width - 7 - side) // column)
    lines = [picture.title, legend]
    for first in range(0, picture.size, fit):
        ranks = range(first, min(first + fit, picture.size))
        lines += ["", "round  " + "".join(f"rank {rank}".ljust(column) for rank in ranks).rstrip()]
        for number, (row, label) in enumerate(zip(cells, labels, strict=True), 1):
            text = "".join(row[rank].ljust(column) for rank in ranks)
            lines.append(f"{number:5}  {text}{label}".rstrip())
    return "\n".join(lines)


def _cell(event: Event) -> str:
    return f"{chunk_text(event.chunks)} {'>' if event.kind == 'send' else '<'} {event.peer}"
