"""Renders a table as HTML with a Chameleon template."""

import hashlib
from typing import Any

from chameleon import PageTemplate

_TEMPLATE = PageTemplate("""<table xmlns="http://www.w3.org/1999/xhtml">
<tr tal:repeat="row table">
<td tal:repeat="cell row"><tal:block replace="cell" /> of ${len(row)}</td>
</tr>
</table>""")


def main(args: dict[str, Any]) -> dict[str, Any]:
    """Return the size and digest of a table of `{"rows"}` by `{"columns"}`, and its first cell."""
    rows, columns = int(args.get("rows", 50)), int(args.get("columns", 10))
    first = int(args.get("first", 0))
    table = [[first + row * columns + column for column in range(columns)] for row in range(rows)]
    page = _TEMPLATE.render(table=table)
    return {"bytes": len(page), "digest": hashlib.sha256(page.encode()).hexdigest()}


def example(index: int) -> dict[str, Any]:
    """Return the arguments of call number `index` of the benchmark."""
    return {"rows": 50, "columns": 10, "first": index}
