"""Inputs that nobody sane would send, and what must hold whatever is sent."""
