"""Checks of Docker, the NVIDIA runtime, the head's tools and the Hub."""

from __future__ import annotations

from .checks import Check, HostCheck, Outcome, Sight, fail, ok, unknown, warn

RUNTIME = "nvidia"


def _docker(sight: Sight) -> Outcome:
    if not sight["docker_client"]:
        return warn("not installed", "there is no Docker yet: the runtime stage installs it")
    found = sight["docker"]
    if found["why"]:
        return warn(
            "not usable",
            f"{sight.user} cannot use Docker ({found['why'].rstrip('.')})",
            "the runtime stage starts it and lets the account in",
        )
    return ok(str(found["version"]))


def _toolkit(sight: Sight) -> Outcome:
    missing = [name for name, path in sight["toolkit"].items() if not path]
    if not missing:
        return ok("installed")
    verb = "are" if len(missing) > 1 else "is"
    return fail(
        "missing",
        f"{' and '.join(missing)} {verb} not there, so no container gets the GPU",
        "install nvidia-container-toolkit from NVIDIA's repository (DGX OS brings it)",
    )


def _runtime(sight: Sight) -> Outcome:
    if not sight["docker_client"]:
        return unknown("unknown", "there is no Docker that could know the runtime")
    found = sight["docker"]
    if found["why"]:
        return unknown("unknown", f"Docker did not answer {sight.user}: {found['why']}")
    if RUNTIME in found["runtimes"]:
        return ok("registered")
    return warn(
        "not registered",
        "Docker does not know the NVIDIA runtime: the runtime stage registers it, which takes a "
        "restart of Docker",
    )


def _head_tools(sight: Sight) -> Outcome:
    tools = sight["tools"]
    missing = [name for name, path in tools.items() if not path]
    words = ", ".join(name for name, path in tools.items() if path) or "none"
    if not missing:
        return ok(words)
    return warn(words, f"no {' and no '.join(missing)}", "the tools stage installs what is missing")


def _hub(sight: Sight) -> Outcome:
    found = sight["hub"]
    if found["answers"]:
        return ok(str(found["said"]))
    return warn(
        "no answer",
        f"{found['url']} does not answer ({found['said']}): weights cannot be downloaded here; set "
        "the proxies of the environment, or bring the files another way",
    )


SOFTWARE: tuple[Check, ...] = (
    HostCheck(
        "docker",
        "Docker",
        "Docker answers the servers' account.",
        guards=(11,),
        needs=("docker_client", "docker"),
        judge=_docker,
    ),
    HostCheck(
        "nvidia_toolkit",
        "NVIDIA container toolkit",
        "`nvidia-ctk` and `nvidia-container-runtime` are installed.",
        guards=(11,),
        needs=("toolkit",),
        judge=_toolkit,
    ),
    HostCheck(
        "nvidia_runtime",
        "NVIDIA runtime in Docker",
        "Docker knows the runtime `nvidia`.",
        guards=(11,),
        needs=("docker_client", "docker"),
        judge=_runtime,
    ),
    HostCheck(
        "head_tools",
        "tools of the head",
        "git, python3 and hf are there, looked for at their places and not on the PATH alone.",
        guards=(37,),
        roles=("head",),
        needs=("tools",),
        judge=_head_tools,
    ),
    HostCheck(
        "hub",
        "Hugging Face Hub",
        "`preflight_hub_url` answers the head, through the environment's proxies.",
        roles=("head",),
        needs=("hub",),
        judge=_hub,
    ),
)
