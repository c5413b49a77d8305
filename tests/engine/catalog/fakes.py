"""A model hub on loopback, small model files, and wheels that carry pieces of a file."""

from __future__ import annotations

import hashlib
import json
import struct
import threading
import time
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def safetensors_bytes(tensors: dict[str, tuple[int, ...]]) -> bytes:
    """A float16 safetensors file of zeros."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, shape in tensors.items():
        size = 2
        for n in shape:
            size *= n
        header[name] = {"dtype": "F16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(at)


def gguf_bytes(metadata: dict[str, Any], tensors: dict[str, tuple[int, ...]], words: int = 0) -> bytes:
    """A GGUF file with float16 tensors of zeros; shapes as torch counts. `words` adds a vocabulary of that many texts."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    body = b""
    for key, value in metadata.items():
        body += text(key)
        if isinstance(value, str):
            body += struct.pack("<I", 8) + text(value)
        elif isinstance(value, list):
            body += struct.pack("<IIQ", 9, 4, len(value)) + struct.pack(f"<{len(value)}I", *value)
        else:
            body += struct.pack("<II", 4, value)
    if words:
        body += text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, words) + b"".join(text(f"w{i}") for i in range(words))
    infos, at = b"", 0
    for name, shape in tensors.items():
        infos += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape[::-1]) + struct.pack("<IQ", 1, at)
        size = 2
        for n in shape:
            size *= n
        at += -(-size // 32) * 32
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata) + bool(words)) + body + infos
    return head + bytes(-len(head) % 32) + bytes(at)


CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "tie_word_embeddings": True,
}
SMALL = {"config.json": json.dumps(CONFIG).encode(), "tokenizer.json": b"{}", "README.md": b"# not needed"}
WEIGHTS = safetensors_bytes({"model.embed_tokens.weight": (1000, 64), "model.layers.0.mlp.up_proj.weight": (128, 64)})


HANG_S = 3600.0


class FakeHub:
    """Serves one repository as the hub does. Change the fields to make it misbehave."""

    def __init__(self, files: dict[str, bytes], lfs: tuple[str, ...] = (".safetensors", ".gguf", ".bin", ".pt")) -> None:
        self.files, self.lfs = dict(files), lfs
        self.repo = "org/tiny"
        self.gated = False  # file downloads answer 403, as for a licence not yet accepted
        self.hang = False  # takes the connection and does not answer before an hour has passed
        self.over = threading.Event()
        self.status = 0  # answer everything with this
        self.cut_after: int | None = None  # break the connection after so many bytes of a weight file
        self.cuts = 0  # so many times
        self.ranges = True
        self.block_s = 0.0  # pause between blocks of 64 kB
        self.held_at = 0  # not more than so many bytes of a weight file, until it is 0
        self.sent: dict[str, bytes] = {}  # other bytes than the metadata promise
        self.requests: list[tuple[str, str, str]] = []  # method, path, range
        self.tokens: set[str] = set()
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_HEAD(self) -> None:
                hub.answer(self, body=False)

            def do_GET(self) -> None:
                hub.answer(self, body=True)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self.over.set()
        self.held_at = 0
        self.server.shutdown()
        self.server.server_close()

    def fetched(self) -> list[str]:
        """Files whose bytes were asked for."""
        return [path.rpartition("/")[2] for method, path, _ in self.requests if method == "GET" and "/resolve/" in path]

    def answer(self, handler: BaseHTTPRequestHandler, body: bool) -> None:
        path, wanted = handler.path.partition("?")[0], handler.headers.get("Range", "")
        self.requests.append((handler.command, path, wanted))
        self.tokens.add(handler.headers.get("authorization", ""))
        if self.hang:
            self.over.wait(HANG_S)
            return
        if self.status:
            return self._say(handler, self.status, b"", {})
        if path == f"/api/models/{self.repo}":
            return self._say(handler, 200, json.dumps(self._info()).encode(), {"Content-Type": "application/json"})
        prefix = f"/{self.repo}/resolve/"
        if not path.startswith(prefix):
            return self._say(handler, 404, b"", {"X-Error-Code": "RepoNotFound"})
        name = path[len(prefix) :].partition("/")[2]
        if self.gated:
            return self._say(handler, 403, b"", {"X-Error-Code": "GatedRepo"})
        if name not in self.files:
            return self._say(handler, 404, b"", {"X-Error-Code": "EntryNotFound"})
        data = self.sent.get(name, self.files[name])
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.ranges else 0
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{self._etag(name)}"', "Accept-Ranges": "bytes"}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        self._say(handler, 206 if start else 200, data[start:], headers, body, weights=name.endswith(self.lfs))

    def _say(
        self,
        handler: BaseHTTPRequestHandler,
        code: int,
        data: bytes,
        headers: dict[str, str],
        body: bool = True,
        weights: bool = False,
    ) -> None:
        handler.send_response(code)
        for key, value in headers.items():
            handler.send_header(key, value)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        if not body or handler.command == "HEAD":
            return
        cut = self.cut_after if weights and self.cuts > 0 else None
        if cut is not None:
            self.cuts -= 1
            handler.close_connection = True
        try:
            for at in range(0, len(data) if cut is None else min(cut, len(data)), 1 << 16):
                handler.wfile.write(data[at : min(at + (1 << 16), cut or len(data))])
                if weights and self.block_s:
                    time.sleep(self.block_s)
                while weights and 0 < self.held_at <= at:
                    time.sleep(0.01)
        except OSError:
            handler.close_connection = True  # the client left

    def _etag(self, name: str) -> str:
        data = self.files[name]
        if name.endswith(self.lfs):
            return hashlib.sha256(data).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()

    def _info(self) -> dict[str, Any]:
        siblings = []
        for name, data in self.files.items():
            entry: dict[str, Any] = {"rfilename": name, "size": len(data), "blobId": self._etag(name)}
            if name.endswith(self.lfs):
                entry["lfs"] = {"sha256": self._etag(name), "size": len(data), "pointerSize": 130}
            siblings.append(entry)
        return {
            "id": self.repo,
            "modelId": self.repo,
            "sha": COMMIT,
            "siblings": siblings,
            "tags": [],
            "private": False,
            "downloads": 0,
        }


def write_wheel(folder: Path, name: str, version: str, member: str, data: bytes) -> Path:
    """A wheel with one data member; its code would fail if anybody ran it."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    path = folder / f"{module}-{version}-py3-none-any.whl"
    files = {
        f"{module}/__init__.py": b"raise RuntimeError('a mirror wheel was imported')",
        f"{module}/{member}": data,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, content in files.items():
            archive.writestr(file, content)
        archive.writestr(f"{info}/RECORD", "".join(f"{file},,\n" for file in files))
    return path


class FakeIndex:
    """A package index on loopback over a folder of wheels, which can keep one back."""

    def __init__(self, folder: Path) -> None:
        self.held = ""  # of the wheel with this in its name only the beginning comes, until `go`
        self.go = threading.Event()
        self.wheels_asked: list[str] = []
        index = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                parts = self.path.strip("/").split("/")
                if parts[0] == "simple":
                    stem = parts[1].replace("-", "_")
                    links = "".join(f'<a href="/wheels/{f.name}">{f.name}</a>' for f in sorted(folder.glob(f"{stem}-*.whl")))
                    return self.reply(f"<html><body>{links}</body></html>".encode(), "text/html")
                index.wheels_asked.append(parts[1])
                self.reply((folder / parts[1]).read_bytes(), "application/octet-stream")

            def reply(self, data: bytes, kind: str) -> None:
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                try:
                    for at in range(0, len(data), 1 << 16):
                        self.wfile.write(data[at : at + (1 << 16)])
                        if index.held and index.held in self.path:
                            index.go.wait(HANG_S)
                except OSError:
                    pass  # the client left

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/simple"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self.go.set()
        self.server.shutdown()
        self.server.server_close()
