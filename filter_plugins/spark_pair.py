"""Filters that turn inventory variables into what is written to the hosts."""

from __future__ import annotations

import functools
import json
import socket
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleFilterError

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from spark_pair import pair_variables, pool, release  # noqa: E402 - needs the path above
from spark_pair.errors import SparkPairError  # noqa: E402


def _said_plainly(function: Callable[..., Any]) -> Callable[..., Any]:
    """Hand our own sentences to Ansible as they are."""

    @functools.wraps(function)
    def wrapped(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except SparkPairError as error:
            raise AnsibleFilterError(str(error)) from error

    return wrapped


@_said_plainly
def description(hostvars: Mapping[str, Mapping[str, Any]], host: str) -> dict[str, Any]:
    """Content of pair.json for one host; raises on variables that make no valid pair."""
    made = pair_variables.description_of(host, hostvars)
    # Plain JSON types only: what is written must not depend on the types of the template engine.
    plain: dict[str, Any] = json.loads(json.dumps(made))
    return plain


@_said_plainly
def engines(hostvars: Mapping[str, Mapping[str, Any]], host: str) -> list[dict[str, Any]]:
    """Engine entries of this host's pair, each with everything that is written for it."""
    return [engine.as_dict() for engine in pair_variables.engines_of(host, hostvars)]


@_said_plainly
def api_keys(hostvars: Mapping[str, Mapping[str, Any]], host: str) -> dict[str, str]:
    """API keys of this host's pair by server. Secret: for the tasks that write them down only."""
    return pair_variables.api_keys_of(host, hostvars)


def requests_at_once(
    prompt: Any, max_tokens: Any, context: Any, parallel: Any, rows: Any = 16
) -> int:
    """How many requests of so many prompt tokens and so large a reply budget fit at once."""
    try:
        numbers = [int(value) for value in (prompt, max_tokens, context, parallel, rows)]
    except (TypeError, ValueError) as error:
        raise AnsibleFilterError(f"spark_pair_pool takes whole numbers: {error}") from error
    if min(numbers) < 1:
        raise AnsibleFilterError(f"spark_pair_pool takes numbers above 0, not {min(numbers)}")
    wanted, budget, *shared = numbers
    return pool.Pool(*shared).at_once(wanted, budget)


@_said_plainly
def addresses(hostvars: Mapping[str, Mapping[str, Any]], host: str) -> list[str]:
    """Addresses at which the peer reaches this host, management first."""
    return pair_variables.addresses(host, hostvars)


def numeric_addresses(names: Iterable[str]) -> list[str]:
    """IP addresses of the given names, for an authorized_keys `from=` (sshd compares addresses).

    A name that the controller cannot resolve stays as it is.
    """
    found: list[str] = []
    for name in names:
        try:
            entries = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except OSError:
            resolved = [name]
        else:
            resolved = [str(entry[4][0]) for entry in entries]
        found += [address for address in resolved if address not in found]
    return found


def release_hash(checkout: str) -> str:
    """Name of the release that belongs to the sources of a checkout of this repository."""
    return release.release_hash(Path(checkout).resolve())


class FilterModule:
    """Registers the filters."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name to function."""
        return {
            "spark_pair_description": description,
            "spark_pair_engines": engines,
            "spark_pair_api_keys": api_keys,
            "spark_pair_pool": requests_at_once,
            "spark_pair_addresses": addresses,
            "spark_pair_numeric_addresses": numeric_addresses,
            "spark_pair_release_hash": release_hash,
        }
