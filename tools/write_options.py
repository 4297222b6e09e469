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

## Tokens

    repartee token --token-keys-file keys.json --new-key eddsa
    repartee token --token-keys-file keys.json --public-keys gateways.json
    repartee token --token-keys-file keys.json --tenant acme --tier vip --ttl 3600

The first makes a key, the second writes what gateways need of it, the third prints a token. To
change keys, add a new one, let gateways read it, sign with it, and take the old one out once its
last token has run out: until then its tokens count. `hs256` keys are secrets: whoever can check
with one can sign with it.

## Limits

    [default]
    requests_per_min = 600
    tokens_per_min = 500000
    concurrent_responses = 20
    connections = 100

    [tiers.vip]
    requests_per_min = 6000

    [tenants.acme]
    connections = 1000

    [storage.default]
    stored_bytes = 536870912

    [storage.subjects]
    conversations = 10000
    stored_bytes = 67108864

    [storage.tenants.acme]
    stored_bytes = 4294967296

A tenant's field goes before its tier's, a tier's before the default, and the default before what
is built in; 0 means no limit. `storage` bounds what is kept: `default` each tenant with all of its
subjects, `subjects` each subject besides. Its figures here are those that are built in for callers
with keys, but for acme's.
"""

if __name__ == "__main__":
    PAGE.write_text(HEAD + markdown_table() + FOOT)
