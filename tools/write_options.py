"""Writes docs/options.md from the table of options."""

from pathlib import Path

from app.options import markdown_table

PAGE = Path(__file__).resolve().parents[1] / "docs" / "options.md"
HEAD = """# Options

Every option can be given on the command line or in the environment; the command line
wins. A `REPARTEE_` variable that isn't in this table, or a value that doesn't fit, stops
start-up with one line that names it and exit code 2.

The table is written by `make docs`.

"""
FOOT = """
## API keys

A file with one entry a line; `#` begins a comment. An entry is `key`, `key:tenant` or
`key:tenant:tier`. A key has 16 to 512 letters, digits and ``!#$%&'*+.^_`|~-``; tenants
share nothing with each other, the prefix cache included; the tier is `vip`, `standard`
(the default) or `batch`. Without keys the gateway listens on loopback addresses only.
"""

if __name__ == "__main__":
    PAGE.write_text(HEAD + markdown_table() + FOOT)
