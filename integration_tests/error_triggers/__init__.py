"""A program for every error code: it raises the error, returns it, or prints it to stderr.

One module for each package; a function is named after the code it triggers. tools/error_docs.py shows their bodies in
docs/errors.md, under the lines that stand above the first function, with the message that each prints. A function may
ask for `folder` (an empty directory) and `patch` (a pytest.MonkeyPatch, undone afterwards).
"""
