# SPDX-License-Identifier: Apache-2.0
"""A wheel of the package under test: complete, the same each time, and importable."""
import base64
import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import foci
import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(foci.__file__).resolve().parent
TOOL = ROOT / "tools" / "make_wheel.py"
staged = pytest.mark.skipif(
    not (PACKAGE / "lib" / "build.json").is_file(), reason="the package is not a staged one"
)


def make(output):
    ran = subprocess.run(
        [sys.executable, str(TOOL), str(PACKAGE.parent), str(output)],
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    return Path(ran.stdout.strip())


@staged
def test_what_is_inside(tmp_path):
    wheel = make(tmp_path)
    assert wheel.name.startswith(f"foci-{foci.__version__}+torch")
    assert wheel.name.endswith("-py3-none-linux_x86_64.whl")
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
        info = next(name for name in names if name.endswith("/RECORD")).rsplit("/", 1)[0]
        record = opened.read(f"{info}/RECORD").decode().split()
        listed = dict(line.split(",", 1) for line in record)
        assert set(listed) == set(names)
        for name in names:
            if name.endswith("/RECORD"):
                continue
            data = opened.read(name)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            assert listed[name] == f"sha256={digest},{len(data)}"
        assert "Root-Is-Purelib: false" in opened.read(f"{info}/WHEEL").decode()
        metadata = opened.read(f"{info}/METADATA").decode()
        assert (
            f"Version: {foci.__version__}+torch" in metadata and "Requires-Dist: torch" in metadata
        )
    for needed in ("foci/__init__.py", "foci/py.typed", "foci/nn.py", "foci/lib/libfoci_torch.so"):
        assert needed in names
    assert not any("__pycache__" in name for name in names)


@staged
def test_the_same_tree_gives_the_same_bytes(tmp_path):
    one, other = make(tmp_path / "a"), make(tmp_path / "b")
    assert one.read_bytes() == other.read_bytes()


@staged
def test_it_imports_where_it_lands(tmp_path):
    wheel, target = make(tmp_path), tmp_path / "there"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-deps"]
    installed = subprocess.run(
        [*pip, "--no-index", "--target", str(target), str(wheel)], capture_output=True, text=True
    )
    if "No module named pip" in installed.stderr:
        with zipfile.ZipFile(wheel) as opened:
            opened.extractall(target)
    else:
        assert installed.returncode == 0, installed.stderr
    program = (
        "import foci, torch; q = torch.ones(1, 1, 2, 4);"
        "assert torch.equal(foci.attend(q, q, q), q); print(foci.__file__, foci.__version__)"
    )
    rest = {name: x for name, x in os.environ.items() if name not in ("PYTHONPATH", "FOCI_LIBRARY")}
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={**rest, "PYTHONPATH": str(target)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == [str(target / "foci" / "__init__.py"), foci.__version__]


def test_a_tree_that_was_not_built(tmp_path):
    (tmp_path / "foci").mkdir()
    ran = subprocess.run([sys.executable, str(TOOL), str(tmp_path)], capture_output=True, text=True)
    assert ran.returncode != 0
    assert "build.json is missing: build the target python_package first" in ran.stderr
