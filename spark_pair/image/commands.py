"""`spark-pair image`: the engines' images on this host, and the programs of the jobs about them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from .. import description as descriptions
from ..jobs import words
from ..jobs.inside import Reporter, carry_out, secret
from ..weights.commands import order_argument, order_of
from .build_job import LOCAL_SH, build
from .identity import Image, inspect
from .order import BuildOrder, ExportOrder, FetchOrder
from .ship_job import export, fetch

Told = tuple[str, Mapping[str, Any]]


def add_verbs(parser: argparse.ArgumentParser) -> None:
    """Give the command `image` its options and verbs."""
    parser.add_argument("--json", action="store_true")
    parser.set_defaults(run=_show)
    verbs = parser.add_subparsers(metavar="VERB")
    for name, what, program in (
        ("build", "build the image that ORDER names", _build),
        ("export", "write the image that ORDER names to an archive", _export),
        ("fetch", "bring the image that ORDER names from the other machine", _fetch),
    ):
        one = verbs.add_parser(name, help=f"{what} (the program of a job)")
        order_argument(one)
        one.set_defaults(run=program)


def _show(options: argparse.Namespace, _: list[str]) -> int:
    description = descriptions.load(options.description)
    names = dict.fromkeys(
        image for server in description.servers.values() for image in server.images
    )
    found = {name: inspect(name) for name in names}
    if options.json:
        print(json.dumps({name: vars(one) if one else None for name, one in found.items()}))
        return 0
    for name, one in found.items():
        print(f"{name}  {_told(one)}")
    return 0


def _told(image: Image | None) -> str:
    if image is None:
        return "is not here"
    return f"{words.size(image.size)}, content {image.identity[:12]}"


def _build(options: argparse.Namespace, _: list[str]) -> int:
    def body(reporter: Reporter) -> Told:
        settings = secret(LOCAL_SH)
        order = BuildOrder.from_dict(order_of(options))
        return build(order, reporter, None if settings is None else f"{settings}\n")

    return carry_out(body)


def _export(options: argparse.Namespace, _: list[str]) -> int:
    return carry_out(lambda reporter: export(ExportOrder.from_dict(order_of(options)), reporter))


def _fetch(options: argparse.Namespace, _: list[str]) -> int:
    return carry_out(lambda reporter: fetch(FetchOrder.from_dict(order_of(options)), reporter))
