"""Repartee's inference engine. Importing this package imports nothing heavy."""
