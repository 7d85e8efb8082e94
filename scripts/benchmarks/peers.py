"""Other tools and the rule of thumb over the same measured runs as us, in one go.

    python -m venv peers && peers/bin/pip install torch transformers accelerate \\
        fitcheck-llm==0.3.1 canifinetune==0.4.1
    python scripts/benchmarks/peers.py --peers-python peers/bin/python

Every reading that `accuracy.py` predicts is given to each tool with all that its options can say.
A tool that has no answer (it refuses the architecture, or does not know the method) has none here
and is not counted against; the column "answers" tells. All figures are of the readings answered.

A false "fits" is an answer that a card would hold the run that had 2 % less than the run was
measured to need, so an error in favour of fitting beyond 2 %. The column "any" has no such margin.

The network is not used: the tools find the configurations in a Hugging Face cache made for them.
accelerate asks the hub in any case, so its own functions are called on a model of the
configuration. Without `--peers-python` only the rule and we are shown. Two to three minutes on two
cores; `--ours` takes our figures from `accuracy.py --json` instead. Exit code 0, or 3 when a peer
beats us in any column but the last.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from accuracy import rows_of
from cases import BAND, Case, outcomes, parameters_of
from error_figures import figures_of, percent
from measured import FOLDER, measured_cases
from published import FILE, published_cases

BRIDGE = Path(__file__).with_name("peer_answers.py")
US, RULE = "oomdoctor", "16 bytes a parameter"
Answers = dict[tuple[str, str], int | None]  # (case, metric) -> bytes, None for no answer


def main() -> int:
    """Ask everyone, print the table or JSON, judge."""
    options = parse_options()
    cases = [
        case
        for case in (*measured_cases(options.measured), *published_cases(options.published))
        if case.not_expressible is None and case.readings
        if not options.only or any(word in case.id for word in options.only)
    ]
    answers = {US: our_answers(cases, options.ours, options.processes), RULE: rule_answers(cases)}
    reasons: dict[str, str] = {}
    if options.peers_python is not None:
        told = ask_peers(cases, options.peers_python)
        for name, peer in told.items():
            answers[name] = {(i, metric): size for i, metric, size in peer["answers"]}
            reasons |= {f"{name}, {reason}": rows for reason, rows in peer["silent"].items()}
    # Only what we answer as well: the same readings for everyone.
    known = {key for key, size in answers[US].items() if size is not None}
    lines = [compared(name, found, cases, known) for name, found in answers.items()]
    if options.json:
        print(json.dumps({"band": BAND, "tools": lines, "no_answer": reasons}, indent=2))
    else:
        print_table(lines, reasons)
    ours, *others = lines
    return 0 if all(ahead(ours, other) for other in others) else 3


def parse_options() -> argparse.Namespace:
    """The command line; argparse's help is this file's first paragraphs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers-python", type=Path, help="an interpreter that has the tools")
    parser.add_argument("--only", action="append", help="part of a row's name; repeatable")
    parser.add_argument("--ours", type=Path, help="the output of accuracy.py --json")
    parser.add_argument("--measured", type=Path, default=FOLDER, help="folder of fixtures")
    parser.add_argument("--published", type=Path, default=FILE, help="file of published rows")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def our_answers(cases: Sequence[Case], recorded: Path | None, processes: int) -> Answers:
    """Our predictions, from a file or made now."""
    if recorded is not None:
        rows = json.loads(recorded.read_text())["rows"]
        return {(row["id"], row["metric"]): row["predicted_bytes"] for row in rows}
    rows_made = rows_of(outcomes(cases, processes=processes))
    return {(row.case.id, row.metric): row.predicted_bytes for row in rows_made}


def rule_answers(cases: Iterable[Case]) -> Answers:
    """16 bytes for each parameter, whatever is trained: weights, gradients, AdamW in mixed
    precision (Rajbhandari et al. 2020, arXiv:1910.02054, section 3.1)."""
    return {(c.id, r.metric): 16 * parameters_of(c) for c in cases for r in c.readings}


def ask_peers(cases: Sequence[Case], python: Path) -> dict[str, Any]:
    """The answers of every peer that the interpreter has, and why some have none.

    Raises:
        SystemExit: the interpreter cannot run the bridge at all.
    """
    questions = [question for case in cases for question in questions_of(case)]
    with tempfile.TemporaryDirectory() as folder:
        ended = subprocess.run(
            [str(python), str(BRIDGE), folder],
            input=json.dumps(questions),
            capture_output=True,
            text=True,
            check=False,
        )
    if ended.returncode:
        raise SystemExit(f"error: {python} could not ask the peers\n{ended.stderr[-2000:]}")
    answers: dict[str, Any] = json.loads(ended.stdout)
    return answers


def questions_of(case: Case) -> list[dict[str, Any]]:
    """What the bridge is told of each reading of a case."""
    config = case.config
    return [
        {
            "id": case.id,
            "metric": reading.metric,
            "model_id": case.model.id,
            "model_config": dict(case.model.config),
            "method": config.method,
            "weights_dtype": config.weights_dtype,
            "autocast_dtype": config.autocast_dtype,
            "optimizer": config.optimizer,
            "checkpointing": config.activation_checkpointing != "none",
            "attention": config.attention,
            "lora_rank": config.lora_rank,
            "lora_targets": list(config.lora_targets) if config.method != "full" else [],
            "quantization": config.quantization,
            "double_quant": config.double_quant,
            "micro_batch_size": config.micro_batch_size,
            "sequence_length": config.sequence_length,
            "measured_bytes": reading.measured_bytes,
        }
        for reading in case.readings
    ]


def compared(
    name: str, answers: Answers, cases: Sequence[Case], known: set[tuple[str, str]]
) -> dict[str, Any]:
    """A tool's figures over the readings that it and we answered."""
    errors = [
        size / reading.measured_bytes - 1
        for case in cases
        for reading in case.readings
        if (case.id, reading.metric) in known
        and (size := answers.get((case.id, reading.metric))) is not None
    ]
    line: dict[str, Any] = {"tool": name, "answers": len(errors), "asked": len(known)}
    if not errors:
        return line
    return (
        line
        | figures_of(errors).document()
        | {
            "false_fits": sum(error <= -BAND for error in errors),
            "false_fits_any": sum(error < 0 for error in errors),
        }
    )


def ahead(ours: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether no column of another tool is better than ours."""
    worse: Callable[[str], bool] = lambda key: abs(ours[key]) > abs(other[key])  # noqa: E731
    columns = ("signed_median", "absolute_median", "p95", "false_fits")
    return not other["answers"] or not any(worse(column) for column in columns)


def print_table(lines: Iterable[dict[str, Any]], reasons: dict[str, str]) -> None:
    """One line a tool, then why there was no answer."""
    print(
        f"{'tool':28} {'answers':>8} {'signed':>10} {'absolute':>9} {'95th':>10} "
        f"{'false fits':>10} {'any':>4}"
    )
    for line in lines:
        answers = f"{line['answers']}/{line['asked']}"
        if not line["answers"]:
            print(f"{line['tool']:28} {answers:>8}")
            continue
        print(
            f"{line['tool']:28} {answers:>8} {percent(line['signed_median']):>10} "
            f"{percent(line['absolute_median'], sign=False):>9} "
            f"{percent(line['p95'], sign=False):>10} {line['false_fits']:>10} "
            f"{line['false_fits_any']:>4}"
        )
    for reason, rows in reasons.items():
        print(f"no answer from {reason}: {rows}")


if __name__ == "__main__":
    sys.exit(main())
