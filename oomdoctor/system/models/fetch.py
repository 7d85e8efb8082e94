"""Gets the config.json of a model from the Hugging Face cache or the hub, or explains why not.

The only module that uses huggingface_hub, which it imports on demand. Endpoint, cache folder and
offline switch are read from the environment at each call, because huggingface_hub reads them once,
when it is imported.
"""

from __future__ import annotations

import ssl
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from oomdoctor.errors import OomDoctorError, model_error
from oomdoctor.records.job.model import ModelRef
from oomdoctor.system.catalogue import find_model, nearest_models
from oomdoctor.system.environment import hf_home, is_true, variable
from oomdoctor.system.models.checkpoint import MODULES, missing_config, pooling_file

CONFIG = "config.json"
_SMALL = ("*.json", "*.txt", "*.model", "*.jinja")  # configs and tokenizers
# Login nodes often drop packets instead of refusing them; a longer timeout would look like a hang.
CONNECT_TIMEOUT_S = 5.0


def cached_ids() -> tuple[str, ...]:
    """The ids of the models in the cache, by the names of its folders; needs no library."""
    try:
        folders = sorted(path.name for path in Path(_cache_dir()).glob("models--*"))
    except OSError:
        return ()
    return tuple(name.removeprefix("models--").replace("--", "/") for name in folders)


def cached_config(ref: ModelRef) -> Path:
    """config.json in the cache, in the folder of its commit.

    Raises:
        OomDoctorError: not_cached, bad_model_name or no_huggingface_hub.
    """
    hub = _huggingface_hub()
    try:
        path = hub.try_to_load_from_cache(
            ref.name, CONFIG, cache_dir=_cache_dir(), revision=ref.revision
        )
    except hub.errors.HFValidationError:
        raise bad_name(ref) from None
    if not isinstance(path, str):
        raise model_error(
            "not_cached",
            f"{ref.name} is not in the Hugging Face cache ({_cache_dir()})",
            f"run `hf download {ref.name} {CONFIG}`, or leave out --source",
        )
    return Path(path)


def hub_config(ref: ModelRef) -> Path:
    """config.json, downloaded from the hub into the cache, with how embeddings are pooled.

    Raises:
        OomDoctorError: offline, hub_unreachable, gated, bad_token, model_not_found,
            revision_not_found, no_config, peft_adapter, bad_model_name, cache_unwritable or
            no_huggingface_hub.
    """
    _refuse_offline(ref)
    path = _download(ref, CONFIG)
    with suppress(OomDoctorError, OSError, ValueError, TypeError, AttributeError):
        if pooling := pooling_file(_download(ref, MODULES)):
            _download(ref, pooling)
    return path


def small_files(ref: ModelRef, marker: str) -> Path:
    """The folder of a repository with its file `marker` and all files but weights.

    From the cache if the marker is there, else from the hub.

    Raises:
        OomDoctorError: as `hub_config`.
    """
    hub = _huggingface_hub()
    with suppress(hub.errors.HFValidationError):
        cached = hub.try_to_load_from_cache(
            ref.name, marker, cache_dir=_cache_dir(), revision=ref.revision
        )
        if isinstance(cached, str):
            return Path(cached).parent
    _refuse_offline(ref)
    folder = _download(ref, marker).parent
    try:
        hub.snapshot_download(
            ref.name,
            revision=ref.revision,
            cache_dir=_cache_dir(),
            endpoint=variable("HF_ENDPOINT") or None,
            allow_patterns=list(_SMALL),
        )
    except Exception as error:  # the network library differs by version
        raise _explain(ref, marker, error, hub.errors) from error
    return folder


def _refuse_offline(ref: ModelRef) -> None:
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        if is_true(name):
            cached = "" if ref.source == "hub" else "is not in the Hugging Face cache and "
            raise model_error(
                "offline",
                f"{ref.name} {cached}cannot be downloaded: {name} is set",
                suggest(ref.name, f"unset {name}, or download it on a machine with a network"),
            )


def bad_name(ref: ModelRef) -> OomDoctorError:
    """The error for a name that is not a valid model name."""
    return model_error(
        "bad_model_name",
        f"{ref.name!r} is not a folder and not a valid Hugging Face id",
        suggest(ref.name, "pass a folder, or a Hugging Face id (ORG/NAME)"),
    )


def suggest(name: str, hint: str) -> str:
    """The hint, plus built-in models with similar names."""
    near = nearest_models(name)
    return f"{hint}; similar built-in models: {', '.join(near)}" if near else hint


def _download(ref: ModelRef, file: str) -> Path:
    hub = _huggingface_hub()
    hub.utils.disable_progress_bars()
    endpoint = variable("HF_ENDPOINT") or None
    try:
        url = hub.hf_hub_url(ref.name, file, revision=ref.revision, endpoint=endpoint)
        if reason := _silence(url):
            raise _unreachable(ref, reason)
        return Path(
            hub.hf_hub_download(
                ref.name,
                file,
                revision=ref.revision,
                cache_dir=_cache_dir(),
                endpoint=endpoint,
                etag_timeout=CONNECT_TIMEOUT_S,
            )
        )
    except OomDoctorError:
        raise
    except Exception as error:  # the network library differs by version
        raise _explain(ref, file, error, hub.errors) from error


def _explain(ref: ModelRef, file: str, error: Exception, errors: Any) -> OomDoctorError:
    """The error for a failed download. Order matters: a gated repository is also "not found"."""
    if isinstance(error, errors.HFValidationError):
        return bad_name(ref)
    if isinstance(error, errors.LocalEntryNotFoundError):
        # huggingface_hub raises this for any connection failure; its cause is the real reason.
        cause = error.__cause__
        error = cause if isinstance(cause, Exception) else error
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.GatedRepoError) or status == 403:
        return _refused(ref, status)
    if isinstance(error, errors.RepositoryNotFoundError):
        return model_error(
            "model_not_found",
            f"{ref.name} is not on the hub, or it is private and this machine has no access",
            suggest(ref.name, "check the spelling; for a private model run `hf auth login`"),
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return model_error(
            "revision_not_found",
            f"{ref.name} has no revision {ref.revision} on the hub",
            "leave out --revision to use the main branch",
        )
    if isinstance(error, errors.EntryNotFoundError) and status == 404:
        adapter = None
        if file == CONFIG:  # a repository without it may be an adapter
            with suppress(OomDoctorError):
                adapter = _download(ref, "adapter_config.json")
        return missing_config(ref.name, adapter)
    if status == 401:
        return model_error(
            "bad_token",
            "the hub rejected this machine's token",
            "run `hf auth login` again or fix HF_TOKEN; or use built-in facts: --source catalogue",
        )
    if isinstance(error, OSError) and error.filename:
        return model_error(
            "cache_unwritable",
            f"cannot write {ref.name} to the cache: {error.filename}: {error.strerror}",
            "free some space, or set HF_HUB_CACHE to a writable folder",
        )
    return _unreachable(ref, type(error).__name__)


def _unreachable(ref: ModelRef, reason: str) -> OomDoctorError:
    return model_error(
        "hub_unreachable",
        f"cannot reach the hub for {ref.name} ({reason})",
        suggest(ref.name, "check the network, HF_ENDPOINT and the proxy"),
    )


def _silence(url: str) -> str | None:
    """Why `url` does not answer; None if it does, even with a refusal.

    Checked first, because some versions of huggingface_hub retry for up to a minute on a node
    without a network.
    """
    try:
        with urlopen(Request(url, method="HEAD"), timeout=CONNECT_TIMEOUT_S):
            return None
    except HTTPError as error:
        error.close()
        return f"HTTP {error.code}" if error.code >= 500 else None
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ssl.SSLError):  # huggingface_hub may have its own certificates
            return None
        return str(getattr(reason, "strerror", None) or reason)


def _refused(ref: ModelRef, status: int | None) -> OomDoctorError:
    if status == 403:
        why, way = "this account has no access", "request access on its page on the hub"
    else:
        why, way = "this machine is not logged in", "run `hf auth login` or set HF_TOKEN"
    if find_model(ref.name):
        way += "; or use the built-in architecture facts with --source catalogue"
    return model_error("gated", f"{ref.name} is gated and {why}", way)


def _cache_dir() -> Path:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if given := variable(name):
            return Path(given).expanduser()
    return hf_home() / "hub"


def _huggingface_hub() -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ImportError:
        raise model_error(
            "no_huggingface_hub",
            "huggingface_hub is not installed, so neither the cache nor the hub can be read",
            "run `pip install huggingface_hub`, or use --source catalogue or a local folder",
        ) from None
    return huggingface_hub
