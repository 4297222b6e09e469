"""Hugging Face model directories: safetensors, config.json, tokenizer.json."""
