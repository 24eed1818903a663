"""Whether the image of a generation holds what that was made for, before anything is stopped."""

from __future__ import annotations

from pathlib import Path

from .. import jsonfile
from ..errors import SparkPairError
from ..generation import MANIFEST
from . import kit as kits


def kit_problem(generation: Path, read: kits.Reader | None = None) -> str | None:
    """What the image on this host lacks of the kit that a generation declares, in a sentence.

    None when all of it is right, or no kit is declared. The list of the kit's files is that of the
    generation's own copy of the recipe.
    """
    told = jsonfile.read(generation / MANIFEST)
    kit = told.get("kit") if isinstance(told, dict) else None
    if not isinstance(told, dict) or not isinstance(kit, dict):
        return None
    try:
        image = str(told["image"])
        declared = {"manifest_sha256": kit["manifest_sha256"], "count": kit["files"]}
        wanted = kits.wanted_files(generation / "recipe" / str(kit["folder"]), declared)
        wrong = kits.problem(image, wanted, str(kit["in_image"]), read)
    except KeyError as error:
        return f"{generation / MANIFEST} does not say {error} of the kit: run --tags service"
    except SparkPairError as error:
        return f"whether the engine's image holds the kit cannot be told: {error}"
    if not wrong:
        return None
    return f"image {image} {wrong}: have it built anew with --tags image"
