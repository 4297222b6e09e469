"""Thousands of sockets against one gateway, and against plain servers for comparison."""
