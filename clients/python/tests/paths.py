import re
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
REPOSITORY = PACKAGE.parent.parent


def rows_of(page: str, head: str) -> list[list[str]]:
    """The code in the cells of a table of `docs/`, by row, as tests carry it out."""
    _, _, table = (PACKAGE / "docs" / page).read_text("utf-8").partition(f"{head}\n|---|---|\n")
    rows = re.match(r"(?:\|.*\|\n)+", table)
    assert rows, f"{page} has no table {head}"
    return [re.findall(r"`(.+?)` (?=\|)", row) for row in rows[0].splitlines()]
