"""Does a server answer? Asked with a real generation: a 200 from anything less proves nothing."""

import json
import re
import time
import urllib.error
import urllib.request

from simulated_pair.naming import Machine

HIKARI_PORT = 8000
DEEPSEEK_PORT = 8888

# The outer machine's proxy, if it has one, does not know the pair's addresses.
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _get(url: str, seconds: float) -> str:
    with _direct.open(url, timeout=seconds) as reply:
        return str(reply.read().decode())


def model_that_generates(machine: Machine, port: int, seconds: float) -> str | None:
    """Return the name of the model that just generated text at a machine's port, or None.

    Two requests, each given `seconds`.
    """
    base = f"http://{machine.management}:{port}/v1"
    try:
        model = str(json.loads(_get(f"{base}/models", seconds))["data"][0]["id"])
        body = {
            "model": model,
            "messages": [{"role": "user", "content": "Say hello."}],
            "max_tokens": 8,
            "temperature": 0,
            "chat_template_kwargs": {"enable_thinking": False},
        }
        request = urllib.request.Request(
            f"{base}/chat/completions",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with _direct.open(request, timeout=seconds) as reply:
            message = json.load(reply)["choices"][0]["message"]
    except (OSError, ValueError, KeyError, IndexError, TypeError, urllib.error.URLError):
        return None
    text = message.get("content") or message.get("reasoning_content") or ""
    return model if text.strip() else None


def requests_held(machine: Machine, port: int, seconds: float) -> float | None:
    """Return how many requests a server holds, running and waiting, or None if it does not say."""
    try:
        text = _get(f"http://{machine.management}:{port}/metrics", seconds)
    except (OSError, urllib.error.URLError):
        return None
    pattern = r"^\w+:num_requests_(?:running|waiting)(?:\{[^}]*\})? ([0-9.e+-]+)$"
    values = re.findall(pattern, text, flags=re.MULTILINE)
    return sum(float(value) for value in values) if values else None


def is_idle(machine: Machine, port: int, seconds: float) -> bool:
    """Tell whether a server says within `seconds` that it holds no request.

    Asked more than once: it may count a request for a moment after having answered it.
    """
    until = time.monotonic() + seconds
    while requests_held(machine, port, seconds) != 0:
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True


def wait_until_it_generates(machine: Machine, port: int, seconds: float) -> str | None:
    """Ask for up to `seconds` and return the model's name, or None if it never generated."""
    until = time.monotonic() + seconds
    while True:
        model = model_that_generates(machine, port, min(5.0, seconds))
        if model is not None or time.monotonic() > until:
            return model
        time.sleep(0.1)
