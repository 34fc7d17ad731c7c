"""One page of a capsule, and a timeline.

`page.py` the page: what was compiled and why, from the user's lines to kernels; `style.py` how it looks; `kernels.py`
the steps of a program with their text, bytes and seconds; `timeline.py` trace events, which Perfetto opens.
"""
