"""The scheduler on recorded-like traffic and a virtual clock, against other policies."""
