"""A real S3 server on this machine, and a fresh bucket on it for each test."""

import logging
import urllib.request

import pytest


@pytest.fixture(scope="session")
def endpoint():
    server = pytest.importorskip("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def url(endpoint, tmp_path, monkeypatch):
    """A fresh bucket; the first machine's cache is in force."""
    bucket = "b-" + tmp_path.name.replace("_", "-").lower()[-40:].strip("-")
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{bucket}", method="PUT")).close()
    for name, value in {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "y",
        "AWS_REGION": "us-east-1",
        "SPECREPLAY_CACHE": str(tmp_path / "first"),
    }.items():
        monkeypatch.setenv(name, value)
    return f"s3://{bucket}/some/prefix"
