"""The page as one file: style, script and data inside, nothing fetched, and nothing of the data ever run as code."""

import base64
import hashlib
import html
import json
from importlib.resources import files
from typing import Any

STYLES = ("page.css",)
SCRIPTS = ("elements.js", "chart.js", "examples.js", "sections.js", "page.js")
# What would end the script element, or start a comment in it. U+2028 and U+2029 end lines in old JavaScript.
ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def render_page(page: dict[str, Any]) -> str:
    """One HTML document. Its content policy allows its own script and style, by their hashes, and no address."""
    style, script = _read(STYLES), _read(SCRIPTS)
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = {
        "POLICY": html.escape(policy),
        "TITLE": html.escape(f"dasgrad: {page['name']}"),
        "STYLE": style,
        "SCRIPT": script,
        "DATA": embed_json(page),
    }
    document = (files(__package__) / "template" / "page.html").read_text(encoding="utf-8")
    head, *pieces = document.split("{{")
    for piece in pieces:  # one pass: what is put in is not searched again
        name, _, rest = piece.partition("}}")
        head += parts[name] + rest
    return head


def embed_json(value: Any) -> str:
    """JSON that is safe inside a script element: no ``<``, ``>`` or ``&`` in it.

    Raises:
        ValueError: for numbers that are not finite, which JSON does not have.
    """
    text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    for character, escape in ESCAPES.items():
        text = text.replace(character, escape)
    return text.encode("utf-8", "replace").decode("utf-8")  # a lone surrogate, as in a file name of odd bytes


def _read(names: tuple[str, ...]) -> str:
    folder = files(__package__) / "template"
    return "\n" + "\n".join((folder / name).read_text(encoding="utf-8") for name in names)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
