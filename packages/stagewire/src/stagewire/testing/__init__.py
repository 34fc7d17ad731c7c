"""For tests: hypothesis strategies for documents and their parts (`strategies`), and one example of every broken
constraint (`broken`). Needs hypothesis, which comes with the extra `[testing]`."""
