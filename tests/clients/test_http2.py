"""HTTP/2, which the SDKs here don't speak by themselves: curl does."""

import json
import subprocess

import pytest
from stack import until

import talk

IMAGE_BYTES = 25 << 20
VIDEO_BYTES = 9_000_000
UPLOADS = 4


def certificate(folder):
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    subprocess.run([*command.split(), "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key


@pytest.mark.stores("sqlite")
@pytest.mark.vendors("sim")
def test_uploads_in_one_connection_do_not_stop_each_other(gateway, tmp_path, monkeypatch):
    """What waited for room was not read, and used up the connection's window: the others starved."""
    cert, key = certificate(tmp_path)
    monkeypatch.setenv("TOLLGATE__LISTEN__TLS", f'{{ cert = "{cert}", key = "{key}" }}')
    node = gateway(vendor_b=["image-bytes=100"])
    account = node.account(credit="20")
    picture = tmp_path / "picture.png"
    picture.write_bytes(talk.PNG + bytes(IMAGE_BYTES - len(talk.PNG)))
    url = node.base_url.replace("http:", "https:") + "/images/edits"
    one = ["--insecure", "--http2", "--silent", "--output", "/dev/null", "--max-time", "60"]
    one += ["--write-out", "%{http_code} %{http_version} %{num_connects}\n", "-H", f"authorization: Bearer {account.key}"]
    one += ["-F", "model=lmb-image-1", "-F", "prompt=Redder.", "-F", f"image=@{picture}", url]
    command = ["curl", "--parallel", "--no-progress-meter", *(["--next", *one] * UPLOADS)[1:]]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=90).stdout
    answers = [line.split() for line in said.splitlines()]
    assert [answer[:2] for answer in answers] == [["200", "2"]] * UPLOADS
    assert sum(int(answer[2]) for answer in answers) == 1, "they went over several connections"
    assert len(account.charges(UPLOADS)) == UPLOADS


@pytest.mark.stores("sqlite")
@pytest.mark.vendors("sim")
def test_videos_are_downloaded_through_the_redirect_side_by_side_in_one_connection(gateway, tmp_path, monkeypatch):
    cert, key = certificate(tmp_path)
    monkeypatch.setenv("TOLLGATE__LISTEN__TLS", f'{{ cert = "{cert}", key = "{key}" }}')
    node = gateway(vendor_d=f"file.reply-bytes={VIDEO_BYTES}")
    account = node.account()
    base = node.base_url.replace("http:", "https:") + "/videos"
    common = ["--insecure", "--http2", "--silent", "--max-time", "60", "-H", f"authorization: Bearer {account.key}"]

    def curl(*options):
        command = ["curl", *common, *options]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=90).stdout

    picture = tmp_path / "picture.png"
    picture.write_bytes(talk.PNG + bytes((4 << 20) - len(talk.PNG)))
    form = ["model=lmd-imagine-video", "prompt=Redder.", "seconds=1", f"input_reference=@{picture}"]
    job = json.loads(curl(*[part for field in form for part in ("-F", field)], base))["id"]
    until(lambda: json.loads(curl(f"{base}/{job}"))["status"] == "completed", "the video is there")
    tell = ["--write-out", "%{http_code} %{http_version} %{num_connects} %{num_redirects} %{size_download}\n"]
    files = [tmp_path / f"{number}.mp4" for number in range(4)]
    one = [[*common, "--location", *tell, "--output", file, f"{base}/{job}/content"] for file in files]
    command = ["curl", "--parallel", "--no-progress-meter", *[part for call in one for part in ["--next", *call]][1:]]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=90).stdout
    answers = [line.split() for line in said.splitlines()]
    assert [[*answer[:2], *answer[3:]] for answer in answers] == [["200", "2", "1", str(VIDEO_BYTES)]] * 4
    assert len({file.read_bytes() for file in files}) == 1
    part = tmp_path / "part.mp4"
    said = curl("--location", "--range", "5-14", *tell, "--output", part, f"{base}/{job}/content")
    assert said.split()[0] == "206" and part.read_bytes() == files[0].read_bytes()[5:15]
    account.charges(1)
