"""How do records become an HTML page? Templates of a package, over the layout that pages share.

A page holds its style and its pictures, and needs no network and no script.
"""

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined


def html_page(package: str, template: str, **values: object) -> str:
    """A page from a template in `templates/` of a package, the same for the same values.

    values : what the template names; text among them is escaped.
    """
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader("neocpu.core")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(values)
