"""Code objects as tables of instructions, and tables of instructions as code objects. (Without torch.)"""
