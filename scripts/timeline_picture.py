"""Makes the page of `snapshot` and the timeline in README.md from a training on the emulated GPU.

    python scripts/timeline_picture.py [PYTHON]

It trains Qwen2.5-0.5B with random weights for three steps on an emulated RTX 4090, with PyTorch's
own history of its memory, and draws that. scripts/build_docs.py then renews the page. PYTHON has a
CUDA build of torch (default: .venv-cuda, which scripts/cuda-venv.sh makes).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from picture_files import keep_all

from oomdoctor.cli.explain_sources import histories, read_file
from oomdoctor.records.report.timeline import Timeline
from oomdoctor.render.snapshot.png import png
from oomdoctor.snapshot.timeline import timeline_of

ROOT = Path(__file__).parents[1]
REPORT = ROOT / "docs" / "reports" / "snapshot.json"
SNAPSHOT = "memory_snapshot.pickle"
TRAINING = """
import torch
from transformers import AutoModelForCausalLM, Qwen2Config

config = Qwen2Config(
    vocab_size=151936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24,
    num_attention_heads=14, num_key_value_heads=2, tie_word_embeddings=True,
)


def main():
    torch.cuda.memory._record_memory_history()
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    batch = torch.randint(0, config.vocab_size, (4, 1024), device="cuda")
    for _ in range(3):
        model(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.memory._dump_snapshot("memory_snapshot.pickle")


main()
"""


def main() -> None:
    """Train, and draw."""
    python = sys.argv[1] if len(sys.argv) > 1 else str(ROOT / ".venv-cuda" / "bin" / "python")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(TRAINING)
        run = ["run", "--emulate", "RTX 4090", "--steps", "all", "--python", python]
        _oomdoctor(folder, *run, "--", "python", "train.py")
        _oomdoctor(folder, "snapshot", SNAPSHOT, "--quiet", "--output", str(REPORT))
        keep_all("timeline", partial(png, timeline(Path(folder) / SNAPSHOT)))
        text = REPORT.read_text(encoding="utf-8")
        for found, shown in ((f"{folder}/", ""), (f"{Path(python).parents[1]}", "/home/you/venv")):
            text = text.replace(found, shown)
        REPORT.write_text(text, encoding="utf-8")


def timeline(file: Path) -> Timeline:
    """The timeline of a snapshot, as `snapshot --png` draws it."""
    return timeline_of(file.name, histories(read_file(file, quiet=True)).values(), None)


def _oomdoctor(folder: str, *words: str) -> None:
    subprocess.run([sys.executable, "-m", "oomdoctor", *words], cwd=folder, check=True)


if __name__ == "__main__":
    main()
