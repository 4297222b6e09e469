"""GGUF files: their structure, their block formats, their names and conventions."""
