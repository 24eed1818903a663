#!/usr/bin/env python3
"""A smoke reading of one lane's speed against a running server. Random words: compare nothing.

usage: bench.py [BASE_URL]      default http://127.0.0.1:8888/v1
"""

from __future__ import annotations

import json
import sys
import time
import urllib.request


def main() -> None:
    """Ask once and print tokens a second."""
    base = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8888/v1"
    body = {"messages": [{"role": "user", "content": "count"}], "max_tokens": 200}
    request = urllib.request.Request(
        f"{base}/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    began = time.monotonic()
    with urllib.request.urlopen(request, timeout=180) as reply:
        usage = json.load(reply)["usage"]
    seconds = time.monotonic() - began
    print(f"one lane: {usage['completion_tokens'] / seconds:.2f} tokens/s")


if __name__ == "__main__":
    main()
