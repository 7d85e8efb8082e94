"""Other tools and the rule of thumb over the same measured runs as us, in one go.

    python -m venv peers && peers/bin/pip install torch transformers accelerate \\
        fitcheck-llm==0.3.1 canifinetune==0.4.1
    python scripts/evaluation/peers.py --peers-python peers/bin/python

Every reading that `accuracy.py` predicts is given to each tool with all that its options can say.
A tool that has no answer (it refuses the architecture, or does not know the method) has none here
and is not counted against; the column "answers" tells. All figures are of the readings answered.

The first table is of figures: bytes predicted / measured - 1. "too low" counts figures more than
2 % below what was measured, "any" all that are below. A figure is bare: safety margins are taken
off, and where the allocator was read, what a tool adds for the CUDA context as well.

The second is of verdicts: does the run fit? Each tool is asked about the card of the run with 2 %
less memory than was measured, on which the run cannot fit, and with 10 % and 25 % more
(`verdicts.py` says what that comes to with a context). Each tool decides by its own rule: we by the
headroom of `plan` and its note "borderline", fitcheck-llm by its share of usable memory and its
"uncertain", canifinetune by its safety margin and its "marginal". accelerate and the rule of thumb
state none: a figure up to the size of the device fits. "wrong" are wrong answers without a warning,
"wrong, warned" are those that the tool itself calls close, and "right, warned" are right ones that
it calls close. A tool can avoid one kind of wrong answer by giving the other.

The network is not used: the tools find the configurations in a Hugging Face cache made for them.
accelerate asks the hub in any case, so its own functions are called on a model of the
configuration. Without `--peers-python` only the rule and we are shown. Three to four minutes on two
cores. Exit code 0, 3 when a peer beats us in a figure (signed median, absolute median, 95th
percentile) or in wrong answers over the three devices, and 4 when there is nothing to compare.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from cases.case import BAND, Case, Reading, parameters_of
from cases.each_case import Fault, run_each
from cases.measured import FOLDER, measured_cases
from cases.verdicts import SHARES, Answer, Verdict, devices_of, our_answers
from figures.errors import figures_of, percent
from published.rows import FILE, published_cases

BRIDGE = Path(__file__).with_name("peer_answers.py")
US, RULE = "oomdoctor", "16 bytes a parameter"
Asked = tuple[Case, Reading]
Answers = dict[tuple[str, str], Answer]  # by case and metric, where there is an answer


def main() -> int:
    """Ask everyone, print the tables or JSON, judge."""
    options = parse_options()
    cases = [
        case
        for case in (*measured_cases(options.measured), *published_cases(options.published))
        if isinstance(case, Case) and case.readings
        if not options.only or any(word in case.id for word in options.only)
    ]
    answers = {US: ask_us(cases, options.processes)}
    # Only what we answer as well: the same readings for everyone.
    asked = [
        (case, reading)
        for case in cases
        for reading in case.readings
        if (case.id, reading.metric) in answers[US]
    ]
    if not asked:
        return 4
    answers[RULE] = rule_answers(asked)
    reasons: dict[str, str] = {}
    if options.peers_python is not None:
        for name, peer in ask_peers(asked, options.peers_python).items():
            answers[name] = answers_told(asked, peer["answers"])
            reasons |= {f"{name}, {reason}": rows for reason, rows in peer["silent"].items()}
    lines = [compared(name, found, asked) for name, found in answers.items()]
    if options.json:
        print(json.dumps({"band": BAND, "tools": lines, "no_answer": reasons}, indent=2))
    else:
        print_figures(lines)
        print_verdicts(lines)
        for reason, rows in reasons.items():
            print(f"no answer from {reason}: {rows}")
    ours, *others = lines
    return 0 if all(ahead(ours, other) for other in others) else 3


def parse_options() -> argparse.Namespace:
    """The command line; argparse's help is this file's first paragraphs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers-python", type=Path, help="an interpreter that has the tools")
    parser.add_argument("--only", action="append", help="part of a row's name; repeatable")
    parser.add_argument("--measured", type=Path, default=FOLDER, help="folder of fixtures")
    parser.add_argument("--published", type=Path, default=FILE, help="file of published rows")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def ask_us(cases: Sequence[Case], processes: int) -> Answers:
    """Our predictions and verdicts."""
    found: Answers = {}
    for case, answers in run_each(our_answers, cases, processes):
        if isinstance(answers, Fault):
            print(f"{case.id}: left out, {answers.reason}", file=sys.stderr)
            continue
        print(f"{case.id}: asked", file=sys.stderr, flush=True)
        for reading, answer in zip(case.readings, answers, strict=True):
            found[case.id, reading.metric] = answer
    return found


def rule_answers(asked: Sequence[Asked]) -> Answers:
    """16 bytes for each parameter, whatever is trained: weights, gradients, AdamW in mixed
    precision (Rajbhandari et al. 2020, arXiv:1910.02054, section 3.1)."""
    return {
        (case.id, reading.metric): by_size(case, reading, 16 * parameters_of(case))
        for case, reading in asked
    }


def by_size(case: Case, reading: Reading, size: int) -> Answer:
    """The answer of a tool without a rule: it fits where the device is as large as the figure."""
    devices = devices_of(case, reading)
    return Answer(size, tuple(Verdict(size <= device.total_bytes, False) for device in devices))


def answers_told(asked: Sequence[Asked], told: Sequence[Sequence[Any]]) -> Answers:
    """What the bridge says of the readings, in their order."""
    return {
        (case.id, reading.metric): by_size(case, reading, size)
        if verdicts is None
        else Answer(size, tuple(Verdict(*verdict) for verdict in verdicts))
        for (case, reading), (_, _, size, verdicts) in zip(asked, told, strict=True)
        if size is not None
    }


def ask_peers(asked: Sequence[Asked], python: Path) -> dict[str, Any]:
    """The answers of every peer that the interpreter has, and why some have none.

    Raises:
        SystemExit: the interpreter cannot run the bridge at all.
    """
    questions = [question_of(case, reading) for case, reading in asked]
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


def question_of(case: Case, reading: Reading) -> dict[str, Any]:
    """What the bridge is told of a reading."""
    config = case.config
    return {
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
        "device_bytes": [device.total_bytes for device in devices_of(case, reading)],
    }


def compared(name: str, answers: Answers, asked: Sequence[Asked]) -> dict[str, Any]:
    """A tool's figures and verdicts over the readings that it answered."""
    found = [
        (case, reading, answers[case.id, reading.metric])
        for case, reading in asked
        if (case.id, reading.metric) in answers
    ]
    line: dict[str, Any] = {"tool": name, "answers": len(found), "asked": len(asked)}
    if not found:
        return line
    errors = [answer.predicted_bytes / reading.measured_bytes - 1 for _, reading, answer in found]
    line |= figures_of(errors).document()
    line["too_low"] = sum(error <= -BAND for error in errors)
    line["too_low_any"] = sum(error < 0 for error in errors)
    line["verdicts"] = [on_devices(number, found) for number in range(len(SHARES))]
    return line


def on_devices(
    number: int, found: Sequence[tuple[Case, Reading, Answer]]
) -> dict[str, float | int]:
    """How right a tool's verdicts are on the devices of one of the `SHARES`."""
    counts = {"wrong": 0, "wrong_warned": 0, "right_warned": 0}
    for case, reading, answer in found:
        verdict = answer.verdicts[number]
        right = verdict.fits == devices_of(case, reading)[number].holds
        if not right:
            counts["wrong_warned" if verdict.in_doubt else "wrong"] += 1
        elif verdict.in_doubt:
            counts["right_warned"] += 1
    return {"share": SHARES[number], **counts}


def ahead(ours: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether another tool is better than we in no figure and not in wrong answers."""
    if not other["answers"]:
        return True
    columns = ("signed_median", "absolute_median", "p95")
    figures = all(abs(ours[column]) <= abs(other[column]) for column in columns)
    return figures and wrong_share(ours) <= wrong_share(other)


def wrong_share(line: dict[str, Any]) -> float:
    """The share of a tool's verdicts that are wrong without a warning, over all devices."""
    return float(sum(found["wrong"] for found in line["verdicts"]) / line["answers"])


def print_figures(lines: Iterable[dict[str, Any]]) -> None:
    """One line a tool."""
    print(
        f"{'tool':28} {'answers':>8} {'signed':>10} {'absolute':>9} {'95th':>10} "
        f"{'too low':>8} {'any':>4}"
    )
    for line in lines:
        answers = f"{line['answers']}/{line['asked']}"
        if not line["answers"]:
            print(f"{line['tool']:28} {answers:>8}")
            continue
        print(
            f"{line['tool']:28} {answers:>8} {percent(line['signed_median']):>10} "
            f"{percent(line['absolute_median'], sign=False):>9} "
            f"{percent(line['p95'], sign=False):>10} {line['too_low']:>8} "
            f"{line['too_low_any']:>4}"
        )


def print_verdicts(lines: Sequence[dict[str, Any]]) -> None:
    """A block for each kind of device, one line a tool."""
    for number, share in enumerate(SHARES):
        truth = "it fits" if share > 0 else "it does not fit"
        title = f"{abs(share) * 100:.0f} % {'more' if share > 0 else 'less'} than measured: {truth}"
        print(
            f"\n{title:40} {'answers':>8} {'wrong':>6} {'wrong, warned':>14} {'right, warned':>14}"
        )
        for line in lines:
            if line["answers"]:
                found = line["verdicts"][number]
                print(
                    f"    {line['tool']:36} {line['answers']:>8} {found['wrong']:>6} "
                    f"{found['wrong_warned']:>14} {found['right_warned']:>14}"
                )
    print()


if __name__ == "__main__":
    sys.exit(main())
