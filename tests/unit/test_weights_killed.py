"""A gigabyte, ten kills: what came before a kill is not fetched again, whatever the moment.

Takes most of a minute. In a hurry: pytest -m "not long".
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import hub_server
import pytest
from hub_server import noise_repository

from spark_pair.weights.cache import Cache
from spark_pair.weights.hub import Hub
from spark_pair.weights.manifest import Manifest

ROOT = Path(__file__).resolve().parents[2]
REPO = "own/big"
MIB = 1 << 20
SIZES = {
    "a-large.safetensors": 992 * MIB,
    "b-middle.safetensors": 24 * MIB + 5,
    "c-middle.safetensors": 24 * MIB,
    "config.json": 3000,
}
TOTAL = sum(SIZES.values())
KILLS = 10
BYTES_PER_SECOND = 60e6
"""So few that whoever looks for the moment of a kill may sleep for a second."""
REFETCHED_AT_MOST = 0.05
PATIENCE_SECONDS = 300

PROGRAM = "import sys; from spark_pair.cli import main; sys.exit(main(sys.argv[1:]))"


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What the Hub serves, made once and removed at once: it is two gigabytes."""
    folder = tmp_path_factory.mktemp("hub")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    yield Cache.of_account(tmp_path)
    shutil.rmtree(tmp_path / ".cache", ignore_errors=True)


@pytest.mark.long
@pytest.mark.parametrize("way", ["http", "xet"])
def test_ten_kills_cost_next_to_nothing(
    way: str, content: Path, cache: Cache, tmp_path: Path
) -> None:
    chance = random.Random(20)  # noqa: S311 - the same moments each time
    repository = noise_repository(REPO, SIZES)
    with hub_server.Hub(
        content, [repository], xet=way == "xet", bytes_per_second=BYTES_PER_SECOND
    ) as server:
        manifest = Hub(server.url).manifest(REPO, repository.commit)
        order = {
            **{"schema": 1, "source": "engram", "endpoint": server.url, "home": str(tmp_path)},
            **{"manifest": manifest.as_dict(), "files": list(SIZES)},
        }
        (tmp_path / "order.json").write_text(json.dumps(order))
        program = [sys.executable, "-c", PROGRAM, "weights", "download"]
        command = [*program, str(tmp_path / "order.json")]
        lost = []
        for number in range(KILLS):
            # One moment in each tenth; the last leaves enough for a quick machine not to be done.
            wanted = int((number + chance.uniform(0.1, 0.4)) / KILLS * TOTAL)
            kill_at(command, cache, manifest, wanted, chance.uniform(0.0, 0.05))
            lost.append((server.bytes_so_far(REPO) - arrived(cache, manifest)) / MIB)
        subprocess.run(command, cwd=ROOT, check=True, timeout=PATIENCE_SECONDS)
        for path in SIZES:
            entry = cache.snapshot(REPO, manifest.commit) / path
            told = server.file(REPO, path)
            if told.sha256:
                with entry.open("rb") as stream:
                    assert hashlib.file_digest(stream, "sha256").hexdigest() == told.sha256, path
            else:
                assert entry.read_bytes() == server.content(REPO, path), path
        again = server.bytes_served(REPO) - TOTAL
    words = (
        f"{KILLS} kills on {TOTAL / MIB:.0f} MiB by {way}: {again / MIB:.1f} MiB refetched, "
        f"{again / TOTAL:.2%} (at most {REFETCHED_AT_MOST:.0%}); MiB lost up to each kill: "
        f"{', '.join(f'{mib:.1f}' for mib in lost)}"
    )
    print(words)
    assert 0 <= again <= REFETCHED_AT_MOST * TOTAL, words


def kill_at(
    command: list[str], cache: Cache, manifest: Manifest, wanted: int, seconds: float
) -> None:
    """Run the program and kill it so many seconds after so many bytes have arrived."""
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        end = time.monotonic() + PATIENCE_SECONDS
        while arrived(cache, manifest) < wanted:
            assert process.poll() is None, "it ended before it was killed"
            assert time.monotonic() < end, f"{wanted} bytes did not arrive"
            time.sleep(0.005)
        time.sleep(seconds)
    finally:
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "it ended before it was killed"


def arrived(cache: Cache, manifest: Manifest) -> int:
    """Bytes in place and in parts."""
    return sum(
        file.size if cache.locate(REPO, manifest.commit, file) else cache.partial(REPO, file)
        for file in manifest.files
    )
