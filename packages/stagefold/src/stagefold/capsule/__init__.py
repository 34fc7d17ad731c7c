"""Capsules: one file that holds what a process compiled, so that it can be looked at and compiled again elsewhere.

    capsule ::= capsule.json run* event*                    a zip archive; every member is JSON but the inputs
    run     ::= NNNN_name/{run,later,<form>}.json inputs.pt documents in wire form, settings, seconds, passes, inputs
    event   ::= events/NNNN.json                            captures, graph breaks, recompilations, refusals

`file_format.py` the members and their reader, `recorder.py` the writer, `inputs.py` tensors or the seeds that they are
drawn from, `settings.py` options as data, `replay.py` compiles again, `recording.py` `stagefold.record`.
"""
