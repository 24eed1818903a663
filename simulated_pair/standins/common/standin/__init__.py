"""What the model-server stand-ins of the simulated pair have in common.

Nothing here runs on a real machine. The package is standard library only, because one user of it
lives in a container image that holds nothing but a Python.
"""
