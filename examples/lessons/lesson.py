"""What does every lesson need? Matplotlib with one look, and one word on what to install."""

import os
import sys

try:
    import matplotlib.pyplot as plt
    import numpy as np

    import neocpu
except ModuleNotFoundError as error:
    sys.exit(f"{error.name} is not installed; install neocpu with: pip install 'neocpu[docs]'")

__all__ = ["COLORS", "neocpu", "np", "plt", "show"]

# Blue, orange, green, red, purple, grey: told apart in print and by the colour-blind.
COLORS = ("#3b6fb6", "#e08a1e", "#3a9a5b", "#c23b3b", "#7a5aa6", "#8a8a8a")
plt.rcParams.update(
    {
        "figure.figsize": (7.2, 4.0),
        "figure.dpi": 100,
        "savefig.dpi": 150,
        "figure.constrained_layout.use": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.prop_cycle": plt.cycler(color=COLORS),
        "font.size": 11,
    }
)


def show(name: str) -> None:
    """Show the picture in a window; without one, write NAME.png.

    Where MPLBACKEND chooses a backend without windows (as the site's build and the tests do),
    the picture is left to whoever chose it.
    """
    if plt.get_backend().lower() not in ("agg", "pdf", "svg", "ps"):
        plt.show()
    elif "MPLBACKEND" not in os.environ:
        plt.savefig(f"{name}.png")
        print(f"the picture is in {name}.png")
