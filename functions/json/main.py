"""Parses a document, looks through it and writes it again: the real codes of ISO 3166-2.

The document is the database of subdivisions that the package pycountry carries.
"""

import hashlib
import json
from importlib import resources
from typing import Any

_TEXT = resources.files("pycountry").joinpath("databases/iso3166-2.json").read_text("utf-8")


def main(args: dict[str, Any]) -> dict[str, Any]:
    """Return the number and a digest of the subdivisions of `{"country"}`, as JSON."""
    country = str(args.get("country", "FR"))
    document = json.loads(_TEXT)
    found = [s for s in document["3166-2"] if s["code"].startswith(f"{country}-")]
    text = json.dumps({"country": country, "subdivisions": found}, sort_keys=True)
    whole = json.dumps(document)
    return {
        "count": len(found),
        "digest": hashlib.sha256(text.encode()).hexdigest(),
        "bytes": len(whole),
    }


_COUNTRIES = sorted({s["code"].split("-")[0] for s in json.loads(_TEXT)["3166-2"]})


def example(index: int) -> dict[str, Any]:
    """Return the arguments of call number `index` of the benchmark."""
    return {"country": _COUNTRIES[index % len(_COUNTRIES)]}
