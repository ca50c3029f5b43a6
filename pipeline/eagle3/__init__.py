"""The EAGLE-3 drafter: its layer, its attention in training, its KV cache in drafting, its vocabulary, its file."""
