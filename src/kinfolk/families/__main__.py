"""Write families/index.json from the family files: `python -m kinfolk.families`."""

import pkgutil
from importlib import import_module

from kinfolk.families import INDEX_FILE, index_text
from kinfolk.families.base import Family


def package_families() -> list[Family]:
    """Import every family file of the package."""
    files = [module.name for module in pkgutil.iter_modules([str(INDEX_FILE.parent)])]
    modules = [import_module(f"kinfolk.families.{name}") for name in files if name != "__main__"]
    return [vars(module)["FAMILY"] for module in modules if "FAMILY" in vars(module)]


if __name__ == "__main__":
    INDEX_FILE.write_text(index_text(package_families()), encoding="utf-8")
