"""Whether a folder lies on a disk of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_pair.filesystems import kinds, over_a_network


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "proc/self").mkdir(parents=True)
    return tmp_path


def mounted(root: Path, *mounts: tuple[str, str]) -> None:
    lines = [
        f"{number} 1 8:1 / {point} rw,relatime shared:1 - {kind} source rw\n"
        for number, (point, kind) in enumerate(mounts, 20)
    ]
    (root / "proc/self/mountinfo").write_text("".join(lines))


def test_the_nearest_mount_decides(root: Path) -> None:
    mounted(root, ("/", "ext4"), ("/srv", "xfs"), ("/srv/hf", "nfs4"), ("/srv/hf-local", "ext4"))
    paths = ["/x", "/srv/x", "/srv/hf/hub", "/srv/hf-local/x"]
    assert kinds(paths, root) == dict(zip(paths, ["ext4", "xfs", "nfs4", "ext4"], strict=True))


def test_the_later_mount_on_a_place_hides_the_earlier(root: Path) -> None:
    mounted(root, ("/", "ext4"), ("/srv", "nfs"), ("/srv", "ext4"), (r"/srv/a\040b", "cifs"))
    assert kinds(["/srv/x", "/srv/a b/c"], root) == {"/srv/x": "ext4", "/srv/a b/c": "cifs"}


def test_where_the_links_in_a_folder_lead_counts(root: Path) -> None:
    (root / "snapshot").mkdir()
    (root / "blobs").mkdir()
    (root / "blobs/1").touch()
    (root / "snapshot/shard").symlink_to(root / "blobs/1")
    mounted(root, ("/", "ext4"), (str(root / "blobs"), "nfs4"))
    assert kinds([str(root / "snapshot")], root) == {str(root / "snapshot"): "nfs4"}


def test_unreadable_is_unknown(tmp_path: Path) -> None:
    assert kinds(["/x"], tmp_path) == {"/x": None}


@pytest.mark.parametrize(
    ("kind", "remote"), [("nfs", True), ("fuse.sshfs", True), ("ext4", False), ("overlay", False)]
)
def test_kinds(kind: str, remote: bool) -> None:
    assert over_a_network(kind) is remote


def test_of_this_machine() -> None:
    assert kinds(["/proc"]) == {"/proc": "proc"}
