"""From the body of a completion to the ids that the model emitted, and how each is known. Pure: no files, no network."""
