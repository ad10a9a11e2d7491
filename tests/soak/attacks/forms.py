"""Forms that two readers take for two different ones."""

from .shot import ACCEPT, CHAT, EDITS, EITHER, PNG, REFUSE, VIDEOS, Shot, family

BOUNDARY = "xYzZy0123456789"


def part(head, content, end=b"\r\n"):
    content = content if isinstance(content, bytes) else content.encode()
    return head.encode("latin-1") + end + end + content + end


def field(name, value):
    return part(f'content-disposition: form-data; name="{name}"', value)


def file(name="image", content=PNG, more='; filename="a.png"\r\ncontent-type: image/png'):
    return part(f'content-disposition: form-data; name="{name}"{more}', content)


class Form:
    """The parts of an honest edit, to be changed; or of an honest video, which is refused unread here
    since its prompt is missing."""

    def __init__(self, a, model="lmb-image-1-mini"):
        self.a, self.mark, self.boundary = a, a.mark(), BOUNDARY
        self.kind = f"multipart/form-data; boundary={BOUNDARY}"
        self.parts = [field("model", model), field("prompt", self.mark), file()]
        self.path = EDITS

    def add(self, *parts):
        for one in parts:
            self.parts.insert(self.a.rng.randrange(len(self.parts) + 1), one)
        return self

    def written(self, end=b"\r\n"):
        dashes = b"--" + self.boundary.encode("latin-1")
        return b"".join(dashes + end + one for one in self.parts) + dashes + b"--" + end

    def shot(self, label=REFUSE, body=None, kinds=None, **options):
        body = self.written() if body is None else body
        kinds = kinds or [self.kind]
        lines = [
            f"POST {self.path} HTTP/1.1",
            "host: tollgate",
            f"authorization: Bearer {self.a.key_for(label)}",
        ]
        lines += [f"content-length: {len(body)}", *(f"content-type: {kind}" for kind in kinds)]
        head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
        options.setdefault("raw", False)
        return Shot("", [head + body], label, (self.mark,), path=self.path, body=b"", **options)


@family()
def honest(a):
    form = Form(a, a.rng.choice(["lmb-image-1-mini", "lmd-imagine-image"]))
    a.rng.shuffle(form.parts)
    return form.shot(ACCEPT)


@family(3)
def fields_twice(a):
    name = a.rng.choice(["model", "prompt", "n", "size", "quality"])
    form = Form(a).add(field(name, a.rng.choice(["1", "lmb-image-2", "x", ""])))
    if name not in ("model", "prompt"):
        form.add(field(name, "1"))
    return form.shot()


@family(3)
def fields_that_are_the_same_to_some(a):
    name = a.rng.choice(
        [
            "model[]",
            "model[0]",
            "n[]",
            "_charset_",
            "__proto__",
            "model.",
            " model",
            "model ",
            "model\\",
            "Model",
            "mod%65l",
            "[model]",
            "model\x00",
            "n\t",
        ]
    )
    label = REFUSE if name not in ("Model", "model.") else EITHER
    return Form(a).add(field(name, a.rng.choice(["1", "lmb-image-2", "utf-16"]))).shot(label)


@family(2)
def files_twice(a):
    return Form(a).add(file(a.rng.choice(["image", "image[]", "mask", "file", "prompt"]))).shot()


@family(2)
def texts_as_files(a):
    form = Form(a)
    form.parts = [
        field("prompt", form.mark),
        file(),
        part('content-disposition: form-data; name="model"; filename="x"', "lmb-image-1-mini"),
    ]
    return form.shot()


@family()
def files_as_texts(a):
    form = Form(a)
    form.parts[2] = field("image", a.rng.choice([PNG, b"https://x.example/a.png", b"data:image/png;base64,AA=="]))
    return form.shot()


@family(3)
def boundaries_twice(a):
    """The declared boundary and another one, each of which makes a form."""
    form = Form(a)
    other = "other0000"
    kind = a.rng.randrange(4)
    if kind == 0:
        form.kind = f"multipart/form-data; boundary={BOUNDARY}; boundary={other}"
    elif kind == 1:
        form.kind = f"multipart/form-data; boundary={other}; boundary={BOUNDARY}"
    elif kind == 2:
        return form.shot(kinds=[form.kind, f"multipart/form-data; boundary={other}"])
    else:
        form.kind = f"multipart/form-data; boundary=\"{BOUNDARY}\"; boundary*=utf-8''{other}"
    return form.shot()


@family(3)
def boundaries_unsound(a):
    boundary = a.rng.choice(["", "x" * 71, "a b ", "\xe9", 'a"b', "a\\b", "a;b", "a\tb", "a{b", " "])
    form = Form(a)
    form.boundary = boundary
    form.kind = (
        f'multipart/form-data; boundary="{boundary}"'
        if a.rng.random() < 0.7
        else f"multipart/form-data; boundary={boundary}"
    )
    label = REFUSE if boundary != "a;b" else EITHER
    return form.shot(label)


@family(2)
def boundaries_declared_oddly(a):
    form = Form(a)
    form.kind = a.rng.choice(
        [
            f"Multipart/Form-Data; BOUNDARY={BOUNDARY}",
            f"multipart/form-data;boundary={BOUNDARY}",
            f"multipart/form-data; x=y; boundary={BOUNDARY}",
        ]
        + [
            f'multipart/form-data; boundary="{BOUNDARY}"',
            f"multipart/form-data ; boundary={BOUNDARY};",
            f"multipart/form-data; boundary = {BOUNDARY}",
        ]
        + [
            f"multipart/form-data; charset=utf-16; boundary={BOUNDARY}",
            f"multipart/form-data,x; boundary={BOUNDARY}",
            f"multipart/form-data; boundary='{BOUNDARY}'",
        ]
    )
    return form.shot(EITHER)


@family(2)
def other_media(a):
    kind = a.rng.choice(
        [
            f"multipart/mixed; boundary={BOUNDARY}",
            f"multipart/related; boundary={BOUNDARY}",
            "multipart/form-data",
            "application/json",
            "application/x-www-form-urlencoded",
        ]
        + [
            f"multipart/form-data; boundary*0={BOUNDARY}",
            f"multipart/form-dat\xe4; boundary={BOUNDARY}",
            "",
            f"form-data; boundary={BOUNDARY}",
            f"multipart/form-data: boundary={BOUNDARY}",
        ]
    )
    form = Form(a)
    form.kind = kind
    return form.shot()


@family(3)
def ends_missing(a):
    form = Form(a)
    body = form.written()
    cut = a.rng.choice([len(b"--\r\n"), len(b"--\r\n") + 3, a.rng.randint(5, len(body) - 1)])
    return form.shot(body=body[:-cut])


@family(2)
def before_and_after(a):
    """Text around the form, which some readers skip and some read."""
    form = Form(a)
    inner = field("model", "lmb-image-2")
    hidden = b"--" + BOUNDARY.encode() + b"\r\n" + inner
    body = form.written()
    body = a.rng.choice(
        [
            b"preamble\r\n" + body,
            body + b"epilogue",
            body + hidden,
            b"\x00" + body,
            body + body,
            b"-" + body,
            body[:-2] + b"x\r\n",
        ]
    )
    return form.shot(body=body)


@family(2)
def lone_line_feeds(a):
    form = Form(a)
    body = form.written()
    kind = a.rng.randrange(4)
    if kind == 0:
        body = form.written(b"\n")
    elif kind == 1:
        body = body.replace(b"\r\n\r\n", b"\n\n", 1)
    elif kind == 2:
        body = body.replace(b"\r\n--", b"\n--", a.rng.choice([1, 2]))
    else:
        body = body.replace(b"\r\n--", b"\r--", 1)
    return form.shot(body=body)


@family(2)
def nested(a):
    name = a.rng.choice(["model", "image", "x"])
    inner = f'content-disposition: form-data; name="{name}"\r\ncontent-type: multipart/mixed; boundary=inner'
    content = b'--inner\r\ncontent-disposition: form-data; name="model"\r\n\r\nlmb-image-2\r\n--inner--\r\n'
    return Form(a).add(part(inner, content)).shot()


@family(3)
def heads_of_parts_unsound(a):
    head = a.rng.choice(
        [
            'content-disposition: form-data; name="x"\r\n folded: y',
            'content-disposition: form-data; name="x"\r\ncontent-disposition: form-data; name="model"',
        ]
        + [
            'content-disposition: form-data; name="x"; name="model"',
            "content-disposition: form-data",
            'content-disposition: attachment; name="model"',
        ]
        + [
            'content-disposition: form-data; name=""',
            'content-disposition: form-data; name="x',
            "x",
            'content-disposition form-data; name="x"',
            ": x",
        ]
        + [
            "content-disposition: form-data; name=\"x\"; name*=utf-8''model",
            'content-disposition: form-data; name="x"\r\nx-a: b\x00',
            'content-disposition: form-data; n"ame="x"',
        ]
        + [
            'content-disposition: form-data; name="x"\n\ncontent-disposition: form-data; name="model"',
            'content-disposition: form-data; name="x\\"; filename="y"',
        ]
        + [
            'content-disposition: form-data; name="x"\r\ncontent-transfer-encoding: base64',
            'content-disposition: form-data; name="x"\r\ncontent-type: text/plain; charset=utf-16',
        ]
    )
    return Form(a).add(part(head, "1")).shot()


@family()
def heads_of_parts_without_number(a):
    many = "\r\n".join(f"x-{i}: y" for i in range(a.rng.choice([17, 2_000])))
    head = a.rng.choice([many, f"x-a: {'b' * 9_000}"])
    return Form(a).add(part(f'content-disposition: form-data; name="x"\r\n{head}', "1")).shot()


@family(3)
def names_of_files(a):
    """What a file is called is the client's business, and nobody else's."""
    name = a.rng.choice(
        [
            "../../etc/passwd",
            "a.png\x00.sh",
            'a\\";x=\\"',
            "a%22; name=%22model",
            "a%0d%0aX-A: b",
            "\xe9.png",
            "",
            "a" * 5_000,
            "C:\\a.png",
            "a\r.png",
            "con",
            "$(id).png",
            "a;b.png",
        ]
    )
    form = Form(a)
    form.parts[2] = file(more=f'; filename="{name}"\r\ncontent-type: image/png')
    return form.shot(EITHER)


@family(2)
def names_of_files_in_other_words(a):
    more = a.rng.choice(
        [
            "; filename*=utf-8''a.png",
            "; filename=a.png; filename*=utf-8''b.png",
            "; filename*=x''%ff",
            "; filename*=\"utf-8''a\"",
            "; filename=a.png; filename=b.png",
        ]
        + [
            "; FILENAME=a.png",
            "; filename",
            "; filename=",
            "; filename*0=a; filename*1=.png",
            "; filename*=utf-8'en'%0d%0aa",
        ]
    )
    form = Form(a)
    form.parts[2] = file(more=more + "\r\ncontent-type: image/png")
    return form.shot(EITHER)


@family(2)
def parts_without_number(a):
    count = a.rng.choice([14, 100, 5_000])
    return Form(a).add(*(field(f"x{i}", "1") for i in range(count))).shot()


@family(2)
def boundaries_inside_of_files(a):
    """What looks like the end of a file and is not, to some."""
    inside = a.rng.choice(
        [
            b"\r\n--" + BOUNDARY.encode() + b"x\r\n",
            b"\n--" + BOUNDARY.encode() + b"\r\n",
            b"\r--" + BOUNDARY.encode() + b"--\r\n",
            b"\r\n--" + BOUNDARY.encode() + b" \r\n",
        ]
    )
    form = Form(a)
    form.parts[2] = file(content=PNG + inside + field("model", "lmb-image-2"))
    return form.shot()


@family(2)
def boundaries_almost_inside_of_files(a):
    inside = a.rng.choice(
        [
            b"\r\n--" + BOUNDARY[:-1].encode() + b"\r\n",
            b"--" + BOUNDARY.encode(),
            b"\r\n-" + BOUNDARY.encode(),
            b"\r\n--\r\n",
        ]
    )
    form = Form(a)
    form.parts[2] = file(content=PNG + inside + b"x")
    return form.shot(EITHER)


@family(2)
def numbers_in_forms(a):
    value = a.rng.choice(
        [
            "2",
            "01",
            "1.0",
            "+1",
            " 1",
            "1 ",
            "-1",
            "0",
            "\u0661",
            "1e0",
            "0x1",
            "",
            "1\x00",
            "true",
            "10000000000000000000000",
        ]
    )
    return Form(a).add(field("n", value)).shot()


@family()
def fields_without_a_price(a):
    name, value = a.rng.choice(
        [
            ("stream", "true"),
            ("partial_images", "3"),
            ("response_format", "url"),
            ("mask", "x"),
            ("service_tier", "priority"),
            ("images", "x"),
            ("svg", "x"),
        ]
    )
    return Form(a).add(field(name, value)).shot()


@family()
def files_that_are_no_image(a):
    form = Form(a)
    content = a.rng.choice([b"", b"%PDF-1.7", b"<svg onload=x>", b"MZ", b"#!/bin/sh\n", b"\x00" * 100, b"GIF"])
    form.parts[2] = file(content=content, more='; filename="a.png"\r\ncontent-type: text/plain')
    return form.shot()


@family(0.05)
def files_too_large(a):
    form = Form(a)
    form.parts[2] = file(content=PNG + bytes((25 << 20) + 1))
    return form.shot(raw=True, patience=20.0, statuses=(413,))


@family()
def texts_too_large(a):
    form = Form(a).add(field("user", "x" * (1_100 << 10)))
    return form.shot(raw=True, patience=10.0)


@family(2)
def json_for_a_form(a):
    form = Form(a)
    body = b'{"model":"lmb-image-1-mini","prompt":"%s","image":"x"}' % form.mark.encode()
    return form.shot(body=body, kinds=[a.rng.choice(["application/json", form.kind])])


@family(2)
def a_form_for_json(a):
    form = Form(a)
    form.path = CHAT
    return form.shot()


@family(2)
def videos_in_forms_unsound(a):
    form = Form(a, "lmd-imagine-video")
    form.path = VIDEOS
    form.parts = form.parts[:2]
    wrong = a.rng.choice(
        [
            ("seconds", "04"),
            ("seconds", "16"),
            ("seconds", "1e1"),
            ("seconds", " 4"),
            ("size", "1x1"),
            ("resolution", "4k"),
            ("n", "1"),
            ("input_reference", "x"),
            ("seconds[]", "4"),
        ]
        + [
            ("generate_audio", "yes"),
            ("input_reference[file_id]", "x"),
            ("model", "lmd-imagine-video-1.5"),
            ("prompt", "x"),
            ("image_url", "file:///x"),
        ]
    )
    return form.add(field(*wrong)).shot()


@family(4)
def mutated(a):
    form = Form(a)
    body = bytearray(form.written())
    last = body.index(PNG[:8])
    for _ in range(a.rng.choice([1, 1, 2, 4])):
        at = a.rng.randrange(last if a.rng.random() < 0.7 else len(body))
        kind = a.rng.randrange(4)
        if kind == 0:
            body[at] = a.rng.randrange(256)
        elif kind == 1:
            del body[at : at + a.rng.choice([1, 2])]
        elif kind == 2:
            body.insert(at, a.rng.choice(b'\r\n-";=: \x00%'))
        else:
            body[at:at] = a.rng.choice([b"\r\n", b"--", b"; filename=x", b'"', BOUNDARY.encode()])
    return form.shot(EITHER, body=bytes(body))
