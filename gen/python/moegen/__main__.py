# SPDX-License-Identifier: Apache-2.0
"""python -m moegen: the program."""
from .program import main

main()
