"""Numbers that vary from call to call, and those that data decides."""
