#!/usr/bin/env python3
"""A vendor for large bodies: it reads a request's head, drops the body, and answers a chat.

What it is sent is counted by the kernel and not even copied, so that it costs next to nothing
beside what is measured. It speaks HTTP/1.1 without TLS, with bodies of known length.

With --ca FILE it speaks TLS, offers HTTP/2 (not with --http1), and writes the certificate of the
authority that vouches for it into the file. Then bodies are decrypted, and dropped after that.
"""

import argparse
import selectors
import socket
import ssl
import subprocess
import tempfile
from pathlib import Path

import dropped

READ = 1 << 20
# A record of TLS has 16 KiB at most: so many reads come before another connection has its turn.
READS_TLS = 64
HANDSHAKE_S = 5


class Connection:
    """What comes on a connection, for a protocol that drops it."""

    room = memoryview(bytearray(READ))

    def __init__(self, stream):
        self.stream, self.is_tls = stream, isinstance(stream, ssl.SSLSocket)
        is_http2 = self.is_tls and stream.selected_alpn_protocol() == "h2"
        self.protocol = (dropped.Http2 if is_http2 else dropped.Http1)(stream.sendall)

    def read(self):
        """Takes what has come; whether the connection goes on."""
        try:
            return all(self.take() for _ in range(READS_TLS if self.is_tls else 1))
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            return False

    def take(self):
        """One read, of which what belongs to a body is not even looked at where that can be."""
        missing = self.protocol.missing
        if missing and not self.is_tls:
            count = self.stream.recv_into(self.room, min(missing, READ), socket.MSG_TRUNC)
            return count > 0 and self.protocol.drop(count)
        count = self.stream.recv_into(self.room, READ)
        return count > 0 and self.protocol.take(self.room[:count])


def secured(ca, http1):
    """TLS with a certificate that a new authority signs, whose own is written into a file."""
    with tempfile.TemporaryDirectory() as folder:

        def openssl(*words):
            subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout"]
        names = "subjectAltName=DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth\n"
        Path(folder, "names").write_text(names)
        authority = ["-x509", "-days", "2", "-subj", "/CN=authority", "-out", "ca.pem"]
        openssl("req", *key, "ca.key", *authority, "-addext", "keyUsage=critical,keyCertSign")
        openssl("req", *key, "leaf.key", "-subj", "/CN=localhost", "-out", "leaf.csr")
        signer = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2"]
        openssl("x509", "-req", "-in", "leaf.csr", *signer, "-extfile", "names", "-out", "leaf.pem")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(Path(folder, "leaf.pem"), Path(folder, "leaf.key"))
        context.set_alpn_protocols(["http/1.1"] if http1 else ["h2", "http/1.1"])
        ca.write_bytes(Path(folder, "ca.pem").read_bytes())
    return context


def accepted(listener, context):
    """A connection that was made, after its handshake if it has one; None if that failed."""
    stream, _ = listener.accept()
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        if context:
            stream.settimeout(HANDSHAKE_S)
            stream = context.wrap_socket(stream, server_side=True)
        stream.setblocking(False)
        return Connection(stream)
    except OSError:
        stream.close()
        return None


def main():
    words = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    words.add_argument("--ca", type=Path, help="speak TLS; where its authority's certificate goes")
    words.add_argument("--http1", action="store_true", help="no HTTP/2 over TLS")
    said = words.parse_args()
    context = secured(said.ca, said.http1) if said.ca else None
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ, None)
    print(f"listening on http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    while True:
        for key, _ in selector.select():
            if key.data:
                if not key.data.read():
                    selector.unregister(key.fileobj)
                    key.fileobj.close()
                continue
            connection = accepted(listener, context)
            if connection:
                selector.register(connection.stream, selectors.EVENT_READ, connection)


if __name__ == "__main__":
    main()
