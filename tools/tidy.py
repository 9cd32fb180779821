#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/tidy.py COMPILE_COMMANDS JOBS [--deep] SOURCE...: clang-tidy over sources.

Most of its time goes into the headers, so sources of one folder and the same flags are looked at
together, as one file that includes them, wherever that compiles; where two of them use a name
twice the group is halved. The static analyser follows the main file alone: --deep takes each
source by itself and runs it too. Prints what it finds; exit 1 when that is anything.
"""
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

TIDY = "clang-tidy-14"
AT_ONCE = 12


def commands(path):
    """File to its flags. A kernel is compiled once per instruction set: the last is looked at."""
    found = {}
    for entry in json.load(open(path)):
        words = iter(shlex.split(entry["command"])[1:])
        flags = []
        for word in words:
            if word in ("-o", "-c", "-include"):  # -include: a precompiled header of g++
                next(words)
            elif word != "-Winvalid-pch" and not word.endswith(("c++", "g++")):
                flags.append(word)
        for source in sources_in(entry["file"]):
            found[os.path.realpath(source)] = (entry["directory"], tuple(flags))
    return found


def sources_in(path):
    """The sources behind one compilation: itself, or what CMake's unity file includes."""
    if "/Unity/unity_" not in path:
        return [path]
    if not os.path.exists(path):
        return []
    return re.findall(r'^#include "(.+\.cpp)"$', open(path).read(), re.MULTILINE)


def groups(sources, known):
    by_flags = {}
    for source in sources:
        if source not in known:
            sys.exit(f"tidy: {source} is in no target")
        by_flags.setdefault((os.path.dirname(source), known[source]), []).append(source)
    for (_, how), files in by_flags.items():
        for at in range(0, len(files), AT_ONCE):
            yield how, files[at:at + AT_ONCE]


def run(how, source, checks):
    directory, flags = how
    where = r"--header-filter=(include/foci|src|cli)/.*\.[ch]pp$"
    done = subprocess.run([TIDY, where, "--quiet", *checks, source, "--", *flags],
                          cwd=directory, capture_output=True, text=True)
    return done.stdout


def run_together(how, files, checks):
    """One file that includes all, under the .clang-tidy of the project and that of the folder."""
    with tempfile.TemporaryDirectory() as folder:
        inside = os.path.join(folder, "inside")
        os.mkdir(inside)
        shutil.copy(".clang-tidy", folder)
        of_folder = os.path.join(os.path.dirname(files[0]), ".clang-tidy")
        if os.path.exists(of_folder):
            shutil.copy(of_folder, inside)
        source = os.path.join(inside, "together.cpp")
        pathlib.Path(source).write_text("".join(f'#include "{name}"\n' for name in files))
        return run(how, source, checks)


def look(how, files, deep):
    if deep:
        return [run(how, files[0], [])]
    cheap = ["--checks=-*,modernize-redundant-void-arg"]
    if len(files) > 1 and "clang-diagnostic-error" in run_together(how, files, cheap):
        half = len(files) // 2
        return look(how, files[:half], deep) + look(how, files[half:], deep)
    checks = "--checks=-clang-analyzer-*,-bugprone-suspicious-include"
    return [run_together(how, files, [checks])]


def main(arguments):
    database, jobs, *rest = arguments
    deep = "--deep" in rest
    sources = [os.path.realpath(name) for name in rest if name != "--deep"]
    work = list(groups(sources, commands(database)))
    if deep:
        work = [(how, [name]) for how, files in work for name in files]
    with concurrent.futures.ThreadPoolExecutor(int(jobs)) as pool:
        said = [text for texts in pool.map(lambda item: look(*item, deep), work) for text in texts]
    found = "\n".join(text.rstrip() for text in said if re.search(r"(error|warning): ", text))
    if found:
        print(found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
