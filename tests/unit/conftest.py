"""Keeps the hub client of every test away from this account's cache, token and settings."""

import atexit
import os
import shutil
import tempfile

# Before anything imports huggingface_hub, which reads its settings once.
_home = tempfile.mkdtemp(prefix="spark-pair-hf-")
atexit.register(shutil.rmtree, _home, ignore_errors=True)
for _name in [name for name in os.environ if name.startswith(("HF_", "HUGGING"))]:
    del os.environ[_name]
os.environ |= {
    "HF_HOME": _home,
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_XET_CLIENT_RETRY_BASE_DELAY": "50ms",
    "HF_XET_TELEMETRY_ENABLED": "false",
}
