"""The machines' image: Debian trixie with systemd, Docker and sshd, then the stand-ins.

Two layers, each named by a hash of everything that goes into it. The base (a minute, needs the
network) changes rarely; the stand-ins (seconds) change while one works on them. No image registry
is involved. Checkouts with the same content share an image, as all pairs of a checkout do.
"""

import contextlib
import fcntl
import hashlib
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from simulated_pair.naming import CHECKOUT, Pair
from simulated_pair.outer import PairError, Podman, last_words, say, write_atomically

SUITE = "trixie"
BASE, MACHINE = "localhost/spark-pair-base", "localhost/spark-pair-machine"
DEFAULT_MIRROR = "http://deb.debian.org/debian"
PARTS = CHECKOUT / "simulated_pair" / "image"
STANDINS = CHECKOUT / "simulated_pair" / "standins"


def content_hash(files: Iterable[Path], root: Path, *more: str) -> str:
    """Return 12 hex digits that change with a file's name, mode or content, or with `more`."""
    digest = hashlib.sha256()
    for path in sorted(files):
        executable = "x" if path.stat().st_mode & 0o100 else "-"
        digest.update(f"{path.relative_to(root)} {executable} {path.stat().st_size}\n".encode())
        digest.update(path.read_bytes())
    for word in more:
        digest.update(f"{word}\n".encode())
    return digest.hexdigest()[:12]


def standin_files(standins: Path = STANDINS) -> list[Path]:
    """Return every file of the stand-ins that goes into the image."""
    return [
        path for path in standins.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]


def base_name() -> str:
    """Return the base image's name."""
    return f"{BASE}:{content_hash(PARTS.iterdir(), PARTS, SUITE)}"


def machine_name() -> str:
    """Return the name of the image the machines start from."""
    return f"{MACHINE}:{content_hash(standin_files(), STANDINS, base_name())}"


def packages() -> list[str]:
    """Return the Debian packages of a simulated Spark."""
    lines = (
        line.split("#")[0].strip() for line in (PARTS / "packages.txt").read_text().splitlines()
    )
    return [line for line in lines if line]


def mirror() -> str:
    """Return the mirror the outer machine itself uses, or Debian's own if it is not Debian."""
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(ORIGIN) $(REPO_URI)", "Created-By: Packages"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    for line in listed.splitlines():
        origin, _, address = line.partition(" ")
        if origin == "Debian" and address.startswith("http") and "security" not in address:
            return address.rstrip("/")
    return DEFAULT_MIRROR


def ensure(pair: Pair, podman: Podman) -> str:
    """Make the image if it is missing and return its name."""
    base, name = base_name(), machine_name()
    with _alone(pair):
        _remember(pair, base, name)
        if not _exists(podman, name):
            _ensure_base(pair, podman)
            _add_standins(pair, podman, name)
    return name


def forget_older(pair: Pair, podman: Podman) -> None:
    """Remove this checkout's earlier images, as far as no machine runs on them."""
    with _alone(pair):
        _forget(pair, podman, {base_name(), machine_name()})


def remove(pair: Pair, podman: Podman) -> None:
    """Remove this checkout's images; what another checkout's machines run on stays."""
    with _alone(pair):
        _forget(pair, podman, set())


@contextlib.contextmanager
def _alone(pair: Pair) -> Iterator[None]:
    """Hold what all pairs of the checkout share: two of them may be started at the same time."""
    pair.common.mkdir(parents=True, exist_ok=True)
    with (pair.common / "images.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _exists(podman: Podman, name: str) -> bool:
    return podman.run("image", "exists", name, check=False).returncode == 0


def _record(pair: Pair) -> Path:
    return pair.common / "images"


def _recorded(pair: Pair) -> set[str]:
    record = _record(pair)
    return set(record.read_text().split()) if record.exists() else set()


def _remember(pair: Pair, *names: str) -> None:
    recorded = _recorded(pair)
    if not recorded.issuperset(names):
        lines = sorted(recorded.union(names))
        write_atomically(_record(pair), "".join(f"{name}\n" for name in lines))


def _forget(pair: Pair, podman: Podman, keep: set[str]) -> None:
    # The machine images before the base they stand on.
    for name in sorted(_recorded(pair) - keep, reverse=True):
        others = podman.run("image", "ls", "--quiet", f"{MACHINE}:*").stdout.split()
        if name.startswith(f"{BASE}:") and others:
            # Another checkout would have to make it again at its next change.
            continue
        podman.run("image", "rm", name, check=False)
    left = [name for name in sorted(_recorded(pair)) if name in keep or _exists(podman, name)]
    write_atomically(_record(pair), "".join(f"{name}\n" for name in left))


def _ensure_base(pair: Pair, podman: Podman) -> None:
    name = base_name()
    if _exists(podman, name):
        return
    source = mirror()
    say("image", f"installing Debian {SUITE} from {source} (about a minute, once)")
    place = pair.common / "image-build"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    archive = place / "root.tar"
    try:
        made = subprocess.run(
            [
                "mmdebstrap",
                "--variant=minbase",
                f"--include={','.join(packages())}",
                "--dpkgopt=path-exclude=/usr/share/doc/*",
                "--dpkgopt=path-exclude=/usr/share/man/*",
                "--dpkgopt=path-exclude=/usr/share/locale/*",
                f"--customize-hook=copy-in {PARTS / 'customize'} /tmp",
                '--customize-hook=chroot "$1" /tmp/customize',
                '--customize-hook=rm "$1/tmp/customize"',
                SUITE,
                str(archive),
                source,
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode != 0:
            raise PairError(
                f"Debian {SUITE} could not be installed into an image from {source}: "
                f"{last_words(made.stderr)}. Check that this machine reaches the mirror, then run "
                "the same command again."
            )
        podman.run("import", str(archive), name)
    except FileNotFoundError as error:
        raise PairError("mmdebstrap is not installed on this machine; run: make setup") from error
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _add_standins(pair: Pair, podman: Podman, name: str) -> None:
    names = sorted(path.parent.name for path in STANDINS.glob("*/install.sh"))
    builder = f"{pair.prefix}-image-build"
    podman.run("rm", "--force", "--time", "0", "--ignore", builder, check=False)
    say("image", f"adding the stand-ins: {', '.join(names) or 'none yet'}")
    # Without a network: whatever a stand-in needs has to be in the checkout or in the base image.
    podman.run(
        *("run", "--detach", "--name", builder, "--privileged", "--cgroupns=private"),
        *("--network=none", "--no-hosts", base_name(), "sleep", "infinity"),
    )
    try:
        podman.run("exec", builder, "mkdir", "-p", "/opt/standins")
        if names:
            podman.run("cp", f"{STANDINS}/.", f"{builder}:/opt/standins/")
        for standin in names:
            done = podman.run(
                *("exec", "--workdir", f"/opt/standins/{standin}", builder, "./install.sh"),
                check=False,
            )
            if done.returncode != 0:
                raise PairError(
                    f"the stand-in {standin} could not be installed into the image: "
                    f"{last_words(done.stderr or done.stdout)}"
                )
        podman.run(
            "exec",
            builder,
            "sh",
            "-c",
            "find /opt/standins -name __pycache__ -prune -exec rm -r {} +",
        )
        podman.run("commit", "--quiet", builder, name)
    finally:
        podman.run("rm", "--force", "--time", "0", builder, check=False)
