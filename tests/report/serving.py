# SPDX-License-Identifier: Apache-2.0
# Starts `foci serve` and ends it, makes results to serve, and asks `foci attend` about tensors.
import contextlib
import http.client
import json
import os
import pathlib
import signal
import struct
import subprocess
import sys

BINARY = pathlib.Path(os.environ.get("FOCI_BINARY_DIR", "build"))
FOCI = str(BINARY / "foci")
MAKER = pathlib.Path(__file__).with_name("make_results.py")


def make_results(path, *words):
    """Written whole: a page that polls never sees half of it."""
    beside = path.with_suffix(".tmp")
    subprocess.run([sys.executable, str(MAKER), str(beside), *words], check=True)
    os.replace(beside, path)


class Server:
    def __init__(self, folder, *flags):
        self.process = subprocess.Popen([FOCI, "serve", str(folder), "--json", *flags],
                                        stdout=subprocess.PIPE, text=True)
        text = ""
        while not text.endswith("}\n"):
            line = self.process.stdout.readline()
            assert line, "foci serve ended before it said where it is"
            text += line
        self.said = json.loads(text)
        self.port, self.token, self.url = (self.said[name] for name in ("port", "token", "url"))

    def ask(self, path, method="GET", body=None, headers=None):
        """Status, headers (names in lower case) and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request(method, path, body, headers or {})
        reply = connection.getresponse()
        read = reply.read()
        connection.close()
        return reply.status, {name.lower(): value for name, value in reply.getheaders()}, read

    def explore(self, question, **headers):
        status, _, body = self.ask("/explore", "POST", json.dumps(question),
                                   {"Content-Type": "application/json", **headers})
        return status, json.loads(body)

    def end(self, how=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(how)
        status = self.process.wait(10)
        self.process.stdout.close()
        return status


@contextlib.contextmanager
def serving(folder, *flags):
    server = Server(folder, *flags)
    try:
        yield server
    finally:
        server.end()


def save(path, tensors):
    """Rows of numbers as (1,1,rows,width) doubles in a safetensors file."""
    header, data = {}, b""
    for name, rows in tensors.items():
        flat = [float(x) for row in rows for x in row]
        packed = struct.pack(f"<{len(flat)}d", *flat)
        header[name] = {"dtype": "F64", "shape": [1, 1, len(rows), len(rows[0])],
                        "data_offsets": [len(data), len(data) + len(packed)]}
        data += packed
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def load(path):
    """Floating tensors of a safetensors file, flat."""
    raw = path.read_bytes()
    size, = struct.unpack("<Q", raw[:8])
    header, data = json.loads(raw[8:8 + size]), raw[8 + size:]
    found = {}
    for name, about in header.items():
        kind = {"F64": "d", "F32": "f"}.get(about.get("dtype"))
        if kind:
            begin, end = about["data_offsets"]
            found[name] = list(struct.unpack(f"<{(end - begin) // struct.calcsize(kind)}{kind}",
                                             data[begin:end]))
    return found


def attend(folder, question):
    """What `foci attend` says to the explorer's question, by the explorer's names."""
    width = len(question["v"][0])
    tensors = {name: question[name] for name in ("q", "k", "v", "v_prev") if name in question}
    tensors["do"] = [[1.0] + [0.0] * (width - 1)]
    save(folder / "in.safetensors", tensors)
    flags = [word for name, text in question["words"].items()
             for word in ([f"--{name}"] if text == "true" else [f"--{name}", text])]
    subprocess.run([FOCI, "attend", "--quiet", "--in", str(folder / "in.safetensors"), "--out",
                    str(folder / "out.safetensors"), *flags], check=True)
    found = load(folder / "out.safetensors")
    answer = {name: found[name][0] for name in
              ("concentration", "effective_keys", "entropy", "largest", "lse") if name in found}
    answer["weights"] = found["dv"][::width]
    return answer
