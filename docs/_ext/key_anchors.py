"""How is a key of a config found by its whole name, `memory.placement`? By an entry in the index.

The search splits what was typed at dots, and looks for words; but it compares the entries of the
index with all that was typed.
"""

from typing import Any

from docutils import nodes
from sphinx.addnodes import index
from sphinx.transforms import SphinxTransform

PAGE = "generated/keys"


class KeyAnchors(SphinxTransform):
    """Gives each key an anchor and an entry in the index, in the first cell of its row."""

    default_priority = 400  # before the index is collected

    def apply(self, **kwargs: Any) -> None:
        """Put them before the name of the key."""
        if self.env.docname != PAGE:
            return
        for row in self.document.findall(nodes.row):
            if (key := next(row[0].findall(nodes.literal), None)) is None:
                continue  # the row of headings
            section = row.parent
            while not isinstance(section, nodes.section):
                section = section.parent
            title = section[0].astext()
            # "tables.NAME (kind hash)" has further keys of "tables.NAME"
            name = f"{title.partition(' (')[0]}.{key.astext()}"
            anchor = nodes.make_id(f"key-{title}-{key.astext()}")
            entry = index(entries=[("single", name, anchor, "main", None)])
            key.parent.insert(0, [entry, nodes.target("", "", ids=[anchor])])


def setup(app: Any) -> dict[str, Any]:
    """Register it."""
    app.add_transform(KeyAnchors)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
