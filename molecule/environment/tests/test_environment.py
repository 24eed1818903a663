"""Stale variables in every place that a start could inherit from do not reach the engine."""

import json
from collections.abc import Iterator

import pytest
from stories.machines import HEAD, HOSTS, machine, on, on_both
from stories.plays import play
from stories.servers import RANK, assert_deepseek_alone, assert_hikari_alone

STALE = {
    "TF_DS_PREFILL_INTERLEAVE_MS": "4711",
    "PREFILL_INTERLEAVE_MS": "4711",
    "HOST": "127.0.0.1",
    "PORT": "9999",
    "IMAGE": "somebody/elses:image",
    "CONTEXT": "1024",
    "CONTAINER_NAME": "stray",
    "NCCL_DEBUG": "stale",
}

_LINES = "".join(f"{name}={value}\n" for name, value in STALE.items())
_EXPORTS = "".join(f"export {name}={value}\n" for name, value in STALE.items())

# In front of what is there: Debian's .bashrc returns at once in a shell without a terminal.
_LIE_ABOUT = """
set -euo pipefail
mkdir -p /run/before
for file in {home}/.profile {home}/.bashrc /etc/environment; do
    cp -a "$file" "/run/before/${{file//\\//+}}"
    printf '%s' '{text}' | cat - "/run/before/${{file//\\//+}}" >"$file"
done
printf '%s' '{lines}' >{home}/.pam_environment
printf '%s' '{lines}' >{home}/.ssh/environment
printf '%s' '{text}' >/etc/profile.d/stale.sh
systemctl set-environment {words}
"""

_CLEAR_UP = """
for file in {home}/.profile {home}/.bashrc /etc/environment; do
    mv "/run/before/${{file//\\//+}}" "$file"
done
rm -rf /run/before /etc/profile.d/stale.sh {home}/.pam_environment {home}/.ssh/environment
systemctl unset-environment {names}
"""


@pytest.fixture
def stale(hikari_serves: None) -> Iterator[None]:
    words = " ".join(f"{name}={value}" for name, value in STALE.items())
    for host in HOSTS:
        home = machine(host).home
        on(host, _LIE_ABOUT.format(home=home, text=_EXPORTS, lines=_LINES, words=words))
    told = on_both("systemctl show-environment")
    assert all("4711" in text for text in told.values()), "nothing was laid about"
    yield
    for host in HOSTS:
        on(host, _CLEAR_UP.format(home=machine(host).home, names=" ".join(STALE)))


def _engine(host: str) -> tuple[dict[str, str], list[str]]:
    """A rank's environment and command."""
    shown = json.loads(on(host, f"docker inspect {RANK}"))[0]["Config"]
    environment = dict(item.split("=", 1) for item in shown["Env"])
    return environment, [*(shown["Entrypoint"] or []), *(shown["Cmd"] or [])]


@pytest.mark.fault(38)
def test_nothing_stale_reaches_the_engine(stale: None) -> None:
    play("cutover", environment=STALE).succeeded()
    assert_deepseek_alone()
    for host in HOSTS:
        environment, command = _engine(host)
        assert environment["TF_DS_PREFILL_INTERLEAVE_MS"] == "0"
        assert not set(STALE.values()) & {*environment.values(), *command}
    command_line = " ".join(_engine(HEAD)[1])
    assert "--host 0.0.0.0 --port 8888" in command_line and "--context 262144" in command_line
    listening = on(HEAD, "ss -Hltn").split()
    assert "0.0.0.0:8888" in listening
    assert not [address for address in listening if address.endswith(":9999")]
    # stop.sh reads the same variables: with a stray name it would find no container to stop.
    play("rollback", environment=STALE).succeeded()
    assert_hikari_alone()
