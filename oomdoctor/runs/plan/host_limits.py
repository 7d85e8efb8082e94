"""Whether the limits of a login node leave a plan enough, asked before its workers start."""

from __future__ import annotations

from oomdoctor.analysis.command_line import command_line
from oomdoctor.errors import OomDoctorError, machine_error
from oomdoctor.records.facts.warnings import few_addresses
from oomdoctor.records.report import SurveyRequest, Warn
from oomdoctor.system.environment import slurm
from oomdoctor.system.machine.limits import HostLimit, Kind, host_limits, tightest
from oomdoctor.units import GIB, MIB, format_bytes

# Measured with torch 2.13 on Linux: below this, a worker cannot load its libraries. A worker takes
# 460 to 640 MiB of memory, up to 10 GiB of addresses for a moment, and up to 9 threads, most idle.
_LEAST: dict[Kind, int] = {"addresses": 900 * MIB, "memory": 700 * MIB, "tasks": 24}
_ENOUGH_ADDRESSES = 4 * GIB


def check(request: SurveyRequest) -> tuple[Warn, ...]:
    """Refuse a plan that the limits on this process would end, and warn of one that may.

    Raises:
        OomDoctorError: a limit leaves too little for one worker (exit 5).
    """
    limits = host_limits()
    for kind, least in _LEAST.items():
        limit = tightest(kind, limits)
        if limit is not None and limit.left < least:
            needed = f"{least} of them" if kind == "tasks" else format_bytes(least)
            raise machine_error(
                "host_limit",
                f"a plan cannot run here: {limit.words}; it needs at least {needed}",
                _remedy(limit, request),
            )
    addresses = tightest("addresses", limits)
    if addresses is None or addresses.left >= _ENOUGH_ADDRESSES:
        return ()
    return (few_addresses(addresses.words, _remedy(addresses, request)),)


def with_remedy(error: OomDoctorError, request: SurveyRequest) -> OomDoctorError:
    """The error of a worker that a limit ended; its hint is the command line to type."""
    limits = host_limits()
    limit = tightest("addresses", limits) or tightest("memory", limits)
    if error.code not in ("host_limit", "host_oom") or limit is None:
        return error
    return machine_error(error.code, error.message, _remedy(limit, request))


def _remedy(limit: HostLimit, request: SurveyRequest) -> str:
    command = command_line(request)
    if limit.can_be_raised:
        option = "v" if limit.kind == "addresses" else "u"
        return f"raise it: ulimit -S{option} unlimited && {command}"
    if slurm().on_login_node:
        return f"run it in a job: srun --cpus-per-task=2 --mem=4G {command}"
    return f"run it where the limit is higher, such as in a job with 4 GiB: {command}"
