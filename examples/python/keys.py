"""Keys as docs/keys.md specifies them: the same bytes in every language.

    python keys.py vectors.json    prints what it makes of the vectors, one line a case
"""

import base64
import hashlib
import json
import re
import sys
import unicodedata


class KeyRefused(ValueError):
    """The code of the rule that a key breaks."""


def event_key(name, *parts):
    """Name of the event, then 1 to 8 parts that say which one: scheduled-post-published:42."""
    if name is None or len(name) > 64 or not re.fullmatch(r"[a-z][a-z0-9]*([-._][a-z0-9]+)*", name, re.ASCII):
        raise KeyRefused("name_invalid")
    if not parts or None in parts:
        raise KeyRefused("parts_missing")
    if len(parts) > 8:
        raise KeyRefused("parts_too_many")
    for part in parts:
        if part == "":
            raise KeyRefused("part_empty")
        if re.search("[\u0000-\u001f\u007f-\u009f]", part):
            raise KeyRefused("part_control")
        if part[0] == " " or part[-1] == " ":
            raise KeyRefused("part_space")
        if not unicodedata.is_normalized("NFC", part):
            raise KeyRefused("part_not_nfc")
    key = ":".join([name, *(p.replace("%", "%25").replace(":", "%3A") for p in parts)])
    if len(key) > 255:
        raise KeyRefused("key_too_long")
    return key


def recipient(kind, ident):
    """Who gets a delivery: user:42."""
    return event_key(kind, ident)


def payload_hash(payload):
    return "sha256:" + hashlib.sha256(payload).hexdigest()


def main(path):
    with open(path, encoding="utf-8") as f:
        vectors = json.load(f)
    out = []
    for builder, cases in (
        (lambda c: event_key(c["name"], *c["parts"]), vectors["event_key"]),
        (lambda c: recipient(c["type"], c["id"]), vectors["recipient"]),
        (lambda c: payload_hash(base64.b64decode(c["base64"])), vectors["payload_hash"]),
    ):
        for case in cases:
            try:
                out.append(builder(case))
            except KeyRefused as refused:
                out.append("refused: " + str(refused))
    sys.stdout.buffer.write("".join(line + "\n" for line in out).encode())


if __name__ == "__main__":
    main(sys.argv[1])
