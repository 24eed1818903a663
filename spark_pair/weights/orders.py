"""Which order a job was given, by its kind. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..errors import DescriptionError
from .acceptance import Acceptance
from .download_order import DownloadOrder
from .graft_order import KINDS as GRAFT_KINDS
from .graft_order import GraftOrder
from .remove_order import DROP, PRUNE, DropOrder, PruneOrder
from .shard_order import KIND as SHARD
from .shard_order import ShardOrder
from .transfer_order import KIND as TRANSFER
from .transfer_order import RANK_KIND, RankTransferOrder, TransferOrder

DOWNLOAD = "download"
"""What an order without a kind is."""

_READERS: Mapping[str, Callable[[Any], Acceptance]] = {
    DOWNLOAD: DownloadOrder.from_dict,
    TRANSFER: TransferOrder.from_dict,
    RANK_KIND: RankTransferOrder.from_dict,
    **dict.fromkeys(GRAFT_KINDS, GraftOrder.from_dict),
    SHARD: ShardOrder.from_dict,
    PRUNE: PruneOrder.from_dict,
    DROP: DropOrder.from_dict,
}


def acceptance(order: Any) -> Acceptance | None:
    """What the job of that order may have recorded; None for one that records nothing new.

    Of such a kind are a verification and whatever this release does not know.
    """
    if not isinstance(order, Mapping):
        return None
    reader = _READERS.get(str(order.get("kind", DOWNLOAD)))
    try:
        return reader(order) if reader else None
    except DescriptionError:
        return None
