"""The command `members`: the model families, their objectives and sizes."""

from rich.markup import escape

from kinfolk.cli.app import MODELS, AsJson, command, print_json
from kinfolk.cli.tables import print_table, table

FIELDS = ("name", "title", "paper", "year", "architecture", "objectives", "sizes", "capabilities")
EARLIER = {"kind": "architecture", "can": "capabilities"}  # keys that programs read


@command("kinfolk members", panel=MODELS)
def members(json: AsJson = False) -> None:
    """List the model families: architecture, objectives, sizes and supported commands."""
    from kinfolk.recipes.catalogue import families

    found = families().values()
    if json:
        rows = [{field: vars(family)[field] for field in FIELDS} for family in found]
        print_json([row | {old: row[new] for old, new in EARLIER.items()} for row in rows])
        return
    shown = table("name", "architecture", "objectives", "paper")
    for column in shown.columns[:3]:
        column.no_wrap = True
    for family in found:
        objectives = ", ".join(family.objectives)
        shown.add_row(f"[bold]{family.name}[/]", family.architecture, objectives, family.paper)
    print_table(shown)
    standard = [size for size in next(iter(found)).sizes if all(size in f.sizes for f in found)]
    print(f"\nsizes of every family: {' '.join(standard)}")
    published = {f.name: [s for s in f.sizes if s not in standard] for f in found}
    sizes = table("family", "published sizes")
    for name, some in published.items():
        if some:
            sizes.add_row(name, escape(" ".join(some)))
    print_table(sizes, "published sizes")
