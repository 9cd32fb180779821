#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# tools/make_wheel.py STAGED [OUTPUT]: zips the package in STAGED (build/python) into a wheel and
# prints the wheel's path. Needs no build tool and no network; the same tree gives the same bytes.
# The wheel fits one minor version of torch, so its version says which: 0.1.0+torch1.13.
import argparse
import base64
import hashlib
import json
import platform
import sys
import zipfile
from pathlib import Path

SUMMARY = "Attention whose geometry you choose and whose focus you can measure"
LEFT_OUT = {"__pycache__", "CMakeFiles"}


def build_of(package):
    """lib/build.json, which the build wrote beside the library."""
    path = package / "lib" / "build.json"
    if not path.is_file():
        sys.exit(f"make_wheel: {path} is missing: build the target python_package first")
    return json.loads(path.read_text(encoding="utf-8"))


def version_of(build):
    return f"{build['foci']}+torch{minor_of(build['torch'])}"


def minor_of(version):
    return ".".join(version.split("+")[0].split(".")[:2])


def files_of(package):
    """(name in the wheel, bytes, executable), sorted by name."""
    for path in sorted(package.rglob("*")):
        if path.is_file() and not LEFT_OUT & set(path.parts):
            name = path.relative_to(package.parent).as_posix()
            yield name, path.read_bytes(), ".so" in path.name


def metadata(build):
    return "\n".join(
        [
            "Metadata-Version: 2.1",
            "Name: foci",
            f"Version: {version_of(build)}",
            f"Summary: {SUMMARY}",
            "License: Apache-2.0",
            "Requires-Python: >=3.9",
            f"Requires-Dist: torch (=={minor_of(build['torch'])}.*)",
            "",
        ]
    )


def tag_of_machine():
    return f"py3-none-linux_{platform.machine()}"


def wheel_file(tag):
    return "\n".join(
        [
            "Wheel-Version: 1.0",
            "Generator: foci tools/make_wheel.py",
            "Root-Is-Purelib: false",
            f"Tag: {tag}",
            "",
        ]
    )


def record_line(name, data):
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}"


def add(wheel, name, data, executable):
    entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
    entry.external_attr = (0o100755 if executable else 0o100644) << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    wheel.writestr(entry, data)


def make(staged, output):
    package = staged / "foci"
    build = build_of(package)
    tag, version = tag_of_machine(), version_of(build)
    info = f"foci-{version}.dist-info"
    contents = list(files_of(package))
    contents.append((f"{info}/METADATA", metadata(build).encode(), False))
    contents.append((f"{info}/WHEEL", wheel_file(tag).encode(), False))
    record = [record_line(name, data) for name, data, _ in contents]
    record.append(f"{info}/RECORD,,\n")
    contents.append((f"{info}/RECORD", "\n".join(record).encode(), False))
    output.mkdir(parents=True, exist_ok=True)
    path = output / f"foci-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, data, executable in contents:
            add(wheel, name, data, executable)
    return path


def main():
    parser = argparse.ArgumentParser(description="Zips the staged package into a wheel.")
    parser.add_argument("staged", type=Path, help="the folder that holds foci/: build/python")
    parser.add_argument("output", type=Path, nargs="?", default=Path("."))
    named = parser.parse_args()
    print(make(named.staged, named.output))


if __name__ == "__main__":
    main()
