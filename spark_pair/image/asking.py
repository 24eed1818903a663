"""What hosts are asked about images, and what their jobs are given, by a pair's settings. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

from ..engine_inputs import Kit
from ..engine_settings import Engine
from ..weights.manifest import HostRole
from ..weights.order_making import way_of
from ..weights.order_parts import SCHEMA
from ..weights.variables import Settings
from .due import Step, Wanted
from .order import BUILD, EXPORT, FETCH


def asked(role: HostRole, images: Sequence[Wanted], settings: Settings) -> dict[str, Any]:
    """What one machine is asked to look at; see `look`. The kits lie on the head alone."""
    kits = {
        image.name: {
            "files": f"{image.engine.checkout}/{image.engine.kit.folder}",
            "in_image": image.engine.kit.in_image,
            "manifest_sha256": image.engine.kit.manifest_sha256,
            "count": image.engine.kit.count,
        }
        for image in images
        if image.engine.kit is not None and role == "head"
    }
    return {
        "images": [image.name for image in images],
        "kits": kits,
        "builds": {
            image.name: {
                "checkout": image.engine.checkout,
                "command": list(image.engine.build_command),
            }
            for image in images
            if image.engine.image_built and role == "head"
        },
        "prune": list(settings.prune_images),
        "scratch": archives(settings.homes[role]),
    }


def archives(home: str) -> str:
    """Folder in which the archive of an image lies on its way."""
    return str(PurePosixPath(home) / ".cache/spark-pair/images")


def scratch(home: str, engine: Engine) -> str:
    """Folder in which an image is built; its log lies beside it."""
    return str(PurePosixPath(home) / ".cache/spark-pair/build" / engine.recipe_id)


def orders(step: Step, images: Sequence[Wanted], settings: Settings) -> dict[str, Any]:
    """A step with the orders of its jobs; that of a fetch still lacks its `archive`.

    Raises StepError when the machines have no rail to send over.
    """
    image = next(one for one in images if one.name == step.image)
    if step.kind == "build":
        return {**step.as_dict(), "order": _build(image.engine, settings)}
    return {**step.as_dict(), "export": _export(step, settings), "fetch": _fetch(step, settings)}


def _begin(kind: str, home: str, settings: Settings) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "kind": kind,
        "home": home,
        "floor_bytes": settings.options.floor_bytes,
    }


def _build(engine: Engine, settings: Settings) -> dict[str, Any]:
    home = settings.homes["head"]
    return {
        **_begin(BUILD, home, settings),
        "image": engine.image,
        "checkout": engine.checkout,
        "scratch": scratch(home, engine),
        "command": list(engine.build_command),
        "kit": _kit(engine.kit),
        "expected_bytes": settings.options.image_bytes,
    }


def _kit(kit: Kit | None) -> dict[str, Any] | None:
    if kit is None:
        return None
    return {
        "folder": kit.folder,
        "in_image": kit.in_image,
        "manifest_sha256": kit.manifest_sha256,
        "count": kit.count,
    }


def _export(step: Step, settings: Settings) -> dict[str, Any]:
    home = settings.homes["head"]
    return {
        **_begin(EXPORT, home, settings),
        "image": step.image,
        "identity": step.identity,
        "folder": archives(home),
    }


def _fetch(step: Step, settings: Settings) -> dict[str, Any]:
    home = settings.homes["worker"]
    return {
        **_begin(FETCH, home, settings),
        "image": step.image,
        "identity": step.identity,
        "folder": archives(home),
        "from": archives(settings.homes["head"]),
        **way_of(settings, "worker"),
    }
