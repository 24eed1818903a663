"""Checks of the machine itself: what it is, its versions, its clocks, how it went down last."""

from __future__ import annotations

from ..findings import Grade
from .checks import Check, HostCheck, Outcome, PairCheck, Sight, equal, fail, ok, unknown, warn
from .parse import NOT_AVAILABLE

ARCHITECTURE = "aarch64"
GPU = "GB10"

# A GPU that is busy and yet slow and cold has latched into its low-power state.
LATCH_UTILISATION = 90
LATCH_CLOCK_MHZ = 1400
LATCH_POWER_W = 40

LIKE_CLOCKS = 0.9
"""Share of the faster GPU's clock from which the slower one counts as equally fast."""

SKEW_SECONDS = 5.0
"""Difference of two clocks that the way from the controller cannot explain."""

_LATCH_HINT = (
    "the GPU is in its low-power state, unless a server that waits for its other rank only looks "
    "busy (ask it for a completion first): end the load, shut down, pull the power cable of the "
    "machine for 30 to 60 seconds and boot; if it comes back, the power supply or the machine is "
    "at fault"
)


def _architecture(sight: Sight) -> Outcome:
    found = sight["architecture"]
    if found == ARCHITECTURE:
        return ok(found)
    return fail(found, f"this is {found}, and the engine's images are built for {ARCHITECTURE}")


def _gpu(sight: Sight) -> Outcome:
    found = sight["gpu_list"]
    if not found:
        said = f" ({sight['nvml'].rstrip('.')})" if sight["nvml"] else ""
        return fail(
            "none",
            f"nvidia-smi lists no GPU{said}: look at 'dmesg | grep NVRM'; reboot, and reinstall "
            "the driver if that does not bring it back",
        )
    names = ", ".join(line.partition(": ")[2] or line for line in found)
    if GPU not in names:
        return warn(names, f"the GPU is no {GPU}: nothing here was measured with it")
    return ok(names)


def _os(sight: Sight) -> str:
    return str(sight["os_release"]["PRETTY_NAME"] or sight["os_release"]["VERSION_ID"] or "?")


def _dgx(sight: Sight) -> str:
    found = sight["dgx_release"]
    return str(found["updated"] or found["built"] or "?")


def _kernel(sight: Sight) -> str:
    return str(sight["kernel"])


def _bios(sight: Sight) -> str:
    return str(sight["bios_version"])


def _driver(sight: Sight) -> str:
    return str(sight["driver_loaded"])


def _firmware_words(sight: Sight) -> str:
    found = {
        str(one["firmware"] or "unknown")
        for one in sight["rails"]["interfaces"].values()
        if one["cx7"]
    }
    return ", ".join(sorted(found)) or "unknown"


def _firmware(head: Sight, worker: Sight) -> tuple[Grade, str]:
    words = [_firmware_words(head), _firmware_words(worker)]
    if "unknown" in " ".join(words):
        return Grade.UNKNOWN, "the firmware of a ConnectX-7 interface could not be read"
    return _same_firmware(head, worker)


_same_firmware = equal(
    Grade.WARN,
    "bring both to one version ('fwupdmgr update'), since mixed firmware was never measured",
    _firmware_words,
)


def _driver_module(sight: Sight) -> Outcome:
    loaded = str(sight["driver_loaded"])
    if "mismatch" in sight["nvml"].lower():
        return fail(
            f"{loaded} loaded",
            "the loaded driver module does not fit the installed user space (nvidia-smi: "
            "Driver/library version mismatch), as after an update: reboot this machine",
        )
    # The library's file tells more than nvidia-smi, which answers until its own file is replaced.
    installed = list(sight["driver_library"] or [])
    if not installed and sight["gpu"]:
        installed = [str(sight["gpu"]["driver_version"])]
    if not installed:
        return unknown(loaded, "neither libnvidia-ml.so nor nvidia-smi tells the installed version")
    if loaded in installed:
        return ok(loaded)
    return fail(
        f"{loaded} loaded",
        f"the loaded driver module is {loaded}, the installed user space is "
        f"{' and '.join(installed)}: reboot this machine",
    )


def _kernel_cma(sight: Sight) -> Outcome:
    total, free = (sight["meminfo"].get(name) for name in ("CmaTotal", "CmaFree"))
    if total is None or free is None:
        return unknown("unknown", "/proc/meminfo has no CmaTotal and CmaFree")
    words = f"{free // 1024} of {total // 1024} MiB free"
    if free > total:
        return fail(
            words,
            "this kernel counts more free CMA memory than there is, and RDMA registration will end "
            "with ENOMEM at every start: boot with kho=off on the kernel's command line, or a 6.17 "
            "kernel",
        )
    return ok(words)


def _machine_id(head: Sight, worker: Sight) -> tuple[Grade, str]:
    if head["machine_id"] != worker["machine_id"]:
        return Grade.OK, ""
    return (
        Grade.FAIL,
        "both machines have the same /etc/machine-id and fight for DHCP leases and mDNS names: on "
        f"{worker.host} run 'rm -f /etc/machine-id /var/lib/dbus/machine-id && "
        "systemd-machine-id-setup' and reboot it; DHCP may then give it another address",
    )


def _clock_settings(sight: Sight) -> list[str]:
    gpu = sight["gpu"]
    return [str(gpu[name]) for name in ("clocks.max.sm", "clocks.applications.graphics")]


def _clocks_words(sight: Sight) -> str:
    highest, applications = _clock_settings(sight)
    return f"max {highest}, app {applications}"


def _is_error(value: object) -> bool:
    """Whether nvidia-smi gave an error in a value's place, as "[Unknown Error]"."""
    return str(value).startswith("[") and value != NOT_AVAILABLE


def _gpu_errors(head: Sight, worker: Sight) -> tuple[Grade, str] | None:
    """What the clock settings are worth when a GPU answers with errors; None when none does."""
    said = {
        sight.host: next(value for value in _clock_settings(sight) if _is_error(value))
        for sight in (head, worker)
        if any(map(_is_error, _clock_settings(sight)))
    }
    if not said:
        return None
    reset = {host: value for host, value in said.items() if "requires reset" in value.lower()}
    words = " and ".join(dict.fromkeys((reset or said).values()))
    hosts = " and ".join(reset or said)
    if reset:
        return Grade.FAIL, f"the GPU of {hosts} answers {words}: reboot"
    return Grade.UNKNOWN, f"nvidia-smi answers {words} on {hosts} instead of a clock"


def _clocks(head: Sight, worker: Sight) -> tuple[Grade, str]:
    if errors := _gpu_errors(head, worker):
        return errors
    for name, ours, theirs in zip(
        ("highest SM clock", "applications clock"),
        _clock_settings(head),
        _clock_settings(worker),
        strict=True,
    ):
        if ours != theirs:
            one_sided = NOT_AVAILABLE in (ours, theirs)
            return (
                Grade.FAIL,
                f"the {name} is {ours} on {head.host} and {theirs} on {worker.host}: "
                + (
                    "a driver that does not know it on one machine only is a sick one; reboot that "
                    "machine and compare again"
                    if one_sided
                    else "every token waits for the slower machine; on both run 'nvidia-smi -rgc' "
                    "and 'nvidia-smi -rac', reboot, and compare driver and firmware; if they stay "
                    "apart and you know why, set preflight_accept: [clocks]"
                ),
            )
    return _clocks_under_load(head, worker)


def _clocks_under_load(head: Sight, worker: Sight) -> tuple[Grade, str]:
    """Equal settings may still not hold; an idle GPU tells nothing of it."""
    clocks = {}
    for sight in (head, worker):
        used, clock = (_number(sight["gpu"][name]) for name in ("utilization.gpu", "clocks.sm"))
        if used is None or clock is None or used < LATCH_UTILISATION:
            return Grade.OK, ""
        clocks[sight.host] = clock
    if min(clocks.values()) >= LIKE_CLOCKS * max(clocks.values()):
        return Grade.OK, ""
    said = " and ".join(f"{clock:.0f} MHz on {host}" for host, clock in clocks.items())
    return (
        Grade.WARN,
        f"both GPUs are busy and run at {said}: every token waits for the slower machine; confirm "
        "under load (run this again), then compare temperature, power supply and firmware",
    )


def _number(text: object) -> float | None:
    try:
        return float(str(text).split()[0])
    except (ValueError, IndexError):
        return None


def _gpu_power(sight: Sight) -> Outcome:
    gpu = sight["gpu"]
    used, clock, power = (
        _number(gpu[name]) for name in ("utilization.gpu", "clocks.sm", "power.draw")
    )
    errors = dict.fromkeys(str(value) for value in gpu.values() if _is_error(value))
    if errors:
        return unknown("unknown", f"nvidia-smi answers {' and '.join(errors)}")
    if used is None or clock is None or power is None:
        return unknown("unknown", "nvidia-smi does not tell utilisation, clock and power here")
    words = f"{used:.0f} %, {clock:.0f} MHz, {power:.0f} W"
    if used < LATCH_UTILISATION:
        return unknown(words, "only a load shows whether the GPU reaches its clock")
    if clock < LATCH_CLOCK_MHZ and power < LATCH_POWER_W and gpu["pstate"] == "P0":
        return fail(words, _LATCH_HINT)
    return ok(words)


def _skew_words(sight: Sight) -> str:
    return f"{sight['clock_offset']:+.1f} s"


def _time_skew(head: Sight, worker: Sight) -> tuple[Grade, str]:
    apart = abs(head["clock_offset"] - worker["clock_offset"])
    if apart <= SKEW_SECONDS:
        return Grade.OK, ""
    return (
        Grade.WARN,
        f"the clocks of {head.host} and {worker.host} are {apart:.0f} s apart: their logs cannot "
        "be compared and certificates may be refused; look at 'timedatectl' on both",
    )


def _ntp(sight: Sight) -> Outcome:
    if sight["clock_synchronized"]:
        return ok("yes")
    return warn("no", "nothing keeps this clock right: 'timedatectl set-ntp true'")


def _unclean_boot(sight: Sight) -> Outcome:
    found = sight["previous_boot"]
    if found["ended"] == "orderly":
        return ok("orderly")
    return warn(
        f"abrupt, {found['last']}",
        f"the journal of the boot before this one stops at {found['last']} without a shutdown: the "
        "machine lost its power, hung or was reset; if nobody did that, look at the power supply "
        "and at 'journalctl -b -1 -e'",
    )


MACHINE: tuple[Check, ...] = (
    HostCheck(
        "architecture",
        "architecture",
        "The processor is the one that the engine's images are built for.",
        needs=("architecture",),
        judge=_architecture,
    ),
    HostCheck(
        "gpu",
        "GPU",
        "`nvidia-smi -L` lists the machine's GB10.",
        needs=("gpu_list",),
        uses=("nvml",),
        judge=_gpu,
    ),
    PairCheck(
        "os",
        "operating system",
        "Both machines run the same release (`/etc/os-release`).",
        guards=(30,),
        needs=("os_release",),
        words=_os,
        compare=equal(Grade.WARN, "update the older one, so that both behave alike", _os),
    ),
    PairCheck(
        "dgx_os",
        "DGX OS",
        "Both machines have the same DGX OS (`/etc/dgx-release`).",
        guards=(30,),
        needs=("dgx_release",),
        words=_dgx,
        compare=equal(Grade.WARN, "update the older one, so that both behave alike", _dgx),
    ),
    PairCheck(
        "kernel",
        "kernel",
        "Both machines run the same kernel.",
        guards=(3, 30),
        needs=("kernel",),
        words=_kernel,
        compare=equal(Grade.WARN, "boot both into the same one", _kernel),
    ),
    PairCheck(
        "driver",
        "NVIDIA driver",
        "Both machines have the same driver loaded.",
        guards=(30,),
        needs=("driver_loaded",),
        words=_driver,
        compare=equal(
            Grade.FAIL,
            "two ranks with different drivers were never measured; bring both to one version",
            _driver,
        ),
    ),
    HostCheck(
        "driver_module",
        "driver module and library",
        "The loaded kernel module is of the same version as the installed user space.",
        guards=(30,),
        needs=("nvml", "driver_loaded"),
        uses=("driver_library", "gpu"),
        judge=_driver_module,
    ),
    PairCheck(
        "firmware",
        "ConnectX-7 firmware",
        "Both network adapters run the same firmware.",
        guards=(30,),
        needs=("rails",),
        words=_firmware_words,
        compare=_firmware,
    ),
    PairCheck(
        "bios",
        "BIOS",
        "Both machines have the same BIOS (system firmware).",
        guards=(30,),
        needs=("bios_version",),
        words=_bios,
        compare=equal(Grade.WARN, "bring both to one version ('fwupdmgr update')", _bios),
    ),
    HostCheck(
        "kernel_cma",
        "kernel's CMA count",
        "`CmaFree` is not above `CmaTotal`, the sign of a kernel on which RDMA cannot register "
        "memory.",
        guards=(3,),
        needs=("meminfo",),
        judge=_kernel_cma,
    ),
    PairCheck(
        "machine_id",
        "machine-id (hash)",
        "The machine-ids differ; images of some machines were shipped with one and the same.",
        needs=("machine_id",),
        words=lambda sight: str(sight["machine_id"]),
        compare=_machine_id,
    ),
    PairCheck(
        "clocks",
        "GPU clock settings",
        "Highest and applications clock are the same on both machines; `[N/A]` on both is fine. "
        "Two busy GPUs also run about equally fast.",
        guards=(9,),
        needs=("gpu",),
        words=_clocks_words,
        compare=_clocks,
    ),
    HostCheck(
        "gpu_power",
        "GPU under load",
        "A busy GPU is neither slow nor cold (utilisation ≥ 90 %, SM clock < 1400 MHz and < 40 W "
        "in P0 together are the low-power state). An idle one tells nothing.",
        guards=(9,),
        needs=("gpu",),
        judge=_gpu_power,
    ),
    PairCheck(
        "time_skew",
        "clock against controller",
        "The clocks of both machines agree; the way from the controller is in both figures.",
        needs=("clock_offset",),
        words=_skew_words,
        compare=_time_skew,
    ),
    HostCheck(
        "ntp",
        "clock kept by NTP",
        "Something keeps the clock right.",
        needs=("clock_synchronized",),
        judge=_ntp,
    ),
    HostCheck(
        "unclean_boot",
        "end of previous boot",
        "The journal of the boot before this one ends with a shutdown.",
        guards=(19,),
        needs=("previous_boot",),
        judge=_unclean_boot,
    ),
)
