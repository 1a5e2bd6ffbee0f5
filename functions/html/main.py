"""A web page about a country: data of ISO 3166, 4217 and 639-3 rendered by Jinja.

The data is what the package pycountry carries; all of it is loaded at the start.
"""

import hashlib
from typing import Any

import pycountry
from jinja2 import Environment

_PAGE = Environment(autoescape=True).from_string("""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>{{ country.name }}</title></head>
<body>
<h1>{{ country.flag }} {{ country.name }} ({{ country.alpha_3 }})</h1>
<p>Asked for by {{ visitor }}.</p>
<h2>{{ subdivisions | length }} subdivisions</h2>
<ul>
{% for part in subdivisions | sort(attribute="name,code") -%}
<li><a href="/subdivision/{{ part.code }}">{{ part.name }}</a> ({{ part.type }})</li>
{% endfor -%}
</ul>
<h2>{{ languages | length }} languages that begin alike</h2>
<ol>
{% for language in languages -%}
<li lang="{{ language.alpha_3 }}">{{ language.name }}</li>
{% endfor -%}
</ol>
</body>
</html>""")
_COUNTRIES = sorted(country.alpha_2 for country in pycountry.countries)
_LANGUAGES = sorted(pycountry.languages, key=lambda language: language.name)
_CURRENCIES = list(pycountry.currencies)


def main(args: dict[str, Any]) -> dict[str, Any]:
    """Return the page about `{"country"}` for `{"visitor"}`: its size, digest and title."""
    country = pycountry.countries.get(alpha_2=str(args.get("country", "FR")))
    if country is None:
        raise ValueError(f"unknown country {args.get('country')}; give two letters of ISO 3166-1")
    page = _PAGE.render(
        country=country,
        visitor=str(args.get("visitor", "<nobody>")),
        subdivisions=pycountry.subdivisions.get(country_code=country.alpha_2) or [],
        languages=[language for language in _LANGUAGES if language.name[:2] == country.name[:2]],
    )
    digest = hashlib.sha256(page.encode()).hexdigest()
    return {"title": country.name, "bytes": len(page), "digest": digest}


def example(index: int) -> dict[str, Any]:
    """Return the arguments of call number `index` of the benchmark."""
    return {"country": _COUNTRIES[index % len(_COUNTRIES)], "visitor": f"visitor {index}"}
