"""Repartee's gateway, sessions and command line. Nothing here imports torch."""
