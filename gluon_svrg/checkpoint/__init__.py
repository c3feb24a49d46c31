"""What is saved, and how: the parts of a checkpoint, its folder, the encoding of its files."""
