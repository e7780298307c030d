"""The package itself: its types, its style, and the wheel."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import proctor_client

from .conftest import WORKSPACE

PYTHON = WORKSPACE / "python"


def run_module(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", *arguments], cwd=PYTHON, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_types_are_strict() -> None:
    pytest.importorskip("mypy")
    # The cache contains the types of the installed packages, and belongs to their environment.
    run_module("mypy", "--cache-dir", str(Path(sys.prefix) / "mypy-cache"))


def test_style_and_format() -> None:
    pytest.importorskip("ruff")
    run_module("ruff", "check", "--no-cache", ".")
    run_module("ruff", "format", "--no-cache", "--check", ".")


def test_wheel_has_the_types_and_needs_nothing(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    run_module("hatchling", "build", "--target", "wheel", "--directory", str(tmp_path))
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        names = files.namelist()
        (metadata,) = [files.read(name).decode() for name in names if name.endswith("/METADATA")]
    assert "proctor_client/py.typed" in names
    assert not [name for name in names if name.startswith(("tests/", "examples/"))]
    assert f"Version: {proctor_client.__version__}\n" in metadata
    required = re.findall(r"^Requires-Dist: (.*)$", metadata, re.MULTILINE)
    assert [line for line in required if "extra ==" not in line] == []


def test_client_imports_only_the_standard_library() -> None:
    program = (
        "import sys, proctor_client; print([name for name in ('pydantic', 'langchain_core') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=PYTHON, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_version_is_that_of_proctor() -> None:
    workspace = (WORKSPACE / "Cargo.toml").read_text()
    match = re.search(r'^version = "([^"]+)"', workspace, re.MULTILINE)
    assert match is not None
    assert match.group(1) == proctor_client.__version__
