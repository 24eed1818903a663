"""The operator's own files of an engine, on the controller: patches and the kit, proven by hash.

A file that is missing or has changed is refused here, in one sentence, before anything is sent.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from . import engine_kit
from .engine_inputs import without_secret
from .engine_settings import Engine, variable_of
from .errors import DescriptionError


def prepare(engine: Engine, cache: Path) -> dict[str, Any]:
    """Prove all files that lie on this controller, and say what a checkout is made from.

    A kit in a folder is packed below `cache`, to be sent in one go. No address of it shows a name
    or a password. Raises DescriptionError naming variable and file.
    """
    for patch in engine.patches:
        if not patch.from_url:
            label = f"{variable_of('patches')} of {engine.name}"
            _prove_patch(label, Path(patch.source), patch.sha256)
    words = f"{without_secret(engine.recipe_url)} at {engine.commit}"
    if engine.patches:
        words += f" with {', '.join(patch.name for patch in engine.patches)}"
    kit = None
    if engine.kit is not None:
        kit = {key: getattr(engine.kit, key) for key in ("manifest_sha256", "count", "folder")}
        words += f" and a kit of {engine.kit.count} files"
    return {
        "checkout": {
            "path": engine.checkout,
            "url": without_secret(engine.recipe_url),
            "commit": engine.commit,
            "patches": [{"name": one.name, "sha256": one.sha256} for one in engine.patches],
            "kit": kit,
        },
        "kit_archive": _kit_archive(engine, cache),
        "words": words,
    }


def _kit_archive(engine: Engine, cache: Path) -> str | None:
    """The kit's archive on this controller; None when there is no kit, or the head fetches it."""
    kit = engine.kit
    if kit is None or kit.from_url:
        return None
    source = Path(kit.source)
    declared = engine_kit.Declared(kit.manifest_sha256, kit.count)
    try:
        engine_kit.prove(source, declared)
        if not source.is_dir():
            return str(source)
        archive = cache / f"{kit.manifest_sha256[:12]}.tar"
        engine_kit.pack(source, archive)
    except (engine_kit.KitError, OSError) as error:
        raise DescriptionError(
            f"{variable_of('kit')} of {engine.name}: {source} on this controller is not the "
            f"declared kit: {error}. Nothing was copied"
        ) from error
    return str(archive)


def _prove_patch(label: str, file: Path, sha256: str) -> None:
    try:
        found = engine_kit.digest(file)
    except OSError as error:
        raise DescriptionError(
            f"{label}: {file} cannot be read on this controller ({error.strerror}); declared is a "
            f"file with sha256 {sha256}. Nothing was copied"
        ) from error
    if found != sha256:
        raise DescriptionError(
            f"{label}: {file} has sha256 {found}, declared is {sha256}. If the file is right, "
            "declare its own: it then makes another checkout and image. Nothing was copied"
        )
