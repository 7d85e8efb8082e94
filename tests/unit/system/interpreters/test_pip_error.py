"""What went wrong behind pip's output. The lines are pip's own."""

from __future__ import annotations

from oomdoctor.system.interpreters.pip import pip_error

ASKED = ("tokenizers==0.22.0", "transformers==4.51.3")


def test_a_version_that_does_not_exist_names_its_neighbors() -> None:
    found = ", ".join(f"4.{n}.0" for n in range(40, 60))
    error = pip_error(
        [
            "ERROR: Could not find a version that satisfies the requirement transformers==4.49.9 "
            f"(from versions: {found})",
            "ERROR: No matching distribution found for transformers==4.49.9",
        ],
        ("transformers==4.49.9",),
    )
    assert (error.code, int(error.exit_code)) == ("unknown_version", 2)
    assert "pip finds no transformers==4.49.9 for Python 3." in error.message
    assert error.hint == "versions that it finds: 4.47.0, 4.48.0, 4.49.0, 4.50.0, 4.51.0, 4.52.0"


def test_no_network_is_not_a_wrong_version() -> None:
    error = pip_error(
        [
            "WARNING: Retrying (Retry(total=0, connect=None)) after connection broken by "
            "'NewConnectionError('<HTTPSConnection>: Failed to establish a new connection: "
            "[Errno -2] Name or service not known')': /simple/transformers/",
            "ERROR: Could not find a version that satisfies the requirement transformers==4.51.3 "
            "(from versions: none)",
            "ERROR: No matching distribution found for transformers==4.51.3",
        ],
        ("transformers==4.51.3",),
    )
    assert (error.code, int(error.exit_code)) == ("no_package_index", 5)


def test_a_conflict_shows_who_needs_what() -> None:
    error = pip_error(
        [
            "ERROR: Cannot install tokenizers==0.22.0 and transformers==4.51.3 because these "
            "package versions have conflicting dependencies.",
            "",
            "The conflict is caused by:",
            "    The user requested tokenizers==0.22.0",
            "    transformers 4.51.3 depends on tokenizers<0.22 and >=0.21",
            "",
            "To fix this you could try to:",
            "1. loosen the range of package versions you've specified",
            "ERROR: ResolutionImpossible: for help visit https://pip.pypa.io",
        ],
        ASKED,
    )
    assert (error.code, int(error.exit_code)) == ("versions_conflict", 2)
    assert error.message.splitlines()[1:] == [
        "The user requested tokenizers==0.22.0",
        "transformers 4.51.3 depends on tokenizers<0.22 and >=0.21",
    ]


def test_other_failures_show_the_last_lines() -> None:
    lines = ["a", "b", "ERROR: Could not install packages due to an OSError:", "", "No space left"]
    error = pip_error(lines, ASKED)
    assert (error.code, int(error.exit_code)) == ("pip_failed", 5)
    assert error.message.splitlines()[1:] == ["b", lines[2], "No space left"]
    assert "--python" in (error.hint or "")
    assert pip_error(["/env/bin/python: No module named pip"], ASKED).code == "no_pip"
