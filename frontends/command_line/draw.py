"""`ronde draw`: a picture of an algorithm, made from the steps that run."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable
from typing import Final

from collectives.algorithms import Algorithm, algorithms
from collectives.drawing import MOST_RANKS, Picture, draw_animation, draw_svg, draw_text, picture_of
from collectives.schedule import SPECS
from frontends.command_line.arguments import count, output_file, whole, writing

_FORMS: Final[dict[str, Callable[[Picture], str]]] = {".svg": draw_svg, ".html": draw_animation, ".txt": draw_text}
DESCRIPTION: Final = "Draw an algorithm from the steps that run: as text, or as SVG or an animated page in a file."
EXAMPLES: Final = """\
examples:
  ronde draw allreduce --algorithm ring -np 8
  ronde draw allreduce --algorithm hierarchical -np 8 --hosts 4 -o hierarchical.svg
  ronde draw broadcast --algorithm binomial -np 16 -o broadcast.html
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """See `cli.Command`."""
    parser.add_argument("collective", choices=[name for name in SPECS if name != "barrier"], help="the collective")
    parser.add_argument("--algorithm", metavar="NAME", help="name of the algorithm (default: list all names)")
    parser.add_argument("-np", type=count, default=4, metavar="N", help=f"ranks, 2 to {MOST_RANKS} (default: 4)")
    parser.add_argument("--root", type=whole, default=0, metavar="R", help="root rank (default: 0)")
    parser.add_argument("--segments", type=count, default=1, metavar="S", help="pieces of each part (default: 1)")
    parser.add_argument(
        "--hosts",
        type=count,
        default=1,
        metavar="H",
        help="number of hosts, each with the same number of neighbouring ranks (default: 1)",
    )
    parser.add_argument(
        "-o", "--output", type=output_file, metavar="FILE", help="write to FILE.svg, FILE.html or FILE.txt"
    )


def main(args: argparse.Namespace) -> int:
    """Draw; returns the exit code."""
    known = algorithms(args.collective)
    if args.algorithm is None:
        if args.output is not None:
            args.parser.error(f"--output {args.output}: is for a drawing; give --algorithm NAME as well")
        sys.stdout.write("".join(f"{name:18} {_summary(found)}\n" for name, found in sorted(known.items())))
        return 0
    if args.algorithm not in known:
        args.parser.error(f"--algorithm {args.algorithm}: for {args.collective} it must be one of {', '.join(known)}")
    if not 2 <= args.np <= MOST_RANKS:
        args.parser.error(f"-np {args.np}: must be 2 to {MOST_RANKS}")
    if args.np % args.hosts:
        args.parser.error(f"--hosts {args.hosts}: must divide the number of ranks, {args.np}")
    if args.root >= args.np:
        args.parser.error(f"--root {args.root}: must be a rank, 0 to {args.np - 1}")
    if args.output is not None and args.output.suffix not in _FORMS:
        args.parser.error(f"--output {args.output}: must end with one of {', '.join(_FORMS)}")
    hosts = tuple(rank * args.hosts // args.np for rank in range(args.np)) if args.hosts > 1 else ()
    try:
        picture = picture_of(known[args.algorithm], args.np, root=args.root, segments=args.segments, hosts=hosts)
    except ValueError as error:
        args.parser.error(str(error))
    if args.output is None:
        sys.stdout.write(draw_text(picture, shutil.get_terminal_size((120, 24)).columns) + "\n")
        return 0
    with writing(args.output, "--output"):
        args.output.write_text(_FORMS[args.output.suffix](picture), encoding="utf-8")
    return 0


def _summary(found: Algorithm) -> str:
    """The first sentence of the algorithm's description."""
    text = " ".join((found.generate.__doc__ or "").split())
    return text.split(". ")[0].rstrip(".")
