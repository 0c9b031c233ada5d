"""A made-up data set, and a server on this machine that offers it, with faults on demand."""

import gzip
import os
import re
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from dasgrad.experiments.datasets import download
from dasgrad.experiments.datasets.archives import unpack_gzip, unpack_members
from dasgrad.experiments.datasets.model import Archive, DataSet, Home
from dasgrad.experiments.datasets.npm import Package
from toy_data import MakeToy, Site, Toy, describe, pack


@pytest.fixture
def site() -> Iterator[Site]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            here.requests.append((self.path, wanted))
            if self.path not in here.contents:
                self.send_error(404)
                return
            content = here.contents[self.path]
            start = 0
            match = re.fullmatch(r"bytes=(\d+)-", wanted or "")
            if here.ranges and match:
                start = int(match[1])
                if start >= len(content):
                    self.send_error(416)
                    return
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            else:
                self.send_response(200)
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            end = start + here.cuts.pop(0) if here.cuts else len(content)
            self.send(content[start:end])

        def send(self, content: bytes) -> None:
            sent = 0
            while sent < len(content):
                if here.stall_after is not None and sent >= here.stall_after:
                    here.closing.wait(10)
                    return
                try:
                    self.wfile.write(content[sent : sent + 4096])
                except ConnectionError:
                    return
                sent += 4096
                time.sleep(here.seconds_per_chunk)

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    here = Site(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield here
    here.closing.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def make_toy(site: Site) -> MakeToy:
    """A toy data set; the site offers it at home and as a package."""

    def make(**changes: object) -> Toy:
        random = np.random.default_rng(0)
        contents = {name: random.bytes(100_000) for name in ("images", "labels")}
        home = {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in contents.items()}
        package = pack({"package/package.json": b"{}", **{f"package/{n}": c for n, c in contents.items()}})
        archives = []
        for name, content in home.items():
            file = describe(name, content)
            archives.append(Archive(*vars(file).values(), makes=(name.removesuffix(".gz"),), unpack=unpack_gzip))
        members = {f"package/{name}": name for name in contents}
        whole = Archive(
            *vars(describe(Toy.package_name, package)).values(),
            makes=tuple(contents),
            unpack=lambda path: unpack_members(path, members),
        )
        options = {
            "name": "toy",
            "what": "random bytes",
            "terms": "nobody's",
            "files": tuple(describe(name, content) for name, content in contents.items()),
            "sources": (Home(f"{site.url}/home/", tuple(archives)), Package("toy-data", "1.0.0", whole)),
        }
        toy = Toy(DataSet(**{**options, **changes}), contents, home, package)
        site.contents |= {f"/home/{name}": content for name, content in home.items()}
        site.contents[f"/npm/toy-data/-/{Toy.package_name}"] = package
        return toy

    return make


@pytest.fixture
def toy(make_toy: MakeToy) -> Toy:
    return make_toy()


@pytest.fixture
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder, no folders of the system, no npm, no waiting."""
    monkeypatch.setenv("DASGRAD_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_DATA_DIRS", str(tmp_path / "system"))
    for name in list(os.environ):
        if name.lower() == "npm_config_registry" or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(download, "pause", lambda seconds: None)
    return tmp_path / "data"
