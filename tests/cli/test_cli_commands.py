"""The commands besides `probe`, as a pipe gets them."""

from __future__ import annotations

import json
import tomllib

import pytest

from oomdoctor.records.codec import dumps
from oomdoctor.system import catalogue
from oomdoctor.system.recipes import recipes
from oomdoctor.system.store import run_folders, run_list


class TestShow:
    @pytest.fixture
    def run(self, cli, survey):
        cli("probe", "m")
        return run_list.open_run().name

    @pytest.mark.parametrize("name", [None, "latest", "by name", "by folder"])
    def test_a_run_reads_as_it_did(self, cli, survey, run, name):
        words = {"by name": run, "by folder": str(run_folders.runs_dir() / run)}
        shown = cli("show", *([] if name is None else [words.get(name, name)]))
        assert shown.code == 0
        assert shown.err == ""
        assert shown.out == cli("probe", "m", "--quiet").out

    @pytest.mark.parametrize("format_", ["table", "markdown", "csv", "json"])
    def test_every_format(self, cli, survey, run, format_):
        assert cli("show", "--format", format_).out == cli("probe", "m", "--format", format_).out

    def test_json_is_the_report(self, cli, survey, run):
        assert json.loads(cli("show", "--json").out) == json.loads(dumps(survey.answer))

    def test_a_file_gets_it_too(self, cli, survey, run, tmp_path):
        ended = cli("show", "--format", "markdown", "--output", str(tmp_path / "r.md"))
        assert (tmp_path / "r.md").read_text() == ended.out

    def test_showing_a_no_is_no_failure(self, cli, survey, golden):
        survey.answer = golden("interrupted")
        assert cli("probe", "m").code != 0
        assert cli("show").code == 0

    def test_the_list(self, cli, survey, run):
        ended = cli("show", "--list")
        assert ended.code == 0
        assert run in ended.out

    def test_the_list_as_json(self, cli, survey, run):
        document = json.loads(cli("show", "--list", "--json").out)
        assert run in json.dumps(document)

    def test_no_run_yet(self, cli):
        ended = cli("show")
        assert (ended.code, ended.out) == (2, "")
        assert "oomdoctor probe MODEL" in ended.err

    def test_an_empty_list_is_no_error(self, cli):
        assert cli("show", "--list").code == 0

    def test_a_run_without_report_names_the_way_on(self, cli, survey, run):
        (run_folders.runs_dir() / run / "report.json").unlink()
        ended = cli("show", run)
        assert ended.code == 5
        assert f"oomdoctor probe --resume {run}" in ended.err


class TestRecipes:
    def test_the_list_names_all(self, cli):
        ended = cli("recipes")
        assert ended.code == 0
        for name in recipes.recipe_names():
            assert f"\n{name} " in ended.out

    def test_the_list_as_json(self, cli):
        document = json.loads(cli("recipes", "--json").out)
        assert [r["name"] for r in document["recipes"]] == list(recipes.recipe_names())

    @pytest.mark.parametrize("name", recipes.recipe_names())
    def test_show_prints_the_file_itself(self, cli, name):
        ended = cli("recipes", "show", name)
        assert ended.out == recipes.recipe_text(name)
        assert tomllib.loads(ended.out)["rung"]

    def test_show_as_json_has_whole_rungs(self, cli):
        document = json.loads(cli("recipes", "show", "quick", "--json").out)
        assert document["recipe"]["rungs"][0]["config"]["method"]

    def test_copy_then_check(self, cli, tmp_path):
        file = tmp_path / "mine.toml"
        copied = cli("recipes", "copy", "qlora", str(file))
        assert (copied.code, copied.out) == (0, "")
        assert file.read_text() == recipes.recipe_text("qlora")
        assert f"oomdoctor recipes check {file}" in copied.err
        checked = cli("recipes", "check", str(file))
        assert (checked.code, checked.out) == (0, f"{file}: no errors\n")

    def test_copy_into_a_folder(self, cli, tmp_path):
        assert cli("recipes", "copy", "quick", str(tmp_path)).code == 0
        assert (tmp_path / "quick.toml").is_file()

    def test_copy_overwrites_only_when_told(self, cli, tmp_path):
        file = tmp_path / "mine.toml"
        file.write_text("mine")
        refused = cli("recipes", "copy", "quick", str(file))
        assert refused.code == 2
        assert "--force" in refused.err
        assert file.read_text() == "mine"
        assert cli("recipes", "copy", "quick", str(file), "--force").code == 0
        assert file.read_text() == recipes.recipe_text("quick")

    def test_check_tells_every_fault(self, cli, tmp_path):
        file = tmp_path / "bad.toml"
        file.write_text('[[rung]]\nmethod = "lore"\nlora_rank = 0\nno_such_key = 1\n')
        ended = cli("recipes", "check", str(file))
        assert (ended.code, ended.out) == (2, "")
        for key in ("method", "no_such_key"):
            assert key in ended.err
        assert f"{file}:2:" in ended.err

    @pytest.mark.parametrize("arguments", [("show", "no-such"), ("copy", "no-such", "x.toml")])
    def test_an_unknown_name(self, cli, arguments):
        ended = cli("recipes", *arguments)
        assert ended.code == 2
        assert "default" in ended.err


class TestFacts:
    def test_gpus_lists_all(self, cli):
        out = cli("gpus").out
        assert all(card.name in out for card in catalogue.gpus())

    def test_models_lists_all(self, cli):
        out = cli("models").out
        assert all(model.id in out for model in catalogue.models())

    def test_one_card(self, cli):
        ended = cli("gpus", "NVIDIA H200", "--json")
        assert [card["name"] for card in json.loads(ended.out)["gpus"]] == ["NVIDIA H200"]

    @pytest.mark.parametrize(
        ("arguments", "names"),
        [
            (("gpus", "H100"), ["NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "NVIDIA H100 NVL"]),
            (("gpus", "h100", "pcie"), ["NVIDIA H100 PCIe"]),
            (("gpus", "h100 nvl"), ["NVIDIA H100 NVL"]),
            (("gpus", "rtx4090"), ["NVIDIA GeForce RTX 4090"]),
            (("models", "LLAMA", "3.1", "8b"), ["meta-llama/Llama-3.1-8B"]),
            (("models", "smollm2", "1.7"), ["HuggingFaceTB/SmolLM2-1.7B"]),
        ],
        ids=" ".join,
    )
    def test_words_search(self, cli, arguments, names):
        ended = cli(*arguments, "--json")
        rows = json.loads(ended.out)[arguments[0]]
        assert ended.code == 0
        assert [row.get("name") or row["id"] for row in rows] == names

    def test_a_family_of_models(self, cli):
        ended = cli("models", "llama")
        assert ended.out.count("lama") > 10
        assert "Qwen2.5-7B" not in ended.out

    def test_one_model_by_its_tail(self, cli):
        found = json.loads(cli("models", "SmolLM2-135M", "--json").out)["models"]
        assert [model["id"] for model in found] == ["HuggingFaceTB/SmolLM2-135M"]

    @pytest.mark.parametrize(
        ("arguments", "near"),
        [(("gpus", "NVIDIA H2000"), "H200"), (("models", "SmolLM2-134M"), "SmolLM2-135M")],
    )
    def test_an_unknown_name_gets_the_nearest(self, cli, arguments, near):
        ended = cli(*arguments)
        assert (ended.code, ended.out) == (3, "")
        assert near in ended.err.partition("hint:")[2]
        found = json.loads(cli(*arguments, "--json").out)
        assert (found["status"], found["exit_code"]) == ("no", 3)
        assert near in found["errors"][0]["hint"]


class TestEnv:
    def test_the_page(self, cli, monkeypatch):
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        ended = cli("env")
        assert ended.code == 0
        assert "hf_secret" not in ended.out
        for word in ("torch", "transformers", "bitsandbytes", "HF_HOME", "Slurm"):
            assert word in ended.out

    def test_the_document(self, cli, monkeypatch):
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        ended = cli("env", "--json")
        assert "hf_secret" not in ended.out
        found = json.loads(ended.out)["environment"]
        assert found["versions"]["python"]
        assert {row["name"] for row in found["capabilities"]} >= {"torch", "peft"}
        settings = {row["name"]: row for row in found["settings"]}
        assert settings["HF_HUB_OFFLINE"]["value"] == "1"
        assert settings["HF_HUB_OFFLINE"]["origin"] == "environment"


@pytest.mark.parametrize(
    "arguments",
    [("gpus",), ("models",), ("recipes",), ("env",), ("show", "--list"), ("recipes", "--json")],
    ids=" ".join,
)
def test_no_command_but_the_worker_loads_torch(child, arguments):
    import subprocess
    import sys

    code = (
        "import sys; from oomdoctor.cli.main import run; code = run(sys.argv[1:])\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules; sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
