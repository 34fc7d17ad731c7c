"""Artifacts: a model compiled ahead, in one file, for processes that have neither compiler nor the model's code.

    artifact ::= artifact.json main.program prepare.program? capture.json? code/<isa>/<source>.so* weights.safetensors?

`export.py` makes one: `capturing.py` the model as a graph, `dynamic_shapes.py` which sizes the user leaves open, and
what the program makes of them. `loading.py` runs one: `arguments.py` checks what it is called with. Both:
`file_format.py` the members, `trees.py` containers as data, `weights.py` tensors that the model holds. What runs one
imports no capture, no tracer and no compiler.
"""
