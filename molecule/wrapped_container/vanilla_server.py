"""A model server on one machine, as somebody has started it with "docker run" long ago.

Runs in a container on a simulated machine, with the stand-ins' own code for what a caller meets.
"""

import signal
import sys
import threading
from types import FrameType

sys.path.insert(0, "/opt/qwen38fn")

from hikari import Hikari
from standin.service import Handler, close, listen
from standin.simulation import Faults, Ledger

PORT = 8001


class Vanilla(Hikari):
    """The same replies and metrics under another name."""

    model = "Vanilla-1"


def main() -> int:
    """Serve until told to stop."""
    over = threading.Event()

    def end(_signal: int, _frame: FrameType | None) -> None:
        over.set()

    signal.signal(signal.SIGTERM, end)
    ledger = Ledger("vanilla", "whole")
    ledger.note("start")
    service = Vanilla(Faults("vanilla"))
    # Its callers are outside of the machine.
    listener = listen(service, Handler, "0.0.0.0", PORT)  # noqa: S104
    print(f"serving {Vanilla.model} at port {PORT}", flush=True)
    over.wait()
    close(service, listener)
    ledger.note("stop")
    return 0


if __name__ == "__main__":
    sys.exit(main())
