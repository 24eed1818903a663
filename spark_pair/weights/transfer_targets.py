"""Where the files of a transfer go: a repository's into the cache, a rank file into its folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..errors import SparkPairError
from .cache import Cache
from .layout import SENDING
from .manifest import File
from .noted import Noted
from .offer import Line, Request, new_secret
from .parts import sweep
from .provenance import Stat, stat_from
from .rank_file import RankFileError, rank_of, read_footer
from .transfer import Found, Read
from .transfer_order import RankTransferOrder, TransferOrder, Way

"""Folder of an unfinished rank file, beside its place."""


class PlaceError(SparkPairError):
    """A file cannot have its place; the message says what is in the way."""


@dataclass
class InCache:
    """Files of a commit, in the account's cache in the classic layout."""

    order: TransferOrder
    noted: Noted

    def __post_init__(self) -> None:
        self._cache: Cache = self.order.where()
        self._repo = self.order.manifest.repo
        self._commit = self.order.manifest.commit
        self.staging = Path(os.path.realpath(self._cache.make_staging(self._repo)))

    @property
    def files(self) -> tuple[File, ...]:
        """What shall be there."""
        return self.order.files

    def request(self, files: Sequence[File]) -> Request:
        """What the peer is asked for."""
        way = self.order.way
        return Request(
            secret=new_secret(),
            lines=_lines(way),
            ports=way.ports,
            home=way.peer.home,
            repo=self._repo,
            commit=self._commit,
            files=tuple(files),
            folder=None,
        )

    def find(self, file: File, read: Read) -> Found | None:
        """The file, if it is there and right.

        A copy in the snapshot, as one that followed links leaves it, becomes the blob: so the
        next revision finds it, and nothing is there twice. What is wrong is taken away.
        """
        repo, commit = self._repo, self._commit
        while payload := self._cache.locate(repo, commit, file):
            proven = None
            trusted = self.noted.trusted(file, payload)
            if trusted or (proven := read(file, payload.path)):
                sweep(self.staging, file)
                if payload.layout == "plain":
                    return Found(self._cache.place(repo, commit, file, payload.path), proven)
                if payload.linked:
                    return Found(self._cache.snapshot(repo, commit) / file.path, proven)
                return Found(self._cache.link(repo, commit, file), proven)
            self._cache.discard(repo, commit, file, payload)
        return None

    def place(self, file: File, staged: Path) -> Path:
        """Under its hash, with a link in the snapshot."""
        return self._cache.place(self._repo, self._commit, file, staged)

    def again(self, file: File) -> Path:
        """One more link in the snapshot."""
        return self._cache.link(self._repo, self._commit, file)

    def finish(self) -> None:
        """All is there: leave the list of the commit's files, and its name."""
        self._cache.write_tree(self.order.manifest)
        self._cache.write_ref(self._repo, self._commit)


@dataclass
class InFolder:
    """A rank file in the folder in which its server looks for it."""

    order: RankTransferOrder
    noted: Noted

    def __post_init__(self) -> None:
        folder = self.order.folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._folder = Path(os.path.realpath(folder))
            self.staging = self._folder / SENDING
            self.staging.mkdir(exist_ok=True)
        except OSError as error:
            raise PlaceError(
                f"{error.filename or folder} cannot be made ({error.strerror}): give the folder to "
                "the account that runs this (chown), then run it again."
            ) from error
        self._sweep()

    def _sweep(self) -> None:
        """Remove what is left here of other rank files, which nobody goes on with."""
        wanted = self.order.rank.file.etag
        for path in self.staging.glob("*.part"):
            if path.stem != wanted:
                with suppress(OSError):
                    path.unlink()
                    path.with_suffix(".json").unlink(missing_ok=True)

    @property
    def files(self) -> tuple[File, ...]:
        """What shall be there."""
        return (self.order.rank.file,)

    def request(self, files: Sequence[File]) -> Request:
        """What the peer is asked for."""
        way = self.order.way
        return Request(
            secret=new_secret(),
            lines=_lines(way),
            ports=way.ports,
            home=way.peer.home,
            repo="",
            commit="",
            files=tuple(files),
            folder=self.order.origin,
        )

    def find(self, file: File, read: Read) -> Found | None:
        """The file, if it is there and right. Raises PlaceError when another is in its place."""
        place = self._folder / file.path
        self._refuse_others(file)
        if not os.path.lexists(place):
            return None
        held = self.noted.held(file.path)
        if held is not None and held.failed_at is None and _is_held(place, held.stat):
            if held.agrees_with(file):
                return Found(self.order.folder / file.path, None)
        elif (
            place.is_file() and place.stat().st_size == file.size and (proven := read(file, place))
        ):
            self._check(place)
            return Found(self.order.folder / file.path, proven)
        wrong = held is not None and (held.failed_at is not None or not _is_held(place, held.stat))
        if not wrong:
            raise PlaceError(
                f"{place} is there and is not the file that shall come; nothing says that it may "
                "be replaced. Look where it comes from, move it away and run it again."
            )
        return None

    def place(self, file: File, staged: Path) -> Path:
        """Give a file its name. Raises PlaceError when its end is not as ordered."""
        self._check(staged)
        try:
            staged.chmod(0o644)
            staged.replace(self._folder / file.path)
            handle = os.open(self._folder, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        except OSError as error:
            raise PlaceError(f"{file.path} cannot have its place: {error}.") from error
        return self.order.folder / file.path

    def again(self, file: File) -> Path:
        """A rank file has one name."""
        raise PlaceError(f"{file.path} was ordered twice.")

    def finish(self) -> None:
        """Nothing unfinished is left here."""
        with suppress(OSError):
            self.staging.rmdir()

    def _check(self, path: Path) -> None:
        wanted = self.order.rank
        try:
            footer = read_footer(path)
        except (RankFileError, OSError) as error:
            raise PlaceError(
                f"{wanted.path} came as it was cut and is no rank file: {error}."
            ) from (error)
        found = (footer.size, footer.entries, footer.index_sha256)
        if found != (wanted.size, wanted.entries, wanted.index_sha256):
            raise PlaceError(
                f"{wanted.path} holds {footer.entries} tensors, listed as "
                f"{footer.index_sha256[:12]}…, and not {wanted.entries}, listed as "
                f"{wanted.index_sha256[:12]}…, as was ordered; it is not in place."
            )

    def _refuse_others(self, file: File) -> None:
        """The engine does not start with two files of a rank. Raises PlaceError."""
        rank = rank_of(file.path)
        others = sorted(
            one.name
            for one in self._folder.iterdir()
            if one.name != file.path and rank is not None and rank_of(one.name) == rank
        )
        if others:
            raise PlaceError(
                f"{self._folder} holds {', '.join(others)}, another file of rank {rank}, and with "
                "two the engine does not start: move it away and run it again."
            )


def _is_held(path: Path, stat: Stat) -> bool:
    try:
        return _stat(path) == stat
    except OSError:
        return False


def _stat(path: Path) -> Stat:
    return stat_from(path.stat())


def _lines(way: Way) -> tuple[Line, ...]:
    """The rails from the peer's side; none over ssh, which needs nobody to listen."""
    if way.transport == "ssh":
        return ()
    return tuple(Line(listen=rail.peer, allow=rail.here) for rail in way.rails)
