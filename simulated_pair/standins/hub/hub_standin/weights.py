"""The three repositories of the move to DeepSeek, at any size.

Names of repositories, their revisions, the numbers of shards and the four files of the overlay are
as specified. How layers lie in shards is assumed, except that the overlay touches 24 of them.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from .content import INDEX, Tensor, index, write_safetensors
from .repositories import Repository

CHECKPOINT = "Mia-AiLab/DeepSeek-V4.1-Flash-1017-EXL3-EAQ-v1-2.9-bpw"
ENGRAM = "deepseek-ai/DeepSeek-V4.1-Flash-1017"
OVERLAY = "drowzeys/keys-DeepSeek-V4.1-Flash-1017-Abliterated"
# Only the first eight digits of the checkpoint's revision are known; the rest is made up.
CHECKPOINT_COMMIT = "45ee5d0f" + hashlib.sha256(CHECKPOINT.encode()).hexdigest()[:32]
ENGRAM_COMMIT = "1bae0e1088993b9b82de08f59de5be5a34e42170"
OVERLAY_COMMIT = "0bdc2036113c4fdda38ef6005b3cbc0bc0dfa0f0"
OVERLAY_FILE = "exl3_wo_b_l10_35_mia29.safetensors"
OVERLAY_LAYERS = range(10, 36)

SHARDS = 39
LAYERS = 40
LAYER_SHARDS = 37
ENGRAM_SHARDS = {47: 1, 48: 14}
ENGRAM_OF = 48

GRAFT_SCRIPT = '''\
"""Applies the overlay: ``--src DIR --wo-b FILE --dst DIR`` (the engine stand-in's program)."""

import sys

sys.path.insert(0, "/opt/engine")

from tensorfold_standin.overlay import main

raise SystemExit(main(sys.argv[1:]))
'''


def wo_b(layer: int, seed: str, *, stock_dtypes: bool = True) -> list[Tensor]:
    """The four tensors of one layer that the overlay replaces."""
    prefix = f"layers.{layer}.attn.wo_b"
    scale = "F16" if stock_dtypes else "F32"
    return [
        Tensor(f"{prefix}.trellis", "I16", (8, 16, 48), seed),
        Tensor(f"{prefix}.suh", scale, (128,), seed),
        Tensor(f"{prefix}.svh", scale, (256,), seed),
        Tensor(f"{prefix}.mul1", "I32", (), seed),
    ]


def _layer(number: int, size: int) -> list[Tensor]:
    """A layer of about ``size`` bytes."""
    small = [
        *wo_b(number, "stock"),
        Tensor(f"layers.{number}.attn_norm.weight", "BF16", (128,)),
        Tensor(f"layers.{number}.attn.scale", "F32", (64,)),
        Tensor(f"layers.{number}.ffn.gate.bias", "F32", (33,)),
    ]
    rest = size - sum(tensor.size for tensor in small)
    columns = max(16, rest // 4)
    return [*small, Tensor(f"layers.{number}.ffn.experts.trellis", "I16", (2, columns))]


def checkpoint_shards(size: int) -> dict[str, list[Tensor]]:
    """The 39 shards, of about ``size`` bytes in all."""
    each = size // SHARDS
    held: list[list[Tensor]] = [[] for _ in range(SHARDS)]
    for layer in range(LAYERS):
        shard = layer * LAYER_SHARDS // LAYERS
        held[shard] += _layer(layer, each * LAYER_SHARDS // LAYERS)
    rows = max(8, each // 512)
    held[LAYER_SHARDS] = [Tensor("mtp.0.ffn.experts.trellis", "I16", (2, rows * 128))]
    held[LAYER_SHARDS + 1] = [
        Tensor("embed.weight", "BF16", (rows, 128)),
        Tensor("head.weight", "BF16", (rows, 128)),
        Tensor("norm.weight", "BF16", (128,)),
    ]
    return {
        f"model-{number:05}-of-{SHARDS:05}.safetensors": tensors
        for number, tensors in enumerate(held, 1)
    }


def engram_shards(size: int) -> dict[str, list[Tensor]]:
    """All shards of the unquantised model: the two with the tables share ``size`` bytes."""
    shards: dict[str, list[Tensor]] = {}
    for number in range(1, ENGRAM_OF + 1):
        layer = ENGRAM_SHARDS.get(number)
        if layer is None:
            tensors = [Tensor(f"layers.{number}.ffn.w1.weight", "F8_E4M3", (2, 512))]
        else:
            rows = max(2, size // 2 // (256 + 8))
            prefix = f"layers.{layer}.engram.embed"
            tensors = [
                Tensor(f"{prefix}.weight", "F8_E4M3", (rows, 256)),
                Tensor(f"{prefix}.scale", "F8_E8M0", (rows, 8)),
            ]
        shards[f"model-{number:05}-of-{ENGRAM_OF:05}.safetensors"] = tensors
    return shards


def _small_files(repository: str, *, quantised: bool) -> dict[str, str]:
    config: dict[str, object] = {"model_type": "deepseek_v4", "num_hidden_layers": LAYERS}
    if quantised:
        config["quantization_config"] = {"quant_method": "exl3", "bits": 2.9}
    return {
        ".gitattributes": "*.safetensors filter=lfs diff=lfs merge=lfs -text\n",
        "README.md": f"# {repository}\n\nStand-in. Its numbers are noise.\n",
        "LICENSE": "MIT\n",
        "config.json": json.dumps(config, indent=2) + "\n",
        "generation_config.json": json.dumps({"temperature": 1.0, "top_p": 0.95}) + "\n",
        "tokenizer.json": json.dumps({"model": {"type": "BPE", "vocab": {}}}) + "\n",
        "tokenizer_config.json": json.dumps({"add_bos_token": False}) + "\n",
    }


def _write(folder: Path, shards: dict[str, list[Tensor]], texts: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, tensors in shards.items():
        write_safetensors(folder / name, tensors)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")


def checkpoint(size: int = 4 << 20) -> Repository:
    """The quantised checkpoint, of about ``size`` bytes; its index is big enough for LFS."""

    def make(folder: Path) -> None:
        shards = checkpoint_shards(size)
        texts = _small_files(CHECKPOINT, quantised=True)
        _write(folder, shards, {**texts, INDEX: index(shards)})

    return Repository(
        CHECKPOINT, CHECKPOINT_COMMIT, make, f"checkpoint {size}", large=("*.safetensors", INDEX)
    )


def engram(size: int = 2 << 20) -> Repository:
    """The unquantised model, whose shards 47 and 48 hold the Engram tables of ``size`` bytes."""

    def make(folder: Path) -> None:
        shards = engram_shards(size)
        texts = _small_files(ENGRAM, quantised=False)
        _write(folder, shards, {**texts, INDEX: index(shards)})

    return Repository(ENGRAM, ENGRAM_COMMIT, make, f"engram {size}", large=("*.safetensors", INDEX))


def overlay(*, stock_dtypes: bool = True) -> Repository:
    """The gated overlay: 104 tensors in one file, three small files and two nobody asks for."""

    def make(folder: Path) -> None:
        tensors = [
            tensor
            for layer in OVERLAY_LAYERS
            for tensor in wo_b(layer, "overlay", stock_dtypes=stock_dtypes)
        ]
        meta = {"base": CHECKPOINT_COMMIT[:8], "layers": [10, 35], "tensors": len(tensors)}
        texts = {
            ".gitattributes": "*.safetensors filter=lfs diff=lfs merge=lfs -text\n",
            "README.md": f"# {OVERLAY}\n\nStand-in. Its numbers are noise.\n",
            "INSTALL.md": "Apply to the quantised checkpoint only.\n",
            "EXL3_MIA29_ABLIT_META.json": json.dumps(meta) + "\n",
            "apply_mia29_wo_b_graft.py": GRAFT_SCRIPT,
        }
        _write(folder, {OVERLAY_FILE: tensors}, texts)

    return Repository(OVERLAY, OVERLAY_COMMIT, make, f"overlay {stock_dtypes}", gated=True)


def account(size: int = 8 << 20, *, stock_dtypes: bool = True) -> list[Repository]:
    """All three, in about the account's proportions, of about ``size`` bytes in all."""
    return [checkpoint(size // 2), engram(size // 2), overlay(stock_dtypes=stock_dtypes)]
