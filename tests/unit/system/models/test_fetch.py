"""config.json from a hub: a stand-in on this machine that answers as huggingface.co does."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from oomdoctor.errors import ExitCode, OomDoctorError
from oomdoctor.records.job.model import ModelRef
from oomdoctor.system.models.hub import resolve, resolve_with_notes

COMMIT = "89abcdef0123456789abcdef0123456789abcdef"
CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 128}
BAD_TOKEN = "Invalid credentials in Authorization header"  # the hub's words, without a code


@dataclass
class Hub:
    """What the stand-in serves, and what it was asked for."""

    files: dict[str, bytes] = field(default_factory=dict)
    refusals: dict[str, tuple[int, str]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)

    def handler(self) -> type[BaseHTTPRequestHandler]:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                repo, _, rest = self.path.lstrip("/").partition("/resolve/")
                revision, _, file = rest.partition("/")
                hub.asked.append(f"{repo}@{revision}:{file}")
                hub.tokens.append(self.headers.get("Authorization"))
                content = hub.files.get(f"{repo}/{file}")
                if repo in hub.refusals:
                    return self._refuse(*hub.refusals[repo])
                if repo not in {known.rpartition("/")[0] for known in hub.files}:
                    return self._refuse(401, "RepoNotFound")
                if revision not in ("main", COMMIT):
                    return self._refuse(404, "RevisionNotFound")
                if content is None:
                    return self._refuse(404, "EntryNotFound")
                self.send_response(200)
                self.send_header("X-Repo-Commit", COMMIT)
                self.send_header("ETag", '"abc"')
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(content)
                return None

            do_GET = do_HEAD  # noqa: N815

            def _refuse(self, status: int, code: str) -> None:
                self.send_response(status)
                self.send_header("X-Repo-Commit", COMMIT)
                if code:
                    self.send_header("X-Error-Code", code)
                self.send_header("X-Error-Message", code or BAD_TOKEN)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        return Handler


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    served = Hub({"org/name/config.json": json.dumps(CONFIG).encode()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), served.handler())
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    _online(monkeypatch, f"http://127.0.0.1:{server.server_port}")
    yield served
    server.shutdown()
    thread.join()
    server.server_close()


def _online(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    import huggingface_hub.constants
    import huggingface_hub.utils

    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")
    # huggingface_hub reads its own variables at import, which another test may have made happen.
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    for forget in ("reset_sessions", "close_session"):  # until 0.36, from 1.0
        if hasattr(huggingface_hub.utils, forget):
            getattr(huggingface_hub.utils, forget)()


def _error(ref: ModelRef) -> OomDoctorError:
    with pytest.raises(OomDoctorError) as caught:
        resolve(ref)
    assert caught.value.exit_code == ExitCode.MODEL_UNAVAILABLE
    assert caught.value.hint
    return caught.value


def test_config_from_the_hub(hub: Hub, isolated: Path) -> None:
    spec, notes = resolve_with_notes(ModelRef("org/name"))
    assert (spec.source, spec.config, spec.revision) == ("hub", CONFIG, COMMIT)
    assert spec.path is not None
    assert Path(spec.path).is_relative_to(isolated / "huggingface" / "hub")
    assert notes == ()
    files = ("config.json", "modules.json")  # settings, and no weights
    assert set(hub.asked) == {f"org/name@main:{file}" for file in files}
    # the second time the cache has it
    asked = len(hub.asked)
    assert resolve(ModelRef("org/name")).source == "cache"
    assert len(hub.asked) == asked


def test_revision(hub: Hub) -> None:
    assert resolve(ModelRef("org/name", revision=COMMIT)).revision == COMMIT
    error = _error(ModelRef("org/name", revision="v9"))
    assert (error.code, "v9" in error.message) == ("revision_not_found", True)


def test_token(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    resolve(ModelRef("org/name"))
    assert "Bearer hf_secret" in hub.tokens


def test_not_there(hub: Hub) -> None:
    error = _error(ModelRef("org/other"))
    assert error.code == "model_not_found"
    assert "hf auth login" in (error.hint or "")


def test_gated(hub: Hub) -> None:
    hub.refusals["org/name"] = (401, "GatedRepo")
    error = _error(ModelRef("org/name"))
    assert error.code == "gated"
    assert error.message == "org/name is gated and this machine is not logged in"
    assert error.hint == "run `hf auth login` or set HF_TOKEN"
    hub.refusals["org/name"] = (403, "GatedRepo")
    error = _error(ModelRef("org/name"))
    assert error.message == "org/name is gated and this account has no access"


def test_gated_but_built_in(hub: Hub) -> None:
    name = "meta-llama/Llama-3.1-8B"
    hub.refusals[name] = (401, "GatedRepo")
    spec, notes = resolve_with_notes(ModelRef(name))
    assert spec.source == "catalogue"
    assert notes == (f"{name} is gated and this machine is not logged in; using built-in facts",)
    assert "--source catalogue" in (_error(ModelRef(name, source="hub")).hint or "")


def test_refused_token(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_old")
    hub.refusals["org/name"] = (401, "")
    error = _error(ModelRef("org/name"))
    assert error.code == "bad_token"
    assert "HF_TOKEN" in (error.hint or "")
    hub.refusals["org/name"] = (403, "")
    assert _error(ModelRef("org/name")).code == "gated"


def test_hub_out_of_order(hub: Hub) -> None:
    hub.refusals["org/name"] = (500, "")
    error = _error(ModelRef("org/name"))
    assert error.code == "hub_unreachable"
    assert "(HTTP 500)" in error.message


def test_endpoint_that_is_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    _online(monkeypatch, "localhost")
    assert _error(ModelRef("org/name")).code == "hub_unreachable"


def test_repository_without_config(hub: Hub) -> None:
    hub.files = {"org/name/model.gguf": b"GGUF"}
    assert _error(ModelRef("org/name")).code == "no_config"


def test_repository_of_an_adapter(hub: Hub) -> None:
    adapter = {"base_model_name_or_path": "Qwen/Qwen2.5-7B"}
    hub.files = {"org/name/adapter_config.json": json.dumps(adapter).encode()}
    error = _error(ModelRef("org/name"))
    assert error.code == "peft_adapter"
    assert "probe Qwen/Qwen2.5-7B --recipe lora" in (error.hint or "")


def test_broken_config_on_the_hub(hub: Hub) -> None:
    hub.files["org/name/config.json"] = b"<html>"
    assert _error(ModelRef("org/name")).code == "broken_config"


def test_endpoint_that_is_no_hub(hub: Hub) -> None:
    hub.refusals["org/name"] = (200, "")
    assert _error(ModelRef("org/name")).code == "hub_unreachable"


def test_connection_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _online(monkeypatch, "http://127.0.0.1:9")
    began = time.monotonic()
    error = _error(ModelRef("org/name"))
    assert error.code == "hub_unreachable"
    assert "(Connection refused)" in error.message
    spec, notes = resolve_with_notes(ModelRef("gpt2"))
    assert spec.source == "catalogue"
    assert "cannot reach the hub" in notes[0]
    assert time.monotonic() - began < 5, "a login node must not wait for retries"


def test_hub_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oomdoctor.system.models.fetch.CONNECT_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        _online(monkeypatch, f"http://127.0.0.1:{silent.getsockname()[1]}")
        began = time.monotonic()
        error = _error(ModelRef("org/name"))
    assert error.code == "hub_unreachable"
    assert "(timed out)" in error.message
    assert time.monotonic() - began < 3


def test_cache_that_cannot_be_written(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("HF_HUB_CACHE", str(file / "below"))
    error = _error(ModelRef("org/name"))
    assert error.code == "cache_unwritable"
    assert str(file) in error.message


def test_offline_asks_nobody(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert _error(ModelRef("org/name")).code == "offline"
    assert hub.asked == []
