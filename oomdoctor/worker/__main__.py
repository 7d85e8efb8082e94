"""`python -m oomdoctor.worker JOB REPLY`: read a job from a JSON file, write the reply to another.

`--host` imports torch once and forks a child per job, with the same kind of files. `--simulator`
runs the jobs one after the other in one process. `--node` runs the ranks of one machine. `--parse`
checks the settings of a training with the libraries that they are for. `--costs` says what operator
calls cost that the emulated device noted.
"""

from __future__ import annotations

import sys
from pathlib import Path

from oomdoctor.records.codec import dumps, loads
from oomdoctor.records.job.result import ProbeJob
from oomdoctor.system.store.record_files import whole_or_not
from oomdoctor.worker.answer import answer
from oomdoctor.worker.protocol import PhaseFile, phase_file


def run_job(job_path: Path, reply_path: Path) -> None:
    """Answer one job. The reply appears as a whole or not at all (atomic rename)."""
    job = loads(ProbeJob, job_path.read_text())
    reply = answer(job, PhaseFile(phase_file(reply_path)), reply_path.parent)
    with whole_or_not(reply_path) as unfinished:
        unfinished.write_text(dumps(reply))


def main(arguments: list[str]) -> int:
    """The worker's command line: `--host`, `--simulator`, or the paths of a job and its reply."""
    if arguments in (["--host"], ["--simulator"]):
        from oomdoctor.worker.host import serve

        return serve(run_job, isolated=arguments == ["--host"])
    if arguments == ["--parse"]:
        from oomdoctor.worker.parsing import parse

        return parse()
    if arguments == ["--costs"]:
        from oomdoctor.worker.simulating.noted_calls import answer_costs

        return answer_costs()
    if arguments[:1] == ["--node"] and len(arguments) == 3:
        from oomdoctor.worker.answer import answer_here
        from oomdoctor.worker.ranks.agent import run_this_node

        return run_this_node(Path(arguments[1]), arguments[2], answer_here)
    if len(arguments) != 2:
        usage = "JOB REPLY | --host | --simulator | --node FOLDER HOST:PORT | --parse | --costs"
        sys.stderr.write(f"usage: python -m oomdoctor.worker {usage}\n")
        return 2
    run_job(Path(arguments[0]), Path(arguments[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
