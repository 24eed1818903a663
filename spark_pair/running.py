"""A server as the generation that runs serves it, which may differ from what is wanted now.

After a change of the port, the name, the context or of whether a key is asked for, the old
generation still serves as it was made: it must be observed, drained and, if it has to come back,
verified by its own values.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from . import jsonfile, paths
from .description import Context, Generation, Port, Server


def generation_of(server: Server) -> Generation | None:
    """The generation that the server's link points to; None when there is no such link."""
    made = server.generation
    if made is None or not Path(made.current).is_symlink():
        return None
    target = Path(made.current).resolve()
    return Generation(target.name, str(target), made.current)


def form(server: Server, generation: Generation | None) -> Server:
    """The server with the port, name, context and need of a key of `generation`; as it is if
    nothing is known."""
    if generation is None or server.generation is None or generation.hash == server.generation.hash:
        return server
    manifest = jsonfile.read(Path(generation.path) / "generation.json")
    serves = manifest.get("serves") if isinstance(manifest, dict) else None
    if not isinstance(serves, dict):
        return server
    port, model, context = (serves.get(key) for key in ("port", "model", "context"))
    if not (isinstance(port, int) and isinstance(model, str) and isinstance(context, int)):
        return server
    api = replace(server.api, port=port, model=model)
    if "key" in serves:
        # The file is there still: a key that is no longer wanted is not taken away.
        api = replace(api, key_file=str(paths.key_file(server.name)) if serves["key"] else None)
    return replace(
        server,
        api=api,
        ports=tuple(
            Port(known.host, port if known.port == server.api.port else known.port)
            for known in server.ports
        ),
        context=Context(context, server.context.source) if server.context else None,
        generation=generation,
    )


def as_running(server: Server) -> Server:
    """The server as it runs now, or would if it ran."""
    return form(server, generation_of(server))
