# SPDX-License-Identifier: Apache-2.0
"""Importing foci: what was built, what runs and what to do, whenever the two do not fit."""
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import foci
import pytest
import torch

SOURCES = Path(foci.__file__).resolve().parent
MINOR = ".".join(torch.__version__.split("+")[0].split(".")[:2])


def here(**other):
    """build.json of a library that fits."""
    abi = "cxx11" if torch.compiled_with_cxx11_abi() else "pre-cxx11"
    return {"foci": "0.1.0", "torch": torch.__version__, "torch_abi": abi, "cuda": None, **other}


def imported(library=None, package=None, before=""):
    """Runs `import foci` in a fresh Python, whose last line of error comes back."""
    rest = {name: x for name, x in os.environ.items() if name != "FOCI_LIBRARY"}
    if library is not None:
        rest["FOCI_LIBRARY"] = str(library)
    rest["PYTHONPATH"] = str(package or SOURCES.parent)
    program = f"{before}\nimport foci; print(foci.__version__)"
    ran = subprocess.run([sys.executable, "-c", program], env=rest, capture_output=True, text=True)
    return ran.stdout.strip() if ran.returncode == 0 else ran.stderr.strip().splitlines()[-1]


def folder(at, build, library="text"):
    at.mkdir(exist_ok=True)
    if library == "text":
        (at / "libfoci_torch.so").write_text("no library")
    if build is not None:
        (at / "build.json").write_text(build if isinstance(build, str) else json.dumps(build))
    return at


def remedy(message):
    assert message.startswith("ImportError: foci: "), message
    assert f"make wheel PYTHON={sys.executable}" in message, message
    assert f"{sys.executable} -m pip install" in message, message


def test_it_imports_and_says_its_version():
    assert re.fullmatch(r"\d+\.\d+\.\d+", foci.__version__)
    assert set(foci.__all__) <= set(dir(foci))
    assert (SOURCES / "py.typed").is_file()


def test_a_missing_library(tmp_path):
    message = imported(library=tmp_path)
    remedy(message)
    assert "libfoci_torch.so is missing: FOCI_LIBRARY names the folder" in message
    shutil.copytree(SOURCES, tmp_path / "foci", ignore=shutil.ignore_patterns("lib", "__pycache__"))
    message = imported(package=tmp_path)
    remedy(message)
    assert f"the package has the folder {tmp_path / 'foci' / 'lib'}" in message


@pytest.mark.parametrize("build", [None, "not json", "[]", '{"foci": "0.1.0"}'])
def test_a_build_that_nothing_is_known_of(tmp_path, build):
    message = imported(library=folder(tmp_path, build))
    remedy(message)
    assert (
        "build.json, which says what libfoci_torch.so was built against, cannot be read" in message
    )


def test_another_torch(tmp_path):
    message = imported(library=folder(tmp_path, here(torch="9.7.1+cu999")))
    remedy(message)
    assert "was built against another torch" in message
    assert "Built: foci 0.1.0 with torch 9.7.1+cu999" in message
    assert f"runs: torch {torch.__version__}" in message
    assert "pip install 'torch==9.7.*'" in message


def test_another_abi(tmp_path):
    mine = torch.compiled_with_cxx11_abi()
    other = "pre-cxx11" if mine else "cxx11"
    message = imported(library=folder(tmp_path, here(torch_abi=other)))
    remedy(message)
    assert "was built against another C++ ABI" in message and f"ABI {other}" in message
    as_bool = folder(tmp_path / "bool", here(torch_abi=not mine))
    assert "another C++ ABI" in imported(library=as_bool)


def test_another_cuda(tmp_path):
    at = folder(tmp_path, here(cuda="11.8"))
    message = imported(library=at, before="import torch; torch.version.cuda = '13.0'")
    remedy(message)
    assert "was built against another CUDA" in message and "CUDA 11.8" in message


def test_patch_versions_fit(tmp_path):
    """The comparison lets it pass, and only loading fails."""
    message = imported(library=folder(tmp_path, here(torch=f"{MINOR}.99+local")))
    remedy(message)
    assert "does not load" in message and "another torch" not in message


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_an_undefined_symbol(tmp_path):
    at = folder(tmp_path, here(), library=None)
    source = tmp_path / "broken.c"
    source.write_text("void of_another_torch(void); void f(void) { of_another_torch(); }")
    made = ["cc", "-shared", "-fPIC", "-Wl,-z,now", "-o", str(at / "libfoci_torch.so"), str(source)]
    subprocess.run(made, check=True)
    message = imported(library=at)
    remedy(message)
    assert "undefined symbol: of_another_torch" in message and "Built: foci" in message


def test_the_library_may_lie_elsewhere(tmp_path):
    if not (SOURCES / "lib" / "libfoci_torch.so").is_file():
        pytest.skip("the library does not lie in the package")
    shutil.copytree(SOURCES, tmp_path / "foci", ignore=shutil.ignore_patterns("lib", "__pycache__"))
    assert imported(library=SOURCES / "lib", package=tmp_path) == foci.__version__
