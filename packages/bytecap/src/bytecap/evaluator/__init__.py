"""The evaluation of a frame: its instructions, its calls, the values of what it reads."""
