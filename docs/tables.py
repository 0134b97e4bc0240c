"""What the pages' tables, figures and numbers are made of: the committed reference run, and the
package itself. `make docs` writes them into the pages, each by a line or two of cog.
"""

from pathlib import Path

DOCS = Path(__file__).parent
ROOT = DOCS.parent
REFERENCE = "results/reference-cpu"
HELP_WIDTH = 100
CLAIMED_TOKENS = 512
