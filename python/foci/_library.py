# SPDX-License-Identifier: Apache-2.0
"""Finds and loads libfoci_torch.so, and says what to do when it does not fit the running torch.

The library speaks C++ with torch, and C++ knows neither other minor versions nor another ABI of
its standard library. So build.json, which lies beside it, is compared first.
"""
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any, NamedTuple, Optional

import torch

from . import _ops

NAME = "libfoci_torch.so"


class Build(NamedTuple):
    """What the library was built against; the contents of build.json."""

    foci: str
    torch: str
    cxx11: bool
    cuda: Optional[str]


def folder() -> Path:
    """Where the library lies: the folder that FOCI_LIBRARY names, or foci/lib."""
    named = os.environ.get("FOCI_LIBRARY")
    return Path(named) if named else Path(__file__).resolve().parent / "lib"


def load() -> Build:
    """Loads the operators into torch.ops.foci; ImportError says what to run when it cannot."""
    where = folder()
    library = where / NAME
    if not library.is_file():
        named = "FOCI_LIBRARY names" if os.environ.get("FOCI_LIBRARY") else "the package has"
        raise ImportError(
            f"foci: {NAME} is missing: {named} the folder {where}, which does not hold it. "
            f"{_remedy()}"
        )
    built = read(where / "build.json")
    _compare(built, library)
    try:
        _ops.load_library(str(library))
    except OSError as error:
        # torch 2.11 says only that it could not; the linker's own words are the cause.
        why = error.__cause__ or error.__context__ or error
        raise ImportError(
            f"foci: {library} does not load ({why}). {_pair(built)}. {_remedy()}"
        ) from error
    return built


def read(path: Path) -> Build:
    """build.json, or ImportError when it is missing or not what it should be."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        abi = raw["torch_abi"]
        cuda = raw.get("cuda") or None
        return Build(
            foci=str(raw["foci"]),
            torch=str(raw["torch"]),
            cxx11=abi == "cxx11" if isinstance(abi, str) else bool(abi),
            cuda=None if cuda is None else str(cuda),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ImportError(
            f"foci: {path}, which says what {NAME} was built against, cannot be read "
            f"({type(error).__name__}: {error}). {_remedy()}"
        ) from error


def running() -> Build:
    """The torch of this process, in the same words."""
    abi: Any = torch.compiled_with_cxx11_abi
    return Build(
        foci="",
        torch=str(torch.__version__),
        cxx11=bool(abi()),
        cuda=torch.version.cuda,
    )


def _minor(version: str) -> str:
    return ".".join(version.split("+")[0].split(".")[:2])


def _compare(built: Build, library: Path) -> None:
    runs = running()
    wrong = []
    if _minor(built.torch) != _minor(runs.torch):
        wrong.append("another torch")
    if built.cxx11 != runs.cxx11:
        wrong.append("another C++ ABI")
    if built.cuda and runs.cuda and built.cuda.split(".")[0] != runs.cuda.split(".")[0]:
        wrong.append("another CUDA")
    if wrong:
        raise ImportError(
            f"foci: {library} was built against {' and '.join(wrong)}. {_pair(built)}. {_remedy()} "
            "Or install the torch it was built against: "
            f"{sys.executable} -m pip install 'torch=={_minor(built.torch)}.*'"
        )


def _words(build: Build) -> str:
    abi = "cxx11" if build.cxx11 else "pre-cxx11"
    return f"torch {build.torch} (ABI {abi}, CUDA {build.cuda or 'none'})"


def _pair(built: Build) -> str:
    python = f"Python {platform.python_version()}"
    return f"Built: foci {built.foci} with {_words(built)}; runs: {_words(running())}, {python}"


def _remedy() -> str:
    return (
        f"Build it for this torch, in the foci checkout: make wheel PYTHON={sys.executable}, then "
        f"{sys.executable} -m pip install --force-reinstall --no-deps "
        f"build/foci-*+torch{_minor(str(torch.__version__))}-*.whl."
    )
