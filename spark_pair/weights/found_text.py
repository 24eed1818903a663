"""What one machine holds of the weights, in lines for people, for when there is no plan. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .budget import words as size_words

Seen = Mapping[str, Any]


def lines(host: str, seen: Seen) -> list[str]:
    """What one machine told: its record, files without one, what differs and what is unknown."""
    told = [*_recorded(seen), *_cached(seen), *_ranks(seen)] or ["nothing of the weights"]
    return [f"{host} holds:", *(f"  {line}" for line in told), *(f"  {n}" for n in notes(seen))]


def notes(seen: Seen) -> list[str]:
    """What is not as recorded, and what could not be read."""
    unread = sorted(seen["unread"].items())
    return [
        *(f"! {words}" for words in seen["differences"]),
        *(f"! {what} is not known: {why}" for what, why in unread),
    ]


def _recorded(seen: Seen) -> Iterator[str]:
    for name, entry in sorted(seen["artefacts"].items()):
        size = sum(file["size"] for file in entry["files"].values())
        overlay = entry.get("details", {}).get("overlay")
        grafted = f" with the overlay {overlay[:8]}" if overlay else ""
        yield (
            f"{name} of {entry['repo']} at {entry['commit'][:8]}{grafted}: "
            f"{_files(len(entry['files']))}, {size_words(size)}, {entry['origin']}"
        )


def _cached(seen: Seen) -> Iterator[str]:
    known = {
        (entry["repo"], entry["commit"], path)
        for entry in seen["artefacts"].values()
        for path in entry["files"]
    }
    for repo, commits in sorted(seen["cached"].items()):
        for commit, files in sorted(commits.items()):
            sizes = [size for path, size in files.items() if (repo, commit, path) not in known]
            if sizes:
                size = size_words(sum(sizes))
                yield f"{_files(len(sizes))} of {repo} at {commit[:8]}, {size}, without a record"


def _ranks(seen: Seen) -> Iterator[str]:
    for file in seen["ranks"]["files"]:
        if not file["recorded"]:
            yield f"{file['name']}, {size_words(file['size'])}, without a record"


def _files(number: int) -> str:
    return f"{number} {'file' if number == 1 else 'files'}"
