"""HTTP/2, which the SDKs here don't speak by themselves: curl does."""

import subprocess

import pytest

import talk

IMAGE_BYTES = 25 << 20
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
