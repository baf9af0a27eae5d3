"""A server on 127.0.0.1 that writes whatever bytes it is told to, for tests of clients."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager


class RawServer:
    """Reads each request and then lets `reply(connection, ended)` write bytes as it likes."""

    def __init__(self, reply):
        self.reply, self.requests, self.ended = reply, [], threading.Event()
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                connection, _ = self.listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        with connection:
            try:
                while text := connection.recv(65536):
                    while not text.rstrip().endswith(b"}"):
                        text += connection.recv(65536)
                    self.requests.append(text)
                    self.reply(connection, self.ended)
            except OSError:
                pass


@contextmanager
def serving(reply):
    server = RawServer(reply)
    try:
        yield server
    finally:
        server.ended.set()
        server.listening.close()


def says(content, headers=b"", status=b"200 OK"):
    length = b"Content-Length: %d\r\n" % len(content)
    return lambda connection, ended: connection.sendall(
        b"HTTP/1.1 " + status + b"\r\n" + headers + length + b"\r\n" + content
    )
