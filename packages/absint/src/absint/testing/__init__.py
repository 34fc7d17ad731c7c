"""Public test tools of absint."""

from absint.testing.oracle import Mismatch, OracleMode

__all__ = ["Mismatch", "OracleMode"]
