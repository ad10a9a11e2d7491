"""A bucket on a real S3 API: moto's server, with a line in front of it that remembers what went over it.

moto believes any signature, so what an address was signed with is checked here, by the reckoning of S3's own library.
"""

import secrets
import sys
import urllib.request
from urllib.parse import parse_qs, urlsplit
from xml.etree import ElementTree

from botocore.auth import S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from stack import Process, free_port
from wiretap import Wiretap

REGION = "eu-central-1"
NAMESPACE = "{http://s3.amazonaws.com/doc/2006-03-01/}"


class Bucket:
    """Is empty; and again, when it is back after an outage."""

    def __init__(self, folder):
        self.folder, self.port, self.name = folder, free_port(), f"films-{secrets.token_hex(4)}"
        self.key, self.secret = "AK" + secrets.token_hex(8), secrets.token_hex(20)
        self.behind = f"http://127.0.0.1:{self.port}"
        self.process = None
        self.begin()
        self.wire = Wiretap(self.behind)
        self.url = f"s3://{self.name}/some/where"

    def begin(self):
        """Starts the server, and makes the bucket."""
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        self.process = Process("moto", command, self.folder)
        self.process.said(r"Running on (http://\S+)")
        place = f"<LocationConstraint>{REGION}</LocationConstraint>"
        body = f"<CreateBucketConfiguration>{place}</CreateBucketConfiguration>".encode()
        urllib.request.urlopen(urllib.request.Request(f"{self.behind}/{self.name}", body, method="PUT")).close()

    def end(self):
        """Stops the server; whoever calls it finds nobody there."""
        self.process.stop()

    def stop(self):
        self.wire.stop()
        self.end()

    @property
    def environment(self):
        """What a gateway must know of it beside its address."""
        return {
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_REGION": REGION,
            "AWS_ENDPOINT": self.wire.url,
            "AWS_ALLOW_HTTP": "true",
        }

    def objects(self):
        """The names of what is in it, and how long each is."""
        with urllib.request.urlopen(f"{self.behind}/{self.name}?list-type=2") as reply:
            listed = ElementTree.parse(reply).iter(f"{NAMESPACE}Contents")
        return {entry.findtext(f"{NAMESPACE}Key"): int(entry.findtext(f"{NAMESPACE}Size")) for entry in listed}

    def requests(self, method=""):
        """What was asked for over the line, oldest connection first."""
        return [request for request in self.wire.requests() if request.first.startswith(method)]

    def signature(self, address):
        """What S3 would expect as the signature of this presigned address."""
        query = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
        auth = S3SigV4QueryAuth(Credentials(self.key, self.secret), "s3", REGION)
        params = {name: value for name, value in query.items() if name != "X-Amz-Signature"}
        request = AWSRequest("GET", address.split("?")[0], params=params)
        request.context["timestamp"] = query["X-Amz-Date"]
        return auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request)
