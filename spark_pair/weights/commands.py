"""`spark-pair weights`: what this host holds, and the programs of the jobs about it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from .. import jsonfile, paths
from ..errors import DescriptionError, SparkPairError
from ..jobs import words
from ..jobs.inside import FOLDER, Reporter, carry_out, secret
from ..jobs.shapes import (
    ORDER,
    check_name,
    kept_order,
    read_request,
    read_result,
    write_result,
)
from .adopt import AdoptOrder, adopt
from .download_order import DownloadOrder
from .graft_job import run as graft
from .graft_order import GraftOrder
from .offer import offer
from .provenance import Artefact, Difference, Provenance, entry_of, everyday
from .record import Proofs, take_over
from .removal_job import drop, prune
from .remove_order import DropOrder, PruneOrder
from .shard_job import shard
from .shard_order import ShardOrder
from .transfer_job import run as send
from .transfer_order import read_order
from .verify import Disk
from .verify_job import usual_threads, verify_all

TOKEN = "hf-token"  # noqa: S105 (the name of a file)
"""Name of the secret that holds the Hub's token."""

_WRONG = 1
_MOST_BYTES = 64 << 20


def add_verbs(parser: argparse.ArgumentParser) -> None:
    """Give the command `weights` its options and verbs."""
    parser.add_argument("--json", action="store_true")
    parser.set_defaults(run=_show)
    verbs = parser.add_subparsers(metavar="VERB")

    one = verbs.add_parser("download", help="fetch what ORDER names (the program of a job)")
    order_argument(one)
    one.set_defaults(run=_download)

    for name, what, program in _PROGRAMS:
        one = verbs.add_parser(name, help=f"{what} (the program of a job)")
        order_argument(one)
        one.set_defaults(run=program)

    # What the other machine's transfer asks for, over ssh.
    one = verbs.add_parser("offer")
    one.set_defaults(run=_offer)

    one = verbs.add_parser("verify", help="read again all that is recorded (the program of a job)")
    one.add_argument("--threads", type=int, choices=range(1, 5), default=usual_threads())
    one.set_defaults(run=_verify)

    one = verbs.add_parser("adopt", help="prove and record what ORDER names (the program of a job)")
    order_argument(one)
    one.set_defaults(run=_adopt)

    # A job's last step, called by systemd as root.
    one = verbs.add_parser("record")
    one.add_argument("job")
    one.set_defaults(run=_record)


def order_argument(parser: argparse.ArgumentParser) -> None:
    """Let a verb take the file of an order."""
    parser.add_argument(
        "order", type=Path, nargs="?", help="its file; the one in the job's folder by default"
    )


def order_of(options: argparse.Namespace) -> Any:
    """The order that a verb was given. Raises DescriptionError."""
    path: Path | None = options.order
    if path is None:
        folder = os.environ.get(FOLDER)
        if not folder:
            raise DescriptionError("name the file of the order: this is no job that has one")
        path = Path(folder) / ORDER
    try:
        return json.loads(jsonfile.content(path, _MOST_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise DescriptionError(f"the order in {path} cannot be read: {error}") from error


def job_folder() -> Path | None:
    """The folder of the job that this process is; None when it was called by hand."""
    folder = os.environ.get(FOLDER)
    return Path(folder) if folder else None


# ---- what is here -------------------------------------------------------------------------------


def _show(options: argparse.Namespace, _: list[str]) -> int:
    record = Provenance().load()
    differences = [
        difference
        for artefact in record.values()
        for difference in everyday(artefact, Disk(artefact.folder).stat)
    ]
    if options.json:
        print(json.dumps(_facts(record, differences)))
    else:
        print(table(record, differences))
    return _WRONG if differences else 0


def _facts(record: Mapping[str, Artefact], differences: list[Difference]) -> dict[str, Any]:
    return {
        "artefacts": {name: entry_of(artefact) for name, artefact in record.items()},
        "differences": [str(one) for one in differences],
    }


def table(record: Mapping[str, Artefact], differences: list[Difference]) -> str:
    """One artefact a line, then what is not as recorded."""
    if not record:
        return (
            "nothing is recorded on this host; weights that were prepared by hand are taken over "
            "by --tags adopt"
        )
    rows = [_row(artefact) for _, artefact in sorted(record.items())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join([*lines, *(f"NOT AS RECORDED  {one}" for one in differences)])


def _row(artefact: Artefact) -> tuple[str, ...]:
    held = artefact.files.values()
    count = len(artefact.files)
    since = min((one.verified_at for one in held), default=artefact.at)
    how = ", ".join(sorted({one.how for one in held}))
    overlay = artefact.details.get("overlay")
    return (
        artefact.name,
        f"{artefact.repo}@{artefact.commit[:8]}" + (f" with {overlay[:8]}" if overlay else ""),
        "1 file" if count == 1 else f"{count} files",
        words.size(artefact.total),
        str(artefact.origin),
        f"verified {time.strftime('%Y-%m-%d %H:%M', time.localtime(since))} ({how})",
    )


# ---- programs of jobs ---------------------------------------------------------------------------


_CLIENT = {"RUST_LOG": "warn", "HF_XET_TELEMETRY_ENABLED": "false"}
"""Settings of the content store's client. As it comes, it writes a line for every request into the
account's cache, up to 250 MB of them, and tells its maker how the transfer went."""


def _download(options: argparse.Namespace, _: list[str]) -> int:
    for name, value in _CLIENT.items():
        os.environ.setdefault(name, value)
    # Only this needs packages that are not Python's own; nothing else here may depend on them.
    from .download_job import download  # noqa: PLC0415

    def body(reporter: Reporter) -> tuple[str, Mapping[str, Any]]:
        order = DownloadOrder.from_dict(order_of(options))
        return download(order, reporter, secret(TOKEN), Proofs(job_folder()), Provenance())

    return carry_out(body)


def _offer(_: argparse.Namespace, __: list[str]) -> int:
    return offer()


Told = tuple[str, Mapping[str, Any]]
Verb = Callable[[argparse.Namespace, list[str]], int]
Order = TypeVar("Order")


def _program(
    read: Callable[[Any], Order], run: Callable[[Order, Reporter, Proofs, Provenance], Told]
) -> Verb:
    """The verb that carries out an order of one kind."""

    def verb(options: argparse.Namespace, _: list[str]) -> int:
        def body(reporter: Reporter) -> Told:
            return run(read(order_of(options)), reporter, Proofs(job_folder()), Provenance())

        return carry_out(body)

    return verb


_PROGRAMS = (
    ("transfer", "bring what ORDER names from the other machine", _program(read_order, send)),
    ("graft", "put an overlay into the checkpoint, or take it out",
     _program(GraftOrder.from_dict, graft)),
    ("shard", "cut a rank file from the checkpoint", _program(ShardOrder.from_dict, shard)),
    ("prune", "delete the shards that rank files replace", _program(PruneOrder.from_dict, prune)),
    ("drop", "delete a rank file that the other machine has", _program(DropOrder.from_dict, drop)),
)  # fmt: skip


def _verify(options: argparse.Namespace, _: list[str]) -> int:
    def body(reporter: Reporter) -> tuple[str, Mapping[str, Any]]:
        return verify_all(reporter, Proofs(job_folder()), Provenance(), options.threads)

    return carry_out(body)


def _adopt(options: argparse.Namespace, _: list[str]) -> int:
    def body(reporter: Reporter) -> tuple[str, Mapping[str, Any]]:
        if os.geteuid() != 0:
            raise DescriptionError("only root writes the record of this host: run it with sudo")
        order = AdoptOrder.from_dict(order_of(options))
        return adopt(order, reporter, threads=usual_threads())

    return carry_out(body)


def _record(options: argparse.Namespace, _: list[str]) -> int:
    folder = paths.VAR / "jobs" / check_name(options.job)
    try:
        order = jsonfile.read(kept_order(folder.parent, folder.name))
        taken = take_over(folder, Provenance(), order)
    except (SparkPairError, OSError) as error:
        _tell_the_job(folder, f"what it has proven could not be recorded: {error}")
        print(f"spark-pair: nothing was recorded: {error}", file=sys.stderr)
        return _WRONG
    for name, files in sorted(taken.files.items()):
        print(f"recorded: {name}, {'1 file' if len(files) == 1 else f'{len(files)} files'}")
    for name, files in sorted(taken.gone.items()):
        count = "1 file" if len(files) == 1 else f"{len(files)} files"
        print(f"out of the record: {name}, {count} that were deleted")
    if taken.incomplete:
        print(
            f"spark-pair: only {taken.incomplete} of the files that count together are proven, so "
            "none is recorded; run it again"
        )
    if taken.skipped:
        print(
            f"spark-pair: {taken.skipped} of the proofs in {folder} are not for what was ordered, "
            "or not for the files as they are now, and count for nothing"
        )
    return 0


def _tell_the_job(folder: Path, trouble: str) -> None:
    """A job whose work is not recorded must not look like one that is done."""
    request = read_request(folder)
    result = read_result(folder, request.id) if request else None
    if request is None or result is None:
        return
    message = f"{result.message}; {trouble}"
    changed = dataclasses.replace(result, ok=False, message=message, exit=result.exit or _WRONG)
    try:
        write_result(folder, request.id, changed)
    except OSError as error:
        print(f"spark-pair: the result could not be written: {error}", file=sys.stderr)
