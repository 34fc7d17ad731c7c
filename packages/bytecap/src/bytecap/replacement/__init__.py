"""The way back to bytecode: the code that runs in a frame's place."""
