"""`oomdoctor env`: what this machine has, what that makes possible, and which settings apply."""

from __future__ import annotations

import sys

from oomdoctor.cli.options import answer
from oomdoctor.cli.streams import output


def env(json_: answer.ListJson = False) -> None:
    """Show this machine's GPUs, libraries and settings.

    Also says what each library makes possible, and whether a GPU can be emulated. Loads neither
    torch nor CUDA.

    Examples:
      oomdoctor env
      oomdoctor env --json
    Next: `oomdoctor probe HuggingFaceTB/SmolLM2-135M --recipe quick`
    """
    from oomdoctor.commands.devices.emulated import why_not, without_values
    from oomdoctor.render.env_page import CalibratedDevice, Emulation, Environment, environment_page
    from oomdoctor.system import environment
    from oomdoctor.system.interpreters.venvs import kept_environments
    from oomdoctor.system.machine.capabilities import capabilities, installed_versions
    from oomdoctor.system.machine.limits import available_memory
    from oomdoctor.system.machine.nvml import driver_version, list_gpus
    from oomdoctor.system.store.calibration import everything

    versions, gpus = installed_versions(), list_gpus()
    reason = why_not(sys.executable)
    described = Environment(
        gpus=gpus,
        driver_version=driver_version(),
        versions=versions,
        capabilities=capabilities(versions, gpus),
        slurm=environment.slurm(),
        settings=environment.settings(),
        memory_available_bytes=available_memory(),
        environments=kept_environments(),
        emulation=Emulation(
            possible=reason is None,
            python=sys.executable,
            reason=reason.message if reason is not None else None,
            hint=reason.hint if reason is not None else None,
            without_values=without_values(sys.executable) if reason is None else None,
        ),
        calibrated=tuple(
            CalibratedDevice(each.gpu_name, each.timed_at, each.driver_version, each.torch)
            for each in everything()
            if each.times is not None
        ),
    )
    output.publish(environment_page(described).text, "json" if json_ else "table")
