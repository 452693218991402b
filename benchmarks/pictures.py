"""Draw the pictures of measurements anew, from the figures that the pages of docs/ hold.

python -m benchmarks.pictures     # nothing is measured
"""

import argparse

from benchmarks import kind_quality
from benchmarks.all import MAKERS, drawn
from benchmarks.charts import DOCS


def pictures() -> dict[str, str]:
    """File of docs/ -> what it holds."""
    return {
        "kind-quality.svg": kind_quality.picture(kind_quality.recorded()),
        **{file: text for page in MAKERS.values() for file, text in drawn(DOCS / page).items()},
    }


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    for file, text in pictures().items():
        (DOCS / file).write_text(text)
