"""A local S3: a real HTTP server of moto, and buckets that pyarrow opens by URI."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from moto.server import ThreadedMotoServer
from pyarrow import fs

SECRET = "not-a-real-secret"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_DEFAULT_REGION": "us-east-1",
}


class Bucket:
    """A bucket of the server; `uri` names a folder in it, `files` is another client of the same server."""

    def __init__(self, port: int, name: str) -> None:
        self._query = f"endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"
        self._name = name
        self.files = fs.S3FileSystem(
            endpoint_override=f"127.0.0.1:{port}", scheme="http", region="us-east-1", allow_bucket_creation=True
        )
        self.files.create_dir(name)

    def uri(self, folder: str) -> str:
        return f"s3://{self._name}/{folder}?{self._query}"

    def names(self, folder: str) -> set[str]:
        found = self.files.get_file_info(
            fs.FileSelector(f"{self._name}/{folder}", recursive=True, allow_not_found=True)
        )
        start = len(f"{self._name}/{folder}/")
        return {info.path[start:] for info in found if info.type == fs.FileType.File}

    def read(self, name: str) -> bytes:
        with self.files.open_input_stream(f"{self._name}/{name}") as stream:
            return bytes(stream.read())

    def write(self, name: str, data: bytes) -> None:
        with self.files.open_output_stream(f"{self._name}/{name}") as stream:
            stream.write(data)

    def everything(self, folder: str) -> bytes:
        return b"\n".join(self.read(f"{folder}/{name}") for name in sorted(self.names(folder)))


@contextmanager
def serving() -> Iterator[Bucket]:
    """Start the server on a free port; the environment holds credentials meanwhile."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        with mock.patch.dict(os.environ, CREDENTIALS):
            yield Bucket(server.get_host_and_port()[1], "runs")
    finally:
        server.stop()
