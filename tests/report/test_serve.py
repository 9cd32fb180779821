# SPDX-License-Identifier: Apache-2.0
# foci serve as a client sees it: what it serves, what it refuses, and that nothing a client does
# keeps it from serving others or from ending when it is told to.
import json
import os
import signal
import socket
import subprocess
import time

import pytest
from serving import FOCI, Server, attend, make_results, serving

KEYS = [[1.0, 0.2], [0.1, 1.0], [-0.7, 0.4], [0.5, -0.9]]
BELOW = [[0.4, 0.1], [0.9, 0.8], [-0.2, 0.5], [1.0, -0.8]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served") / "compare"
    folder.mkdir()
    make_results(folder / "results.json")
    (folder.parent / "secret.svg").write_text("secret")
    (folder / "plan.json").write_text("secret")
    (folder / "figures").mkdir()
    (folder / "figures" / "robustness.svg").write_text("<svg/>")
    (folder / "figures" / ".hidden.svg").write_text("secret")
    (folder / "figures" / "notes.txt").write_text("secret")
    os.symlink(folder.parent / "secret.svg", folder / "figures" / "link.svg")
    os.mkfifo(folder / "figures" / "pipe.svg")
    return folder


@pytest.fixture(scope="module")
def server(folder):
    with serving(folder, "--patience", "2") as server:
        yield server


def raw(server, sent, wait=5):
    """All that comes back for these bytes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=wait) as connection:
        try:
            connection.sendall(sent)
        except OSError:
            pass  # it has closed already; what it said is still there
        got = b""
        while True:
            try:
                piece = connection.recv(65536)
            except ConnectionResetError:
                break
            if not piece:
                break
            got += piece
        return got


def request(*lines, body=b""):
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def status(got):
    return int(got.split(b" ", 2)[1]) if got else 0


def test_page_results_and_figures(server, folder):
    code, headers, body = server.ask("/")
    assert code == 200 and headers["content-type"].startswith("text/html")
    assert b'data-place="server"' in body and b"No mechanism beat dot" in body
    assert "script-src 'sha256-" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    code, headers, body = server.ask("/results.json")
    assert code == 200 and body == (folder / "results.json").read_bytes()
    code, _, body = server.ask("/results.json", headers={"If-None-Match": headers["etag"]})
    assert (code, body) == (304, b"")
    code, headers, body = server.ask("/figures/robustness.svg")
    assert (code, headers["content-type"], body) == (200, "image/svg+xml", b"<svg/>")
    code, headers, body = server.ask("/report.html")
    assert code == 200 and b'data-place="file"' in body
    assert headers["content-disposition"].startswith("attachment")


def test_head_has_the_headers_alone(server):
    code, headers, body = server.ask("/", "HEAD")
    assert code == 200 and int(headers["content-length"]) > 100000 and body == b""


@pytest.mark.parametrize("path", [
    "/plan.json", "/../secret.svg", "/figures/../../secret.svg", "/figures/..%2f..%2fsecret.svg",
    "/figures/%2e%2e/secret.svg", "/figures/link.svg", "/figures/pipe.svg", "/figures/.hidden.svg",
    "/figures/notes.txt", "/figures/", "/figures", "//etc/passwd", "/figures//etc/passwd.svg",
    "/results.json/", "/results.json%00.svg", "/figures/a\\b.svg"])
def test_nothing_else_is_served(server, path):
    code, _, body = server.ask(path)
    assert code == 404 and b"secret" not in body


def test_a_folder_of_figures_that_is_a_link_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a.svg").write_text("secret")
    (tmp_path / "compare").mkdir()
    os.symlink(tmp_path / "elsewhere", tmp_path / "compare" / "figures")
    (tmp_path / "elsewhere" / "results.json").write_text('{"schema":1,"title":"secret"}')
    os.symlink(tmp_path / "elsewhere" / "results.json", tmp_path / "compare" / "results.json")
    with serving(tmp_path / "compare") as server:
        assert server.ask("/figures/a.svg")[0] == 404
        assert server.ask("/results.json")[0] == 404
        assert b"secret" not in server.ask("/")[2]


def test_methods(server):
    for method in ("PUT", "DELETE", "OPTIONS", "POST", "TRACE"):
        code, headers, _ = server.ask("/", method)
        assert (code, headers["allow"]) == (405, "GET, HEAD")
    code, headers, _ = server.ask("/explore")
    assert (code, headers["allow"]) == (405, "POST")


HOST = "Host: 127.0.0.1:PORT"


@pytest.mark.parametrize("sent, code", [
    (request("GET / HTTP/1.1"), 400),
    (request("GET / HTTP/1.1", HOST, HOST), 400),
    (request("GET / HTTP/2.0", HOST), 505),
    (request("GET http://127.0.0.1/ HTTP/1.1", HOST), 400),
    (request("GET  HTTP/1.1", HOST), 400),
    (request("nonsense"), 400),
    (request("G\x01T / HTTP/1.1", HOST), 400),
    (request("GET / HTTP/1.1", HOST, "no header"), 400),
    (request("GET / HTTP/1.1", HOST, "a: 1", " folded: 2"), 400),
    (request("GET / HTTP/1.1", HOST, "a : 1"), 400),
    (request("GET / HTTP/1.1", HOST, "a: b\nc: d"), 400),
    (request("GET /" + "a" * 3000 + " HTTP/1.1", HOST), 414),
    (request("GET / HTTP/1.1", HOST, "a: " + "b" * 20000), 431),
    (b"GET / HTTP/1.1\r\n" + b"a" * 40000, 431),
    (request("GET / HTTP/1.1", HOST, *(f"a{i}: b" for i in range(80))), 431),
    (request("POST /explore HTTP/1.1", HOST, "Content-Length: -1"), 400),
    (request("POST /explore HTTP/1.1", HOST, "Content-Length: 3000000"), 413),
    (request("POST /explore HTTP/1.1", HOST, "Content-Length: 99999999999999999999999"), 413),
    (request("POST /explore HTTP/1.1", HOST, "Content-Length: 1", "Content-Length: 1"), 400),
    (request("POST /explore HTTP/1.1", HOST, "Transfer-Encoding: chunked", body=b"0\r\n\r\n"), 501),
    (request("GET / HTTP/1.1", "Host: elsewhere.example"), 403),
    (request("GET / HTTP/1.1", "Host: 127.0.0.1:1"), 403),
])
def test_bad_requests(server, sent, code):
    assert status(raw(server, sent.replace(b"PORT", str(server.port).encode()))) == code


def test_a_slow_client_is_told_and_others_are_served(server):
    began = time.monotonic()
    slow = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(40)]
    slow[0].sendall(b"GET / HTTP/1.1\r\n")
    code, _, _ = server.ask("/results.json")  # waits at most for a place, of which there are 32
    assert code == 200 and time.monotonic() - began < 8
    slow[0].settimeout(8)
    assert status(slow[0].recv(4096)) == 408
    for connection in slow:
        connection.close()


def test_a_request_that_drips_is_no_exception(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as drip:
        began, got = time.monotonic(), b""
        drip.settimeout(0.1)
        while time.monotonic() - began < 8 and not got:
            try:
                drip.sendall(b"a")
                got = drip.recv(4096)
            except TimeoutError:
                continue
            except OSError:
                break
        assert time.monotonic() - began < 6


def test_a_client_that_reads_nothing_is_dropped(server):
    with socket.create_connection(("127.0.0.1", server.port)) as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.sendall(request("GET / HTTP/1.1", f"Host: 127.0.0.1:{server.port}"))
        time.sleep(2.5)
        assert server.ask("/results.json")[0] == 200


def test_two_clients_at_once(server):
    sent = request("GET / HTTP/1.1", f"Host: 127.0.0.1:{server.port}")
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as one:
        one.sendall(sent[:20])
        assert status(raw(server, sent)) == 200
        one.sendall(sent[20:])
        assert status(one.recv(4096)) == 200


@pytest.mark.parametrize("words", [
    {"metric": "dot", "form": "distance"},
    {"metric": "layer-change", "normalize": "mean", "scale": "1.7"},
    {"metric": "key-covariance", "ridge": "0.01", "prior": "2"},
    {"metric": "jacobian", "weighting": "identity"},
    {"metric": "random", "seed": "3", "weighting": "relu2", "rescale": "l1"},
    {"metric": "flat", "weighting": "linear", "feature": "exp"},
    {"metric": "key-covariance", "ridge": "0.1", "scale": "auto"},
    {"metric": "layer-change", "dtype": "f32"},
])
def test_the_explorer_says_what_attend_says(server, tmp_path, words):
    question = {"words": {"dtype": "f64", **words}, "q": [[0.3, -0.8]], "k": KEYS, "v": KEYS,
                "v_prev": BELOW}
    code, answer = server.explore(question)
    assert code == 200, answer
    for name, value in attend(tmp_path, question).items():
        assert answer[name] == value, name
    assert len(answer["weights"]) == 4 and len(answer["metric"]) == 2
    assert answer["options"]["metric"] == words["metric"]


@pytest.mark.parametrize("change, words", [
    ({"words": {"metric": "euclid"}}, "does not know 'euclid'"),
    ({"words": {"backend": "cuda"}}, "the explorer has no flag 'backend'"),
    ({"words": {"out": "/tmp/x"}}, "the explorer has no flag 'out'"),
    ({"words": {"metric": "dot", "ridge": "1"}}, "--ridge belongs to"),
    ({"words": {"metric": "key-covariance", "weighting": "relu2"}}, "relu2"),
    ({"words": {"ridge": 1}}, "needs a text"),
    ({"words": []}, "no object"),
    ({"q": [[1, 2], [3, 4]]}, "takes one"),
    ({"q": [[1, 2, 3]]}, "3"),
    ({"k": []}, "k needs rows of numbers"),
    ({"k": [[1, 2], [3]]}, "not all 2 numbers long"),
    ({"k": [[1, "2"]]}, "what is no number"),
    ({"k": [[0, 0]] * 1025}, "at most"),
])
def test_what_the_explorer_cannot_do_is_said(server, change, words):
    code, answer = server.explore({"words": {}, "q": [[1, 2]], "k": KEYS, "v": KEYS, **change})
    assert code == 400 and words in answer["error"]


def test_the_explorer_is_asked_by_its_own_page_alone(server):
    question = {"q": [[1, 2]], "k": KEYS, "v": KEYS}
    assert server.explore(question)[0] == 200
    assert server.explore(question, Origin=f"http://127.0.0.1:{server.port}")[0] == 200
    assert server.ask("/explore", "POST", json.dumps(question), {
        "Content-Type": "application/json", "Origin": "http://elsewhere.example"})[0] == 403
    assert server.ask("/explore", "POST", json.dumps(question),
                      {"Content-Type": "text/plain"})[0] == 415
    assert server.ask("/explore", "POST", "{", {"Content-Type": "application/json"})[0] == 400


def test_a_token_is_asked_for(folder):
    with serving(folder, "--token") as server:
        assert len(server.token) == 32 and server.url.endswith("?token=" + server.token)
        for path in ("/", "/results.json", "/figures/robustness.svg", "/nothing", "/?token=",
                     "/?token=" + "0" * 32, "/results.json?token=" + server.token):
            code, _, body = server.ask(path)
            assert code == 401 and b"No mechanism" not in body
        assert server.ask("/explore", "POST", "{}")[0] == 401
        code, headers, _ = server.ask("/?token=" + server.token)
        assert (code, headers["location"]) == (303, "/")
        assert "HttpOnly" in headers["set-cookie"] and "SameSite=Strict" in headers["set-cookie"]
        cookie = headers["set-cookie"].split(";")[0]
        assert server.ask("/", headers={"Cookie": "a=b; " + cookie})[0] == 200
        assert server.ask("/", headers={"Cookie": cookie[:-1] + "x"})[0] == 401
        assert server.ask("/", headers={"Authorization": "Bearer " + server.token})[0] == 200


def test_another_host_has_a_token_and_another_start_another(folder):
    tokens = set()
    for _ in range(2):
        with serving(folder, "--host", "0.0.0.0") as server:
            assert server.ask("/")[0] == 401
            tokens.add(server.token)
    assert len(tokens) == 2 and "" not in tokens


def test_an_empty_folder_waits_and_a_broken_file_is_said(tmp_path):
    with serving(tmp_path) as server:
        code, _, body = server.ask("/")
        assert code == 200 and b"Waiting for the first results" in body
        assert server.ask("/results.json")[0] == 404
        (tmp_path / "results.json").write_text("{")
        code, _, body = server.ask("/")
        assert code == 500 and b"no JSON" in body
        (tmp_path / "results.json").write_text('{"schema":1,"title":"here"}')
        assert b"<title>here</title>" in server.ask("/")[2]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_when_told(folder, how):
    server = Server(folder)
    held = socket.create_connection(("127.0.0.1", server.port))
    server.ask("/results.json")
    began = time.monotonic()
    assert server.end(how) == 0 and time.monotonic() - began < 5
    held.close()


def run(*words):
    return subprocess.run([FOCI, "serve", *words], capture_output=True, text=True, timeout=10)


@pytest.mark.parametrize("words, code, line", [
    ((), 2, "serve needs a folder of results"),
    (("/nowhere",), 1, "/nowhere is no folder"),
    ((".", "--host", "example.org"), 2, "is no address"),
    ((".", "--port", "70000"), 2, "more than 65535"),
    ((".", "--patience", "0"), 2, "does not lie between 1 and 3600"),
    ((".", "--patience", "4000"), 2, "does not lie between"),
    ((".", "--token", "--host", "192.0.2.1"), 1, "cannot be listened on"),
])
def test_bad_words(words, code, line):
    ran = run(*words)
    assert ran.returncode == code and line in ran.stderr and ran.stdout == ""


def test_a_port_in_use_is_said(server, folder):
    ran = run(str(folder), "--port", str(server.port))
    assert ran.returncode == 1 and "in use" in ran.stderr


def test_what_it_prints(folder):
    for flags, lines in ((("--quiet",), 1), ((), 2)):
        process = subprocess.Popen([FOCI, "serve", str(folder), *flags], stdout=subprocess.PIPE,
                                   text=True)
        said = "".join(process.stdout.readline() for _ in range(lines))
        process.terminate()
        rest, _ = process.communicate(timeout=60)
        assert rest == "" and len(said.splitlines()) == lines and "http://127.0.0.1:" in said
